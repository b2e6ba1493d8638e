#!/usr/bin/env python3
"""Predicts the time of a decode step on GPUs that were not measured: a model, not a measurement.

usage: tools/bench/gpu_model.py

The shape is Llama-3.1-8B with 131,072 tokens held, the selector share, keys and values in 8 bits,
blocks of 32; 5.1% of the KV is read in a step, as in the synthetic attention that gpu.md measures.

A step is the sum of two times. On the device it takes the longer of two: the bytes that it reads
over the memory's bandwidth, of which 85% is reached; and what the H200 spends on instructions and
launches, by the number of SMs and their clock. Then come the missed blocks over the link, which no
arithmetic hides. MEASURED is the whole step on the H200, taken as the second of the two.
"""

TOKENS, ROWS, HEAD_DIM = 131072, 32 * 8, 128
GIB = 1 << 30
KEY_CODES = TOKENS * ROWS * 38.5  # bytes
KV_Q8 = TOKENS * ROWS * 2 * 132
READ = 0.051  # share of the KV that a step reads
NEW = 0.104  # part of it that is new, if the pool holds the blocks of the last steps
WEIGHTS = {"Q4_K": (4.5e9, 4.9e9), "Q8_0": (7.98e9, 8.5e9)}  # read in a step; held

# name: memory and link, bytes/s (None: host memory is device memory), SMs, GHz, GiB
H200 = ("H200", 4.8e12, 55.3e9, 132, 1.98, 131)
GPUS = [
    ("RTX 4060 8 GB", 272e9, 13e9, 24, 2.46, 8),
    ("RTX 3060 12 GB", 360e9, 25e9, 28, 1.78, 12),
    ("RTX 4090 24 GB", 1008e9, 25e9, 128, 2.52, 24),
    ("Jetson AGX Orin 64 GB", 205e9, None, 16, 1.30, 64),
]
MEASURED = {"Q4_K": 3.70e-3, "Q8_0": 4.50e-3}  # s a step on the H200, all blocks resident (f16)


def step(gpu, weights, share):
    _, memory, link, sms, clock, _ = gpu
    read, _ = WEIGHTS[weights]
    kv = KV_Q8 * (READ if share else 1)
    on_device = (read + kv + (KEY_CODES if share else 0)) / (0.85 * memory)
    if share:
        scale = H200[3] * H200[4] / (sms * clock)
        on_device = max(on_device, MEASURED[weights] * scale)
    loads = KV_Q8 * READ * NEW if share and link else 0
    return on_device + (loads / link if loads else 0)


def main():
    print("| GPU | weights | share, tokens/s | of it over the link, ms | dense, if all of it fitted |")
    print("|---|---|---|---|---|")
    for gpu in [H200] + GPUS:  # the first is for comparison with the measurement
        for weights in ("Q4_K", "Q8_0"):
            held = WEIGHTS[weights][1] + KEY_CODES + 0.6e9
            if held > 0.94 * gpu[5] * GIB:
                continue
            loads = KV_Q8 * READ * NEW / gpu[2] * 1e3 if gpu[2] else 0
            share, dense = (1 / step(gpu, weights, one) for one in (True, False))
            print(f"| {gpu[0]} | {weights} | {share:.0f} | {loads:.1f} | {dense:.0f} |")


if __name__ == "__main__":
    main()
