#!/usr/bin/env python3
"""Kills `riffle batch` at random moments, resumes it, and compares the output with that of an undisturbed run.

usage: kill_batch.py RIFFLE [--lines 200] [--kills 50] [--seed N] [--max-tokens 24] [--keep DIR] [-- flags of riffle batch]

For example, with 8 lines at once:  tools/bench/kill_batch.py build/riffle -- -c 2048 --max-seqs 8
The lines are of several kinds: short, long, with a shared beginning, chat, sampled, and one in 25 with a
fault. After each kill the whole records in the output must be the first ones of the undisturbed run, in
order (with --unordered any of them, each once). Prints one line for each kill, and the findings; exit
code 1 if anything was lost, doubled, out of order or different.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

DOCUMENT = "The old clock in the hall struck nine, and the rain went on against the windows. " * 12


def request(i, rng, max_tokens):
    body = {"prompt": f"Chapter {i}. It was", "temperature": 0, "max_tokens": rng.randint(1, max_tokens)}
    kind = i % 5
    if kind == 1:
        body["prompt"] = DOCUMENT + f"\nQuestion {i}: what did the clock do?"
    elif kind == 2:
        body["prompt"] = f"{i}: " + DOCUMENT[: rng.randint(10, len(DOCUMENT))]
    elif kind == 3:
        body.update(temperature=0.9, seed=i)
    elif kind == 4:
        del body["prompt"]
        body["messages"] = [{"role": "user", "content": f"The code is {i}.\nWhat is the code?"}]
    if i % 25 == 24:
        body["max_tokens"] = "many"
    return json.dumps({"custom_id": f"request-{i}", "body": body})


def gist(data):
    """Returns the records without the parts that depend on the clock and on other runs."""
    out = []
    for text in data.decode().splitlines():
        r = json.loads(text)
        body = (r["response"] or {}).get("body") or {}
        usage = {k: v for k, v in body.get("usage", {}).items() if k != "prompt_tokens_details"}
        out.append((r["line"], r["custom_id"], r["error"], body.get("choices"), usage))
    return out


def main():
    argv, flags = sys.argv[1:], []
    if "--" in argv:
        flags = argv[argv.index("--") + 1:]
        argv = argv[: argv.index("--")]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("riffle")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", help="folder for the files; default: a temporary one")
    o = parser.parse_args(argv)
    unordered = "--unordered" in flags
    seed = o.seed if o.seed is not None else int.from_bytes(os.urandom(4), "little")
    rng = random.Random(seed)
    temporary = None if o.keep else tempfile.TemporaryDirectory()
    folder = o.keep or temporary.name
    os.makedirs(folder, exist_ok=True)
    source, alone, out = (os.path.join(folder, n) for n in ("in.jsonl", "alone.jsonl", "out.jsonl"))
    with open(source, "w") as f:
        f.write("".join(request(i, rng, o.max_tokens) + "\n" for i in range(o.lines)))
    if os.path.exists(out):
        os.unlink(out)

    def run(target, *more):
        return subprocess.Popen([o.riffle, "batch", "-q", "-i", source, "-o", target, *flags, *more],
                                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def read():
        if not os.path.exists(out):
            return b""
        with open(out, "rb") as f:
            return f.read()

    begin = time.time()
    p = run(alone, "--restart")
    _, err = p.communicate()
    whole = time.time() - begin
    if p.returncode not in (0, 6) or not os.path.exists(alone):
        sys.exit(f"the undisturbed run failed: {err.decode()}")
    with open(alone, "rb") as f:
        want = sorted(gist(f.read()), key=lambda g: g[0]) if unordered else gist(f.read())
    errors = sum(1 for w in want if w[2])
    print(f"seed {seed}: {len(want)} lines ({errors} with errors) in {whole:.1f} s undisturbed, exit code {p.returncode}")
    if len(want) != o.lines or p.returncode != (6 if errors else 0):
        sys.exit(f"the undisturbed run failed: {err.decode()}")
    found, torn, begins = [], 0, 1
    k = tries = 0
    while k < o.kills and tries < 4 * o.kills:  # a run that ended before its kill does not count
        tries += 1
        if tries > 1 and read().count(b"\n") == o.lines:  # the output is complete: begin again
            begins += 1
            os.unlink(out)
        p = run(out)
        if tries % 5 == 1:  # while it loads, or reads the existing records
            time.sleep(rng.uniform(0, 0.5))
        else:  # after a number of further lines, such that all kills find work under way, and a moment
            before = read().count(b"\n")
            wanted = before + rng.randint(0, max(1, 2 * (o.lines - before) // (o.kills - k + 1)))
            while p.poll() is None and read().count(b"\n") < wanted:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 2 * whole / o.lines))
        ended = p.poll()
        p.kill()
        _, err = p.communicate()
        if ended is not None and ended not in (0, 6):
            found.append(f"kill {k}: riffle ended by itself with {ended}: {err.decode().strip()}")
            break
        data = read()
        kept = data[: data.rfind(b"\n") + 1]
        torn += len(kept) != len(data)
        n = kept.count(b"\n")
        k += ended is None
        print(f"kill {k}: {n} lines there" + (", a torn one behind them" if len(kept) != len(data) else "")
              + (": none, the run was over" if ended is not None else ""), flush=True)
        try:
            there = gist(kept)
            if unordered and len(set(g[0] for g in there)) != n:
                found.append(f"kill {k}: a line is there twice")
            if any(g not in want for g in there) if unordered else there != want[:n]:
                found.append(f"kill {k}: what is there is not " + ("of" if unordered else "the beginning of") + " the undisturbed output")
        except ValueError as e:
            found.append(f"kill {k}: {e}")
    p = run(out)
    _, err = p.communicate()
    got = gist(read()) if p.returncode in (0, 6) else []
    if unordered:
        got.sort(key=lambda g: g[0])
    numbers = [g[0] for g in got]
    found += [f"line {n} is lost" for n in sorted(set(w[0] for w in want) - set(numbers))]
    found += [f"line {n} is there {numbers.count(n)} times" for n in sorted(set(numbers)) if numbers.count(n) > 1]
    if numbers != sorted(numbers):
        found.append("the lines are out of order")
    found += [f"line {w[0]} differs: {g} is not {w}" for w, g in zip(want, got) if w != g]
    if p.returncode != (6 if errors else 0):
        found.append(f"the last run ended with {p.returncode}: {err.decode().strip()}")
    if k < o.kills:
        found.append(f"only {k} of {o.kills} kills found a run under way")
    print("\n".join(found[:20]))
    print(f"{k} kills of runs under way ({torn} torn lines; {begins} times from the beginning), {len(got)} of {o.lines} lines: "
          + ("FAILED" if found else "complete, " + ("" if unordered else "in order, ") + "equal to the undisturbed run"))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
