#!/usr/bin/env python3
"""The tables of shipped-model.md, "Many sequences": riffle bench --arrivals on emu with a virtual clock.

    tools/bench/scheduling.py BUILD/riffle [batch|steps|goodput|dense ...]     all of them by default; -v prints the commands
    SETTING=h200-8b tools/bench/scheduling.py ...                        only one of the cost models

batch: blocks loaded in an iteration and throughput against the number of sequences, with and without working-set control.
steps: the same for 12 sequences with control, against the number of past steps in a working set.
goodput: the highest request rate within the limits, step by step from dense attention with all KV in GPU memory to all of
SparseServe (its Figure 13). dense: throughput and first token of the two ends against the request rate (its Figures 10 and 11).
COMMON and SETTINGS name the model that is simulated, its device and its attention.
"""
import json
import os
import subprocess
import sys

BIN, VERBOSE = None, False
COMMON = ["bench", "--arrivals", "-q", "--json", "--block", "32", "--threads", "1"]
SPARSE = ["--selector", "psa", "--epsilon", "0.9"]
# A query looks at a fifth of the blocks: about the paper's budget of 2,048 tokens in a prompt of 9,600.
SETTINGS = {
    # name: cost model, bytes of KV on the device, context, share of the blocks that a query looks at, first rate
    "LWM-7B (MHA), A100 40 GB": ("a100-lwm-7b", "22G", "32K", ["--synthetic-sparsity", "0.2"], "0.1"),
    "Llama-3-8B (GQA), A100 40 GB": ("a100-8b", "20G", "128K", ["--synthetic-sparsity", "0.2"], "0.25"),
    "Llama-3.1-8B, H200 with a budget of 24 GB": ("h200-8b", "6G", "128K", ["--synthetic-sparsity", "0.1"], "1"),
}
REQUESTS = "40"


def run(*args):
    command = [BIN, *COMMON, *args]
    if VERBOSE:
        print("$ riffle " + " ".join(command[1:]), file=sys.stderr)
    out = subprocess.run(command, stdout=subprocess.PIPE)
    if out.returncode not in (0, 1) or not out.stdout:
        sys.exit(f"{' '.join(command)} ended with {out.returncode}")
    j = json.loads(out.stdout)
    r = j["result"]
    if r and r["failed"]:
        sys.exit(f"{' '.join(command)}: {r['error']}")
    return j


def table(header, rows):  # printed row by row, as they are measured
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header), flush=True)
    for row in rows:
        print("| " + " | ".join(str(c) for c in row) + " |", flush=True)
    print()


BURST = ["--cost", "h200-8b", "--pool-mem", "1400M", "--lengths", "16384:256", "--request-rate", "0", *SPARSE, "--requests", "24"]


def batch():
    args = BURST
    print("### Blocks loaded against the number of sequences\n`riffle bench --arrivals --block 32 " + " ".join(args) + " --max-seqs N [--no-ws-control | --working-set-steps 12]`\n")
    rows = []
    for n in [2, 4, 6, 8, 10, 12, 16]:
        row = [n]
        loads = []
        for control in [["--no-ws-control"], ["--working-set-steps", "12"]]:
            r = run(*args, "--max-seqs", str(n), *control)["result"]
            loads.append(r["blocks_loaded_per_iteration"])
            row += [f"{r['decode_rows_per_iteration']:.1f}", f"{loads[-1]:,.0f}", f"{loads[-1] / r['decode_rows_per_iteration']:,.0f}", f"{r['pool_hit_pct']:.1f}%", f"{1e3 * r['tbt_s']['mean']:.1f}",
                    f"{r['output_tokens_per_second']:.0f}"]
        row.append(f"{loads[0] / loads[1]:.1f}" if loads[1] else "-")
        rows.append(row)
    half = ["in a step", "loaded", "for each of them", "hits", "ms between tokens", "tokens/s"]
    table(["sequences", *half, *["control: " + h for h in half], "loads, fewer by"], rows)


def steps():
    rows = []
    for n in [1, 2, 4, 12]:
        r = run(*BURST, "--max-seqs", "12", "--working-set-steps", str(n))["result"]
        loads, seqs = r["blocks_loaded_per_iteration"], r["decode_rows_per_iteration"]
        rows.append([n, f"{seqs:.1f}", f"{loads:,.0f}", f"{loads / seqs:,.0f}", f"{r['pool_hit_pct']:.1f}%",
                     f"{1e3 * r['tbt_s']['mean']:.1f}, {1e3 * r['tbt_s']['p99']:,.0f}", f"{r['output_tokens_per_second']:.0f}"])
    table(["`--working-set-steps`", "in a step", "loaded", "for each of them", "hits", "ms between tokens, P99", "tokens/s"], rows)


# Cost model suffix, flags.
STEPS = [
    ("dense, all KV on the device", "", ["--selector", "dense", "--all-resident", "--prefill-mode", "chunks"]),
    ("+ sparse attention", "", [*SPARSE, "--all-resident", "--prefill-mode", "chunks"]),
    ("+ offloading, a copy a block", ",copies", [*SPARSE, "--no-ws-control", "--prefill-mode", "chunks"]),
    ("+ FlashH2D, FlashD2H", "", [*SPARSE, "--no-ws-control", "--prefill-mode", "chunks"]),
    ("+ working-set control", "", [*SPARSE, "--prefill-mode", "chunks"]),
    ("+ layer-segmented prefill", "", [*SPARSE, "--prefill-mode", "layers"]),
    ("(chunks that keep their KV on the device, outside the pool)", ",reload=0", [*SPARSE, "--prefill-mode", "chunks"]),
]


def chosen_settings():
    only = os.environ.get("SETTING")
    return [s for s in SETTINGS if only in (None, SETTINGS[s][0])]


def common_of(setting):
    cost, pool, context, attention, rate = SETTINGS[setting]
    return cost, ["--shape", "tiny", "--synthetic-attention", *attention, "-c", context, "--pool-mem", pool, "--max-seqs", "32", "--requests", REQUESTS], rate


def goodput():
    for setting in chosen_settings():
        cost, args, rate = common_of(setting)
        # A lone dense step with everything on the device: the same limit for all.
        lone = run("--cost", cost, *args, *STEPS[0][2], "--request-rate", rate)["lone_step_s"]
        limit = 25 * lone
        print(f"### Goodput: {setting}\n`riffle bench --arrivals --block 32 --cost {cost} {' '.join(args)} --goodput --tbt-limit {limit:.4f} ...`; "
              f"a lone dense step takes {1e3 * lone:.2f} ms\n")
        table(["", "flags", "requests/s", "to the one before", "to the first", "mean first token, s", "P99 between tokens, ms", "sequences in a step",
               "blocks loaded"], goodput_rows(cost, args, rate, limit))


def goodput_rows(cost, args, rate, limit):
    first = last = None
    for name, suffix, flags in STEPS:
        j = run("--cost", cost + suffix, *args, *flags, "--request-rate", rate, "--goodput", "--tbt-limit", repr(limit))
        g, r = j["goodput"], j["result"]
        first, before, last = first or g, last, g
        yield [name, f"`{' '.join(flags)}{' --cost ' + cost + suffix if suffix else ''}`", f"{g:.3f}", f"{g / before:.2f}" if before else "",
               f"{g / first:.2f}" if first else "", *([f"{r['ttft_s']['mean']:.2f}", f"{1e3 * r['tbt_s']['p99']:.0f}",
               f"{r['decode_rows_per_iteration']:.1f}", f"{r['blocks_loaded_per_iteration']:,.0f}"] if r else ["-"] * 4)]


def dense():
    for setting in chosen_settings():
        cost, args, _ = common_of(setting)
        print(f"### Against the request rate: {setting}\n")
        rows = []
        base = float(SETTINGS[setting][4])
        for rate in [base / 2, base, 1.5 * base, 2 * base, 3 * base, 4 * base]:
            a, b = (run("--cost", cost + STEPS[i][1], *args, *STEPS[i][2], "--request-rate", str(rate))["result"] for i in (0, 5))
            rows.append([f"{rate:g}", *[f"{r['output_tokens_per_second']:.0f}, {r['ttft_s']['mean']:.2f} s, {1e3 * r['tbt_s']['mean']:.0f} ms" for r in (a, b)],
                         f"{b['output_tokens_per_second'] / a['output_tokens_per_second']:.2f}", f"{a['ttft_s']['mean'] / b['ttft_s']['mean']:.1f}"])
        table(["requests/s", "dense, all KV on the device: tokens/s, first token, between tokens", "sparse, offloaded, all steps", "throughput, times",
               "first token, times sooner"], rows)


def main():
    global BIN, VERBOSE
    args = sys.argv[1:]
    if "-v" in args:
        VERBOSE = True
        args.remove("-v")
    parts = {"batch": batch, "steps": steps, "goodput": goodput, "dense": dense}
    if not args or any(p not in parts for p in args[1:]):
        sys.exit(__doc__)
    BIN = args[0]
    for p in args[1:] or parts:
        parts[p]()


main()
