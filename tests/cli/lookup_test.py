"""--lookup: tokens computed ahead change the number of steps, and no text."""
from harness import *

DOCUMENT = open(os.path.join(ROOT, "models/riffle-27m-32k/demo.txt")).read()[:6000]
QUESTION = 'Continue the passage that begins: "%s"'


def quote():
    """A passage of the document to go on with."""
    text = " ".join(DOCUMENT.split())
    at = text.index(". ", 2500) + 2
    return " ".join(text[at:at + 200].split(" ")[:8])


def ask(command, *flags, stdin=b""):
    return riffle(command, "-q", "--threads", THREADS, "--isa", ISA, *GREEDY, *flags, stdin=stdin)


def run(folder):
    path = os.path.join(folder, "document.txt")
    with open(path, "w") as f:
        f.write(DOCUMENT)
    args = ["run", "-f", path, "-p", QUESTION % quote(), "-n", "60", "--json"]
    plain, ahead = (json.loads(ask(*args, *more).out) for more in ([], ["--lookup", "8"]))
    check(plain["tokens"] == ahead["tokens"] and plain["finish_reason"] == ahead["finish_reason"], "run: the same answer",
          (plain["text"], ahead["text"]))
    a, b = plain["stats"], ahead["stats"]
    check(a["lookup_proposed"] == a["lookup_accepted"] == 0 and a["decode_steps"] == a["decode_tokens"],
          "run without lookup: a step a token", a)
    check(0 < b["lookup_accepted"] <= b["lookup_proposed"] and
          b["decode_steps"] == b["decode_tokens"] - b["lookup_accepted"], "run with lookup: fewer steps", b)
    check(ahead["options"]["lookup"] == 8, "run: the setting is in the JSON", ahead["options"])
    r = riffle("run", "--threads", THREADS, *GREEDY, "--raw", "-p", "one two three one two three one two", "-n", "20",
               "--lookup", "4")
    check(b"tokens in" in r.err and b"decode steps" in r.err, "run: the summary has tokens and steps", r)


def batch(_):
    prompts = [DOCUMENT[:900] * 2, "one two three four one two three", "The rain"]
    bodies = [{"prompt": p, "seed": 5, "temperature": t} for p in prompts for t in (0, 0.9)]
    lines = b"".join(json.dumps({"custom_id": str(i), "body": body}).encode() + b"\n" for i, body in enumerate(bodies))

    def texts(*flags):
        r = riffle("batch", "-q", *SMALL, "-n", "30", *flags, stdin=lines)
        check(r.code == 0, "batch runs", r)
        records = sorted(map(json.loads, r.out.splitlines()), key=lambda record: record["line"])
        return [record["response"]["body"]["choices"][0]["text"] for record in records]

    plain = texts()
    check(len(plain) == 6 and plain == texts("--lookup", "8"), "batch: the same texts", plain)


def bench(_):
    r = riffle("bench", "-q", "--threads", THREADS, "--prefill", "0", "--depth", "300", "--selectors", "share", "--reps", "1",
               "--steps", "24", "--lookup", "8", "--json")
    row = json.loads(r.out)["decode"][0]
    check(row["tokens_per_step"] >= 1 and row["lookup_accepted"] <= row["lookup_proposed"] and
          row["tokens_per_second"] > 0, "bench: tokens in a step", row)
    check((row["tokens_per_step"] > 1) == (row["lookup_accepted"] > 0), "bench: tokens and steps agree", row)


def refused(_):
    for args, words_ in ((["--lookup", "16"], ["--lookup", "0 to 15"]),
                         (["--lookup", "x"], ["--lookup"]),
                         (["--draft-max", "8"], ["--lookup N", "draft"])):
        r = riffle("run", "-p", "x", *args)
        check(one_line_error(r, 2, *words_), f"run {' '.join(args)}", r)
    r = riffle("run", "-p", "x", "--lookup", "4", "--selector", "tokenselect")
    check(one_line_error(r, 1, "--lookup", "tokenselect"), "a selector that cannot", r)
    r = riffle("bench", "--shape", "tiny", "--synthetic-attention", "--lookup", "4")
    check(one_line_error(r, 2, "--lookup", "synthetic"), "synthetic attention", r)


if __name__ == "__main__":
    main(run, batch, bench, refused)
