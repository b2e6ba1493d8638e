#!/usr/bin/env python3
"""Runs riffle_tests in shards and records which passed, for machines where a run's time is limited.

usage: tests/shards.py RIFFLE_TESTS RECORD [--cases '[cuda]'] [--shards N] [--jobs J]
                       [--seconds S] [--commit C]

Each shard is every Nth of the cases that match. A line of RECORD (tab-separated) is a shard that
passed: date, commit, processor or GPU, instruction sets, cases, shard, passed, skipped. The same
command goes on with the shards that RECORD lacks for this commit, machine and instruction sets.
J shards run side by side (default 1). No shard starts after S seconds. A failing shard's output is
printed and nothing is recorded.
The last line is "N passed, N failed", in cases, of all calls together, with ", N shards left"
while some are. RIFFLE_TEST_ISA limits the instruction sets. Exit code: 0 if nothing failed.
"""
import argparse
import concurrent.futures
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def machine(cases):
    """Returns the GPU's name if the cases are CUDA's, else the processor's."""
    if "cuda" in cases and not cases.startswith("~"):
        return output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n")[0] or "no GPU"
    with open("/proc/cpuinfo") as f:
        found = re.search(r"model name\s*: (.*)", f.read())
    return found[1] if found else os.uname().machine


def counts(text):
    """Returns the numbers of cases that passed, failed and were skipped, from Catch's summary."""
    if found := re.search(r"in (\d+) test cases?\)", text):
        passed, failed = int(found[1]), 0
    elif found := re.search(r"^test cases:.*", text, re.M):
        number = lambda word: int((re.search(r"(\d+) " + word, found[0]) or [0, 0])[1])
        passed, failed = number("passed"), number("failed")
    else:
        passed = failed = 0
    skipped = re.search(r"^skipped cases: (\d+)", text, re.M)
    return passed, failed, int(skipped[1]) if skipped else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests")
    parser.add_argument("record")
    parser.add_argument("--cases", default="~[cuda]", help="Catch's test specification")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=500)
    dirty = "-dirty" if output("git", "status", "--porcelain", "--untracked-files=no") else ""
    head = output("git", "rev-parse", "--short", "HEAD")
    parser.add_argument("--commit", default=head and head + dirty)
    args = parser.parse_args()
    if not args.commit:
        parser.error("--commit: found none and no git to ask, expected a commit; give --commit C")

    listed = subprocess.run([args.tests, "--list-test-names-only", args.cases], capture_output=True, text=True)
    names = listed.stdout.splitlines()
    sets = re.search(r"^instruction sets: (.*)$", listed.stderr, re.M)
    if not names or not sets:
        sys.exit(f"{args.tests}: found no cases of {args.cases}\n{listed.stderr}")
    here = [args.commit, machine(args.cases), sets[1], args.cases]
    done = {}
    if os.path.exists(args.record):
        with open(args.record) as f:
            for line in f:
                fields = line.rstrip("\n").split("\t")
                if len(fields) == 8 and fields[1:5] == here and fields[5].endswith(f"/{args.shards}"):
                    done[fields[5]] = int(fields[6])
    start, failed, left = time.monotonic(), 0, 0

    def run(shard):
        """Returns the cases and the finished process of a shard; None if it was too late to start it."""
        mine = names[shard :: args.shards]
        if time.monotonic() - start > args.seconds:
            return mine, None
        with tempfile.NamedTemporaryFile("w", suffix=".cases") as f:
            f.write("".join(re.sub(r"([],[\\])", r"\\\1", name) + "\n" for name in mine))
            f.flush()
            return mine, subprocess.run([args.tests, "-f", f.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        errors="replace")

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        wanted = {pool.submit(run, shard): f"{shard + 1}/{args.shards}" for shard in range(min(args.shards, len(names)))
                  if f"{shard + 1}/{args.shards}" not in done}
        for future in concurrent.futures.as_completed(wanted):
            label, (mine, process) = wanted[future], future.result()
            if process is None:
                left += 1
                continue
            passed, bad, skipped = counts(process.stdout)
            print(f"shard {label}: {passed} passed, {bad} failed, {skipped} skipped, {time.monotonic() - start:.0f} s", flush=True)
            if process.returncode == 0 and passed == len(mine):
                done[label] = passed
                with open(args.record, "a") as f:
                    f.write("\t".join([str(datetime.date.today()), *here, label, str(passed), str(skipped)]) + "\n")
            else:
                failed += max(1, bad)
                print(process.stdout, flush=True)
    print(f"{sum(done.values())} passed, {failed} failed" + (f", {left} shards left" if left else ""))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
