"""riffle eval: what it refuses, and that its figures agree with each other. The text that facts are hidden in is made
here, so nothing but the model is needed."""
import datetime
import html.parser
import math
import pathlib
import random
import re
import shlex
import shutil
import struct
import sys
import time
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cli"))
from harness import *

RUN = ["eval", "-q", "--threads", THREADS]
LABELS = ["dense", "psa epsilon=1", "topk budget=0.02 digest=quest", "topk budget=0.02 digest=cuboid-mean",
          "psa epsilon=0.5 stop=veto"]
SWEEP = "psa:epsilon=1;topk:budget=0.02,digest=quest,cuboid-mean;psa:epsilon=0.5,stop=veto"
# Every length with RIFFLE_TEST_ROUNDS=all (tests/rounds.h).
LENGTHS = [700, 1024] if os.environ.get("RIFFLE_TEST_ROUNDS") == "all" else [700]


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


def facts(out):
    """Returns the report's head, from a run's JSON lines, or from its text with one line for each fact."""
    if out.startswith(b"{"):
        return objects(out)[0]["facts"]
    return dict(line.split(": ", 1) for line in out.decode().split("\n\n")[0].splitlines())


def wilson(k, n):
    """Wilson's 95% interval of k successes in n, in percent."""
    z, p = 1.959964, k / n
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [100 * (centre + sign * half) / (1 + z * z / n) for sign in (-1, 1)]


def close(a, b):
    return all(abs(x - y) < 1e-6 for x, y in zip(a, b))


def without_template(folder):
    """The shipped model without its chat template: the key has another name, of the same length."""
    path = os.path.join(folder, "no-template.gguf")
    with open(MODEL, "rb") as f, open(path, "wb") as out:
        data = f.read()
        assert data.count(b"tokenizer.chat_template") == 1
        out.write(data.replace(b"tokenizer.chat_template", b"tokenizer.chat_templ_no"))
    return path


def core(out):
    """Returns the results that must not depend on the device that computes attention."""
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
        "bad spec of a comparison": (["--compare", "psa:epsylon=0.5"], "--compare: unknown field 'epsylon'"),
        "comparison beside a sweep": (["--compare", "--sweep", "psa:epsilon=0.5"], "--sweep"),
        "report of no comparison": (["--report", "x.html"], "--compare"),
        "heat map of no setting": (["--compare", "psa:epsilon=0.5", "--heatmap", "psa:epsilon=0.6", "--length", "1024"],
                                   "known: none, 'psa epsilon=0.5'"),
        "epsilon 7": (["--sweep", "psa:epsilon=7"], "epsilon=7: expected a number, more than 0, at most 1"),
        "a selector in a spec": (["--sweep", "psa:selector=topk"], "unknown field 'selector'"),
        "another selector's field": (["--sweep", "psa:share=0.1"], "share is not a field of psa, but of share, auto"),
        "another selector's field, of several": (["--compare", "lfps:sink_blocks=2"],
                                                 "sink_blocks is not a field of lfps, but of share, auto, psa, topk, twilight"),
        "a field that twilight's base leaves out": (["--sweep", "twilight:epsilon=0.5"],
                                                    "epsilon is a field of twilight only with base psa"),
        "positions nowhere": (["--sweep", "tokenselect:positions=here"], "positions=here: expected one of true, list"),
        "a base that is itself": (["--sweep", "twilight:base=twilight"], "expected one of all, topk, psa"),
        "a flag that the list sets": (["--compare", "--epsilon", "0.5"], "--epsilon: all settings of --compare's own list"),
        "a flag that the specs set": (["--sweep", "topk:budget=0.1", "--budget", "0.2"], "--budget: all settings of --sweep"),
        "a flag of no setting": (["--compare", "topk:budget=0.1", "--share", "0.1"],
                                 "--share: no setting of --compare reads it; it is for share, auto"),
        "--selector next to a list": (["--compare", "--selector", "psa"], "--selector: it has no effect with --compare's own list"),
        "length beyond the text": (["--length", "30000"], "--length 30000: the text has"),
        "length beyond the text, where one task takes from it":
            (["--length", "30000", "--tasks", "common,needle,kv"], "--length 30000: the text has"),
        "length beyond the context, of tasks that need no text":
            (["--length", "40000", "--tasks", "kv"],
             "--length 40000: the context holds 32768 tokens"),
        "length beyond the context": (["--length", "1024", "-c", "512"],
                                      "--length 1024: the context holds 512 tokens (-c)"),
        "length beyond the model's own context":
            (["--length", "40000"], "--length 40000: the context holds 32768 tokens"),
        "new and old tasks, one of them unknown":
            (["--tasks", "needle,multikeys"],
             "unknown task 'multikeys'; known: passkey, magic, person, thing, vars, kv, multikey, "
             "multivalue, multiquery, passage, common, frequent, needle, summary"),
        "answers of no tokens": (["--answer-tokens", "0"], "--answer-tokens"),
        "a share of key tiles beyond the range": (["--prefill-shares", "0.1,1.5"],
                                                  "--prefill-shares: found '1.5', expected a number, at least 0, less than 1"),
        "no share of key tiles": (["--prefill-shares", "0.1,"], "--prefill-shares: found ''"),
        "chosen key tiles with dense answers only": (["--prefill-shares", "0.1", "--dense-only"], "--dense-only"),
        "length too small": (["--length", "9"], "--length 9"),
        "nll longer than half the document": (["--length", "1024", "--nll", "600"], "--nll 600"),
    }
    for name, (flags, words_) in cases.items():
        r = riffle(*RUN, "--text", text, *flags)
        check(one_line_error(r, 2, words_), f"eval refuses {name}", r)
    # These are found when a document is made, after the head is printed.
    for name, tasks, words_ in (("document too short for its questions", "multikey,multiquery",
                                 b"a document of 2 questions"),
                                ("document too short for its list of words", "frequent",
                                 b"(frequent) does not fit into 256")):
        r = riffle(*RUN, "--text", text, "--length", "256", "--questions", "2", "--tasks", tasks)
        check(r.code == 2 and r.err.startswith(b"riffle: --length 256: ") and words_ in r.err
              and r.err.count(b"\n") == 1, f"eval refuses a {name}", r)
    r = riffle(*RUN, "--text", text, "--length", "300", "--nll", "150", "--answer-tokens", "140", "--tasks",
               "needle", "--questions", "1")
    check(r.code == 2 and r.err.startswith(b"riffle: --nll 150: a document of --length 300 has")
          and r.err.count(b"\n") == 1, "eval refuses to predict more text than answers leave", r)
    r = riffle(*RUN, "--text", text, "--length", "30000")
    told = re.search(rb"the text has (\d+) tokens, (\d+) are missing", r.err)
    check(told and sum(map(int, told.groups())) == 30000 and int(told[1]) > 3000,
          "eval says how much text is missing", r)
    r = riffle(*RUN, "--text", os.path.join(folder, "none.txt"))
    check(one_line_error(r, 1, "none.txt"), "eval names a missing text", r)


def agrees(o, asked, name, on_gpu):
    """Checks a row's figures of agreement with dense attention against those of its questions."""
    a, records = o["agreement"], [
        next(s for s in q["settings"] if s["setting"] == o["setting"]) for q in asked
    ]
    if o["setting"] == "dense":
        check(
            a["answers"] == a["steps"] == a["identical"] == 0 and a["same_first_pct"] is None
            and a["divergence_mean"] is None and a["tokens_until_parting"] is None
            and all("divergence" not in r
                    for r in records), f"{name}: agrees with nothing but itself", a)
        return
    steps, same, n = (sum(r[k] for r in records) for k in ("steps", "same_first", "until_parting"))
    check(
        a["answers"] == len(records) == 15 and a["steps"] == steps
        and close([a["same_first_pct"]], [100 * same / steps])
        and a["identical"] == sum(r["until_parting"] == r["steps"] for r in records)
        and close([a["tokens_until_parting"], a["tokens"]], [n / 15, steps / 15]) and close(
            [a["divergence_mean"]], [sum(r["divergence"] * r["steps"] for r in records) / steps]),
        f"{name}: agreement adds up", a)
    check(close([a["same_first_low_pct"], a["same_first_high_pct"]], wilson(same, steps)),
          f"{name}: interval of agreement", a)
    check(
        0 <= a["same_first_pct"] <= 100 and 0 <= a["divergence_mean"] and 0 <= a["divergence_p99"]
        and a["divergence_error"] >= 0 and 0 <= a["tokens_until_parting"] <= a["tokens"],
        f"{name}: agreement", a)
    # The dense answers are the first settings' texts: an answer that never parts from one has the same text.
    said = [q["settings"][0]["text"] for q in asked]
    check(all((r["text"] == t) for r, t in zip(records, said) if r["until_parting"] == r["steps"]),
          f"{name}: what never parts says the same", [r["text"] for r in records])
    if o["setting"] == "psa epsilon=1" and on_gpu:
        # The same sums in another order: they agree up to rounding, which may decide a near tie.
        check(a["divergence_mean"] < 1e-3, f"{name}: agrees but for rounding", a)
    elif o["setting"] == "psa epsilon=1":
        check(a["same_first_pct"] == 100 and a["divergence_mean"] < 1e-6
              and a["identical"] == a["answers"] and a["tokens_until_parting"] == a["tokens"],
              f"{name}: agrees wholly", a)


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
    check(len(asked) == 15 * len(LENGTHS) and all(len(q["settings"]) == 5 for q in asked), "--records has every question", len(asked))
    for o in found:
        name, total, answers = f"eval {o['length']} {o['setting']}", o["total"], o["answers"]
        right = [q["settings"][LABELS.index(o["setting"])]["right"] for q in asked if q["length"] == o["length"]]
        with_answer = [t["questions"] for task, t in o["tasks"].items() if task != "summary"]
        check(sum(t["questions"] for t in o["tasks"].values()) == 15
              and total["questions"] == sum(with_answer) == sum(x is not None for x in right) < 15
              and total["sparse_right"] == sum(filter(None, right))
              == sum(t["sparse_right"] for t in o["tasks"].values())
              and total["lost"] == total["dense_right"] - total["both_right"]
              and total["gained"] == total["sparse_right"] - total["both_right"], f"{name}: counts agree", total)
        check(answers["layers"] and sum(x["kv_blocks_read"] for x in answers["layers"]) == answers["kv_blocks_read"],
              f"{name}: layers add up", answers)
        for task, m in [("total", total), *o["tasks"].items()]:
            shares = (("sparse_right", m["sparse_right"], m["questions"]),
                      ("kept", m["both_right"], m["dense_right"]))
            intervals = [[m[f"{key}_{end}_pct"] for end in ("low", "high")] for key, _, _ in shares]
            expected = [wilson(k, n) if n else [None, None] for _, k, n in shares]
            check(all(x == y or None not in x + y and close(x, y)
                      for x, y in zip(intervals, expected)),
                  f"{name}: intervals of {task}", (intervals, expected))
        nlls = [o["text"][k] for k in ("nll_dense", "nll_sparse")]
        check(all(0 < x < 12 for x in nlls), f"{name}: nll", nlls)
        agrees(o, [q for q in asked if q["length"] == o["length"]], name,
               facts(r.out)["device"].startswith("cuda"))
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
    on_cpu = facts(r.out)["device"] == "cpu"
    cpu = r
    if THOROUGH or not on_cpu:
        plain = cpu = riffle(*flags)
        check(plain.code == 0 and core(plain.out) == expected, "eval gives the same twice, and without coverage", plain)
    if not on_cpu:
        cpu = riffle(*flags, "--device", "cpu")
    # On a CPU with few rounds, this is also the only run without --coverage.
    emu = riffle(*flags, "--device", "emu", "--slots", "600")
    check([facts(r.out)["device"] for r in (emu, cpu)] == ["emu", "cpu"],
          "the head names the device", [facts(r.out) for r in (emu, cpu)])
    same = [o for o in core(cpu.out) if o[0] == LENGTHS[0]]
    if check(emu.code == 0 and core(emu.out) == same, "eval gives the same with a slot pool", emu):
        hits = [o["answers"]["pool_hit_pct"] for o in rows(emu.out)]
        check(all(h is not None and 0 <= h <= 100 for h in hits), "eval tells pool hits", hits)


def prompts(folder):
    """Prompts that are read by chosen key tiles."""
    flags = [*RUN, "--text", prose(folder), "--length", "1500", "--questions", "2", "--nll", "16", "--device", "cpu", "--json"]
    r = riffle(*flags, "--prefill-shares", "0,0.3", "--sweep", "psa:epsilon=0.5")
    found = {o["setting"]: o for o in rows(r.out)}
    if not check(r.code == 0 and list(found) == [
            f"{decode}{prompt}" for prompt in ("", " prompt=0", " prompt=0.3") for decode in ("dense", "psa epsilon=0.5")],
                 "every setting answers after each kind of prompt", r):
        return
    plain = {o["setting"]: o for o in rows(riffle(*flags, "--sweep", "psa:epsilon=0.5").out)}
    for name, o in found.items():
        same = [o[part][field] for part, field in (("text", "nll_sparse"), ("answers", "kv_blocks_read"))]
        decode = name.split(" prompt")[0]
        as_plain = [plain[decode][part][field] for part, field in (("text", "nll_sparse"), ("answers", "kv_blocks_read"))]
        share = o.get("prefill_tiles_read_pct")
        if name.endswith("0.3"):
            check(0 < share < 100 and same[0] != as_plain[0], f"{name}: some tiles are read", (share, same, as_plain))
            check(o["text"]["nll_dense"] == plain["dense"]["text"]["nll_dense"],
                  f"{name}: is compared with dense prompts", o["text"])
        else:
            check(share in (None, 100) and same == as_plain, f"{name}: all keys are read", (share, same, as_plain))
    r = riffle(*flags, "--prefill-shares", "0.3", "--selector", "lfps")
    check(one_line_error(r, 1, "--selector lfps uses the attention of prompts"),
          "chosen key tiles with a selector that learns from prompts", r)
    r = riffle(*flags[:-1], "--prefill-shares", "0.3", "--selector", "psa")
    lines = [re.split("  +", line) for line in r.out.decode().split("1500 tokens\n", 1)[-1].splitlines()[:5]]
    check(r.code == 0 and "tiles" in lines[0] and [bool(re.search(r"[0-9]%", line[lines[0].index("tiles")])) for line in lines[1:]]
          == [False, False, True, True], "the table tells the tiles that were read", r)


def tables(folder):
    text = prose(folder)
    r = riffle(*RUN, "--text", text, "--length", "700", "--questions", "3", "--nll", "0", "--epsilon", "0.5",
               "--selector", "psa")
    check(r.code == 0 and b"700 tokens" in r.out and b"\npsa epsilon=0.5" in r.out and b"right by task" in r.out,
          "eval's table", r)
    head, table = r.out.decode().split("\n\n", 1)
    columns = re.split("  +", table.splitlines()[1])
    lines = [dict(zip(columns, re.split("  +", line))) for line in table.splitlines()[2:4]]
    check(
        columns[:11] == [
            "setting", "asked", "right", "kept", "95%", "KV read", "same first", "same 95%", "divergence",
            "its p99", "same for"
        ], "the table's columns", columns)
    check([line["setting"] for line in lines] == ["dense", "psa epsilon=0.5"]
          and all(re.fullmatch(r"[0-9.]+-[0-9.]+", line["95%"]) for line in lines)
          and lines[0]["same first"] == "-" and lines[1]["same first"].endswith("%")
          and re.fullmatch(r"[0-9.]+ of [0-9.]+", lines[1]["same for"]),
          "the table has intervals and agreement", lines)
    by_task = [re.split("  +", line) for line in table.split("right by task", 1)[1].splitlines()]
    marks = [re.fullmatch(r"(\d+)/(\d+) \(([0-9.]+)-([0-9.]+)%\)(?: -\d+)?", cell)
             for line in by_task[1:3] for cell in line[1:]]
    check(len(marks) == 2 * len(by_task[0][1:]) > 0
          and all(m and all(abs(float(a) - b) < 0.051
                            for a, b in zip(m.groups()[2:], wilson(int(m[1]), int(m[2]))))
                  for m in marks), "right answers by task have intervals", by_task)
    reference = os.path.join(folder, "reference.json")
    with open(reference, "w") as f:
        json.dump({"tasks": {"thing@1024": 1.0}, "nll": {"0-1024": 3.5}}, f)
    flags = [*RUN, "--text", text, "--dense-only", "--length", "1024", "--questions", "3", "--tasks", "thing", "--nll-segments",
             "1", "-c", "2048"]
    r = riffle(*flags, "--compare-dense-golden", reference)
    line = next((l for l in r.out.decode().splitlines() if l.startswith("thing ")), "")
    cells = re.split("  +", line)
    low, high = wilson(int(cells[3]), 3) if len(cells) > 7 else (0, 0)
    check(cells[5:6] == [f"{low:.1f}-{high:.1f}"] and re.fullmatch(r"[0-9.]+-[0-9.]+", cells[7]),
          "eval --dense-only has intervals", line)
    check(r.code == 0 and b"within chance" in r.out and b"1024-2048" in r.out and b"3.5000" in r.out,
          "eval --dense-only beside reference figures", r)
    r = riffle(*flags, "--json")
    nll = [o["nll"] for o in objects(r.out) if o["type"] == "nll"]
    check(len(nll) == 1 and list(nll[0]) == ["0-1024", "1024-2048"] and all(0 < x < 12 for x in nll[0].values()),
          "eval --dense-only --json", r)


def heads(folder):
    text = prose(folder)
    # Words that a shell would change unless they are quoted.
    args = [
        *RUN, "--text", text, "--length", "700", "--questions", "1", "--nll", "0", "--tasks",
        "thing", "--sweep", "psa:epsilon=0.5;topk:budget=0.1", "--seed", "7"
    ]
    for more in ([], ["--json"]):
        before = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
        r = riffle(*args, *more)
        if not check(r.code == 0, "eval with a head", r):
            continue
        found, kind = facts(r.out), "JSON" if more else "text"
        # Files without their folders: a report may be passed on to others.
        check(
            found["model"].startswith(os.path.basename(MODEL) + " (") and "/" not in found["model"]
            and found["text"] == "text.txt", f"{kind}: the head names model and text", found)
        check(
            re.match("(cpu|cuda)", found["device"])
            and re.match(f".+, [a-z0-9 -]+, {THREADS} threads$", found["CPU"]),
            f"{kind}: the head names device, CPU and threads", found)
        date = datetime.datetime.fromisoformat(found["date"].replace("Z", "+00:00"))
        check(before <= date <= datetime.datetime.now(datetime.timezone.utc),
              f"{kind}: the head has the date", found)
        check(shlex.split(found["command"]) == [os.path.basename(BIN), *args, *more],
              f"{kind}: the head's command runs it again", found["command"])
        check(found["prompt"] == "chat template own" and "seed 7" in found["questions"],
              f"{kind}: the head says how questions are asked", found)


def no_text_needed(folder):
    """Lists and registers take nothing from the text, so they may be longer than it."""
    path = os.path.join(folder, "short.txt")
    with open(path, "w") as f:
        f.write("A short text. It ends here.\n")
    r = riffle(*RUN, "--text", path, "--length", "1024", "--questions", "3", "--tasks",
               "kv,common,frequent", "--answer-tokens", "8", "--selector", "psa", "--epsilon", "0.5",
               "--json")
    check(r.code == 0 and [o["total"]["questions"] for o in rows(r.out)] == [3, 3],
          "tasks that need no text may be longer than it", r)


def only_summaries(folder):
    """Summaries are not right or wrong: agreement and the KV read remain."""
    flags = [*RUN, "--text", prose(folder), "--length", "700", "--questions", "2",
             "--questions-per-doc", "1", "--nll", "0", "--answer-tokens", "8", "--tasks", "summary",
             "--selector", "psa", "--epsilon", "0.5"]
    r = riffle(*flags)
    table = r.out.decode().split("\n\n", 1)[-1].splitlines()
    check(r.code == 0 and len(table) >= 4 and re.match(r"psa epsilon=0.5 +0 +0 +- +- ", table[3])
          and b"right by task" not in r.out, "eval of summaries alone has a table without marks", r)
    found = rows(riffle(*flags, "--json").out)
    check([o["total"]["questions"] for o in found] == [0, 0]
          and found[1]["agreement"]["answers"] == 2 and found[1]["total"]["kept"] is None,
          "... and figures of agreement", found)


NEW_TASKS = [
    "needle", "multikey", "multivalue", "multiquery", "passage", "summary", "common", "frequent"
]


def new_tasks(folder):
    records = os.path.join(folder, "records.jsonl")
    r = riffle(*RUN, "--text", prose(folder), "--length", "1500", "--questions", "16", "--nll", "8",
               "--tasks", ",".join(NEW_TASKS), "--answer-tokens", "20", "--records", records,
               "--json")
    if not check(r.code == 0 and r.err == b"", "eval runs the new tasks", r):
        return
    found = rows(r.out)
    check([o["setting"] for o in found] == ["dense", "share"],
          "the default setting is riffle's own", found)
    for o in found:
        check({t: m["questions"] for t, m in o["tasks"].items()} == {t: 2 for t in NEW_TASKS},
              f"{o['setting']}: questions are dealt evenly", o["tasks"])
        check(o["tasks"]["summary"]["dense_right"] == o["tasks"]["summary"]["sparse_right"] == 0,
              f"{o['setting']}: no summary is right", o["tasks"]["summary"])
        check(o["total"]["questions"] == 14,
              f"{o['setting']}: summaries are not asked for an answer", o["total"])
        if o["setting"] != "dense":
            check(o["agreement"]["answers"] == 16,
                  f"{o['setting']}: summaries count for agreement", o["agreement"])
    with open(records) as f:
        asked = objects(f.read())
    check(
        sorted(q["task"] for q in asked) == sorted(2 * NEW_TASKS), "each is recorded",
        [q["task"] for q in asked])
    check(
        len({(q["question"], q["answer"])
             for q in asked if q["task"] not in ("common", "frequent", "summary")}) == 10,
        "their questions differ", asked)
    words_of = {
        "needle": "special magic number for",
        "multikey": "mentioned in the provided text",
        "multivalue": "What are all the special magic",
        "multiquery": " and ",
        "passage": "of",
        "summary": "Summarise",
        "common": "3 most common words",
        "frequent": "3 most frequent words"
    }
    for q in asked:
        name, texts = q["task"], [s["text"] for s in q["settings"]]
        check(words_of[name] in q["question"] or "expedition" in q["question"],
              f"{name}: the question", q["question"])
        if name == "needle":
            value = re.search("[0-9]{7}", q["answer"])[0]
            check([s["right"]
                   for s in q["settings"]] == [bool(re.search(rf"\b{value}\b", t)) for t in texts],
                  "needle: what names the number is right", q)
        if name == "summary":
            check(all(s["right"] is None for s in q["settings"]),
                  "summary: neither right nor wrong", q)
            check(q["depth"] == 0 and 0 < q["settings"][1]["steps"] <= 20,
                  "summary: ends after --answer-tokens", q)
        check(
            all(0 <= s["until_parting"] <= s["same_first"] <= s["steps"]
                for s in q["settings"][1:]), f"{name}: agreement", q)


def plain_text(folder):
    """A model without a chat template is asked in plain text, and the report says so."""
    model, records = without_template(folder), os.path.join(folder, "records.jsonl")
    args = [
        "eval", "--threads", THREADS, "-m", model, "--text",
        prose(folder), "--length", "700", "--questions", "4", "--nll", "0", "--tasks",
        "thing,needle", "--records", records
    ]
    said = b"no chat template that riffle can evaluate: questions are asked in plain text"
    r = riffle(*args, "--json")
    if not check(r.code == 0 and r.err.count(said) == 1,
                 "a model without a chat template is asked, and eval says how", r):
        return
    check(facts(r.out)["prompt"].startswith("plain text"), "... and so does the head", facts(r.out))
    check(rows(r.out)[0]["total"]["questions"] == 4, "... all questions are asked", r)
    with open(records) as f:
        plain = objects(f.read())
    check(all(s["text"] for q in plain for s in q["settings"]), "... and are answered", plain)
    r = riffle(*args, "-q")
    check(r.code == 0 and said not in r.err and facts(r.out)["prompt"].startswith("plain text"),
          "... with -q the head alone says so", r)
    os.remove(records)
    r = riffle(*args, "--json", "--chat-template", "inst")
    with open(records) as f:
        chat = objects(f.read())
    check(r.code == 0 and said not in r.err and facts(r.out)["prompt"] == "chat template inst",
          "--chat-template gives it one", r)
    # Except for the form of the prompt, documents and questions are the same; the answers need not be.
    check([q["question"] for q in plain[:4]] == [q["question"] for q in chat],
          "... for the same questions", chat)
    check([q["settings"][0]["text"] for q in plain[:4]] != [q["settings"][0]["text"] for q in chat],
          "... which it answers otherwise", chat)


COMPARED = "psa:epsilon=0.2,0.95*,1;topk:budget=0.05,0.3*,digest=quest,cuboid-mean;psa:stop=veto,epsilon=0.5"
COMPARED_LABELS = ["dense", "psa epsilon=0.2", "psa epsilon=0.95", "psa epsilon=1", "topk budget=0.05 digest=quest",
                   "topk budget=0.05 digest=cuboid-mean", "topk budget=0.3 digest=quest",
                   "topk budget=0.3 digest=cuboid-mean", "psa stop=veto epsilon=0.5"]
SERIES = ["psa", "psa stop=veto", "topk digest=quest", "topk digest=cuboid-mean"]


def smallest_read(rows_, percent):
    """Returns [KV read, setting] of the row that reads least and keeps `percent` of the answers, or two Nones."""
    fit = [(r["answers"]["kv_read_pct"], r["setting"]) for r in rows_
           if 100 * r["total"]["both_right"] >= percent * r["total"]["dense_right"] > 0]
    return min(fit, key=lambda x: x[0]) if fit else (None, None)


def equal_accuracy(found):
    """Returns the summary's table, computed again from the rows."""
    table = []
    for length in LENGTHS:
        here = [r for r in found if r["length"] == length and r["setting"] != "dense"]
        groups = {}
        for name in ("psa", "topk"):
            groups[name, None] = [r for r in here if r["selection"]["selector"] == name]
            for series in SERIES:
                if series.split()[0] == name:
                    groups[name, series] = [r for r in here if r["series"] == series]
        for (selector, series), members in groups.items():
            goals = []
            for percent in (95, 98, 100):
                read, setting = smallest_read(members, percent)
                to = {s: smallest_read(groups[s, None], percent)[0] for s in ("topk", "psa")}
                goals.append([percent, setting, read] + [read / to[s] if read and to[s] else None for s in ("topk", "psa")])
            table.append([length, selector, series, goals])
    return table


class Page(html.parser.HTMLParser):
    """The contents of a report. Checks that every element that must be closed is closed in the right order."""
    VOID = {"meta", "path", "rect"}

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.balanced, self.text = [], [], True, ""
        self.feed(text)
        self.balanced &= not self.open

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes), list(self.open)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes), list(self.open)))

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return  # </path> behind a <title>
        self.balanced &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def of_class(self, tag, name):
        return [a for t, a, _ in self.found if t == tag and name in (a.get("class") or "").split()]


def painted(page):
    """Returns the panels of the heat maps, in order, each as {(step, row): level}."""
    panels = []
    for tag, a, inside in page.found:
        if tag == "rect" and a.get("class") == "back":
            panels.append({})
        if tag == "path" and re.fullmatch("h[1-4]", a.get("class") or ""):
            for x, y, way, n in re.findall(r"M([0-9.]+) ([0-9.]+)([hv])([0-9]+)", a["d"]):
                for i in range(int(n)):
                    cell = int(float(x)) + i * (way == "h"), int(float(y)) + i * (way == "v")
                    assert cell not in panels[-1], f"painted twice: {cell}"
                    panels[-1][cell] = int(a["class"][1])
    return panels


def comparison(folder):
    text, report = prose(folder), os.path.join(folder, "report.html")
    flags = [*RUN, "--text", text, "--questions", "10" if THOROUGH else "5", "--questions-per-doc", "5", "--nll", "16", "--length",
             ",".join(map(str, LENGTHS))]
    r = riffle(*flags, "--compare", COMPARED, "--json", "--report", report)
    if not check(r.code == 0 and r.err == b"", "eval --compare runs", r):
        return
    lines, found = objects(r.out), rows(r.out)
    check([(o["length"], o["setting"]) for o in found] == [(n, s) for n in LENGTHS for s in COMPARED_LABELS],
          "a comparison has a row for each length and setting", [o["setting"] for o in found])
    paper = [o["setting"] for o in found if o["paper_default"] and o["length"] == LENGTHS[0]]
    check(paper == ["psa epsilon=0.95", "topk budget=0.3 digest=quest", "topk budget=0.3 digest=cuboid-mean"],
          "'*' marks the paper's defaults", paper)
    check(all(0 < o["figures"]["coverage_mean"] < 1.0001 for o in found if o["setting"] != "dense"),
          "a comparison measures coverage")
    for o in found:
        f, a, t = o["figures"], o["answers"], o["total"]
        check(
            f["kv_read_pct"] == a["kv_read_pct"] and f["lost"] == t["dense_right"] - t["both_right"]
            and abs(f["kept_pct"] - 100 * t["kept"]) < 1e-9
            and f["kept_low_pct"] <= f["kept_pct"] <= f["kept_high_pct"]
            and abs(f["text_nll_increase"] -
                    (o["text"]["nll_sparse"] - o["text"]["nll_dense"])) < 1e-9
            and abs(f["kv_bytes_per_step"] * a["steps"] - a["kv_bytes_read"]) < 1 and close(
                [f["kept_low_pct"], f["kept_high_pct"]], wilson(t["both_right"], t["dense_right"]))
            and all(f[k] == o["agreement"][k] for k in ("same_first_pct", "divergence_mean",
                                                        "divergence_p99", "tokens_until_parting"))
            and f["answer_tokens"] == o["agreement"]["tokens"]
            and f["text_nll_error"] == o["text"]["nll_increase_error"] >= 0,
            f"{o['setting']}: figures agree", f)
    check([o["type"] for o in lines[-2:]] == ["summary", "end"], "the summary closes a comparison", lines[-1])
    ours, theirs = equal_accuracy(found), []
    for e in lines[-2]["equal_accuracy"]:
        theirs.append([e["length"], e["selector"], e["series"],
                       [[g[k] for k in ("kept_at_least_pct", "setting", "kv_read_pct", "to_topk", "to_psa")]
                        for g in e["goals"]]])
    order = lambda table: sorted(table, key=lambda e: (e[0], e[1], e[2] or ""))
    check(order(ours) == order(theirs), "equal accuracy is that of the rows", (ours, theirs))
    check(any(g[1] for e in theirs for g in e[3]), "some setting keeps the answers")

    with open(report) as f:
        source = f.read()
    page = Page(source)
    check(page.balanced, "the report's elements are closed", page.open)
    outside = re.findall(r"<script|<link|<img|@import|@font-face|url\(|https?:|src=|href=", source)
    check(not outside and len(source) < 4e6, "the report stands alone", outside)
    charts = page.of_class("svg", "chart")
    check(len(charts) == 5 * len(LENGTHS), "a chart per figure and length", len(charts))
    # Dense has no point; settings of the papers are stars. Five figures, each with every setting.
    marks = page.of_class("path", "mark")
    per_chart = len(COMPARED_LABELS) - 1
    check(len(marks) == len(charts) * per_chart + len(SERIES), "a point per setting, and the legend's", len(marks))
    check(len(page.of_class("path", "full")) == len(charts) * 3, "the papers' defaults have another shape")
    check(all(s in page.text for s in COMPARED_LABELS), "the report names every setting")
    check(
        all(name + value in page.text for name, value in lines[0]["facts"].items())
        and len(page.of_class("dl", "facts")) == 1, "the report has the head's facts",
        lines[0]["facts"])
    intervals = re.findall(r"[0-9.]+% \([0-9.]+-[0-9.]+\)", page.text)
    check(
        len(intervals) >= 2 * len(found) - len(LENGTHS), "the report's table has intervals",
        len(intervals))
    maps = [o for o in lines if o["type"] == "heatmap"]
    check([(o["length"], o["setting"]) for o in maps] == [(n, s) for n in LENGTHS for s in paper],
          "heat maps of the papers' defaults", [o["setting"] for o in maps])
    wanted = [{(x, y): int(level) for x, step in enumerate(p["read"]) for y, level in enumerate(step) if level != "0"}
              for o in maps for p in sorted(o["panels"], key=lambda p: (p["kv_head"], p["layer"]))]
    check(painted(page) == wanted and any(wanted), "the heat maps show what the JSON says")
    for o in maps:
        # Each step reads the first block, the last, and no more than there is: the row of the last block is never empty.
        full = all(step[0] != "0" and step[-1] != "0" and len(step) * o["blocks_per_row"] >= o["blocks"]
                   for p in o["panels"] for step in p["read"][-1:])
        check(full and len(o["panels"]) == 16 and all(len(p["read"]) == o["steps"] for p in o["panels"]),
              f"heat map of {o['setting']}: a panel per layer and KV head, sinks and tail read", o["steps"])

    flags += ["--no-coverage", "--tasks", "thing"]
    r = riffle(*flags, "--compare", "topk:budget=0.1;psa:epsilon=1", "--heatmap", "psa:epsilon=1", "--json")
    maps = [o for o in objects(r.out) if o["type"] == "heatmap"]
    check(r.code == 0 and [o["setting"] for o in maps] == ["psa epsilon=1"] * len(LENGTHS)
          and {c for o in maps for p in o["panels"] for step in p["read"][-1:] for c in step} == {"4"},
          "psa at epsilon 1 reads every block", r)
    check(all(o["figures"]["coverage_mean"] is None for o in rows(r.out)), "--no-coverage measures none")
    r = riffle(*flags, "--compare", "topk:budget=0.1*")
    table = r.out.split(b"\n\n", 1)[-1]  # the head has the command, and with it --no-coverage
    check(
        r.code == 0 and b"\ntopk budget=0.1 *" in table and b"KV read to keep" in table
        and b"coverage" not in table, "a comparison's table", r)
    row = [line for line in table.splitlines() if line.startswith(b"topk budget=0.1 *")]
    check(
        len(row) == len(LENGTHS)
        and all(len(re.findall(rb"[0-9.]+% \([0-9.]+-[0-9.]+\)", line)) == 2 for line in row),
        "... has intervals of answers kept and of agreement", row)


def pictures(folder):
    svg = os.path.join(folder, "kept.svg")
    r = riffle(*RUN, "--text", prose(folder), "--length", "700,1024", "--questions", "4", "--nll", "0", "--tasks", "thing",
               "--no-coverage", "--compare", "psa:epsilon=0.5,0.95*;topk:budget=0.1,0.3", "--report", svg, "--json")
    if not check(r.code == 0, "eval writes its curves as SVG", r):
        return
    root = xml.etree.ElementTree.parse(svg).getroot()
    name = "{http://www.w3.org/2000/svg}"
    marks = [e for e in root.iter(name + "path") if "mark" in (e.get("class") or "").split()]
    titles = [e.text for e in root.iter(name + "title")]
    check(root.tag == name + "svg" and len(marks) == 2 * 2 * 4 + 2,
          "it is XML with a mark per setting and the legend's", len(marks))
    check(
        sum("psa epsilon=0.95 (as its paper runs it)" in t for t in titles) == 4,
        "its points have names", titles)
    # Two lines of panels, one below the other: by KV read, and by all bytes read.
    at = {}
    for g in root.findall(name + "g"):
        chart = g.find(name + "svg")
        if chart is None or chart.get("class") != "chart":
            continue
        x, y = map(int,
                   re.fullmatch(r"translate\(([0-9]+) ([0-9]+)\)", g.get("transform")).groups())
        at[x, y] = [t.text for t in chart.iter(name + "text") if t.get("class") in ("head", "axis")]
    xs, ys = (sorted({p[i] for p in at}) for i in (0, 1))
    lengths = [[at[x, y][0] for x in xs] for y in ys] if len(at) == 4 else []
    check(
        lengths == [["700 tokens", "1024 tokens"]] * 2
        and [at[xs[0], y][1].replace(" (log)", "") for y in ys] == ["KV read", "KV and index read"],
        "it has two lines of panels", at)
    size = [int(root.get(k)) for k in ("width", "height")]
    check(size[0] >= xs[-1] + 440 and size[1] >= ys[-1] + 300 and len(xs) == len(ys) == 2,
          "... which fit", (size, at))
    check([o["type"] for o in objects(r.out) if o["type"] == "heatmap"] == [], "it needs no heat maps")


def positions(folder):
    r = riffle(*RUN, "--text", prose(folder), "--length", "700", "--questions", "2", "--nll", "0", "--tasks", "thing", "--sweep",
               "tokenselect:positions=true,list,select_tokens=64,init_tokens=16,local_tokens=64", "--json")
    found = rows(r.out) if r.code == 0 else []
    tail = " select_tokens=64 init_tokens=16 local_tokens=64"
    check([o["setting"] for o in found] == ["dense", "tokenselect positions=true" + tail, "tokenselect positions=list" + tail]
          and [o["selection"]["positions"] for o in found] == ["true", "true", "list"], "positions is a field of specs", r)
    start = [o for o in objects(r.out) if o["type"] == "run"]
    check(start and start[0]["notices"] == {}, "no notices where there is nothing to say", start)
    r = riffle("eval", "--threads", THREADS, "--text", prose(folder), "--length", "700", "--questions", "1", "--nll", "0", "--tasks",
               "thing", "-c", "40000", "--device", "cpu", "--sweep",
               "psa:epsilon=0.5;tokenselect:positions=list,select_tokens=64,init_tokens=16,local_tokens=64", "--json")
    start = [o for o in objects(r.out) if o["type"] == "run"]
    check(r.code == 0 and start and set(start[0]["notices"]) == {"dense", "psa epsilon=0.5"}
          and all("trained with 32768" in t for t in start[0]["notices"].values())
          and r.err.count(b"trained with 32768") == 1, "eval says which settings go beyond the trained length", r)


def with_end_token(folder, token):
    """A copy of the model that ends answers with one more token."""
    def text(s):
        return struct.pack("<Q", len(s)) + s
    # Two entries in front of the others, 64 bytes together, so that tensors stay aligned: a uint32 and an empty string.
    more = text(b"tokenizer.ggml.eot_token_id") + struct.pack("<II", 4, token) + text(b"x") + struct.pack("<I", 8) + text(b"")
    path = os.path.join(folder, "end.gguf")
    with open(MODEL, "rb") as f, open(path, "wb") as out:
        head, n = f.read(16), struct.unpack("<Q", f.read(8))[0]
        out.write(head + struct.pack("<Q", n + 2) + more)
        out.write(f.read())
    check(len(more) == 64, "the model with two end tokens is aligned", len(more))
    return path


def end_tokens(folder):
    def answers(model):
        records = os.path.join(folder, "answers.jsonl")
        r = riffle(*RUN, "-m", model, "--text", prose(folder), "--length", "1024", "--nll", "0", "--questions", "6", "--tasks",
                   "vars", "--sweep", "topk:budget=0.02,sink-blocks=1,recent-blocks=1", "--no-coverage", "--records", records,
                   "--json")
        if not check(r.code == 0, "eval of wrong answers", r):
            return []
        with open(records) as f:
            found = [s.get("text", "") for line in f for s in json.loads(line)["settings"]]
        os.remove(records)
        return found

    plain = answers(MODEL)
    said = riffle("tokenize", "-p", "X and Y", "--json") if plain else None
    said = json.loads(said.out) if said and said.code == 0 else {"pieces": [], "ids": []}
    ids = dict(zip(said["pieces"], said["ids"]))
    word = "\u2581and"
    if not check(word in ids and any(" and " in t for t in plain), "answers with a word to end at", (ids, plain)):
        return
    ended = answers(with_end_token(folder, ids[word]))
    check(len(ended) == len(plain) and all(e == (p.split(" and ")[0] if " and " in p else p) for e, p in zip(ended, plain)),
          "any of the model's end tokens ends an answer that eval generates", (plain, ended))


def default_comparison(folder):
    questions = "2" if THOROUGH else "1"
    r = riffle(*RUN, "--text", prose(folder), "--length", "700", "--questions", questions, "--tasks", "thing", "--nll", "8",
               "--no-coverage", "--compare", "--json")
    found = rows(r.out) if r.code == 0 else []
    paper = {o["selection"]["selector"] for o in found if o["paper_default"]}
    check({"psa", "topk"} <= paper and len({o["setting"] for o in found}) == len(found) > 10,
          "--compare alone runs every selector, as its paper does too", r)
    check("tokenselect" in paper, "its papers' runs are marked", paper)
    # Every selector that a flag accepts is in the list. (share is riffle's own and has no paper; auto stands for others.)
    known = riffle("eval", "-q", "--sweep", "none:epsilon=1").err.decode().split("expected one of")[-1]
    missing = {s.strip() for s in known.split(",")} - {o["selection"]["selector"] for o in found} - {"auto"}
    check(not missing, "the list of --compare has all selectors", missing)

    # Flags set the values that the list leaves open, for the selectors that read them; it is then no paper's run.
    r = riffle(*RUN, "--text", prose(folder), "--length", "700", "--questions", questions, "--tasks", "thing", "--nll", "8",
               "--no-coverage", "--compare", "--init-tokens", "64", "--recent-blocks", "2", "--json")
    changed = {o["setting"]: o for o in rows(r.out)} if r.code == 0 else {}
    check(set(changed) == {o["setting"] for o in found} and
          all(o["selection"]["init_tokens"] == 64 for o in changed.values()
              if o["selection"]["selector"] == "tokenselect"), "flags reach the list of --compare", r)
    papers = {o["selection"]["selector"] for o in changed.values() if o["paper_default"]}
    check(papers == paper - {"tokenselect"}, "a flag takes the paper's mark away, its default does not", papers)


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


def few_questions(folder):
    """Fewer questions than kinds: the kinds are taken at even distances, and the report says which."""
    flags = [*RUN, "--text", prose(folder), "--length", "1024", "--nll", "0", "--answer-tokens", "4", "--no-coverage",
             "--selector", "psa", "--json"]
    r = riffle(*flags, "--questions", "3", "--tasks", "passkey,magic,person,thing,needle,multikey,kv")
    asked = rows(r.out)[0]["tasks"] if r.code == 0 else {}
    check(r.code == 0 and set(asked) == {"passkey", "person", "needle"} and sum(t["questions"] for t in asked.values()) == 3,
          "three questions of seven kinds", (asked, r))
    said = facts(r.out)["questions"]
    check("passkey,person,needle (one each of 3 of 7 kinds)" in said, "the report says which", said)
    r = riffle(*flags, "--questions", "3", "--tasks", "passkey,magic")
    check("passkey,magic;" in facts(r.out)["questions"], "with as many questions as kinds, all are asked", r)


def stopped_comparison(folder):
    p = start(*RUN, "--text", prose(folder), "--length", "700,1024", "--questions", "500", "--compare", "psa:epsilon=0.5",
              "--no-coverage", "--nll", "0", "--records", os.path.join(folder, "records.jsonl"))
    end = time.time() + 120
    seen = os.path.join(folder, "records.jsonl")
    while time.time() < end and p.poll() is None and not (os.path.exists(seen) and os.path.getsize(seen)):
        time.sleep(0.05)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    check(p.returncode == 130 and b"psa" in out and b"\nstopped early: the figures cover only the questions answered until then\n" in out,
          "a stopped --compare says so in its report", (p.returncode, out[-300:], err))


def demo(folder):
    """The demo of a model with no document of its own: numbers are hidden in the shipped one."""
    model = os.path.join(folder, "copy.gguf")
    shutil.copy(MODEL, model)
    context = 4096 if THOROUGH else 2048
    args = ["demo", "-m", model, "-c", str(context), "--threads", THREADS, "--device", "cpu"]
    r = riffle(*args)
    text = r.out.decode()
    questions = re.findall("^Q (.*)$", text, re.M)
    check(len(set(questions)) == 8 and all("special magic number for" in q for q in questions),
          "demo: a model without a document is asked for hidden numbers", r)
    check(b"with 8 numbers hidden in it" in r.err, "... and says that they are hidden", r.err)
    shown = dict(re.findall(r"^(dense|share)  +([0-9]/8) ", text, re.M))
    check(set(shown) == {"dense", "share"}, "... its table shows both ways", text)
    check("stays in host memory." in text and "pool" not in text,
          "... and says nothing of a pool, which the CPU lacks", text)
    small = ["-c", "1500", "--threads", THREADS, "--device", "emu", "-q"]
    pooled = riffle("demo", "-m", model, *small).out.decode()
    check(re.search(r"stays in host memory, behind a pool of [1-9]\d* slots \(", pooled)
          and "pool hits" in pooled, "demo: behind a pool, the pool is told of", pooled)

    def run(*more):
        r = riffle(*args, "-q", "--json", *more)
        j = json.loads(r.out) if r.out.startswith(b"{") else {}
        if not check(r.err == b"" and j.get("questions") == 8 and len(j["ways"]) == 2,
                     f"demo {more} as JSON", r):
            return None
        lost = j["lost_answers"]
        check(r.code == (1 if lost else 0), "... exits with 1 if an answer is lost",
              (r.code, lost))
        dense, sparse = j["ways"]
        answers = list(zip(dense["answers"], sparse["answers"]))
        check(
            j["same_answers"] == sum(a == b for a, b in answers)
            and len(answers) == 8 and dense["correct"] - sparse["correct"] <= lost <= min(
                dense["correct"], 8 - j["same_answers"]), "... its counts agree", j)
        check(context * 0.7 < j["document_tokens"] <= context and j["ways"][0]["selector"] == "dense",
              "... fits the context", j)
        return j

    all_read = run("--selector", "psa", "--epsilon", "1")
    if all_read:
        check(all_read["lost_answers"] == 0 and all_read["same_answers"] == 8,
              "psa at epsilon 1 loses nothing", all_read)
    default = run()
    if default:
        check(
            default["ways"][1]["selector"] == "share" and default["ways"][0]["correct"] > 0
            and shown == {w["selector"]: f"{w['correct']}/8"
                          for w in default["ways"]}, "the default is riffle's own", default)
    least = run("--selector", "topk", "--budget", "0.001", "--sink-blocks", "1", "--recent-blocks",
                "1")
    if least:
        check(
            least["lost_answers"] > 0
            and least["ways"][0]["answers"] == default["ways"][0]["answers"],
            "what reads next to nothing loses answers", least)
    r = riffle("demo", "-m", model, "-c", "256", "--threads", THREADS, "--device", "cpu", "-q")
    check(one_line_error(r, 1, "8 questions does not fit into 256 tokens"),
          "demo: a context too small for it is refused", r)
    r = riffle("demo", "-m", without_template(folder), "-c", str(context), "--threads", THREADS, "--device",
               "cpu", "--json", "-q")
    check(r.code in (0, 1) and len(json.loads(r.out or "{}").get("ways", [])) == 2,
          "demo: a model without a chat template is asked in plain text", r)


main(refusals, figures, prompts, tables, heads, no_text_needed, only_summaries, new_tasks, plain_text,
     comparison, pictures, positions, end_tokens, default_comparison, interrupted, few_questions,
     stopped_comparison, demo)
