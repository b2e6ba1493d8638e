#!/usr/bin/env python3
"""Errors of attention scores when keys are stored in f16 or q8, or estimated from 2-bit codes.

    score_errors.py [MODEL.gguf --text FILE] [--tokens 2048]

Prints a row for each kind of heads: the standard deviation of its scores, and the error of a score
(root mean square over queries and keys) with each format. A score is q.k times the model's factor,
so an error of 1 changes a key's weight by a factor of e.

Without a model, queries and keys are random, as normalised heads are if their norm weights are 1:
heads of 128 with the factor 1/sqrt(128), and Gemma 4's heads of 256 and 512 with the factor 1. With
a Gemma 3 file its own queries and keys follow, after norm and RoPE, from transformers in float32
(packages torch, transformers, accelerate, gguf). Formats, in float64: kernels/common/kv_q8.h, keys
through a Walsh-Hadamard transform first; kernels/cpu/select/select.h, blocks of 16 keys.
"""
import argparse
import math

import numpy as np

BLOCK = 16
LEVEL_STEP = 0.9957  # kInt2Step


def transformed(x):
    """Returns the rows after an orthonormal Walsh-Hadamard transform of their last axis."""
    d = x.shape[-1]
    y = x.reshape(-1, d).copy()
    step = 1
    while step < d:
        parts = y.reshape(-1, d // (2 * step), 2, step)
        y = np.stack((parts[:, :, 0] + parts[:, :, 1], parts[:, :, 0] - parts[:, :, 1]), 2)
        y = y.reshape(-1, d)
        step *= 2
    return (y / math.sqrt(d)).reshape(x.shape)


def in_f16(keys):
    return keys.astype(np.float16).astype(np.float64)


def in_q8(keys):
    """Returns transformed keys in 8 bits: a scale of four significant bits for 32 values."""
    groups = transformed(keys).reshape(*keys.shape[:-1], -1, 32)
    least = np.abs(groups).max(-1, keepdims=True) / 127
    exponent = np.floor(np.log2(least))
    scale = np.ceil(least / 2.0 ** (exponent - 3)) * 2.0 ** (exponent - 3)
    return (np.clip(np.rint(groups / scale), -127, 127) * scale).reshape(keys.shape)


def in_2_bits(keys):
    """Returns transformed keys as blocks of means in 8 bits and codes in 2 bits describe them."""
    n = len(keys) // BLOCK * BLOCK
    blocks = transformed(keys[:n]).reshape(-1, BLOCK, keys.shape[-1])
    mean = blocks.mean(1, keepdims=True)
    mean_scale = np.abs(mean).max(-1, keepdims=True) / 127
    mean = np.rint(mean / mean_scale) * mean_scale
    rest = blocks - mean
    scale = LEVEL_STEP * np.sqrt((rest * rest).mean(-1, keepdims=True))
    codes = np.clip(np.rint(rest / scale + 1.5), 0, 3)
    scale = (rest * rest).sum(-1, keepdims=True) / (rest * (codes - 1.5)).sum(-1, keepdims=True)
    return (mean + scale * (codes - 1.5)).reshape(n, -1)


def errors(queries, keys, factor):
    """Returns the spread of the scores, and the error with f16, q8 and 2-bit keys."""
    scores = factor * queries @ keys.T
    rotated = transformed(queries)
    result = [scores.std()]
    for q, held in ((queries, in_f16(keys)), (rotated, in_q8(keys)), (rotated, in_2_bits(keys))):
        # An error that all keys of a query share changes no weight.
        error = factor * q @ held.T - scores[:, :len(held)]
        result.append((error - error.mean(1, keepdims=True)).std())
    return result


def show(name, rows):
    spread, f16, q8, two = np.sqrt((np.array(rows) ** 2).mean(0))
    print(f"| {name} | {spread:.2f} | {f16:.4f} | {q8:.3f} | {two:.2f} | {f16 / spread:.5f}, "
          f"{q8 / spread:.4f}, {two / spread:.3f} |", flush=True)


def normalised(generator, n, d):
    x = generator.standard_normal((n, d))
    return x / np.sqrt((x * x).mean(-1, keepdims=True))


def of_model(path, text, n_tokens):
    """Calls show for the heads of a Gemma 3 file, layers with and without a window apart."""
    import os

    import torch
    import transformers
    from transformers.models.gemma3 import modeling_gemma3 as gemma3

    folder, name = os.path.split(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder or ".", gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder or ".", gguf_file=name, dtype=torch.float32, attn_implementation="eager")
    ids = tokenizer(open(text, encoding="utf-8").read(), return_tensors="pt").input_ids[:, :n_tokens]
    kinds = {"with a window": [], "without a window": []}
    plain = gemma3.eager_attention_forward

    def seen(module, query, key, value, mask, scaling=None, **more):
        kind = "with a window" if module.is_sliding else "without a window"
        group = query.shape[1] // key.shape[1]
        for head in range(query.shape[1]):
            q, k = query[0, head].double().numpy(), key[0, head // group].double().numpy()
            kinds[kind].append(errors(q[-256:], k, scaling))
        return plain(module, query, key, value, mask, scaling=scaling, **more)

    gemma3.eager_attention_forward = seen
    with torch.inference_mode():
        model(ids)
    for kind, rows in kinds.items():
        show(f"{name}, {len(rows)} heads {kind}", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a Gemma 3 GGUF file")
    parser.add_argument("--text", help="the text that it reads")
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    if options.model and not options.text:
        parser.error("a model needs --text")
    print("| heads | scores | f16 | q8 | 2-bit codes | errors by the spread of the scores |")
    print("|---|---|---|---|---|---|")
    generator = np.random.default_rng(1)
    for name, d, factor in (("random, 128, factor 1/sqrt(128)", 128, 1 / math.sqrt(128)),
                            ("random, 256, factor 1", 256, 1.0), ("random, 512, factor 1", 512, 1.0)):
        rows = [errors(normalised(generator, 256, d), normalised(generator, 2048, d), factor)
                for _ in range(8)]
        show(name, rows)
    if options.model:
        of_model(options.model, options.text, options.tokens)


if __name__ == "__main__":
    main()
