#!/usr/bin/env python3
"""Times PyTorch on this GPU at the work that riffle does: the yardstick for riffle's numbers.

Prints a line of JSON per case; times are medians. Needs PyTorch with CUDA and about 40 GB of GPU memory.
  decode   one query, 32 heads over 8 KV heads, head dimension 128, bf16: the fastest backend and form of
           scaled_dot_product_attention, replayed from a CUDA graph over KV sets that together exceed the L2 cache
  prefill  a transformer in the shape of Llama-3.1-8B, bf16, random weights, all 32 layers allocated, eager with
           flash attention, logits of the last token only: whole or in chunks of 8192, whichever is faster
  copy     device-to-device copy, bytes read plus written
--compile also fuses the elementwise steps with torch.compile (slower to start).
"""
import argparse
import json
import math
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

N_HEADS, N_KV_HEADS, HEAD_DIM = 32, 8, 128
DIM, HIDDEN, N_LAYERS, VOCAB, ROPE_BASE, EPS = 4096, 14336, 32, 128256, 500000.0, 1e-5


def report(case, **values):
    print(json.dumps({"case": case, **values}), flush=True)


def median_seconds(call, times=5, warm=1):
    for _ in range(warm):
        call()
    seconds = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def reason(error):
    """The first line of an error, for a case that PyTorch refuses."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


# ---- decode ----

def attend_gqa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def attend_expanded(q, k, v):
    group = N_HEADS // N_KV_HEADS
    k, v = (x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def attend_grouped(q, k, v):
    # The heads of a group as queries of one KV head: the same sums, as one query sees all keys.
    n = q.shape[0]
    q = q.view(n, N_KV_HEADS, N_HEADS // N_KV_HEADS, HEAD_DIM)
    return F.scaled_dot_product_attention(q, k, v).view(n, N_HEADS, 1, HEAD_DIM)


def decode(n_tokens, batch):
    set_bytes = 2 * batch * N_KV_HEADS * n_tokens * HEAD_DIM * 2
    n_sets = max(2, math.ceil((512 << 20) / set_bytes))  # several times any L2 cache
    sets = [tuple(torch.randn(batch, N_KV_HEADS, n_tokens, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
                  for _ in range(2)) for _ in range(n_sets)]
    q = torch.randn(batch, N_HEADS, 1, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    exact = attend_expanded(q.float(), *(x.float() for x in sets[0]))
    best, refused = None, {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                    SDPBackend.MATH):
        for form in (attend_gqa, attend_grouped, attend_expanded):
            name = f"{backend.name} {form.__name__.removeprefix('attend_')}"
            try:
                with sdpa_kernel(backend):
                    error = ((form(q, *sets[0]).float() - exact).norm() / exact.norm()).item()
                    if not error <= 2e-2:
                        raise RuntimeError(f"wrong result: relative error {error}")
                    stream = torch.cuda.Stream()
                    stream.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(stream):
                        form(q, *sets[0])
                    torch.cuda.current_stream().wait_stream(stream)
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        for k, v in sets:
                            form(q, k, v)
                    seconds = median_seconds(graph.replay, times=7) / n_sets
                    del graph
            except RuntimeError as error:
                refused[name] = reason(error)
                continue
            if best is None or seconds < best[0]:
                best = seconds, name
    if best is None:
        return report("decode", n_tokens=n_tokens, batch=batch, refused=refused)
    report("decode", n_tokens=n_tokens, batch=batch, backend=best[1], microseconds=round(best[0] * 1e6, 2),
           gb_per_s=round(set_bytes / best[0] / 1e9, 1), kv_sets=n_sets)


# ---- prefill ----

def rotate(x, cos, sin):
    """x [n][heads][d]; pairs (j, j + d/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class Llama:
    def __init__(self, max_tokens, compiled):
        def matrix(rows, cols):
            return torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)

        qkv_rows = (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM
        self.layers = [{"qkv": matrix(qkv_rows, DIM), "out": matrix(DIM, N_HEADS * HEAD_DIM),
                        "gate_up": matrix(2 * HIDDEN, DIM), "down": matrix(DIM, HIDDEN)} for _ in range(N_LAYERS)]
        self.embedding, self.head = matrix(VOCAB, DIM), matrix(VOCAB, DIM)
        self.norm = torch.ones(DIM, device="cuda", dtype=torch.bfloat16)
        frequency = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2, device="cuda", dtype=torch.float64) / HEAD_DIM)
        angle = torch.arange(max_tokens, device="cuda", dtype=torch.float64)[:, None] * frequency
        self.cos, self.sin = (f(angle).to(torch.bfloat16)[:, None, :] for f in (torch.cos, torch.sin))
        # [layer][k, v]: 1, heads, tokens, d; what a decode step would go on with.
        self.cache = torch.empty(N_LAYERS, 2, 1, N_KV_HEADS, max_tokens, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        self.rotate = torch.compile(rotate) if compiled else rotate
        self.swiglu = torch.compile(swiglu) if compiled else swiglu

    def forward(self, tokens, pos0):
        n = tokens.numel()
        x = self.embedding[tokens]
        cos, sin = self.cos[pos0:pos0 + n], self.sin[pos0:pos0 + n]
        for layer, cache in zip(self.layers, self.cache):
            qkv = F.linear(F.rms_norm(x, (DIM,), self.norm, EPS), layer["qkv"]).view(n, -1, HEAD_DIM)
            q, k, v = qkv.split((N_HEADS, N_KV_HEADS, N_KV_HEADS), dim=1)
            cache[0, 0, :, pos0:pos0 + n] = self.rotate(k, cos, sin).transpose(0, 1)
            cache[1, 0, :, pos0:pos0 + n] = v.transpose(0, 1)
            q = self.rotate(q, cos, sin).transpose(0, 1)[None]
            keys, values = cache[0, :, :, :pos0 + n], cache[1, :, :, :pos0 + n]
            if pos0 == 0:
                attended = F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
            else:  # the last query sees the last key
                attended = F.scaled_dot_product_attention(q, keys, values, causal_lower_right(n, pos0 + n),
                                                          enable_gqa=True)
            x = x + F.linear(attended[0].transpose(0, 1).reshape(n, -1), layer["out"])
            up = F.linear(F.rms_norm(x, (DIM,), self.norm, EPS), layer["gate_up"])
            x = x + F.linear(self.swiglu(up), layer["down"])
        return F.linear(F.rms_norm(x[-1:], (DIM,), self.norm, EPS), self.head)

    def prefill(self, tokens, chunk):
        for pos0 in range(0, tokens.numel(), chunk):
            logits = self.forward(tokens[pos0:pos0 + chunk], pos0)
        return logits


def prefill(model, n_tokens, compiled):
    tokens = torch.randint(VOCAB, (n_tokens,), device="cuda")
    best, refused = None, {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for chunk in sorted({n_tokens, min(n_tokens, 8192)}):
            try:
                with sdpa_kernel(backend):
                    logits = model.prefill(tokens, chunk)
                    if not torch.isfinite(logits).all():
                        raise RuntimeError("logits are not finite")
                    seconds = median_seconds(lambda: model.prefill(tokens, chunk), times=3, warm=0)
            except RuntimeError as error:
                refused[f"{backend.name} {chunk}"] = reason(error)
                continue
            report("prefill_form", n_tokens=n_tokens, chunk=chunk, backend=backend.name,
                   tokens_per_s=round(n_tokens / seconds, 1))
            if best is None or seconds < best[0]:
                best = seconds, backend.name, chunk
    if best is None:
        return report("prefill", n_tokens=n_tokens, refused=refused)
    matrices = 2 * n_tokens * N_LAYERS * sum(w.numel() for w in model.layers[0].values())
    attention = 4 * (n_tokens * (n_tokens + 1) / 2) * HEAD_DIM * N_HEADS * N_LAYERS
    report("prefill", n_tokens=n_tokens, chunk=best[2], backend=best[1],
           elementwise="compiled" if compiled else "eager", seconds=round(best[0], 4),
           tokens_per_s=round(n_tokens / best[0], 1),
           tflop_per_s=round((matrices + attention) / best[0] / 1e12, 1), refused=refused)


def attention_alone(n_tokens):
    """The part of prefill that flash_prefill does: one layer, causal."""
    q = torch.randn(1, N_HEADS, n_tokens, HEAD_DIM, device="cuda", dtype=torch.float16)
    k, v = (torch.randn(1, N_KV_HEADS, n_tokens, HEAD_DIM, device="cuda", dtype=torch.float16) for _ in range(2))
    flops = 4 * (n_tokens * (n_tokens + 1) / 2) * HEAD_DIM * N_HEADS
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                seconds = median_seconds(
                    lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), times=7)
        except RuntimeError as error:
            report("prefill_attention", n_tokens=n_tokens, backend=backend.name, refused=reason(error))
            continue
        report("prefill_attention", n_tokens=n_tokens, backend=backend.name, type="f16",
               milliseconds=round(seconds * 1e3, 3), tflop_per_s=round(flops / seconds / 1e12, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="fuse the elementwise steps of prefill")
    parser.add_argument("--decode-only", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    torch.manual_seed(1)
    report("device", name=torch.cuda.get_device_name(), torch=torch.__version__, cuda=torch.version.cuda)
    with torch.inference_mode():
        source = torch.randint(256, (4 << 30,), device="cuda", dtype=torch.uint8)
        target = torch.empty_like(source)
        seconds = median_seconds(lambda: target.copy_(source))
        report("copy", bytes=source.numel(), gb_per_s=round(2 * source.numel() / seconds / 1e9, 1))
        del source, target
        for batch in (1, 4):
            for n_tokens in (1024, 32768, 131072):
                decode(n_tokens, batch)
        if options.decode_only:
            return
        for n_tokens in (8192, 32768):
            attention_alone(n_tokens)
        model = Llama(32768, options.compile)
        for n_tokens in (8192, 32768):
            prefill(model, n_tokens, options.compile)


if __name__ == "__main__":
    main()
