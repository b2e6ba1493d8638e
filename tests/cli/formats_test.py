"""The pages that give the bytes of files: a session's file is read by the tables of src/kv/file/README.md alone, and
the members of batch records are compared with src/cli/batch/README.md."""
import re
import struct

from harness import *

TINY = os.path.join(ROOT, "tests/golden/tiny")

PAGE = 4096
DOCUMENT = "The code of the red door is 4821. The rain fell on the town all day long, and nobody went out. " * 3
TYPES = {"i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q"}


def tables(page):
    """Returns the rows of each section's first table, without its head: {heading: [cells]}."""
    found, heading = {}, ""
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        lines = f.read().splitlines()
    for i, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|---") and heading not in found:
            rows = []
            for row in lines[i + 1:]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
            found[heading] = rows
    return found


def fields(rows):
    """Returns {name: (offset, size, format of struct, or "" for other fields)} of a table of offsets."""
    out = {}
    for offset, size, meaning in rows:
        name, kind = re.match(r"`(\w+)`(?:, (\w+))?", meaning).groups()
        out[name] = (int(offset), int(size), TYPES.get(kind, ""))
    return out


class File:
    """A session's file, read by the page's tables."""

    def __init__(self, path, page):
        with open(path, "rb") as f:
            self.data = f.read()
        self.tables = {name: fields(rows) for name, rows in page.items() if rows[0][0] == "0" and rows[0][2][0] == "`"}

    def read(self, table, at):
        out = {}
        for name, (offset, size, kind) in self.tables[table].items():
            piece = self.data[at + offset:at + offset + size]
            out[name] = struct.unpack(kind, piece)[0] if struct.calcsize(kind or "<") == size else piece
        return out

    def run(self, piece):
        run = {name: struct.unpack_from(kind, piece, offset)[0]
               for name, (offset, _, kind) in self.tables["Run"].items()}
        return self.data[run["offset"]:run["offset"] + run["bytes"]]

    def size(self, table):
        return max(offset + size for offset, size, _ in self.tables[table].values())


def text(piece):
    return piece.split(b"\0")[0].decode()


def offsets(page):
    """Checks that the fields of each table follow each other, except a page's checksum, which ends it."""
    for name in ["Header", "Shape", "Save", "Run", "Index", "Token extent", "KV extent", "State of lfps"]:
        rows = [(int(offset), int(size), meaning) for offset, size, meaning in page[name]]
        ends = name in ("Header", "Save")
        parts = rows[:-1] if ends else rows
        check(rows[0][0] == 0 and all(a + n == b for (a, n, _), (b, _, _) in zip(parts, parts[1:])),
              f"{name}: its fields follow each other", rows)
        check(not ends or (rows[-1][0] == PAGE - 8 and rows[-1][1] == 8 and rows[-1][2].startswith("`checksum`")),
              f"{name}: the checksum ends the page", rows)


def blocks_of(file, header, extents, kind):
    """Yields (extent, head, number, bytes) of each block, by the page's formulas."""
    d, per = header["head_dim"], header["block_size"]
    row = {"f16": 2 * d, "q8": (d + (d + 31) // 32 + 3) // 4 * 4, "f32": 4 * d}[kind]
    size = (2 * per * row + 63) // 64 * 64
    for e in extents:
        for head in range(header["n_kv_heads"]):
            for b in range(e["first"], e["first"] + e["n"]):
                at = e["offset"] + (head * e["stride"] + b - e["first"]) * size
                yield e, head, b, row, file.data[at:at + size]


def session(folder, page, kind, number):
    document, kept = os.path.join(folder, "d.txt"), os.path.join(folder, kind + ".kv")
    with open(document, "w", encoding="utf-8") as f:
        f.write(DOCUMENT)
    r = riffle("read", "-f", document, "-o", kept, "--kv", kind, "-q", *SMALL)
    check(r.code == 0, f"{kind}: riffle read", r)
    info = json.loads(riffle("info", "--json", "-q").out)
    file = File(kept, page)
    header = file.read("Header", 0)
    expected = {name: info[name] for name in ("n_layers", "n_kv_heads", "head_dim", "vocab_size")}
    check({name: header[name] for name in expected} == expected and header["magic"] == b"RIFFLEKV"
          and header["version"] == 3 and header["page"] == PAGE and header["kv_type"] == number
          and header["weights"] != 0 and header["tokenizer"] != 0 and header["rotation"] != 0,
          f"{kind}: header", header)
    shape = file.read("Shape", file.tables["Header"]["shapes"][0])
    check(header["n_shapes"] == 1 and shape["keeps"] == 0 and not any(header["shape_of"])
          and all(shape[name] == info[name] for name in ("n_kv_heads", "head_dim")), f"{kind}: shape of layers", shape)
    check(text(header["architecture"]) == info["architecture"] and text(header["model"]) == info["name"],
          f"{kind}: names", header)
    saves = [file.read("Save", PAGE * (1 + i)) for i in range(2)]
    save = max(saves, key=lambda s: s["generation"])
    check(save["generation"] == 1 and saves[1] == save and save["end"] == len(file.data), f"{kind}: save", saves)

    at = save["index_offset"]
    index = file.read("Index", at)
    at += file.size("Index")
    check(file.size("Index") == 184, f"{kind}: an index begins with 184 bytes", file.size("Index"))
    tokens, first = [], 0
    for _ in range(index["n_token_extents"]):
        e = file.read("Token extent", at)
        at += file.size("Token extent")
        run = file.run(e["run"])
        check(e["first"] == first and len(run) >= 4 * e["n"], f"{kind}: token extent", e)
        tokens += struct.unpack_from(f"<{e['n']}i", run)
        first += e["n"]
    shown = riffle("tokenize", "-q", "--decode", *map(str, tokens)).out.decode()
    check(len(tokens) == index["n_tokens"] > 0 and DOCUMENT.strip() in shown, f"{kind}: tokens", (tokens, shown))
    extents = []
    for _ in range(index["n_extents"]):
        extents.append(file.read("KV extent", at))
        at += file.size("KV extent")
    at += 8 * len(extents) * header["n_kv_heads"]
    check(at - save["index_offset"] == save["index_bytes"], f"{kind}: the index's bytes", (at, save))
    n_blocks = -(-len(tokens) // header["block_size"])
    check([(e["layer"], e["first"], e["n"], e["stride"], e["offset"] % PAGE) for e in extents]
          == [(layer, 0, n_blocks, n_blocks, 0) for layer in range(info["n_layers"])], f"{kind}: KV extents", extents)
    per = header["block_size"]
    used, good = 0, True
    for _, _, b, row, block in blocks_of(file, header, extents, kind):
        for t in range(per):
            key, value = block[t * row:(t + 1) * row], block[(per + t) * row:(per + t + 1) * row]
            used += any(key) and any(value)
            good = good and (b * per + t < len(tokens)) == (any(key) or any(value))
        good = good and not any(block[2 * per * row:])
    check(good and used == len(tokens) * info["n_layers"] * info["n_kv_heads"],
          f"{kind}: each token has a key and a value, and other rows are zero", used)
    data = json.loads(file.run(index["data"]))
    members = [row[0].strip("`") for row in page["Data of riffle's command line"]]
    check(set(data) <= set(members) and data["kind"] == "document" and data["document"] == DOCUMENT
          and data["riffle"] == 1,
          f"{kind}: data", data)
    return file


def states(folder, page):
    """Checks the states of a model with recurrent layers."""
    model = os.path.join(TINY, "lfm2_odd", "lfm2_odd.gguf")
    document, kept = os.path.join(folder, "s.txt"), os.path.join(folder, "states.kv")
    with open(document, "w", encoding="utf-8") as f:
        f.write("abcdefghij " * 40)
    r = riffle("read", "-m", model, "-f", document, "-o", kept, "-q", "-c", "1024")
    check(r.code == 0, "states: riffle read", r)
    info = json.loads(riffle("info", "--json", "-q", "-m", model).out)
    file = File(kept, page)
    header = file.read("Header", 0)
    first = file.tables["Header"]["shapes"][0]
    shapes = [file.read("Shape", first + i * file.size("Shape")) for i in range(header["n_shapes"])]
    each = info["state_bytes"] // info["n_recurrent_layers"]
    of_layers = [shapes[header["shape_of"][layer]] for layer in range(header["n_layers"])]
    check(header["version"] == 4 and [(s["keeps"], s["state_bytes"]) for s in of_layers]
          == [(0, 0) if layer in (1, 4) else (3, (each + 63) // 64 * 64) for layer in range(5)], "states: shapes", shapes)
    size = sum(s["state_bytes"] for s in of_layers)
    save = max((file.read("Save", PAGE * (1 + i)) for i in range(2)), key=lambda s: s["generation"])
    index = file.read("Index", save["index_offset"])
    n, = struct.unpack_from("<Q", file.data, save["index_offset"] + file.size("Index"))
    end = save["index_offset"] + save["index_bytes"]
    found = [file.read("State", end - (n - i) * file.size("State")) for i in range(n)]
    check([s["n_tokens"] for s in found] == [256, index["n_tokens"] - 16, index["n_tokens"]]
          and [s["kind"] for s in found] == [0, 2, 1],
          "states: lengths", found)
    for s in found:
        state = file.run(s["state"])
        values = struct.unpack(f"<{each // 4}f", state[:each])
        check(len(state) == size and any(values) and max(map(abs, values)) < 1e4, "states: values", values[:5])
    logits = [file.run(s["logits"]) for s in found]
    check(logits == [b"", b"", file.run(index["logits"])] and len(logits[2]) == 4 * header["vocab_size"],
          "states: logits", list(map(len, logits)))


def damage(folder, page):
    """Checks that a changed byte of a page, an index or a run is found, at the places that the tables name."""
    file = session(folder, page, "f16", 0)
    save = file.read("Save", 2 * PAGE)
    index = file.read("Index", save["index_offset"])
    extent = file.read("Token extent", save["index_offset"] + file.size("Index"))
    token_run = struct.unpack_from("<Q", extent["run"])[0]
    for name, at, field in [("the header", 64, "header"), ("the header's checksum", PAGE - 1, "header"),
                            ("the only save", 2 * PAGE + 40, "save"), ("the index", save["index_offset"] + 8, "index"),
                            ("the tokens", token_run, "tokens")]:
        changed = bytearray(file.data)
        changed[at] ^= 1
        path = os.path.join(folder, "changed.kv")
        with open(path, "wb") as f:
            f.write(changed)
        r = riffle("info", path)
        check(one_line_error(r, 1, path, field, "checksum"), f"a changed byte of {name}", r)
    check(index["n_tokens"] > 0, "the index has tokens", index)


def records(folder, page):
    lines = [{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}},
             {"custom_id": "b", "body": {"messages": [], "stream": True}}]
    source, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
    with open(source, "w", encoding="utf-8") as f:
        f.write("\n".join(map(json.dumps, lines)) + "\n")
    r = riffle("batch", "-i", source, "-o", out, "-q", *SMALL)
    with open(out, "rb") as f:
        raw = f.read().splitlines(keepends=True)
    check(len(raw) == 2 and all(x.startswith(b'{"id":"batch_req_') and x.endswith(b"\n") for x in raw), "records",
          (r, raw))
    answer, error = map(json.loads, raw)
    named = {name: [row[0].strip("`") for row in page[name]] for name in ("Record", "Response", "Body")}
    check(list(answer) == list(error) == named["Record"], "members of a record", (answer, error))
    check(list(answer["response"]) == named["Response"], "members of a response", answer)
    check(list(answer["response"]["body"]) == named["Body"], "members of a body", answer)
    check(answer["error"] is None and error["response"] is None and set(error["error"]) == {"code", "message"}
          and [answer["line"], error["line"]] == [1, 2] and [answer["custom_id"], error["custom_id"]] == ["a", "b"],
          "an answer and an error", (answer, error))
    digits = "[0-9a-f]{26,28}"
    body = answer["response"]["body"]
    check(re.fullmatch("batch_req_" + digits, answer["id"])
          and re.fullmatch("req_" + digits, answer["response"]["request_id"])
          and re.fullmatch("chatcmpl-" + digits, body["id"]), "ids", answer)


def formats(folder):
    page = tables("src/kv/file/README.md")
    offsets(page)
    session(folder, page, "q8", 2)
    session(folder, page, "f32", 1)
    states(folder, page)
    damage(folder, page)
    records(folder, tables("src/cli/batch/README.md"))


if __name__ == "__main__":
    main(formats)
