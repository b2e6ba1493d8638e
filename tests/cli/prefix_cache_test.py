"""riffle batch --prefix-cache: the same answers with it, entries that come and go, several processes, faults."""
import resource
import shutil
import time

from harness import *

ARGS = ["batch", *SMALL]
# The approximate length of a document, in tokens. The cache saves only prefixes of at least 512 tokens.
LENGTH = 800 if THOROUGH else 620


def document(name, n=LENGTH):
    return f"The book of {name}. " + words(n)


def line(custom_id, doc, question, **body):
    body = {"prompt": f"{doc}\n{question}", "max_tokens": 8, "temperature": 0, "seed": 7, **body}
    return json.dumps({"custom_id": custom_id, "body": body}).encode()


def lines(*names, n=LENGTH):
    """Two questions on each document."""
    return [line(f"{name} {q}", document(name, n), q, temperature=t)
            for name in names for q, t in [("Who strikes?", 0), ("What went on?", 0.9)]]


def entries(cache):
    return sorted(f for f in os.listdir(cache) if f.endswith(".kv"))


def size(cache, name):
    return os.path.getsize(os.path.join(cache, name))


def answers(data):
    """Returns the parts of the answers that do not depend on where the prompt's KV came from."""
    out = []
    for row in data.splitlines():
        body = json.loads(row)["response"]["body"]
        out.append((body["choices"], {k: v for k, v in body["usage"].items() if k != "prompt_tokens_details"}, body["riffle"]["seed"], body["riffle"]["kv_tokens_read"]))
    return out


def cached(data):
    return [json.loads(row)["response"]["body"]["riffle"]["cached_tokens"] for row in data.splitlines()]


def batch(asks, cache, *flags, **more):
    flags = [*flags, "--prefix-cache", cache] if cache else flags
    return riffle(*ARGS, *flags, stdin=b"\n".join(asks) + b"\n", **more)


def same_answers(folder):
    asks = lines("Ann", "Ben") + [line("alone", document("Cid"), "Who?"), line("short", "The rain", "falls")]
    for selector in ("dense", "share", "psa", "tokenselect") if THOROUGH else ("share", "tokenselect"):
        cache = os.path.join(folder, selector)
        flags = ["--selector", selector]
        without = batch(asks, None, *flags)
        first, second = batch(asks, cache, *flags), batch(asks, cache, *flags)
        one = batch(asks, cache, *flags, "--max-seqs", "1", "--device", "emu")
        for name, r in ("first", first), ("second", second), ("emulated", one):
            check(r.code == 0 and answers(r.out) == answers(without.out), f"{selector}, {name} run: the same answers", r)
        check(len(entries(cache)) == 2 and b"2 prefixes of" in first.err and b", 0 from the prefix cache)" in first.err,
              f"{selector}: what lines share is saved", first)
        got = cached(second.out)
        check(min(got[0], got[2]) > 500 and got[1] == got[3] == got[4] == got[5] == 0 and
              f", {sum(got)} from the prefix cache)".encode() in second.err, f"{selector}: and taken by the next run", second)
        check(b"saved in" not in second.err, f"{selector}: once", second)
    check(os.stat(cache).st_mode & 0o777 == 0o700 and
          all(os.stat(os.path.join(cache, f)).st_mode & 0o777 == 0o600 for f in os.listdir(cache)), "for its owner alone")
    r = batch([line("later", document("Ben"), "Is it late?")], cache, "-q", "--selector", "tokenselect")
    check(r.code == 0 and r.err == b"" and cached(r.out)[0] > 500, "another question finds the document", r)
    before = entries(cache)
    for flags in ["--kv", "q8"], ["--block", "32"]:
        r = batch(asks, cache, *flags)
        check(r.code == 0 and sum(cached(r.out)) == 0 and b"damaged" not in r.err, f"{flags}: other entries", r)
    check(set(before) < set(entries(cache)) and len(entries(cache)) == 6, "beside the others", entries(cache))
    r = batch(asks, os.path.join(folder, "lfps"), "--selector", "lfps")
    check(r.code == 0 and b"the prefix cache is not used: --selector lfps" in r.err and not entries(os.path.join(folder, "lfps")),
          "lfps learns from whole prompts", r)
    # One line at a time, each answered before the next comes.
    cache = os.path.join(folder, "pipe")
    p = start(*ARGS, "--prefix-cache", cache, stdin=subprocess.PIPE)
    for ask in lines("Dan"):
        p.stdin.write(ask + b"\n")
        p.stdin.flush()
        p.stdout.readline()
    p.communicate(timeout=200)
    check(p.returncode == 0 and len(entries(cache)) == 1, "lines down a pipe share with those before them", p.returncode)


def any_instruction_sets(folder):
    """A run for which other instruction sets are the fastest uses the same entries."""
    cache = os.path.join(folder, "cache")
    asks = b"\n".join(lines("Ann")) + b"\n"
    for n in range(4):
        r = riffle(*ARGS[:-1], "auto", "--prefix-cache", cache, stdin=asks)
        check(r.code == 0 and (cached(r.out)[0] > 500) == (n > 0), f"--isa auto, run {n}: the first one saves, others find it", r)
    check(len(entries(cache)) == 1, "there is one entry", entries(cache))


def eviction(folder):
    cache = os.path.join(folder, "cache")
    batch(lines("Ann"), cache, "-q")
    ann = entries(cache)[0]
    limit = ["-q", "--prefix-cache-size", str(size(cache, ann) * 5 // 2)]
    notes, left, fresh = (os.path.join(cache, f) for f in ("book.kv", ann + ".part-abcdef", ann + ".part-abcdeg"))
    for f in notes, left, fresh:
        open(f, "wb").write(b"x" * 100)
    for f in notes, left:
        os.utime(f, (1, 1))
    batch(lines("Ben"), cache, *limit)
    ben = [f for f in entries(cache) if f not in (ann, "book.kv")][0]
    batch(lines("Ann"), cache, *limit)  # used last
    r = batch(lines("Cid"), cache, *limit)
    now = [f for f in entries(cache) if f != "book.kv"]
    check(r.code == 0 and len(now) == 2 and ann in now and ben not in now, "the one that was not used for longest goes", (now, ann, ben))
    check(os.path.exists(notes) and os.path.exists(fresh) and not os.path.exists(left),
          "what is not the cache's stays, what a killed process left goes", os.listdir(cache))
    r = batch(lines("Dan", n=2100), cache, *limit[1:])
    check(r.code == 0 and [f for f in entries(cache) if f != "book.kv"] == now and r.err.count(b"more than the limit of the prefix cache") == 1,
          "what is larger than the limit pushes nothing out", r)
    batch(lines("Ann"), cache, "-q", "--prefix-cache-size", "100K")
    check(entries(cache) == ["book.kv"], "a smaller limit holds after a run that saves nothing", entries(cache))


def broken(folder):
    cache, other = os.path.join(folder, "cache"), os.path.join(folder, "other")
    asks = lines("Ann")
    want = answers(batch(asks, None).out)
    batch(asks, cache, "-q")
    name = entries(cache)[0]
    path = os.path.join(cache, name)
    good = open(path, "rb").read()
    batch(asks, other, "-q", "--kv", "q8")
    foreign = open(os.path.join(other, entries(other)[0]), "rb").read()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for what, data, word in [("a flipped bit", bytes(flipped), b"checksum"), ("a file that was cut", good[: len(good) // 3], b"found"),
                             ("an empty file", b"", b"found"), ("another kind of file", b"x" * 50000, b"a session of riffle"),
                             ("other KV", foreign, b"expected f16")]:
        open(path, "wb").write(data)
        r = batch(asks, cache)
        check(r.code == 0 and answers(r.out) == want and r.err.count(b"prefix cache: ") == 1 and word in r.err,
              f"{what}: ignored, and said once", r)
        again = batch(asks, cache)
        check(again.code == 0 and cached(again.out)[0] > 500 and answers(again.out) == want and b"prefix cache: " not in again.err,
              f"{what}: replaced", again)
    os.remove(path)
    os.mkdir(path)
    r = batch(asks, cache)
    check(r.code == 0 and answers(r.out) == want and os.path.isdir(path), "a folder in its place", r)


def folders(folder):
    asks = lines("Ann")
    plain = os.path.join(folder, "plain")
    open(plain, "w").close()
    check(one_line_error(batch(asks, plain, "-q"), 1, plain, "--prefix-cache", "expected a folder"), "a file")
    deep = os.path.join(folder, "no", "such")
    check(one_line_error(batch(asks, deep, "-q"), 1, deep, "cannot create") and not os.path.exists(os.path.dirname(deep)),
          "a folder in no folder")
    for flags in (["--prefix-cache", ""], ["--prefix-cache-size", "1G"], ["--prefix-cache", deep, "--prefix-cache-size", "0"],
                  ["--prefix-cache", deep, "--prefix-cache-size", "much"]):
        r = riffle(*ARGS, *flags)
        check(r.code == 2 and r.out == b"" and b"--prefix-cache" in r.err, f"{flags}: usage", r)

    def nobody():
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)

    locked = os.path.join(folder, "locked")
    os.mkdir(locked, 0o555)
    os.chmod(folder, 0o755)
    p = subprocess.run([BIN, *ARGS, "-q", "--prefix-cache", locked], input=asks[0] + b"\n", capture_output=True, timeout=200,
                       env=environment(), preexec_fn=nobody)
    said = p.stderr.decode()
    check(p.returncode == 1 and p.stdout == b"" and said.count("\n") == 1 and locked in said and "cannot write" in said,
          "a folder that cannot be written to", said)


def full_disk(folder):
    cache = os.path.join(folder, "cache")
    asks = lines("Ann", "Ben")
    want = answers(batch(asks, None).out)
    p = start(*ARGS, "--prefix-cache", cache, stdin=subprocess.PIPE,
              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    out, err = p.communicate(b"\n".join(asks) + b"\n", timeout=200)
    check(p.returncode == 0 and answers(out) == want, "no room: all lines are answered", err)
    check(err.count(b"nothing more is saved") == 1 and os.listdir(cache) == ["lock"], "it says so once and leaves nothing behind",
          (err, os.listdir(cache)))


def several_processes(folder):
    cache = os.path.join(folder, "cache")
    asks = lines("Ann", "Ben", "Cid")
    want = answers(batch(asks, None).out)
    one = os.path.join(folder, "one")
    batch(lines("Ann"), one, "-q")
    room = size(one, entries(one)[0]) * 3 // 2  # for one entry: they evict each other's while these are used
    for flags in [], ["--prefix-cache-size", str(room)]:
        for n in range(2 if THOROUGH or not flags else 1):
            path = os.path.join(folder, "in.jsonl")
            open(path, "wb").write(b"\n".join(asks) + b"\n")
            ps = [start(*ARGS, "-q", "--prefix-cache", cache, *flags, "-i", path) for _ in range(3)]
            done = [p.communicate(timeout=400) for p in ps]
            check(all(p.returncode == 0 and err == b"" and answers(out) == want for p, (out, err) in zip(ps, done)),
                  f"three at once, {flags}, {n}", [(p.returncode, err[-300:]) for p, (out, err) in zip(ps, done)])
        check(not [f for f in os.listdir(cache) if ".part-" in f], "nothing half-written stays", os.listdir(cache))
        check(len(entries(cache)) == (1 if flags else 3), f"{flags}: the limit holds", entries(cache))
        r = batch(asks, cache, "-q", *flags)
        check(r.code == 0 and answers(r.out) == want and (flags or sum(cached(r.out)) > 500), "what they left is whole", r)
    shutil.rmtree(cache)
    batch(asks, cache, "-q")
    # Killed while it saves: an unfinished file is not taken for an entry.
    for delay in (0.1, 0.3, 0.5, 0.8) if THOROUGH else (0.1, 0.4):
        shutil.rmtree(cache)
        p = start(*ARGS, "-q", "--prefix-cache", cache, "-i", path)
        time.sleep(delay)
        p.send_signal(signal.SIGKILL)
        p.wait()
        r = batch(asks, cache)
        check(r.code == 0 and answers(r.out) == want and b"prefix cache: " not in r.err, f"killed after {delay} s", r)


def recurrent_models(folder):
    """A beginning is saved with states at several lengths: later texts that have less in common with it find one."""
    doc = words(400)
    first, second = (b"\n".join(line(q, doc, q) for q in asks) + b"\n" for asks in
                     (("What is it?", "Who is it?", "When was it?"), ("Is it so?", "Are they?", "Am I?")))
    for name in ("lfm2_odd", "qwen35", "granite_h"):
        cache, flags = os.path.join(folder, name), ["-m", f"{ROOT}/tests/golden/tiny/{name}/{name}.gguf", *ARGS[1:], "-q"]
        want = riffle("batch", *flags, "--max-seqs", "1", stdin=second)
        reused = [json.loads(row)["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"]
                  for row in want.out.splitlines()]
        check(want.code == 0 and min(reused[1:]) > 1000, f"{name}: a document is read once", reused)
        riffle("batch", *flags, "--prefix-cache", cache, stdin=first)
        r = riffle("batch", *flags, "--prefix-cache", cache, stdin=second)
        check(r.code == 0 and answers(r.out) == answers(want.out) and cached(r.out)[0] > 1000,
              f"{name}: other questions begin in what was saved", r)


main(same_answers, recurrent_models, any_instruction_sets, eviction, broken, folders, full_disk, several_processes)
