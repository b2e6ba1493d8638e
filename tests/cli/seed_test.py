"""Seeds: random where none is given, recorded, and the record gives the same text again."""
import re

from harness import *

HOT = ["--temp", "1.5", "-n", "16", *SMALL]
BATCH = ["batch", "-q", *HOT]
MASK = (1 << 64) - 1


def line_seed(seed, line):
    """Returns the seed as batch --help defines it: the upper 53 bits of output number `line` of
    SplitMix64."""
    z = (seed + line * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return (z ^ z >> 31) >> 11


def lines(n, **body):
    return b"".join(json.dumps({"custom_id": str(i),
                                "body": {"prompt": "The rain", **body}}).encode() + b"\n"
                    for i in range(n))


def answers(data):
    """(seed, text) of each record, by line."""
    bodies = [r["response"]["body"] for r in sorted(map(json.loads, data.splitlines()),
                                                    key=lambda r: r["line"])]
    return [(b["riffle"]["seed"], b["choices"][0]["text"]) for b in bodies]


def formula(_):
    # The first outputs for the state 1234567, as published with the algorithm's many ports.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    check([line_seed(1234567, i) for i in range(1, 5)] == [x >> 11 for x in known], "SplitMix64")


def run(_):
    def ask(*args):
        r = riffle("run", "--raw", "-p", "The rain", *HOT, "--json", "-q", *args)
        j = json.loads(r.out) if r.code == 0 else {}
        return j.get("seed"), j.get("text")
    drawn = [ask() for _ in range(3)]
    check(len({s for s, _ in drawn}) == 3 and len({t for _, t in drawn}) > 1,
          "run: another seed and text each time", drawn)
    check(all(0 <= s < 1 << 53 for s, _ in drawn), "a seed that a double holds", drawn)
    seed, text = drawn[0]
    check(ask("--seed", str(seed)) == (seed, text), "the recorded seed gives the text again",
          (seed, text))
    check(ask("--seed", "0") == ask("--seed", "0"), "0 is a seed like any other")
    check(ask("--seed", str(MASK))[0] == MASK, "the largest seed")
    random = [ask("--seed", "-1") for _ in range(2)]
    check(random[0][0] != random[1][0], "--seed -1 is random", random)
    r = riffle("run", "--raw", "-p", "The rain", *HOT)
    named = re.search(rb"; seed (\d+)\]", r.err)
    check(named and ask("--seed", named[1].decode())[1] == r.out.decode().removesuffix("\n"),
          "the line at the end names the seed", r)
    r = riffle("run", "--raw", "-p", "The rain", "-n", "2", *GREEDY, *SMALL)
    check(r.code == 0 and b"seed" not in r.err, "a greedy answer has none", r)
    for bad in ("-2", "1.5", "x", "", str(MASK + 1)):
        r = riffle("run", "-p", "x", "--seed", bad)
        check(one_line_error(r, 2, "--seed",
                             "expected a whole number from 0 to 18446744073709551615, or -1"),
              f"--seed '{bad}' is refused", r)


def batch(folder):
    got = answers(riffle(*BATCH, stdin=lines(4)).out)
    check(len({s for s, _ in got}) == 4 and len({t for _, t in got}) > 1,
          "batch: identical lines differ", got)
    check(all(0 <= s < 1 << 53 for s, _ in got), "batch: seeds that a double holds", got)
    again = answers(riffle(*BATCH, stdin=lines(4)).out)
    check(not {s for s, _ in got} & {s for s, _ in again}, "batch: another run draws other seeds",
          again)
    for seed, text in got[:2]:
        again = answers(riffle(*BATCH, "--seed", "5", stdin=lines(1, seed=seed)).out)
        check(again == [(seed, text)],
              "batch: the recorded seed on the line alone gives the text again", (seed, text))
    null = answers(riffle(*BATCH, "--seed", "5", stdin=lines(1, seed=None)).out)
    check(null[0][0] == line_seed(5, 1), "batch: a seed that is null is left out", null)

    for seed in (0, 7, MASK):
        want = [line_seed(seed, i) for i in range(1, 5)]
        got = answers(riffle(*BATCH, "--seed", str(seed), stdin=lines(4)).out)
        check([s for s, _ in got] == want, f"batch --seed {seed}: SplitMix64 by line", (got, want))
        check(len({t for _, t in got}) > 1, f"batch --seed {seed}: identical lines differ", got)
    path, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
    with open(path, "wb") as f:
        f.write(b"\n" + lines(6))  # an empty line counts as a line
    seeded = [*BATCH, "--seed", "7", "-i", path]
    whole = riffle(*seeded, "--max-seqs", "4").out
    want = answers(whole)
    check([s for s, _ in want] == [line_seed(7, i) for i in range(2, 8)],
          "seeds go by the line's number in the file", want)
    with open(out, "wb") as f:
        f.write(b"".join(whole.splitlines(keepends=True)[:2]))
    r = riffle(*seeded, "-o", out)
    with open(out, "rb") as f:
        check(r.code == 0 and answers(f.read()) == want, "resumed with --seed: the same texts", r)
    parts = b"".join(riffle(*seeded, "--shard", f"{i}/3").out for i in (1, 2, 3))
    check(answers(parts) == want, "shards with --seed: the same texts", parts)
    with open(out, "wb") as f:
        f.write(b"".join(whole.splitlines(keepends=True)[:2]))
    riffle(*BATCH, "-i", path, "-o", out)
    with open(out, "rb") as f:
        got = answers(f.read())
    check(got[:2] == want[:2] and len({s for s, _ in got} | {s for s, _ in want}) == 10,
          "resumed without --seed: new seeds for the lines that were left", got)


def chat(_):
    # Hot enough that no two seeds agree: the shipped model is sure of its small talk.
    hot = ["--temp", "20", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-n", "16", *SMALL]
    script = b"Tell me of the rain.\n/stats\n/clear\nTell me of the rain.\n/exit\n"

    def talk(*args):
        r = riffle("chat", *hot, *args, stdin=script)
        named = re.search(rb", seed (\d+)\n", r.err)
        return (int(named[1]) if named else None), r.out
    a, b = talk(), talk()
    check(a[0] is not None and a[0] < 1 << 53 and a[0] != b[0] and a[1] != b[1],
          "chat: another seed each session", (a, b))
    check(talk("--seed", str(a[0])) == a, "chat: the reported seed gives the conversation again", a)
    first = riffle("run", "--chat", "-p", "Tell me of the rain.", *hot, "-q", "--seed",
                   str(a[0])).out
    check(a[1].startswith(first), "chat: the first answer is that of run", (a, first))
    half = len(a[1]) // 2
    check(a[1][:half] != a[1][half:], "chat: the same question again gets another answer", a)
    r = riffle("chat", "-n", "4", *GREEDY, *SMALL, stdin=script)
    check(r.code == 0 and b"seed" not in r.err, "chat --temp 0 has no seed", r)


main(formula, run, batch, chat)
