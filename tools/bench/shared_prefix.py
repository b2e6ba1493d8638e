#!/usr/bin/env python3
"""Times riffle batch on many questions about one document, compared with one prefill plus the answers alone.

    tools/bench/shared_prefix.py BUILD/riffle TEXT [--tokens N] [--questions N] [--answer N] [-- FLAGS OF BATCH]

TEXT is any long file. One question alone gives the time of a prefill (and of the start) and, from its
record, that of an answer; the limit is one prefill and as many answers as there are questions. For the
first three questions, texts are compared with those of lines that are answered alone.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

p = argparse.ArgumentParser()
p.add_argument("riffle")
p.add_argument("text")
p.add_argument("--tokens", type=int, default=24000)
p.add_argument("--questions", type=int, default=50)
p.add_argument("--answer", type=int, default=64)
p.add_argument("flags", nargs="*")
a = p.parse_args()
text = open(a.text, encoding="utf-8", errors="ignore").read()


def count(n):
    out = subprocess.run([a.riffle, "tokenize", "--ids-only", "-f", "-"], input=text[:n], text=True, capture_output=True)
    return len(out.stdout.split()) if out.returncode == 0 else sys.exit(out.stderr)


low, high = 0, len(text)
while high - low > 16:
    middle = (low + high) // 2
    low, high = (middle, high) if count(middle) <= a.tokens else (low, middle)
document, tokens = text[:low], count(low)


def line(i, answer):
    body = {"prompt": f"{document}\n\nQuestion {i}: what is said of number {i * 37 % 101}? Answer:", "max_tokens": answer, "temperature": 0}
    return json.dumps({"custom_id": str(i), "url": "/v1/completions", "body": body})


def run(lines, *flags):
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        with open(path, "w") as f:
            f.write("\n".join(lines) + "\n")
        start = time.time()
        done = subprocess.run([a.riffle, "batch", "-i", path, "-o", out, "-c", str(tokens + 512), *a.flags, *flags], capture_output=True, text=True)
        seconds = time.time() - start
        if done.returncode:
            sys.exit(done.stderr)
        print(f"{len(lines)} lines {' '.join(flags)} {seconds:.2f} s: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return seconds, [json.loads(l)["response"]["body"] for l in open(out)]


run([line(0, 1)])  # the model's file is in memory afterwards
whole, one = run([line(0, a.answer)])
answer = one[0]["riffle"]["decode_seconds"] / one[0]["usage"]["completion_tokens"] * a.answer
prefill = whole - one[0]["riffle"]["decode_seconds"]
together, got = run([line(i, a.answer) for i in range(a.questions)])
apart = [body for i in range(3) for body in run([line(i, a.answer)])[1]]  # each in a run of its own
for x, y in zip(got, apart):
    if x["choices"] != y["choices"]:
        sys.exit("a text differs from the one without reuse")
tokens_out = sum(r["usage"]["completion_tokens"] for r in got)
limit = prefill + answer / a.answer * tokens_out
print(f"document of {tokens} tokens, {a.questions} questions, {tokens_out} tokens of answer")
print(f"one prefill {prefill:.2f} s, one answer of {a.answer} tokens alone {answer:.2f} s: together {limit:.2f} s")
print(f"all questions in a batch: {together:.2f} s, {together / limit:.2f} times as long; {tokens_out / together:.1f} tokens/s")
