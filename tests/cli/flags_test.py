"""Flags, exit codes, what goes to stdout and what to stderr."""
from harness import *


def help_and_version(_):
    r = riffle("--help")
    check(r.code == 0 and b"Exit codes" in r.out and r.err == b"", "--help documents the exit codes", r)
    r = riffle("--version")
    check(r.code == 0 and r.out.startswith(b"riffle ") and r.out.count(b"\n") == 1, "--version is one line", r)
    for command in ["chat", "run", "batch", "info", "bench", "eval", "tokenize"]:
        r = riffle(command, "--help")
        check(r.code == 0 and b"--model" in r.out and r.err == b"", f"{command} --help", r)


def usage_errors(_):
    cases = {
        "no command": [],
        "unknown command": ["sing"],
        "unknown flag": ["run", "-p", "x", "--bogus"],
        "flag of another command": ["info", "--temp", "0"],
        "missing value": ["run", "-p"],
        "block 17": ["run", "-p", "x", "--block", "17"],
        "selector magic": ["run", "-p", "x", "--selector", "magic"],
        "epsilon 0": ["run", "-p", "x", "--epsilon", "0"],
        "epsilon 1.5": ["run", "-p", "x", "--epsilon", "1.5"],
        "epsilon nan": ["run", "-p", "x", "--epsilon", "nan"],
        "temp -1": ["run", "-p", "x", "--temp", "-1"],
        "temp inf": ["run", "-p", "x", "--temp", "inf"],
        "temp beyond a float": ["run", "-p", "x", "--temp", "1e39"],
        "top-p 2": ["run", "-p", "x", "--top-p", "2"],
        "top-k 1.5": ["run", "-p", "x", "--top-k", "1.5"],
        "-n words": ["run", "-p", "x", "-n", "many"],
        "-n below -1": ["run", "-p", "x", "-n", "-2"],
        "-c negative": ["run", "-p", "x", "-c", "-5"],
        "-c too large a number": ["run", "-p", "x", "-c", "99999999999999999999"],
        "-c above 2^31": ["run", "-p", "x", "-c", "4G"],
        "gpu-mem 12X": ["run", "-p", "x", "--gpu-mem", "12X"],
        "microbatch 0": ["run", "-p", "x", "--microbatch", "0"],
        "lookahead 9": ["bench", "--lookahead", "9"],
        "budget 0": ["run", "-p", "x", "--budget", "0"],
        "parallel 0": ["batch", "--parallel", "0"],
        "bench of an unknown selector": ["bench", "--selectors", "dense,magic"],
        "ids that are none": ["tokenize", "--decode", "one two"],
    }
    for name, args in cases.items():
        r = riffle(*args)
        check(one_line_error(r, 2), f"usage error: {name}", r)


def selection_ranges(_):
    """A flag out of range is refused with its name, the value found and the range that the library has."""
    above_0 = "more than 0, at most 1"
    budget = "more than 0, at most 1000000000"
    blocks, tokens = "0 to 1048576", "0 to 268435456"
    some_blocks, some_tokens = "1 to 1048576", "1 to 268435456"
    cases = {
        "--epsilon": (["0", "-0.1", "1.0001", "nan", "x", "1e-60"], above_0),
        "--top-p-attn": (["0", "1.5", "inf"], above_0),
        "--bypass": (["0", "1.1"], above_0),
        "--share": (["-0.1", "1", "0.99999999"], "at least 0, less than 1"),
        "--budget": (["0", "-1", "2e9", "4G"], budget),
        "--base-budget": (["0", "2e9"], budget),
        "--top-tokens": (["0", "-3"], budget),
        "--microbatch": (["0", "1.5", "1048577"], some_blocks),
        "--sink-blocks": (["-1", "1048577", "2.5"], blocks),
        "--recent-blocks": (["-1", "1048577", "99999999999999999999"], blocks),
        "--dense-layers": (["-1", "1048577"], blocks),
        "--lookahead": (["-1", "9"], "0 to 8"),
        "--select-tokens": (["0", "268435457"], some_tokens),
        "--local-tokens": (["0", "-1"], some_tokens),
        "--init-tokens": (["-1", "268435457"], tokens),
        "--cache-threshold": (["-1.01", "2.01", "nan"], "-1 to 2 (above 1: never)"),
        "--alpha": (["-1", "10.1"], "0 to 10"),
        "--decay": (["-0.1", "1"], "0 to 0.9999"),
        "--selector": (["magic", "0"], "dense, share, auto, psa, topk, twilight, tokenselect, lfps"),
        "--digest": (["cuboid"], "mean, quest, cuboid-mean"),
        "--gqa": (["max"], "mean, soft-sum, union"),
        "--stop-mode": (["never"], "paper, last, bound, veto"),
        "--base": (["twilight", "dense"], "all, topk, psa"),
        "--vote": (["loud"], "soft, logits, hard"),
        "--positions": (["0"], "true, list"),
    }
    shown = riffle("eval", "--help-all").out.decode()
    flags = {word for word in shown.split() if word.startswith("--") and word in cases or word.strip(",") in cases}
    check(flags >= set(cases) - {"--base"}, "the help names every one of these flags", set(cases) - flags)
    for flag, (values, range_) in cases.items():
        for value in values:
            r = riffle("eval", f"{flag}={value}")
            check(one_line_error(r, 2, flag, f"'{value}'", range_), f"{flag} {value} is refused with its range", r)
    for args in (["--cache-threshold", "-1"], ["--select-tokens", "2K"], ["--budget", "1K"], ["--share", "0"],
                 ["--recent-blocks", "1048576"], ["--epsilon", "1"]):
        r = riffle("run", "-p", "x", "-n", "1", "-q", "-c", "64", *args)
        check(r.code == 0, f"{' '.join(args)} is taken", r)
    r = riffle("eval", "-q", "--selector", "psa", "--stop-mode", "bound", "--digest", "mean")
    check(one_line_error(r, 2, "--stop-mode is bound", "paper, last or veto"), "stop mode bound with digest mean", r)
    for args, why in ((["lfps"], "keys in host memory"), (["tokenselect", "--positions", "list"], "positions list"),
                      (["twilight", "--base", "psa", "--stop-mode", "veto"], "stop bound or veto")):
        r = riffle("eval", "-q", "--device", "cuda", "--selector", *args)
        check(one_line_error(r, 1, f"selector is {args[0]}", why, "device is cuda", "cpu or emu"),
              f"{' '.join(args)} has no GPU kernels", r)


def names(_):
    """Errors and notices name flags, not members of the library's options."""
    small = ["-p", "x", "-n", "1", "-c", "1024"]
    r = riffle("run", "--raw", *small, "--device", "emu", "--gpu-mem", "1M", "-q")
    check(one_line_error(r, 4, "riffle: --gpu-mem is 1.0 MiB", "at least"), "a budget that is too small", r)
    r = riffle("run", "--raw", *small, "--device", "emu", "--slots", "3", "-q")
    check(one_line_error(r, 4, "riffle: --slots is 3"), "too few slots", r)
    r = riffle("run", "--raw", *small, "--host-mem", "1K", "-q")
    check(one_line_error(r, 4, "riffle: --host-mem is 1.0 KiB", "1024 tokens"), "too little for the KV", r)
    r = riffle("run", "--raw", "-p", "x", "-n", "1", "--host-mem", "64M")
    check(r.code == 0 and b"--host-mem (64.0 MiB), and -c sets another length" in r.err, "a shorter context, with the reason", r)
    r = riffle("run", "--raw", *small, "--selector", "topk", "--epsilon", "0.5", "--budget", "0.2")
    check(r.code == 0 and r.err.count(b"has no effect") == 1 and b"--epsilon has no effect: selector topk ignores it; "
          b"it is for psa" in r.err, "a setting that the selector does not look at", r)
    r = riffle("bench", "--arrivals", "--cost", "a100", "-q")
    check(one_line_error(r, 2, "a100 is none of h200-8b, a100-8b, a100-lwm-7b"), "an unknown cost model", r)


def notices(_):
    args = ["run", "--raw", "-p", "The rain", "-n", "4", "-c", "40000", "--device", "cpu", *GREEDY]
    beyond = b"trained with 32768"
    p = subprocess.run([BIN, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                       env=environment(), timeout=120)
    answer = riffle(*args, "-q").out
    check(0 <= p.stdout.find(beyond) < p.stdout.find(answer) and p.stdout.count(beyond) == 1 and answer,
          "what lies beyond the trained length is said before the answer, once", p.stdout)
    j = json.loads(riffle(*args, "-q", "--json").out)
    check(beyond.decode() in (j["notice"] or ""), "... and in --json", j["notice"])
    long_list = ["--selector", "tokenselect", "--positions", "list", "--select-tokens", "33K"]
    j = json.loads(riffle(*args, *long_list, "-q", "--json").out)
    check("lists of positions reach" in (j["notice"] or ""), "a list longer than the trained length", j["notice"])
    small = ["run", "--raw", "-p", "The rain", "-n", "2", *SMALL, "-q", "--json"]
    j = json.loads(riffle(*small, "--selector", "share").out)
    check(j["notice"] is None, "no notice where there is nothing to say", j["notice"])
    j = json.loads(riffle(*small, "--device", "cpu").out)
    check(j["notice"].startswith("selector auto: dense, "), "what selector auto stands for", j["notice"])


def devices(_):
    j = json.loads(riffle("info", "--plan", "--json").out)
    plan = j["plan"]
    args = ["run", "--raw", "-p", "The rain", "-n", "4", "-c", "1K", *GREEDY]
    if plan["device"] == "cuda":
        check(plan["device_note"] != "", "the plan names the GPU", plan)
        r = riffle(*args, "--device", "cuda", "-q")
        check(r.code == 0 and len(r.out) > 0 and r.err == b"", "--device cuda runs", r)
        r = riffle(*args, "--device", "cuda", "--gpu-mem", "10M")
        check(one_line_error(r, 4) and b"at least" in r.err, "too little GPU memory names what would do", r)
        return
    r = riffle(*args, "--device", "cuda")
    check(one_line_error(r, 1) and b"device cuda" in r.err, "--device cuda without a GPU says what is missing", r)
    r = riffle("batch", "-i", os.devnull, "--device", "cuda")
    check(one_line_error(r, 1, "device cuda"), "batch --device cuda without a GPU", r)
    loud, quiet = riffle(*args), riffle(*args, "-q")
    notes = [line for line in loud.err.splitlines() if b"running on the CPU" in line]
    surprising = plan["device_note"] not in ("", "no NVIDIA driver was found")
    check(loud.code == 0 and len(notes) == int(surprising), "--device auto is quiet where there is no GPU", loud)
    for flags in (["--gpu-mem", "2G"], ["--slots", "4000"], ["-q", "--gpu-mem", "2G"]):
        for command in (args, ["info", "--plan"], ["batch", "-i", os.devnull]):
            r = riffle(*command, *flags)
            check(one_line_error(r, 1, flags[-2] + " is given, but no GPU can be used", "--device emu"),
                  f"{command[0]} {' '.join(flags)} without a GPU is an error", r)
    for more in ([], ["--plan"]):
        r = riffle("info", *more)
        said = r.out.decode().count(plan["device_note"]) if plan["device_note"] else 1
        check(r.code == 0 and said == 1, f"info {' '.join(more)} says once why no GPU is used", r)
    check(quiet.out.strip() == loud.out.strip() and quiet.err == b"", "-q keeps it quiet", quiet)


def instruction_sets(_):
    """Sets that this CPU lacks are refused. The error lists the values that it accepts."""
    r = riffle("info", "--plan", "--isa", "scalar", "--json")
    check(r.code == 0 and json.loads(r.out)["plan"]["isa"] == "scalar", "--isa scalar", r)
    refused = [r for r in (riffle("info", "--plan", "--isa", name) for name in ("avx2", "neon")) if r.code != 0]
    said = "which this CPU lacks; expected one of auto, scalar"
    check(refused and one_line_error(refused[-1], 1, "--isa: found ", said),
          "--isa of another architecture", refused)


def sizes(_):
    r = riffle("run", "--raw", "-p", "Hello", "-n", "2", "-c", "1K", "--device", "emu", "--gpu-mem", "2.5G", *GREEDY,
               "--json", "-q")
    j = json.loads(r.out) if r.code == 0 else {}
    check(j.get("options", {}).get("n_ctx") == 1024 and j["options"]["gpu_mem"] == 5 << 29, "1K and 2.5G", r)
    plan = ["info", "--plan", "--device", "emu", "-c"]
    for length in ("1000", "1K", "5000", "32K"):
        shown = riffle(*plan, length).out.decode().split("smallest --gpu-mem for ")[1].split()[2]
        r = riffle(*plan, length, "--gpu-mem", shown)
        check(r.code == 0, f"the smallest --gpu-mem for {length} tokens, as it is shown: {shown}", r)
        r = riffle(*plan, length, "--gpu-mem", "1M")
        shown = r.err.decode().split("at least ")[1].split()[0]
        r = riffle(*plan, length, "--gpu-mem", shown)
        check(r.code == 0, f"the --gpu-mem that the error names for {length} tokens: {shown}", r)


def streams(folder):
    quiet = riffle("run", "--raw", "-p", "The rain", "-n", "12", *GREEDY, *SMALL, "-q")
    check(quiet.code == 0 and quiet.err == b"" and len(quiet.out) > 0, "run -q: the answer alone", quiet)
    loud = riffle("run", "--raw", "-p", "The rain", "-n", "12", *GREEDY, *SMALL)
    check(loud.out == quiet.out and len(loud.err) > 0, "statistics are on stderr only", loud)
    check(b"\x1b" not in loud.err and b"\r" not in loud.err, "no escapes and no bar in a pipe", loud)
    piped = riffle("run", "--raw", "-n", "12", *GREEDY, *SMALL, "-q", stdin=b"The rain")
    check(piped.out == quiet.out and piped.code == 0, "the prompt from stdin", piped)
    path = os.path.join(folder, "prompt.txt")
    with open(path, "w") as f:
        f.write("The rain")
    r = riffle("run", "--raw", "-f", path, "-n", "12", *GREEDY, *SMALL, "-q")
    check(r.out == quiet.out and r.code == 0, "the prompt from a file", r)
    r = riffle("run", "--raw", "-f", "-", "-n", "12", *GREEDY, *SMALL, "-q", stdin=b"The rain")
    check(r.out == quiet.out and r.code == 0, "the prompt from -f -", r)
    question = "The code is 4821.\nWhat is the code?"
    with open(path, "w") as f:
        f.write("The code is 4821.\n")
    a = riffle("run", "--chat", "-f", path, "-p", "What is the code?", "-n", "12", *GREEDY, *SMALL, "-q")
    b = riffle("run", "--chat", "-p", question, "-n", "12", *GREEDY, *SMALL, "-q")
    check(a.code == 0 and a.out == b.out, "-f and -p make document and question", a)
    full = riffle("run", "--raw", "-p", "The rain", "-n", "200", *GREEDY, *SMALL, "-q",
                  "--ignore-eos").out.decode().removesuffix("\n")
    stop = full[20:24]
    r = riffle("run", "--raw", "-p", "The rain", "-n", "200", *GREEDY, *SMALL, "-q", "--ignore-eos",
               "--stop", stop)
    check(r.code == 0 and r.out.decode() == shown(full[: full.index(stop)]), "--stop ends before its text", r)


def json_output(_):
    args = ["run", "--raw", "-p", "The rain", "-n", "12", *GREEDY, *SMALL]
    text = riffle(*args, "-q").out.decode()
    r = riffle(*args, "--json")
    try:
        j = json.loads(r.out)
    except ValueError as e:
        return check(False, "run --json is JSON", f"{e}: {r}")
    check(r.code == 0 and r.out.count(b"\n") == 1, "run --json is one line", r)
    check(j["text"] + "\n" == text, "run --json has the same text", j["text"])
    ended = j["finish_reason"] == "stop"  # the end-of-sequence token counts, but is not part of the answer
    check(len(j["tokens"]) + ended == j["completion_tokens"] == j["stats"]["decode_tokens"] + 1, "tokens are counted",
          j)
    check(j["finish_reason"] in ("stop", "length") and j["timings"]["total_seconds"] > 0 and "version" in j
          and "seed" in j and j["stats"]["prefill_tokens"] == j["prompt_tokens"], "its other fields", j)
    a = riffle("run", "--raw", "-p", "The rain", "-n", "20", "--seed", "7", "--temp", "1", *SMALL,
               "-q")
    b = riffle("run", "--raw", "-p", "The rain", "-n", "20", "--seed", "7", "--temp", "1", *SMALL,
               "-q")
    c = [riffle("run", "--raw", "-p", "The rain", "-n", "20", "--seed", str(s), "--temp", "1",
                *SMALL, "-q").out for s in (8, 9)]
    check(a.out == b.out and a.code == 0, "the same seed gives the same text", (a.out, b.out))
    check(any(o != a.out for o in c), "another seed gives another", c)


def bad_text(folder):
    r = riffle("run", "--raw", "-p", "")
    check(one_line_error(r, 1, "empty"), "empty prompt", r)
    r = riffle("run", "--raw", stdin=b"")
    check(one_line_error(r, 1, "empty"), "empty stdin", r)
    r = riffle("run", "--raw", "-q", *SMALL, stdin=b"good \xff bad")
    check(one_line_error(r, 1, "UTF-8", "5"), "invalid UTF-8 is placed", r)
    r = riffle("run", "--chat", "-q", *SMALL, stdin=b"good \xc3( bad")
    check(one_line_error(r, 1, "UTF-8"), "invalid UTF-8 in a chat prompt", r)
    r = riffle("run", "--chat", "-q", *SMALL, stdin=b"a\0b")
    check(one_line_error(r, 1, "NUL"), "NUL in a chat prompt", r)
    r = riffle("run", "--raw", "-f", os.path.join(folder, "none.txt"))
    check(one_line_error(r, 1, "none.txt"), "a missing prompt file is named", r)
    r = riffle("run", "--raw", "-f", folder)
    check(one_line_error(r, 1, folder), "a folder as prompt file", r)


def limits(_):
    r = riffle("run", "--raw", "-c", "64", "-q", stdin=words(500).encode())
    check(one_line_error(r, 5, "64"), "a prompt longer than the context", r)
    r = riffle("run", "--raw", "-p", "x", "--device", "emu", "--slots", "2", "-q")
    check(one_line_error(r, 4), "too few slots", r)
    r = riffle("run", "--raw", "-p", "x", "--device", "emu", "--gpu-mem", "1M", "-q")
    check(one_line_error(r, 4), "too small a budget", r)
    small = ["--device", "emu", "--gpu-mem", "60M"]
    r = riffle("run", "--raw", "-p", "x", *small, "-c", "32768", "-q")
    check(one_line_error(r, 4, "32768 tokens of context need at least"), "a length that does not fit a budget", r)
    plan = json.loads(riffle("info", "--json", "--plan", *small, "-q").out)["plan"]
    check(plan["fits"] and plan["n_ctx"] < 32768 and plan["n_ctx"] % 1024 == 0, "... and what fits of the default", plan)
    for args, say in (
        (["run", "-m", "", "-p", "x"], "--model: found an empty path, expected a file or a folder"),
        (["run", "llama3", "hello"],
         "unexpected argument 'llama3': -m PATH gives the model (riffle downloads none), -p TEXT gives the prompt"),
        (["batch", "q.jsonl"], "unexpected argument 'q.jsonl': -i FILE gives the input")):
        r = riffle(*args)
        check(r.code == 2 and r.err.decode().startswith("riffle: " + say),
              f"{args[:2]} is answered", r)
    held = f"the context holds {plan['n_ctx']} of the 32768"
    check(held in plan["context_note"] and held.encode() in riffle("info", "--plan", *small, "-q").out, "the plan says so", plan)
    r = riffle("run", "--raw", "-p", "x", "-n", "1", *GREEDY, *small, "--json")
    check(r.code == 0 and held in (json.loads(r.out)["notice"] or "") and held.encode() in r.err, "... and run", r)
    r = riffle("run", "--raw", *small, "-q", stdin=words(2 * plan["n_ctx"]).encode())
    check(one_line_error(r, 5, str(plan["n_ctx"])), "a prompt longer than what fits", r)
    plan = json.loads(riffle("info", "--json", "--plan", "--device", "cpu", "-c", "64M", "-q").out)["plan"]
    check(plan["fits"] and plan["n_ctx"] == 64 << 20 and "of host memory, and this machine has" in plan["context_note"],
          "a length beyond host memory is kept on the CPU", plan)
    r = riffle("run", "--raw", "-p", "The rain", "-c", "40", "-n", "-1", "--ignore-eos", *GREEDY,
               "--json", "-q")
    check(r.code == 0 and json.loads(r.out)["finish_reason"] == "context", "an answer ends with the context", r)


def selections(_):
    prompt = words(600).encode()
    dense = riffle("run", "--raw", "-n", "16", *GREEDY, *SMALL, "-q", "--selector", "dense",
                   stdin=prompt)
    for args in (["--selector", "psa", "--epsilon", "1"], ["--selector", "topk", "--budget", "1"],
                 ["--selector", "dense", "--device", "emu"]):
        r = riffle("run", "--raw", "-n", "16", *GREEDY, *SMALL, "-q", *args, stdin=prompt)
        check(r.code == 0 and r.out == dense.out, f"{' '.join(args)} reads all and says the same", r)
    shares = []
    for args in (["dense"], ["psa", "--epsilon", "0.6"], ["topk", "--budget", "256"]):
        r = riffle("run", "--raw", "-n", "16", *GREEDY, *SMALL, "--json", "-q", "--ignore-eos",
                   "--selector", *args,
                   stdin=prompt)
        shares.append(json.loads(r.out)["stats"]["kv_read_pct"])
    check(shares[0] == 100 and shares[1] < 100 and shares[2] < 100, "sparse selectors read less", shares)


def other_commands(_):
    r = riffle("info", "-q")
    check(r.code == 0 and b"layers" in r.out and r.err == b"", "info", r)
    r = riffle("info", "--json", "--plan", "--device", "emu", "--gpu-mem", "200M", "-q")
    j = json.loads(r.out)
    check(r.code == 0 and j["n_layers"] > 0 and j["plan"]["fits"] and 0 < j["plan"]["total"] <= 200 << 20,
          "info --plan --json", r)
    # A block of 16 tokens and a head: INT4 keys take d/2 + 4 bytes a token; 2-bit keys d/4 + 2 bytes a token, d + 4 a block.
    int4, int2 = 16 * 36, 16 * 18 + 68
    for selector, per_block, shown in (("dense", 0, "none"), ("psa", 0, "none"), ("topk", 0, "none"), ("twilight", int4, "18.0 MiB"), ("share", int2, "11.1 MiB")):
        plan = ["info", "--plan", "--device", "cpu", "-c", "32768", "--selector", selector, "-q"]
        state, text = json.loads(riffle(*plan, "--json").out)["plan"]["selector_state"], riffle(*plan).out
        check(state == 32768 // 16 * 16 * per_block, f"the plan has {selector}'s state: codes of keys", state)
        line = [x for x in text.decode().splitlines() if x.startswith("selector state")]
        check(len(line) == 1 and shown in line[0], f"... and prints it: {selector}", line)
    # auto stands for dense in a short context, else for share, with the plan that share has by name.
    plans = {}
    for name, args in (("short", ["-c", "2048"]), ("long", ["-c", "32768"]), ("share", ["-c", "32768", "--selector", "share"])):
        plan = ["info", "--plan", "--device", "cpu", "-q", *args]
        plans[name], text = json.loads(riffle(*plan, "--json").out)["plan"], riffle(*plan).out.decode()
        line = [x for x in text.splitlines() if x.startswith("selector  ")]
        said = plans[name]["selector_note"].removeprefix("selector ") or plans[name]["selector"]
        check(len(line) == 1 and line[0].split(None, 1)[1] == said, f"the plan prints the selector: {name}", line)
    check(plans["short"]["selector"] == "dense" and plans["short"]["selector_state"] == 0
          and 2048 <= plans["short"]["everything_below"] < 32768, "auto is dense in a short context", plans["short"])
    check(plans["long"]["selector"] == plans["share"]["selector"] == "share" and plans["share"]["selector_note"] == ""
          and plans["long"]["selector_state"] == plans["share"]["selector_state"]
          and f"sessions below {plans['long']['everything_below']:,} tokens are read whole" in plans["long"]["selector_note"],
          "... and share in a long one", plans["long"])
    r = riffle("info", "--json", "--plan", "--device", "emu", "--gpu-mem", "1M", "-q")
    j = json.loads(r.out)
    check(r.code == 4 and not j["plan"]["fits"] and j["plan"]["min_gpu_mem"] > 1 << 20, "a plan that does not fit", r)
    r = riffle("info", "--json", "--plan", "--device", "emu", "--gpu-mem", str(j["plan"]["min_gpu_mem"]), "-q")
    check(r.code == 0 and json.loads(r.out)["plan"]["fits"], "the smallest budget named does fit", r)

    r = riffle("tokenize", "-p", "Hello w\u00f6rld", "--ids-only", "-q")
    ids = r.out.decode().split()
    check(r.code == 0 and len(ids) > 2, "tokenize --ids-only", r)
    marked = riffle("tokenize", "--ids-only", "-q", stdin="\ufeffHello w\u00f6rld".encode())
    check(marked.code == 0 and marked.out == r.out, "a byte order mark is no text", marked)
    j = json.loads(riffle("tokenize", "-p", "Hello w\u00f6rld", "--json", "-q").out)
    check([str(i) for i in j["ids"]] == ids and len(j["pieces"]) == len(ids) == j["n_tokens"], "tokenize --json", j)
    r = riffle("tokenize", "-p", "Hello w\u00f6rld", "-q")
    check([line.split("\t")[0] for line in r.out.decode().splitlines()] == ids, "tokenize lists the same ids", r)
    r = riffle("tokenize", "-q", "--decode", *ids)
    check(r.code == 0 and r.out.decode() == "Hello w\u00f6rld\n", "tokenize --decode brings the text back", r)
    r = riffle("tokenize", "-q", "--decode", "999999")
    check(one_line_error(r, 1), "an id outside the vocabulary", r)

    r = riffle("bench", "--prefill", "64", "--depth", "0,100", "--steps", "4", "--reps", "2", *SMALL, "--json", "-q")
    j = json.loads(r.out)
    check(r.code == 0 and len(j["prefill"]) == 1 and len(j["decode"]) == 4 and
          all(d["tokens_per_second"] > 0 and d["memory_gb_per_second"] > 0 for d in j["decode"]), "bench --json", r)
    r = riffle("bench", "--prefill", "64", "--depth", "0", "--steps", "2", "--reps", "1", *SMALL, "-q")
    check(r.code == 0 and b"tokens/s" in r.out, "bench prints tables", r)
    r = riffle("bench", "--depth", "4096", *SMALL, "-q")
    check(one_line_error(r, 2, "2048"), "bench deeper than the context", r)


def full_disk(_):
    if not os.path.exists("/dev/full"):
        print("skip full disk: no /dev/full")
        return
    with open("/dev/full", "wb") as full:
        p = subprocess.run([BIN, "run", "--raw", "-p", "The rain", "-n", "4", *SMALL, "-q"],
                           stdout=full,
                           stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment(), timeout=120)
    check(p.returncode == 1 and b"write" in p.stderr, "a full disk is an error", p)


def ranges(_):
    """A value out of its range is refused by flag, /set and batch with the same range."""
    whole = "-1 to 2147483647"
    beyond = {"temperature": (9999, "0 to 100"), "top_k": (-2, whole), "top_p": (1.5, "0 to 1"),
              "min_p": (-0.5, "0 to 1"), "xtc_probability": (2, "0 to 1"), "xtc_threshold": (-1, "0 to 1"),
              "repeat_penalty": (0, "more than 0, and finite"), "repeat_last_n": (-2, whole),
              "frequency_penalty": (2.5, "-2 to 2"), "presence_penalty": (-3, "-2 to 2"),
              "dry_multiplier": (1e39, "0 or more, and finite"), "dry_base": (0.5, "1 or more, and finite"),
              "dry_allowed_length": (-1, "0 to 2147483647"), "dry_penalty_last_n": (2**31, whole)}
    lines = [json.dumps({"custom_id": name, "body": {"prompt": "x", "max_tokens": 1, name: value}})
             for name, (value, _) in beyond.items()]
    r = riffle("batch", "-q", *SMALL, stdin="\n".join(lines).encode())
    errors = {x["custom_id"]: json.dumps(x) for x in map(json.loads, r.out.splitlines())}
    flag = lambda name: "temp" if name == "temperature" else name.replace("_", "-")
    sets = "".join(f"/set {flag(name)} {value}\n" for name, (value, _) in beyond.items())
    told = riffle("chat", "-q", *SMALL, stdin=sets.encode()).err.decode().splitlines()
    check(len(told) == len(beyond), "/set refuses each", told)
    for (name, (value, expected)), line in zip(beyond.items(), told):
        check(f"number, {expected}" in errors.get(name, ""), f"batch: {name}", errors.get(name))
        check(f"/set {flag(name)}: " in line and expected in line, f"/set {name}", line)
        r = riffle("run", "-p", "x", f"--{flag(name)}", str(value))
        check(one_line_error(r, 2, f"--{flag(name)}", f", {expected}"), f"--{flag(name)}", r)


main(ranges, help_and_version, usage_errors, selection_ranges, names, notices, devices, instruction_sets, sizes, streams, json_output, bad_text, limits, selections, other_commands,
     full_disk)
