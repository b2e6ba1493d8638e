"""riffle batch: order, errors line by line, the same texts for any --parallel."""
from harness import *


def request(custom_id, body, **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "body": body, **more}).encode()


def prompt(custom_id, text="The rain", **body):
    return request(custom_id, {"prompt": text, "temperature": 0, "max_tokens": 6, **body}, url="/v1/completions")


def chat(custom_id, text, **body):
    return request(custom_id, {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8,
                               **body}, url="/v1/chat/completions")


def records(data):
    return [json.loads(line) for line in data.decode().splitlines()]


def text_of(record):
    choice = record["response"]["body"]["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


# name: (line, error code, words of the message, custom_id in the record)
BAD = {
    "not JSON": (b'{"custom_id": "x", ', "bad_json", ["byte"], None),
    "not JSON at all": (b"hello", "bad_json", [], None),
    "an array": (b"[1,2]", "bad_json", ["is a JSON array, expected one object on each line; to convert an array: "
                                       "jq -c '.[]' FILE >FILE.jsonl"], None),
    "the first line of an array": (b'[{"custom_id": "x"},', "bad_json", ["the end of the text", "expected one object on each line; to convert an array: jq -c '.[]' FILE >FILE.jsonl"], None),
    "the first line of an object": (b"{", "bad_json", ["expected one object on each line; to join the lines of each object: jq -c . FILE >FILE.jsonl"], None),
    "a number": (b"17", "bad_json", [], None),
    "NaN": (b'{"custom_id":"x","body":{"prompt":"a","temperature":NaN}}', "bad_json", [], None),
    "1e999": (b'{"custom_id":"x","body":{"prompt":"a","temperature":1e999}}', "bad_json", ["body.temperature", "found the number 1e999"], "x"),
    "a prompt twice": (b'{"custom_id":"y","body":{"prompt":"a","prompt":"b"}}', "bad_json", ["body.prompt", "twice"], "y"),
    "both limits": (b'{"custom_id":"x","body":{"prompt":"a","max_tokens":5,"max_completion_tokens":6}}', "bad_request",
                    ["body.max_tokens", "body.max_completion_tokens"], "x"),
    "a custom_id twice": (b'{"custom_id":"y","custom_id":"z","body":{"prompt":"a"}}', "bad_json", ["custom_id", "twice"], "z"),
    "a role twice": (b'{"custom_id":"w","body":{"messages":[{"role":"user","content":"a"},{"role":"user","role":"user"}]}}', "bad_json",
                     ["body.messages.role", "twice"], "w"),
    "two objects": (b'{"custom_id":"x"}{}', "bad_json", [], None),
    "a lone surrogate": (b'{"custom_id":"x","body":{"prompt":"\\ud800"}}', "bad_json", ["byte", "surrogate"], None),
    "a text cut short": (b'{"custom_id":"x","body":{"prompt":"a surrogate', "bad_json", ["byte"], None),
    "invalid UTF-8": (b'{"custom_id":"x","body":{"prompt":"a\xff"}}', "bad_utf8", ["byte 37"], None),
    "an overlong form": (b'{"custom_id":"x","body":{"prompt":"a\xc0\x80"}}', "bad_utf8", [], None),
    "deep nesting": (b'{"custom_id":"x","body":' + b"[" * 200000 + b"]" * 200000 + b"}", "too_deep", [], None),
    "deep and unclosed": (b"[" * 500000, "too_deep", [], None),
    "a NUL byte": (b'{"custom_id":"x"\0}', "bad_json", [], None),
    "no custom_id": (b'{"body":{"prompt":"a"}}', "missing_id", ["custom_id"], None),
    "an empty custom_id": (b'{"custom_id":"","body":{"prompt":"a"}}', "missing_id", ["custom_id"], None),
    "a custom_id that is a number": (b'{"custom_id":7,"body":{"prompt":"a"}}', "missing_id", ["custom_id"], None),
    "no body": (b'{"custom_id":"b1"}', "bad_request", ["body"], "b1"),
    "a body that is text": (b'{"custom_id":"b2","body":"a"}', "bad_request", ["body"], "b2"),
    "an empty body": (request("b3", {}), "bad_request", ["prompt"], "b3"),
    "prompt and messages": (prompt("b4", messages=[{"role": "user", "content": "a"}]), "bad_request", ["both"],
                            "b4"),
    "an empty prompt": (prompt("b5", ""), "empty_prompt", ["prompt"], "b5"),
    "a prompt that is null": (prompt("b6b", None), "bad_request", ["body.prompt", "missing"], "b6b"),
    "a prompt that is a number": (prompt("b6c", 5), "bad_request", ["body.prompt", "list of tokens"], "b6c"),
    "no prompts": (prompt("b6d", []), "empty_prompt", ["body.prompt"], "b6d"),
    "an empty prompt among others": (prompt("b6e", ["a", ""]), "empty_prompt", ["body.prompt[1]"], "b6e"),
    "no tokens among others": (prompt("b6f", [[5], []]), "empty_prompt", ["body.prompt[1]"], "b6f"),
    "prompts of two kinds": (prompt("b6g", ["a", [5]]), "bad_request", ["body.prompt[1]", "string"], "b6g"),
    "tokens and text": (prompt("b6h", [5, "a"]), "bad_request", ["body.prompt[1]", "whole number"], "b6h"),
    "a token below 0": (prompt("b6i", [-5]), "bad_request", ["body.prompt[0]", "whole number"], "b6i"),
    "a token that there is not": (prompt("b6j", [[5], [2000000000]]), "bad_request", ["body.prompt[1]", "2000000000"], "b6j"),
    "lists of lists of lists": (prompt("b6k", [[[5]]]), "bad_request", ["body.prompt[0][0]"], "b6k"),
    "prompts that are null": (prompt("b6l", [None]), "bad_request", ["body.prompt[0]"], "b6l"),
    "too many prompts": (prompt("b6m", ["a"] * 5000), "bad_request", ["body.prompt", "5000", "4096"], "b6m"),
    "a long prompt among others": (prompt("b6n", ["a", words(4000), "b"]), "too_long", ["body.prompt[1]", "2048"], "b6n"),
    "empty messages": (request("b7", {"messages": []}), "empty_prompt", ["messages"], "b7"),
    "messages that are text": (request("b8", {"messages": "a"}), "bad_request", ["messages"], "b8"),
    "a message without role": (request("b9", {"messages": [{"content": "a"}]}), "bad_request", ["role"], "b9"),
    "a message without content": (request("b10", {"messages": [{"role": "user"}]}), "bad_request", ["content"], "b10"),
    "an unknown role": (request("b11", {"messages": [{"role": "tool", "content": "a"}]}), "bad_request",
                        ["messages[0].role"], "b11"),
    "a part without text": (request("b12a", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}), "bad_request",
        ["messages[0].content[0].text", "missing"], "b12a"),
    "a part without type": (request("b12b", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]}), "bad_request",
        ["messages[0].content[1].type", "missing"], "b12b"),
    "a part that is an image": (request("b12c", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]}), "bad_request",
        ["messages[0].content[0]"], "b12c"),
    "a part of two kinds": (request("b12d", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "image_url": "a"}]}]}), "bad_request",
        ["content[0]", "image_url", "not supported"], "b12d"),
    "a part that is text alone": (request("b12e", {"messages": [{"role": "user", "content": ["a"]}]}), "bad_request",
        ["messages[0].content[0]", "object"], "b12e"),
    "no parts": (request("b12f", {"messages": [{"role": "user", "content": []}]}), "bad_request",
        ["messages[0].content", "empty"], "b12f"),
    "content that is a number": (request("b12g", {"messages": [{"role": "user", "content": 5}]}), "bad_request",
        ["messages[0].content", "parts"], "b12g"),
    "NUL in a part": (request("b12h", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\0b"}]}]}), "bad_request",
        ["NUL"], "b12h"),
    "an unknown field of a message": (request("b13", {"messages": [{"role": "user", "content": "a", "nom": "n"}]}),
                                      "bad_request", ["messages[0]", "nom", "not supported", "--ignore-unknown"], "b13"),
    "NUL in a message": (chat("b14", "a\0b"), "bad_request", ["NUL"], "b14"),
    "an unsupported field": (prompt("b15", best_of=5), "bad_request", ["best_of is 5", "expected 1"], "b15"),
    "a penalty": (prompt("b15b", frequency_penalty=2.5), "bad_request", ["body.frequency_penalty", "expected a number, -2 to 2"], "b15b"),
    "a penalty that is text": (prompt("b15c", presence_penalty="0"), "bad_request", ["body.presence_penalty"], "b15c"),
    "an unknown top field": (request("b16", {"prompt": "a"}, priority=1), "bad_request", ["priority"], "b16"),
    "temperature as text": (prompt("b17", temperature="hot"), "bad_request", ["body.temperature"], "b17"),
    "temperature below 0": (prompt("b18", temperature=-1), "bad_request", ["body.temperature"], "b18"),
    "temperature true": (prompt("b19", temperature=True), "bad_request", ["body.temperature"], "b19"),
    "max_tokens 0": (prompt("b20", max_tokens=0), "bad_request", ["body.max_tokens"], "b20"),
    "max_tokens 2.5": (prompt("b21", max_tokens=2.5), "bad_request", ["body.max_tokens"], "b21"),
    "max_tokens 2^32": (prompt("b22", max_tokens=1 << 32), "bad_request", ["body.max_tokens"], "b22"),
    "max_tokens 2^70": (prompt("b23", max_tokens=1 << 70), "bad_request", ["body.max_tokens"], "b23"),
    "top_p 1.5": (prompt("b24", top_p=1.5), "bad_request", ["body.top_p"], "b24"),
    "min_p -1": (prompt("b25", min_p=-1), "bad_request", ["body.min_p"], "b25"),
    "top_k -2": (prompt("b26", top_k=-2), "bad_request", ["body.top_k"], "b26"),
    "seed -2": (prompt("b27", seed=-2), "bad_request", ["body.seed"], "b27"),
    "stop as number": (prompt("b28", stop=7), "bad_request", ["body.stop"], "b28"),
    "an empty stop": (prompt("b29", stop=["a", ""]), "bad_request", ["body.stop"], "b29"),
    "n 0": (prompt("b30", n=0), "bad_request", ["body.n"], "b30"),
    "stream": (prompt("b31", stream=True), "bad_request", ["body.stream"], "b31"),
    "another method": (request("b32", {"prompt": "a"}).replace(b"POST", b"GET"), "bad_request", ["method"], "b32"),
    "another url": (request("b33", {"prompt": "a"}, url="/v1/embeddings"), "bad_request", ["url"], "b33"),
    "a url of the other kind": (request("b34", {"prompt": "a"}, url="/v1/chat/completions"), "bad_request", ["url"],
                                "b34"),
    "a prompt longer than the context": (prompt("b35", words(4000)), "too_long", ["2048"], "b35"),
    "max_tokens beyond the context": (prompt("b39", "a", max_tokens=2047), "too_long",
                                      ["the prompt has 2 tokens and max_tokens is 2047, together 2049", "holds 2048",
                                       "max_tokens may be at most 2046"], "b39"),
    "a megabyte of prompt": (prompt("b36", words(300000)), "too_long", [], "b36"),
    "a line beyond all bounds": (b'{"custom_id":"x","body":{"prompt":"' + b"a" * (65 << 20) + b'"}}', "line_too_long",
                                 [], None),
    "many keys": (b'{"custom_id":"b37",' + b",".join(b'"k%d":1' % i for i in range(100000)) + b"}", "bad_request",
                  ["body is missing"], "b37"),
    "a tokenful of empty lists": (b'{"custom_id":"x","body":[' + b"[]," * 1500000 + b"[]]}", "too_many_values", ["values"],
                                  None),
    "a custom_id of a megabyte": (b'{"custom_id":"' + b"a" * (1 << 20) + b'"}', "missing_id", ["custom_id", "longer"], None),
    "a model of a megabyte": (prompt("b38", model="m" * (1 << 20)), "bad_request", ["body.model"], "b38"),
    "a huge number": (b'{"custom_id":"x","body":{"prompt":"a","seed":1' + b"0" * 400 + b"}}", "bad_json", ["body.seed", "number"], "x"),
    "a used custom_id": (prompt("good-0"), "dup_id", ["custom_id"], "good-0"),
    "a custom_id whose line was bad": (prompt("b20x", max_tokens=0), "bad_request", [], "b20x"),
}

GOOD = [
    prompt("good-0"),
    prompt("good-1", "Once upon a time", max_tokens=20),
    chat("good-2", "The code is 4821.\nWhat is the code?"),
    prompt("good-3", "It was the best of times", temperature=0.9, seed=5, top_k=20, top_p=0.9, min_p=0.02,
           max_tokens=16),
    prompt("good-4", words(300), max_tokens=12),
    request("good-5", {"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."},
                                    {"role": "user", "content": "Who are you?"}], "max_tokens": 10, "temperature": 0,
                       "model": "any", "n": 1, "stream": False, "stop": None,
                       "frequency_penalty": 0, "presence_penalty": 0.0}),
    prompt("good-6", "The rain", temperature=1, seed=18446744073709551615, max_tokens=9),
    prompt("g\u00f6od-7 \u2603", "Snow \u2603 fell", max_completion_tokens=5, max_tokens=None),
    chat("good-8", [{"type": "text", "text": "The code is 4821."}, {"type": "text", "text": "What is the code?"}]),
]
ARGS = ["batch", "-q", *SMALL, "-n", "10"]


def full_session(tokens):
    return json.loads(riffle("info", "--plan", "--device", "cpu", "-c", str(tokens), "--json", "-q").out)["plan"]["host_kv"]


def good_lines(folder):
    path, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
    with open(path, "wb") as f:
        f.write(b"\n".join(GOOD) + b"\n")
    r = riffle(*ARGS, "-i", path, "-o", out)
    check(r.code == 0 and r.out == b"" and r.err == b"", "a good file", r)
    with open(out, "rb") as f:
        one = records(f.read())
    ids = [json.loads(line)["custom_id"] for line in GOOD]
    check([x["custom_id"] for x in one] == ids, "answers come in the order of the lines", one)
    check(all(x["error"] is None and x["response"]["status_code"] == 200 for x in one), "without errors", one)
    body = one[1]["response"]["body"]
    check(body["usage"]["completion_tokens"] == 20 and body["choices"][0]["finish_reason"] == "length"
          and body["usage"]["prompt_tokens"] > 3, "usage is counted", body)
    check(0 < one[4]["response"]["body"]["riffle"]["kv_read_pct"] <= 100, "riffle statistics", one[4])
    name = json.loads(riffle("info", "--json", "-q").out)["name"]
    check(name and {x["response"]["body"]["model"] for x in one} == {name},
          "a record names the model that answered, whatever model its line asked for", one[5])
    check("message" in one[2]["response"]["body"]["choices"][0], "messages are answered by a message", one[2])
    alone = riffle("run", "--raw", "-p", "Once upon a time", "-n", "20", *GREEDY, *SMALL, "-q")
    check(text_of(one[1]) + "\n" == alone.out.decode(), "the text is that of riffle run", (text_of(one[1]), alone.out))
    alone = riffle("run", "--chat", "-p", "The code is 4821.\nWhat is the code?", "-n", "8", *GREEDY, *SMALL, "-q")
    check(text_of(one[2]) + "\n" == alone.out.decode(), "and that of riffle run --chat", (text_of(one[2]), alone.out))
    check(text_of(one[8]) == text_of(one[2]), "parts of a message are its lines", one[8])
    texts = [text_of(x) for x in one]
    for n in (2, 3, 4, 8):
        many = riffle(*ARGS, "--parallel", str(n), stdin=b"\n".join(GOOD))
        check(many.code == 0 and [text_of(x) for x in records(many.out)] == texts, f"--parallel {n}: the same texts",
              many)
    for args in (["--unordered"], ["--max-inject-tokens", "64"],
                 ["--max-iteration-tokens", "3"]):
        many = riffle(*ARGS, "--max-seqs", "4", *args, stdin=b"\n".join(GOOD))
        by_line = sorted(records(many.out), key=lambda x: x["line"])
        check(many.code == 0 and [text_of(x) for x in by_line] == texts, f"{' '.join(args)}: the same texts", many)
    for args in (["--max-inject-tokens", "x"], ["--max-seqs", "0"],
                 ["--max-iteration-tokens", "-1"], ["--max-iteration-tokens", "3G"], ["--host-mem", "much"]):
        r = riffle(*ARGS, *args, stdin=GOOD[0])
        check(one_line_error(r, 2, args[0]) or r.code == 2 and args[0].encode() in r.err, f"{' '.join(args)} is refused", r)
    for args in (["--device", "emu", "--gpu-mem", "150M"],):
        few = riffle(*ARGS, *args, stdin=b"\n".join(GOOD))
        many = riffle(*ARGS, *args, "--parallel", "4", stdin=b"\n".join(GOOD))
        check(few.code == 0 and [text_of(x) for x in records(many.out)] == [text_of(x) for x in records(few.out)]
              and [text_of(x) for x in records(few.out)] == texts, f"{' '.join(args)}: the same texts", many)


def bad_lines(folder):
    lines, expected = [], []
    good = iter(GOOD)
    lines.append(next(good))
    expected.append(("good", "good-0"))
    for i, (name, (line, code, message, custom_id)) in enumerate(BAD.items()):
        lines += [line, b"" if i % 3 else b"   "]
        expected.append((name, code, message, custom_id, len(lines) - 1))
        if i % 7 == 0 and (g := next(good, None)) is not None:
            lines.append(g + b"\r")
            expected.append(("good", json.loads(g)["custom_id"]))
    data = b"\xef\xbb\xbf" + b"\n".join(lines)
    reference = {x["custom_id"]: text_of(x) for x in records(riffle(*ARGS, stdin=b"\n".join(GOOD)).out)}
    for parallel in ("1", "4"):
        r = riffle(*ARGS, "--parallel", parallel, stdin=data)
        got = records(r.out)
        check(r.code == 6 and len(got) == len(expected), f"bad lines, --parallel {parallel}: a record for each line",
              f"exit code {r.code}, {len(got)} of {len(expected)} records, stderr {r.err!r}")
        for want, have in zip(expected, got):
            if want[0] == "good":
                check(have["error"] is None and have["custom_id"] == want[1]
                      and text_of(have) == reference[want[1]], f"{want[1]} is unharmed ({parallel})", have)
                continue
            name, code, message, custom_id, number = want
            e = have["error"] or {}
            check(have["response"] is None and e.get("code") == code and have["custom_id"] == custom_id
                  and all(w in e["message"] for w in message) and f"line {number}:" in e["message"]
                  and ("surrogate" in e["message"]) == ("surrogate" in message),
                  f"bad line: {name} ({parallel})", (have, f"expected line {number} {code} {message}"))


def memory(_):
    """Answers depend neither on the memory for KV nor on a plan for more lines at once."""
    lines = [prompt(f"long-{i}", f"{i}: {words(600)}", max_tokens=30) for i in range(5)] + [prompt("short", max_tokens=40)]
    reference = [text_of(x) for x in records(riffle(*ARGS, stdin=b"\n".join(lines)).out)]
    for args in (["--max-seqs", "5"], ["--max-seqs", "5", "--host-mem", str(full_session(2048))], ["--max-seqs", "256"]):
        r = riffle(*ARGS, *args, stdin=b"\n".join(lines))
        check(r.code == 0 and [text_of(x) for x in records(r.out)] == reference, f"{' '.join(args)}: the same texts", r)
    whole = 29000 if THOROUGH else 6000
    r = riffle("batch", "-q", "--threads", THREADS, "--max-seqs", "256", stdin=prompt("whole", words(whole), max_tokens=2))
    check(r.code == 0, "the length of a line that is answered does not depend on --max-seqs", r)
    documents = [words(300), words(280)[::-1]]
    lines = [prompt(f"{i}", documents[i % 2] + f" Question {i}?", max_tokens=4) for i in range(8)]
    r = riffle(*ARGS, stdin=b"\n".join(lines))
    reused = [x["response"]["body"]["riffle"]["reused_tokens"] for x in records(r.out)]
    check(r.code == 0 and reused[:2] == [0, 0] and min(reused[2:]) > 100, "documents by turns are read once", (reused, r))


def ids(_):
    """An id counts as used whatever became of its line."""
    lines = [prompt("a", max_tokens=-1), prompt("a"), prompt("b"), b'{"custom_id": "b", "body": 1}', prompt("c"), prompt("c")]
    r = riffle(*ARGS, stdin=b"\n".join(lines))
    codes = [(x["error"] or {}).get("code") for x in records(r.out)]
    check(r.code == 6 and codes == ["bad_request", "dup_id", None, "bad_request", None, "dup_id"] and b"by line 1" in r.out
          and b"by line 5" in r.out, "ids used twice", (codes, r))


UNSUPPORTED = {"tools": [{}], "tool_choice": "required", "functions": [{}], "min_tokens": 3,
               "echo": True, "suffix": "a", "modalities": [],
               "audio": {}, "length_penalty": 1.1}


def unsupported(_):
    """Checks that a field that would change an answer is refused by name, and that null counts as absent."""
    lines = [prompt(f, **{f: v}) for f, v in UNSUPPORTED.items()] + [prompt(f + "-null", **{f: None}) for f in UNSUPPORTED]
    r = riffle(*ARGS, "--parallel", "8", stdin=b"\n".join(lines))
    got = records(r.out)
    check(r.code == 6 and len(got) == len(lines), "a record for each", r)
    for i, (f, record) in enumerate(zip(UNSUPPORTED, got)):
        e = record["error"] or {}
        check(e.get("code") == "bad_request" and f in e["message"] and "not supported" in e["message"]
              and f"line {i + 1}:" in e["message"] and record["line"] == i + 1, f"body.{f} is refused", record)
    check(all(x["error"] is None for x in got[len(UNSUPPORTED):]), "null fields are left out", got[-1])


def files(folder):
    path = os.path.join(folder, "in.jsonl")
    with open(path, "wb") as f:
        f.write(GOOD[0])
    r = riffle("batch", "-i", os.path.join(folder, "none.jsonl"))
    check(one_line_error(r, 1, "none.jsonl"), "a missing input is named", r)
    r = riffle("batch", "-i", path, "-o", os.path.join(folder, "no", "out.jsonl"), "-q")
    check(one_line_error(r, 1, "out.jsonl"), "an output that cannot be made is named", r)
    r = riffle("batch", "-i", path, "-o", path, "-q")
    check(one_line_error(r, 2, "input") and open(path, "rb").read() == GOOD[0], "the input is not overwritten", r)
    r = riffle(*ARGS, stdin=b"")
    check(r.code == 0 and r.out == b"", "an empty file is no error", r)
    r = riffle(*ARGS, stdin=b"\n \n\r\n")
    check(r.code == 0 and r.out == b"", "nor are blank lines", r)


def streaming(_):
    """Each record is written when it is finished: the first comes while the input is still open."""
    p = start(*ARGS, stdin=subprocess.PIPE)
    p.stdin.write(GOOD[0] + b"\n")
    p.stdin.flush()
    first = p.stdout.readline()
    check(json.loads(first)["custom_id"] == "good-0", "a record comes as soon as it is finished", first)
    p.stdin.write(b"nonsense\n")
    p.stdin.flush()
    second = p.stdout.readline()
    check(json.loads(second)["error"]["code"] == "bad_json", "so does an error", second)
    p.stdin.close()
    check(p.wait(60) == 6, "and the exit code tells", p.returncode)
    p.stdout.close()
    p.stderr.close()


def token_counts(_):
    """An end token counts: in run, in chat, in a batch's records and summary, and towards -n."""
    text = "The code is 4821.\nWhat is the code?"
    run = ["run", "--chat", "-p", text, *GREEDY, *SMALL]
    j = json.loads(riffle(*run, "-n", "100", "--json").out)
    n = j["completion_tokens"]
    check(j["finish_reason"] == "stop" and n == len(j["tokens"]) + 1 and n == j["stats"]["decode_steps"] + 1, "run --json", j)
    r = riffle(*run, "-n", "100")
    check(f"[answer of {n} tokens;" in r.err.decode(), "run", r)
    at, below = (json.loads(riffle(*run, "-n", str(k), "--json").out) for k in (n, n - 1))
    check((at["finish_reason"], at["completion_tokens"]) == ("stop", n), "-n of all tokens is enough", at)
    check((below["finish_reason"], below["completion_tokens"]) == ("length", n - 1), "one less cuts the answer", below)
    for k, cut in ((n, False), (n - 1, True)):
        r = riffle("chat", *GREEDY, *SMALL, "-n", str(k), stdin=text.replace("\n", "\\\n").encode() + b"\n")
        check(r.code == 0 and (f"[cut after {k} tokens" in r.err.decode()) == cut, f"chat -n {k}", r)
    r = riffle("batch", *SMALL, stdin=b"\n".join([chat("a", text, max_tokens=100), chat("b", text, max_tokens=n), chat("c", text, max_tokens=n - 1)]))
    got = [(x["response"]["body"]["usage"]["completion_tokens"], x["response"]["body"]["riffle"]["finish"]) for x in records(r.out)]
    check(got == [(n, "stop"), (n, "stop"), (n - 1, "length")], "a batch's records", got)
    check(f", {3 * n - 1} answer tokens in" in r.err.decode(), "a batch's summary", r)


def on_a_terminal(_):
    """Without -i, a batch waits for lines: on a terminal it prints a notice."""
    import pty

    def said(*args):
        ours, its = pty.openpty()
        p = start("batch", *SMALL, *args, stdin=its)
        os.close(its)
        os.write(ours, prompt("typed") + b"\n\x04")
        out, err = p.communicate(timeout=120)
        os.close(ours)
        return p.returncode, out, err

    code, out, err = said()
    check(code == 0 and records(out)[0]["custom_id"] == "typed", "lines can be typed, and Ctrl-D ends them", (code, out, err))
    check(err.splitlines()[0].startswith(b"[waiting for lines on standard input") and b"Ctrl-D" in err, "it says what it waits for", err)
    check(b"waiting" not in said("-q")[2], "-q keeps that quiet")
    check(b"waiting" not in riffle("batch", *SMALL, stdin=GOOD[0]).err, "a pipe needs no words")


main(good_lines, bad_lines, memory, ids, unsupported, files, streaming, token_counts, on_a_terminal)
