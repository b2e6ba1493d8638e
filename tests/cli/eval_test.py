"""riffle eval: what it refuses, and that its figures agree with each other. The text that facts are hidden in is made
here, so nothing but the model is needed."""
import random
import time

from harness import *

RUN = ["eval", "-q", "--threads", "2"]
LABELS = ["dense", "psa epsilon=1", "topk budget=0.02 digest=quest", "topk budget=0.02 digest=cuboid-mean",
          "psa epsilon=0.5 stop=veto"]
SWEEP = "psa:epsilon=1;topk:budget=0.02,digest=quest,cuboid-mean;psa:epsilon=0.5,stop=veto"
LENGTHS = [700, 1024]


def prose(folder):
    """A file of some 5,000 tokens of sentences."""
    r = random.Random(5)
    who = "The old man|Her brother|The captain|A stranger|My aunt|The whole party|The doctor|A child".split("|")
    did = "walked slowly along|looked down upon|had long forgotten|spoke of|returned to|could not see".split("|")
    what = "the garden behind the house|the quiet river|the road to the village|a letter from home|the church".split("|")
    when = "that evening|before the rain came|in the early spring|as the lamps were lit|without a word".split("|")
    path = os.path.join(folder, "text.txt")
    with open(path, "w") as f:
        for i in range(330):
            f.write(" ".join(map(r.choice, (who, did, what, when))) + r.choice("....!?") + ("\n" if i % 7 == 6 else " "))
    return path


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


def rows(out):
    return [o for o in objects(out) if o["type"] == "row"]


def core(out):
    """What must not depend on where attention runs."""
    return [[r["length"], r["setting"], r["total"], r["answers"]["kv_blocks_read"], r["text"]["nll_sparse"]]
            for r in rows(out)]


def refusals(folder):
    text = prose(folder)
    cases = {
        "unknown task": (["--tasks", "pass"], "unknown task 'pass'"),
        "no task": (["--tasks", ""], "no task"),
        "unknown selector": (["--sweep", "sparse:epsilon=0.5"], "expected one of"),
        "unknown field": (["--sweep", "psa:epsylon=0.5"], "unknown field 'epsylon'"),
        "value before field": (["--sweep", "psa:0.5"], "expected field=value"),
        "bad number": (["--sweep", "psa:epsilon=0.5x"], "expected a number"),
        "bad count": (["--sweep", "psa:microbatch=1.5"], "expected a whole number"),
        "bad word": (["--sweep", "psa:stop=never"], "expected one of"),
        "epsilon 7": (["--sweep", "psa:epsilon=7", "--length", "1024"], "epsilon"),
        "length beyond the text": (["--length", "30000"], "--length 30000"),
        "length beyond the context": (["--length", "1024", "-c", "512"], "--length 1024"),
        "length too small": (["--length", "9"], "--length 9"),
        "nll longer than half the document": (["--length", "1024", "--nll", "600"], "--nll 600"),
    }
    for name, (flags, words_) in cases.items():
        r = riffle(*RUN, "--text", text, *flags)
        check(one_line_error(r, 2, words_), f"eval refuses {name}", r)
    r = riffle(*RUN, "--text", os.path.join(folder, "none.txt"))
    check(one_line_error(r, 1, "none.txt"), "eval names a missing text", r)


def figures(folder):
    text, out, records = prose(folder), os.path.join(folder, "rows.jsonl"), os.path.join(folder, "records.jsonl")
    flags = [*RUN, "--text", text, "--questions", "15", "--questions-per-doc", "5", "--nll", "16", "--json", "--sweep",
             SWEEP]
    r = riffle(*flags, "--length", ",".join(map(str, LENGTHS)), "--coverage", "--out", out, "--records", records)
    if not check(r.code == 0 and r.err == b"", "eval runs", r):
        return
    found = rows(r.out)
    order = [(o["length"], o["setting"]) for o in found]
    check(order == [(n, s) for n in LENGTHS for s in LABELS], "a row for each length and setting", order)
    with open(out) as f:
        check(objects(f.read()) == objects(r.out), "--out gets the rows too")
    with open(records) as f:
        asked = objects(f.read())
    check(len(asked) == 30 and all(len(q["settings"]) == 5 for q in asked), "--records has every question", len(asked))
    for o in found:
        name, total, answers = f"eval {o['length']} {o['setting']}", o["total"], o["answers"]
        right = [q["settings"][LABELS.index(o["setting"])]["right"] for q in asked if q["length"] == o["length"]]
        check(total["questions"] == 15 == sum(t["questions"] for t in o["tasks"].values())
              and total["sparse_right"] == sum(right) == sum(t["sparse_right"] for t in o["tasks"].values())
              and total["lost"] == total["dense_right"] - total["both_right"]
              and total["gained"] == total["sparse_right"] - total["both_right"], f"{name}: counts agree", total)
        check(answers["layers"] and sum(x["kv_blocks_read"] for x in answers["layers"]) == answers["kv_blocks_read"],
              f"{name}: layers add up", answers)
        nlls = [t[k] for t in (total, o["text"]) for k in ("nll_dense", "nll_sparse")]
        check(all(0 < x < 12 for x in nlls), f"{name}: nll", nlls)
        everything = o["setting"] in ("dense", "psa epsilon=1")
        if everything:
            check(answers["kv_read_pct"] == 100 == o["text"]["kv_read_pct"] and total["kept"] == 1
                  and total["gained"] == 0, f"{name}: reads all, keeps all", total)
        else:
            check(answers["kv_read_pct"] < 90, f"{name}: reads less", answers["kv_read_pct"])
        if o["setting"] == "dense":
            for task in ("passkey", "person", "thing"):
                t = o["tasks"][task]
                check(t["dense_right"] >= t["questions"] - 1, f"{name}: the model finds a {task}", t)
        else:
            low, mean = answers["coverage_p1"], answers["coverage_mean"]
            check((0.999 if everything else 0) < low <= mean < 1.0001, f"{name}: coverage", (low, mean))
    flags += ["--length", str(LENGTHS[0])]
    expected = [o for o in core(r.out) if o[0] == LENGTHS[0]]
    plain = riffle(*flags)
    check(plain.code == 0 and core(plain.out) == expected, "eval gives the same twice, and without coverage", plain)
    emu, cpu = riffle(*flags, "--device", "emu", "--slots", "600"), riffle(*flags, "--device", "cpu")
    if check(emu.code == 0 and core(emu.out) == core(cpu.out), "eval gives the same with a slot pool", emu):
        hits = [o["answers"]["pool_hit_pct"] for o in rows(emu.out)]
        check(all(h is not None and 0 <= h <= 100 for h in hits), "eval tells pool hits", hits)


def tables(folder):
    text = prose(folder)
    r = riffle(*RUN, "--text", text, "--length", "700", "--questions", "3", "--nll", "0", "--epsilon", "0.5",
               "--selector", "psa")
    check(r.code == 0 and b"700 tokens" in r.out and b"\npsa epsilon=0.5" in r.out and b"right by task" in r.out,
          "eval's table", r)
    reference = os.path.join(folder, "reference.json")
    with open(reference, "w") as f:
        json.dump({"tasks": {"thing@1024": 1.0}, "nll": {"0-1024": 3.5}}, f)
    flags = [*RUN, "--text", text, "--dense-only", "--length", "1024", "--questions", "3", "--tasks", "thing", "--windows",
             "1", "-c", "2048"]
    r = riffle(*flags, "--compare-dense-golden", reference)
    check(r.code == 0 and b"within chance" in r.out and b"1024-2048" in r.out and b"3.5000" in r.out,
          "eval --dense-only beside reference figures", r)
    r = riffle(*flags, "--json")
    nll = [o["nll"] for o in objects(r.out) if o["type"] == "nll"]
    check(len(nll) == 1 and list(nll[0]) == ["0-1024", "1024-2048"] and all(0 < x < 12 for x in nll[0].values()),
          "eval --dense-only --json", r)


def interrupted(folder):
    seen = os.path.join(folder, "records.jsonl")
    p = start(*RUN, "--text", prose(folder), "--length", "1024", "--questions", "5000", "--json", "--records", seen)
    end = time.time() + 120
    while time.time() < end and p.poll() is None and not (os.path.exists(seen) and os.path.getsize(seen)):
        time.sleep(0.05)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    found = objects(out) or [{}]
    check(p.returncode == 130 and found[-1].get("stopped") is True and err == b""
          and any(0 < o["total"]["questions"] < 5000 for o in rows(out)), "Ctrl-C: eval reports what it has",
          (p.returncode, out[-300:], err))


main(refusals, figures, tables, interrupted)
