"""riffle batch interrupted in every way: finished records stay, missing ones follow, none is lost or doubled."""
import fcntl
import pty
import random
import re
import resource
import sys
import time

from harness import *

sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))
from kill_batch import gist

ARGS = ["batch", *SMALL]


def line(i, **body):
    """Lines of several kinds: short and long answers, a shared beginning, chat; every 7th has a fault."""
    body = {"prompt": f"Number {i}: the rain", "temperature": 0, "max_tokens": 4 + i * 7 % 23, **body}
    if i % 5 == 3:
        body["prompt"] = words(150) + str(i)
    if i % 6 == 4:
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": f"The code is {i}{i}.\nWhat is the code?"}]
    if i % 7 == 6:
        body["max_tokens"] = -1
    return json.dumps({"custom_id": f"id-{i}", "body": body}).encode()


def lines(n, faults=True):
    return [line(i) if faults or i % 7 != 6 else line(i, temperature=0.5) for i in range(n)]


def good(n):
    return [line(7 * (i // 6) + i % 6) for i in range(n)]


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def setup(folder, data):
    path, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
    put(path, data)
    return path, out, ["-i", path, "-o", out]


def goes_on(folder):
    """A run goes on from every kind of unfinished output."""
    path, out, files = setup(folder, b"\n".join(lines(12)) + b"\n")
    r = riffle(*ARGS, *files)
    whole = get(out)
    want = gist(whole)
    check(r.code == 6 and [w[0] for w in want] == list(range(1, 13)), "12 lines, one with a fault", r)
    check(b"11 answers, 1 errors" in r.err and b"answer tokens" in r.err and b"tokens/s" in r.err, "a summary", r)
    rows = whole.splitlines(keepends=True)
    for name, kept, rest in [("nothing", 0, b""), ("a few records", 5, b""), ("all but one", 11, b""),
                             ("a piece of a record", 3, rows[3][:100]), ("its first byte", 3, rows[3][:1]),
                             ("a record without its line break", 7, rows[7][:-1]),
                             ("a piece and zeros", 4, rows[4][:60] + bytes(500)), ("zeros", 4, bytes(4096)),
                             ("half a character", 2, '{"id":"batch_req_3","custom_id":"ü'.encode()[:-1]),
                             ("a piece that an earlier version wrote", 2, b'{"id":"line-3","cust')]:
        before = b"".join(rows[:kept])
        put(out, before + rest)
        r = riffle(*ARGS, *files, "--max-seqs", "3")
        check(not kept or f", {kept} lines already had a record;".encode() in r.err, f"{name}: the summary counts those that were there", r)
        check(r.code == 6 and get(out).startswith(before) and gist(get(out)) == want, f"from {name}: the same output",
              (r, gist(get(out))))
        if kept:
            check(f"{kept} of 12 lines have a record".encode() in r.err, f"from {name}: it says so", r)
        check((b"cut short" in r.err) == bool(rest), f"from {name}: a torn end is told", r)
    other = json.loads(rows[0])
    other["response"]["body"]["model"] = "another"
    put(out, json.dumps(other).encode() + b"\n" + rows[1])
    r = riffle(*ARGS, *files)
    check(r.code == 6 and f"[{out} has answers by another; the rest will be by ".encode() in r.err,
          "another model is told", r)
    other = json.loads(rows[0])
    mark = other["response"]["body"]["system_fingerprint"]
    check(re.fullmatch("fp_[0-9a-f]{16}", mark), "a record has the fingerprint of the model", mark)
    other["response"]["body"]["system_fingerprint"] = "fp_0123456789abcdef"
    put(out, json.dumps(other).encode() + b"\n" + rows[1])
    r = riffle(*ARGS, *files)
    check(r.code == 6 and b"riffle (fp_0123456789abcdef); the rest will have " + mark.encode() in r.err,
          "other weights of one name are told", r)
    del other["response"]["body"]["system_fingerprint"]
    put(out, json.dumps(other).encode() + b"\n" + rows[1])
    r = riffle(*ARGS, *files)
    check(r.code == 6 and b"the rest will" not in r.err, "a record of an earlier version has no fingerprint", r)
    put(out, whole)
    r = riffle(*ARGS, *files, "-m", "/nowhere")
    check(r.code == 6 and get(out) and b"nothing is left" in r.err, "with nothing left no model is loaded, but a failed "
          "line is still told", r)
    r = riffle(*ARGS, *files, "--restart", "-q")
    check(r.code == 6 and r.err == b"" and gist(get(out)) == want, "--restart: all again", r)
    r = riffle(*ARGS, *files, "--restart", "-m", "/nowhere")
    check(r.code == 3 and gist(get(out)) == want, "--restart with a bad model loses nothing", r)
    put(out, whole)
    r = riffle(*ARGS, "-o", out, stdin=get(path) + line(20) + b"\n")
    check(r.code == 6 and gist(get(out))[:12] == want and len(gist(get(out))) == 13 and get(out).startswith(whole),
          "a file that has grown, from stdin: what is new follows", r)


def any_order(folder):
    path, out, files = setup(folder, b"\n".join(lines(14)) + b"\n")
    riffle(*ARGS, *files, "-q")
    want = gist(get(out))
    r = riffle(*ARGS, *files, "-q", "--restart", "--unordered", "--max-seqs", "4")
    rows = get(out).splitlines(keepends=True)
    check(r.code == 6 and sorted(gist(get(out)), key=lambda g: g[0]) == want, "--unordered: the same records", r)
    some = [rows[i] for i in (9, 2, 5, 0)]
    put(out, b"".join(some))
    r = riffle(*ARGS, *files, "--max-seqs", "2")
    got = gist(get(out))
    check(r.code in (0, 6) and sorted(got, key=lambda g: g[0]) == want and get(out).startswith(b"".join(some)),
          "an output in another order is filled up", r)
    check([g[0] for g in got[4:]] == sorted(g[0] for g in got[4:]), "in input order", got)
    check(b"not in input order" in r.err, "and it says so", r)
    put(out, rows[3])
    with open(path, "rb") as f:
        p = start(*ARGS, "-o", out, stdin=f)
        p.communicate(timeout=200)
    check(sorted(gist(get(out)), key=lambda g: g[0]) == want, "also from a redirected file", p.returncode)


def refused(folder):
    """Outputs of other runs are named in the error, and left as they are."""
    path, out, files = setup(folder, b"\n".join(good(4)) + b"\n")
    riffle(*ARGS, *files, "-q")
    whole = get(out)
    rows = whole.splitlines(keepends=True)

    def same(name, data, code, *say, args=()):
        put(out, data)
        r = riffle(*ARGS, *files, *args)
        check(r.code == code and get(out) == data and all(s in r.err.decode() for s in say)
              and r.err.startswith(b"riffle: "), name, r)

    deep = b"[" * 100000
    for name, bad in [("a torn line", rows[1][:50] + b"\n"), ("an empty line", b"\n"), ("no JSON", b"hello\n"),
                      ("an array", b"[]\n"), ("deep nesting", deep + b"\n"), ("invalid UTF-8", b'{"line":1,"\xff":2}\n'),
                      ("a record without a line", rows[1].replace(b'"line":2', b'"lime":2')),
                      ("line 0", rows[1].replace(b'"line":2', b'"line":0')),
                      ("line -2", rows[1].replace(b'"line":2', b'"line":-2')),
                      ("line 1e99", rows[1].replace(b'"line":2', b'"line":1e99')),
                      ("a number as custom_id", rows[1].replace(b'"custom_id":"', b'"custom_id":7,"x":"')),
                      ("a record twice", rows[0])]:
        same(f"damage in the middle: {name}", rows[0] + bad + b"".join(rows[2:]), 1, out, "line 2", "--restart")
    same("text without a line break is not cut off", b"my only copy", 1, out, "line 1")
    same("nor behind records", rows[0] + b"notes", 1, out, "line 2")
    same("a record of another line", rows[0] + rows[1].replace(b'"line":2', b'"line":9'), 2, out, "line 9")
    same("another custom_id", rows[0].replace(b"id-0", b"id-x"), 2, out, "id-x", "id-0")
    same("a shard that this is not", whole, 2, out, "line 1", "2/2", args=["--shard", "2/2"])
    put(out, b"my only copy")
    r = riffle(*ARGS, *files, "--restart", "-q")
    check(r.code == 0 and gist(get(out)) == gist(whole), "--restart writes over all of them", r)
    with open(out, "rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        r = riffle(*ARGS, *files, "-q")
        check(one_line_error(r, 1, out, "another"), "a file that another writes to", r)
        r = riffle(*ARGS, *files, "--restart", "-q")
        check(one_line_error(r, 1, out, "another") and gist(get(out)) == gist(whole), "also with --restart", r)
    new = os.path.join(folder, "new.jsonl")
    r = riffle(*ARGS, "-i", path, "-o", new, "-m", "/nowhere")
    check(r.code == 3 and not os.path.exists(new), "a run that cannot begin leaves no file", r)
    r = riffle(*ARGS, "-i", folder, "-o", new)
    check(one_line_error(r, 1, folder, "directory") and not os.path.exists(new), "nor one whose input is a folder", r)


def shards(folder):
    data = lines(13)
    data.insert(3, b"")
    data.append(line(1))  # an id of another shard, used again
    path, out, files = setup(folder, b"\n".join(data))
    riffle(*ARGS, *files, "-q")
    want = gist(get(out))
    check(want[-1][2] and want[-1][2]["code"] == "dup_id", "an id used twice", want[-1])
    for n in (3, 20):
        parts = []
        for i in range(1, n + 1):
            part = os.path.join(folder, f"part-{n}-{i}.jsonl")
            r = riffle(*ARGS, "-i", path, "-o", part, "--shard", f"{i}/{n}", "-q")
            check(r.code in (0, 6) and r.err == b"", f"shard {i}/{n}", r)
            parts.append(get(part))
        check(gist(b"".join(parts)) == want, f"{n} shards, one behind the other: the output of a single run",
              gist(b"".join(parts)))
        if n == 3:
            check(all(4 <= p.count(b"\n") <= 5 for p in parts), "of even size", [p.count(b"\n") for p in parts])
    part = os.path.join(folder, "part-3-2.jsonl")
    rows = get(part).splitlines(keepends=True)
    put(part, rows[0] + rows[1][:30])
    riffle(*ARGS, "-i", path, "-o", part, "--shard", "2/3", "-q")
    check(gist(get(part)) == want[4:9], "a shard goes on too", gist(get(part)))
    for bad in ("0/3", "4/3", "3", "1/", "/3", "a/b", "1/3x", "-1/3", "1/99999999999999999999"):
        r = riffle(*ARGS, "-i", path, "--shard", bad)
        check(one_line_error(r, 2, "--shard"), f"--shard {bad}", r)
    r = riffle(*ARGS, "--shard", "1/2", stdin=b"\n".join(data))
    check(one_line_error(r, 2, "--shard", "regular"), "--shard of a pipe", r)


def full_disk(folder):
    path, out, files = setup(folder, b"\n".join(good(6)) + b"\n")
    riffle(*ARGS, *files, "-q")
    want, rows = gist(get(out)), get(out).splitlines(keepends=True)
    os.unlink(out)

    def limit():  # as a full disk, after two records and a half
        size = len(rows[0]) + len(rows[1]) + len(rows[2]) // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    p = start(*ARGS, *files, "-q", preexec_fn=limit)
    _, err = p.communicate(timeout=200)
    check(p.returncode == 1 and b"out.jsonl: cannot write" in err, "a full disk", (p.returncode, err))
    check(gist(get(out)) == want[:2], "leaves whole records", get(out)[-200:])
    r = riffle(*ARGS, *files, "-q")
    check(r.code == 0 and gist(get(out)) == want, "and can be gone on from", r)
    r = riffle(*ARGS, "-i", path, "-o", "/dev/full", "-q")
    check(one_line_error(r, 1, "/dev/full: cannot write"), "a full device", r)
    read, write = os.pipe()
    os.close(read)
    p = subprocess.run([BIN, *ARGS, "-i", path, "-q"], stdout=write, stderr=subprocess.PIPE, env=environment(),
                       timeout=200)
    os.close(write)
    check(p.returncode == 1 and p.stderr.startswith(b"riffle: stdout: cannot write"), "a reader that has gone", p)


def ctrl_c(folder):
    _, out, files = setup(folder, b"\n".join(good(6) + [line(60, max_tokens=500)] + [line(61)]) + b"\n")
    p = start(*ARGS, *files, "--max-seqs", "2", "--selector", "dense")
    limit = time.time() + 100
    while time.time() < limit and (not os.path.exists(out) or get(out).count(b"\n") < 3):
        time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    held = get(out)
    check(p.returncode == 130 and b"continues from here" in err and held.endswith(b"\n"), "Ctrl-C", (p.returncode, err))
    r = riffle(*ARGS, *files, "--selector", "dense")
    got = gist(get(out))
    check(r.code == 0 and get(out).startswith(held) and [g[0] for g in got] == list(range(1, 9)),
          "and the same command goes on", (r, [g[0] for g in got]))


def killed(folder):
    """kill -9 at random moments."""
    random.seed(os.urandom(8))
    state = random.getrandbits(32)
    random.seed(state)
    _, out, files = setup(folder, b"\n".join(lines(30)) + b"\n")
    begin = time.time()
    r = riffle(*ARGS, *files, "-q", "--max-seqs", "3")
    spent = time.time() - begin
    want = gist(get(out))
    check(r.code == 6 and len(want) == 30, "30 lines", r)
    os.unlink(out)
    counts = []
    while len(counts) < 6:
        p = start(*ARGS, *files, "-q", "--max-seqs", str(random.choice((1, 3, 4))))
        time.sleep(random.uniform(0.1, 0.3 + spent / 6))
        p.kill()
        p.communicate(timeout=60)
        data = get(out) if os.path.exists(out) else b""
        kept = data[: data.rfind(b"\n") + 1]
        if gist(kept) != want[: kept.count(b"\n")]:
            check(False, f"killed (seed {state}): what is there is the beginning", gist(kept))
            return
        counts.append(kept.count(b"\n"))
    r = riffle(*ARGS, *files, "-q", "--max-seqs", "3")
    check(r.code == 6 and gist(get(out)) == want, f"killed 6 times, with {counts} lines there (seed {state}): nothing lost "
          "or doubled", (r, gist(get(out))))


def stop_ahead(args, folder, n, how):
    """Ends a run once n answers wait in a hidden file. Returns its stderr, and the hidden files."""
    def hidden():
        return [os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".ahead")]
    p = start(*args)
    for _ in range(600):
        if any(get(f).count(b"\n") >= n for f in hidden()) or p.poll() is not None:
            break
        time.sleep(0.05)
    p.send_signal(how)
    return p.communicate(timeout=60)[1], hidden()


def ahead(folder):
    """Checks that answers after an unfinished line survive kill -9, Ctrl-C and damage."""
    slow = line(0, prompt="The rain", max_tokens=500)
    data = b"\n".join([slow, *lines(13)[1:]]) + b"\n"
    _, out, files = setup(folder, data)
    kept = os.path.join(folder, ".out.jsonl.ahead")
    args = [*ARGS, *files, "--max-seqs", "4"]
    r = riffle(*args)
    whole, want = get(out), gist(get(out))
    check(r.code == 6 and len(want) == 13 and not os.path.exists(kept), "13 lines, the first of them slow", r)

    def killed(how):
        if os.path.exists(out):
            os.unlink(out)
        return stop_ahead(args, folder, 6, how)[0], get(kept)
    err, saved = killed(signal.SIGKILL)
    lines_of = [json.loads(x)["line"] for x in saved.splitlines()]
    check(get(out) == b"" and len(lines_of) >= 6 and 1 not in lines_of, "kill -9: they are in another file", (lines_of, err))
    # A changed record shows that the records are used, not answered again.
    changed = json.loads(saved.splitlines()[0])
    changed["id"] += "-changed"
    put(kept, json.dumps(changed).encode() + b"\nnonsense\n" + b"\n".join(saved.splitlines()[1:]) + b"\n" + saved[:40])
    check(b'"error":{' not in saved, "what failed is not among them", saved)
    r = riffle(*args)
    ids = [json.loads(x)["id"] for x in get(out).splitlines()]
    if not changed["id"].startswith("batch_req_"):
        check(False, "ids begin with batch_req_", changed["id"])
    check(r.code == 6 and gist(get(out)) == want and sum(i.endswith("-changed") for i in ids) == 1 and not os.path.exists(kept)
          and b"wait for their turn" in r.err and b"1 damaged lines" in r.err, "and take their turn in the next run", (r, ids))
    err, saved = killed(signal.SIGINT)
    check(b"answers in " in err and b"[kept " in err and saved.count(b"\n") >= 6, "Ctrl-C: said where they are", err)
    r = riffle(*args, "--unordered")
    check(r.code == 6 and sorted(gist(get(out))) == sorted(want, key=lambda g: g[0]) and not os.path.exists(kept),
          "--unordered takes them too", r)
    put(kept, b"my notes\n")
    put(out, b"")
    for more in ([], ["--restart"]):
        r = riffle(*args, "-q", *more)
        check(one_line_error(r, 1, kept, "move it away") and get(kept) == b"my notes\n", "a file of another kind is left alone", r)
    os.unlink(out)
    r = riffle(*args, "-q")
    check(one_line_error(r, 1, kept, "move it away") and not os.path.exists(out), "and no output is begun", r)
    put(out, b"")
    put(kept, saved.replace(b'"custom_id":"id-', b'"custom_id":"no-'))
    r = riffle(*args, "-q")
    check(one_line_error(r, 2, kept, "other input"), "records of other input", r)
    os.unlink(out)
    put(kept, json.dumps(changed).encode() + b"\n")
    r = riffle(*args, "-q")
    check(r.code == 6 and gist(get(out)) == want and b"-changed" not in get(out) and not os.path.exists(kept),
          "without an output they are of another run", r)
    put(out, b"")
    link = os.path.join(folder, "link.jsonl")
    os.symlink(out, link)
    put(kept, json.dumps(changed).encode() + b"\n")
    r = riffle(*ARGS, *files[:2], "-o", link, "-q")
    check(r.code == 6 and b"-changed" in get(out) and not os.path.exists(kept), "they lie beside the file, not its link", r)
    r = riffle(*args, "-q", "--restart")
    check(r.code == 6 and gist(get(out)) == want and not os.path.exists(kept), "--restart forgets them", r)
    os.unlink(out)
    r = riffle(*ARGS, *files[:2], "-o", link, "-q")
    check(r.code == 6 and os.path.islink(link) and gist(get(out)) == want, "a link to nothing makes its target", r)
    loop = os.path.join(folder, "loop.jsonl")
    os.symlink(loop, loop)
    r = riffle(*ARGS, *files[:2], "-o", loop, "-q")
    check(one_line_error(r, 1, loop, "cannot create", "symbolic links"), "a link to itself is refused", r)
    put(out, whole)
    put(kept, saved)
    r = riffle(*args)
    check(r.code == 6 and get(out) == whole and not os.path.exists(kept), "what the output holds counts", r)


def retry(folder):
    """--retry-errors: failed lines are answered again in their places, whatever interrupts it."""
    data = lines(20)
    path, out, files = setup(folder, b"\n".join(data) + b"\n")
    kept, bad = os.path.join(folder, ".out.jsonl.ahead"), os.path.join(folder, "bad.jsonl")
    again = [*ARGS, *files, "--retry-errors"]
    riffle(*ARGS, *files, "-q")
    before = get(out)
    answered = {r for r in before.splitlines() if not json.loads(r)["error"]}
    check(len(answered) == 18, "20 lines, two with a fault", before)
    r = riffle(*again)
    check(r.code == 6 and gist(get(out)) == gist(before) and answered < set(get(out).splitlines())
          and b"2 failed lines are answered again, 18 answers are kept" in r.err, "what fails again has its record in its place", r)
    # One failed line is mended and gets another id, one is taken out.
    fixed = [*data]
    fixed[6] = line(7).replace(b"id-7", b"corrected")
    fixed[13] = b""
    put(path, b"\n".join(fixed) + b"\n")
    r = riffle(*ARGS, *files[:2], "-q", "-o", os.path.join(folder, "want.jsonl"))
    want = gist(get(os.path.join(folder, "want.jsonl")))
    check(r.code == 0 and len(want) == 19, "the mended lines alone", r)

    def whole(name, r, code=0):
        got = get(out)
        check(r.code == code and gist(got) == want and answered < set(got.splitlines()) and not os.path.exists(kept), name, (r, gist(got)))
    r = riffle(*again, "--max-seqs", "3")
    whole("mended lines: the output of a run over them, with the answers that were there", r)
    r = riffle(*again)
    whole("with nothing to retry it is the same command", r)
    check(b"nothing is left" in r.err, "and says so", r)
    for name, text in (("--unordered", sorted(before.splitlines(keepends=True))), ("torn", before.splitlines(keepends=True) + [before[:50]])):
        put(out, b"".join(text))
        r = riffle(*again, "-q", *(["--unordered"] if name == "--unordered" else []))
        check(r.code == 0 and sorted(gist(get(out)), key=lambda g: g[0]) == want and answered < set(get(out).splitlines()), f"an output that is {name}", r)
    put(out, before)
    fixed[3] = fixed[3].replace(b"id-3", b"id-x")
    put(path, b"\n".join(fixed) + b"\n")
    r = riffle(*again, "-q")
    check(one_line_error(r, 2, out, "id-3", "id-x") and get(out) == before and not os.path.exists(kept), "another id of an answered line is refused", r)
    fixed[3] = data[3].replace(b'"temperature": 0', b'"temperature": 1')
    put(path, b"\n".join(fixed) + b"\n")
    whole("another text of an answered line is not seen", riffle(*again, "-q"))
    os.unlink(out)
    put(path, b"\n".join(data) + b"\n")
    riffle(*ARGS, *files, "-q", "--errors", bad)
    check(get(bad).count(b"\n") == 2 and get(out).count(b"\n") == 18, "--errors", get(bad))
    answered = set(get(out).splitlines())
    put(path, b"\n".join(fixed) + b"\n")
    r = riffle(*again, "-q", "--errors", bad)
    whole("--errors: the answers come into the output, in their places", r)
    check(get(bad) == b"", "and the file of errors is empty", get(bad))
    for args, say in (([*ARGS, "-i", path, "--retry-errors"], "stdout"), ([*again, "--restart"], "--restart")):
        r = riffle(*args)
        check(one_line_error(r, 2, say, "--retry-errors"), f"not with {say}", r)
    put(out, before)
    r = riffle(*again, "-m", "/nowhere")
    check(r.code == 3 and get(out) == before and not os.path.exists(kept), "a bad model loses nothing", r)
    os.mkdir(kept)
    r = riffle(*again, "-q")
    check(one_line_error(r, 1, kept) and get(out) == before, "nor does a hidden file that cannot be made", r)
    os.rmdir(kept)
    # kill -9 at random moments; the run that goes on has the flag or not.
    answered = {r for r in before.splitlines() if not json.loads(r)["error"]}
    begin = time.time()
    riffle(*again, "-q")
    spent = time.time() - begin
    for i in range(8):
        put(out, before)
        p = start(*again, "-q", "--max-seqs", "2")
        time.sleep(random.uniform(0.02, spent))
        p.kill()
        p.communicate(timeout=60)
        there = set(get(out).splitlines()) | (set(get(kept).splitlines()) if os.path.exists(kept) else set())
        check(answered <= there, f"killed: no answer is lost ({i})", len(answered - there))
        r = riffle(*(again if i % 2 else [*ARGS, *files]), "-q")
        if i % 2 == 0:  # killed before it began
            r = riffle(*again, "-q")
        whole(f"killed: and it goes on ({i})", r)


def long_name(folder):
    """The hidden file of an output whose own name is as long as a name may be."""
    path, _, _ = setup(folder, b"\n".join([line(0, prompt="The rain", max_tokens=500), *good(13)[1:]]) + b"\n")
    out = os.path.join(folder, "a" * 249 + ".jsonl")
    args = [*ARGS, "-i", path, "-o", out, "--max-seqs", "4"]
    err, hidden = stop_ahead(args, folder, 3, signal.SIGKILL)
    check(get(out) == b"" and len(hidden) == 1, "a name of 255 bytes: one hidden file", (hidden, err))
    r = riffle(*args)
    check(r.code == 0 and [g[0] for g in gist(get(out))] == list(range(1, 14)) and not any(f.endswith(".ahead") for f in os.listdir(folder))
          and b"wait for their turn" in r.err, "and the next run takes what is there", r)


def non_blocking(folder):
    """Standard output is a pipe that somebody has made non-blocking, and its reader is slow."""
    path, _, _ = setup(folder, b"\n".join(good(40)) + b"\n")
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(theirs, False)
    p = start(*ARGS, "-i", path, "-q", stdout=theirs)
    os.close(theirs)
    shown = b""
    time.sleep(2)  # the pipe is full
    while piece := os.read(ours, 1000):
        shown += piece
        time.sleep(0.02)
    os.close(ours)
    err = p.communicate(timeout=60)[1]
    check(p.returncode == 0 and sorted(json.loads(x)["line"] for x in shown.splitlines()) == list(range(1, 41)),
          "a pipe that does not block", (p.returncode, shown[-300:], err))


def terminal(folder):
    """The bar and the words on stderr."""
    _, out, files = setup(folder, b"\n".join(good(120)) + b"\n")  # long enough for a bar
    for name, env, colour in (("on a terminal", {"TERM": "xterm"}, True), ("NO_COLOR", {"TERM": "xterm", "NO_COLOR": "1"}, False),
                              ("a dumb terminal", {"TERM": "dumb"}, False)):
        ours, theirs = pty.openpty()
        p = subprocess.Popen([BIN, *ARGS, *files, "--restart", "--device", "emu", "--slots", "4000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=theirs, env=environment(**env))
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        os.close(ours)
        p.wait(60)
        bar = all(part in shown for part in (b"of 120 lines", b"tokens/s", b"pool hits", b"s left"))
        check(p.returncode == 0 and bar == (env["TERM"] != "dumb") and (b"\x1b" in shown) == colour, name, shown[-500:])
    r = riffle(*ARGS, *files, "--restart")
    check(b"\x1b" not in r.err and b"\r" not in r.err, "a log has no escape codes", r)


def half_a_line(_):
    """A line is answered while the next one is still on its way."""
    p = start(*ARGS, "-q", "--max-seqs", "4", stdin=subprocess.PIPE)
    second = line(1)
    p.stdin.write(line(0) + b"\n" + second[:20])
    p.stdin.flush()
    first = p.stdout.readline()
    check(json.loads(first)["custom_id"] == "id-0", "a line before half a line", first)
    p.stdin.write(second[20:])
    p.stdin.close()
    check(json.loads(p.stdout.readline())["custom_id"] == "id-1" and p.wait(60) == 0, "and then that one", p.returncode)
    p.stdout.close()
    p.stderr.close()


main(goes_on, any_order, refused, shards, full_disk, ctrl_c, killed, ahead, retry, long_name, non_blocking, terminal, half_a_line)
