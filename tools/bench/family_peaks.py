#!/usr/bin/env python3
"""Memory in use of a long context for each attention-only family, measured.

    family_memory.py --narrow --folders DIR
    family_peaks.py --riffle PATH --folders DIR [--llama-bench PATH] [--context 131072]
                    [--device cuda] [--only WORD ...]

The folders have the layers, KV heads, head sizes and windows of released models. Their weights are
small and all zero (family_memory.py, narrow), so that a long prompt takes seconds. The size of the
KV does not depend on the weights.

For each folder riffle runs twice with --selector dense, with prompts of CONTEXT - 64 and of 64
tokens, and answers with 8 tokens. "KV after the answer" is riffle's own count of KV blocks in host
memory. "Peak" is the peak resident size of the process, less that of the short run. On a GPU, "GPU
peak" is nvidia-smi's largest amount, less that of the short run. The pool has the same size in both
runs, so it is not in the difference.

With --llama-bench, riffle writes the folder as GGUF, and llama-bench makes a context of that
length. "llama.cpp, reported" has the sum of the KV caches that it reports; the script then ends it.
"none" means that llama.cpp does not load the file, "no GGUF" that riffle does not write it.

Needs Python 3.11 without packages, and nvidia-smi for a GPU.
"""
import argparse
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import family_memory as families


class GpuPeak:
    """The largest amount of GPU memory in use while it runs, in bytes."""

    def __enter__(self):
        self.bytes, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._done.is_set():
            done = subprocess.run(
                ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                capture_output=True, text=True, check=False)
            if done.returncode == 0:
                self.bytes = max(self.bytes, int(done.stdout.split()[0]) << 20)
            time.sleep(0.05)

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


def run(args, folder, prompt, context):
    """Returns the statistics of an answer and the GPU's peak."""
    command = [args.riffle, "run", "-m", str(folder), "-f", str(prompt), "--raw", "-n", "8",
               "--json", "-q", "-c", str(context), "--device", args.device, "--selector", "dense"]
    begin = time.monotonic()
    with GpuPeak() if args.device == "cuda" else contextlib.nullcontext() as peak:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.strip()
    stats = json.loads(done.stdout)["stats"]
    return stats | {"gpu": peak.bytes if peak else 0, "seconds": time.monotonic() - begin}


def llama_cpp(args, folder, context):
    """Returns the bytes of KV caches that llama.cpp reports, or a text."""
    path = folder / "model.gguf"
    made = subprocess.run([args.riffle, "quantize", "-m", str(folder), "-o", str(path), "--type",
                           "f16", "--force", "-q"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return "no GGUF: " + made.stderr.strip().splitlines()[-1]
    command = [args.llama_bench, "-m", str(path), "-p", "0", "-n", "1", "-d", str(context - 1),
               "-r", "1", "-fa", "1", "-v"]
    total, lines = 0, []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          errors="replace") as process:
        for line in process.stderr:
            lines.append(line.strip())
            if found := re.search(r"llama_kv_cache.*: size = +([0-9.]+) MiB", line):
                total += float(found[1]) * 2**20
            if total and ("compute buffer size" in line or "graph nodes" in line):
                break
        process.kill()
    path.unlink()
    errors = [line for line in lines if "error" in line.lower()]
    return total or "none: " + (errors or lines or ["no output"])[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--riffle", required=True, help="the riffle executable")
    parser.add_argument("--folders", type=pathlib.Path, required=True)
    parser.add_argument("--llama-bench", help="llama.cpp's llama-bench")
    parser.add_argument("--context", type=int, default=131072, help="tokens")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", nargs="*", default=[], help="words in names of models")
    args = parser.parse_args()
    head = ["model", "formula, exact windows", "KV after the answer", "peak", "GPU peak",
            "llama.cpp, computed", "llama.cpp, reported", "seconds"]
    print("| " + " | ".join(head) + " |\n" + "|" + "---|" * len(head))
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        prompts = []
        for n in (args.context - 64, 64):
            prompts.append(pathlib.Path(temporary) / f"{n}.txt")
            prompts[-1].write_text("".join(chr(97 + i * i % 26) for i in range(n)))
        for model in families.models_named(args.only):
            folder = families.folder_of(args.folders, model)
            layers = families.layers_of(json.loads((folder / "config.json").read_text()))
            long, short = (run(args, folder, p, args.context) for p in prompts)
            if isinstance(long, str) or isinstance(short, str):
                failed += 1
                print(f"| {model.name} | {long if isinstance(long, str) else short} |", flush=True)
                continue
            theirs = llama_cpp(args, folder, args.context) if args.llama_bench else ""
            read = args.context - 64 + 8  # tokens of the prompt and the answer
            row = [families.gib(families.least(layers, read)),
                   families.gib(long["host_kv_bytes"]),
                   families.gib(long["peak_rss_bytes"] - short["peak_rss_bytes"]),
                   families.gib(long["gpu"] - short["gpu"]),
                   families.gib(families.llama_cpp(layers, args.context)),
                   theirs if isinstance(theirs, str) else families.gib(theirs),
                   f"{long['seconds']:.1f}"]
            print("| " + " | ".join([model.name] + row) + " |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
