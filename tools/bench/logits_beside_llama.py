#!/usr/bin/env python3
"""Compares logits of riffle and of llama.cpp on a real GGUF model with those of transformers in float32.

    tools/bench/logits_beside_llama.py MODEL.gguf --peer peer_logits [--text FILE] [--threads N]

--peer is tools/bench/peer_logits.cpp, linked with llama.cpp; that file says how. transformers reads
the same file, and its weights are dequantised to float32 (packages torch, transformers, accelerate, gguf).
Parts that are missing are named, and the program ends with status 77 if nothing can be compared.

Texts of 50 to 2,000 tokens begin at different places of --text. All but the last 16 tokens of a
text are read in up to 16 pieces (prefill), the others one by one (decode). Logits after each piece
and after each of these tokens are compared. Attention is dense.
"""
import argparse
import ctypes as C
import os
import subprocess
import sys

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LENGTHS = (50, 200, 500, 1000, 2000)
STEPS = 16
CONTEXT = 2048


class Riffle:
    """The C library."""

    def __init__(self, library, model):
        self.lib = C.CDLL(library)
        self.lib.riffle_options_create.restype = C.c_void_p
        self.lib.riffle_options_set.argtypes = [C.c_void_p, C.c_char_p, C.c_char_p]
        self.lib.riffle_options_free.argtypes = [C.c_void_p]
        self.lib.riffle_options_error.argtypes = [C.c_void_p]
        self.lib.riffle_context_create.argtypes = [C.c_void_p, C.c_void_p, C.c_void_p, C.c_char_p, C.c_size_t]
        self.lib.riffle_logits.restype = C.POINTER(C.c_float)
        for name in ("riffle_context_error", "riffle_model_error", "riffle_options_error"):
            getattr(self.lib, name).restype = C.c_char_p
        self.model, error = C.c_void_p(), C.create_string_buffer(1024)
        if self.lib.riffle_model_load(model.encode(), None, C.byref(self.model), error, C.c_size_t(1024)):
            sys.exit(error.value.decode())

    def tokenize(self, text):
        data, n = text.encode(), C.c_size_t()
        out = (C.c_int32 * len(data))()
        size = C.c_size_t(len(data))
        status = self.lib.riffle_tokenize(self.model, data, size, 1, out, size, C.byref(n))
        if status:
            sys.exit(self.lib.riffle_model_error(self.model).decode())
        return list(out[:n.value])

    def logits(self, texts, kv_type, threads, vocab):
        options = self.lib.riffle_options_create()
        for name, value in (("device", "cpu"), ("ctx", CONTEXT), ("threads", threads), ("kv", kv_type),
                            ("selector", "dense")):
            if self.lib.riffle_options_set(options, name.encode(), str(value).encode()):
                sys.exit(self.lib.riffle_options_error(options).decode())
        context, error = C.c_void_p(), C.create_string_buffer(1024)
        if self.lib.riffle_context_create(self.model, options, C.byref(context), error, 1024):
            sys.exit(error.value.decode())
        self.lib.riffle_options_free(options)

        def check(status):
            if status:
                sys.exit(self.lib.riffle_context_error(context).decode())

        rows = []
        for ids, ends in texts:
            session = C.c_void_p()
            check(self.lib.riffle_session_create(context, C.byref(session)))
            for begin, end in zip([0] + ends, ends):
                piece = (C.c_int32 * (end - begin))(*ids[begin:end])
                if len(piece) == 1:
                    check(self.lib.riffle_step(context, C.byref(session), piece, C.c_size_t(1)))
                else:
                    check(self.lib.riffle_prefill(session, piece, C.c_size_t(len(piece)), None, None))
                rows.append(np.ctypeslib.as_array(self.lib.riffle_logits(session), (vocab,)).copy())
            self.lib.riffle_session_free(session)
        self.lib.riffle_context_free(context)
        return np.stack(rows)


def of_llama(program, model, texts, kv_type, threads, vocab):
    lines = "".join(f"{len(a)} {' '.join(map(str, a))}\n" for text in texts for a in text)
    out = subprocess.run([program, model, str(threads), kv_type, str(CONTEXT)], input=lines.encode(),
                         stdout=subprocess.PIPE)
    if out.returncode:
        sys.exit(f"{program} ended with {out.returncode}")
    return np.frombuffer(out.stdout, "<f4").reshape(-1, vocab)


def of_transformers(path, texts):
    import torch
    from transformers import AutoModelForCausalLM
    folder, name = os.path.split(os.path.abspath(path))
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    with torch.no_grad():
        return np.concatenate([model(torch.tensor([ids]), logits_to_keep=torch.tensor(ends) - 1).logits[0].numpy()
                               for ids, ends in texts])


def compared(rows, reference):
    """Returns the largest and the mean difference of a logit, KL(reference, rows) in nats (mean and largest), and the
    share of rows with the same most likely token."""
    def log_softmax(x):
        x = x.astype(np.float64)
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    p, q = log_softmax(reference), log_softmax(rows)
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    difference = np.abs(rows.astype(np.float64) - reference)
    same = (rows.argmax(axis=1) == reference.argmax(axis=1)).sum()
    return (f"{difference.max():.2g} | {difference.mean():.2g} | {max(kl.mean(), 0):.2g} | {max(kl.max(), 0):.2g} | "
            f"{same} of {len(rows)}")


def cut(riffle, text):
    """Returns (ids, the ends of its pieces) for each text."""
    texts = []
    for i, n in enumerate(LENGTHS):
        ids = riffle.tokenize(text[i * len(text) // (2 * len(LENGTHS)):])[:n]
        if len(ids) < n:
            sys.exit(f"the text is too short for {n} tokens")
        prefill = n - STEPS
        pieces = max(1, min(16, prefill // 32))
        texts.append((ids, [prefill * (p + 1) // pieces for p in range(pieces)] + list(range(prefill + 1, n + 1))))
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--peer", help="tools/bench/peer_logits.cpp, linked with llama.cpp")
    parser.add_argument("--riffle", metavar="LIBRARY", default=os.path.join(ROOT, "build/libriffle.so"))
    parser.add_argument("--text", default=os.path.join(ROOT, "models/riffle-27m-32k/demo.txt"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    for path in (args.model, args.riffle, args.text):
        if not os.path.exists(path):
            print(f"skip: {path} is missing")
            sys.exit(77)
    riffle = Riffle(args.riffle, args.model)
    with open(args.text, encoding="utf-8") as f:
        texts = cut(riffle, f.read())
    import gguf
    vocab = len(gguf.GGUFReader(args.model).get_field("tokenizer.ggml.tokens").data)
    found = {f"riffle, {kv} KV": riffle.logits(texts, kv, args.threads, vocab) for kv in ("f32", "f16")}
    if args.peer and os.path.exists(args.peer):
        for kv in ("f32", "f16"):
            found[f"llama.cpp, {kv} KV"] = of_llama(args.peer, args.model, texts, kv, args.threads, vocab)
    else:
        print(f"skip: llama.cpp, {args.peer or '--peer'} is missing")
    try:
        found["transformers"] = of_transformers(args.model, texts)
    except (ImportError, ValueError) as e:  # the latter: without the package accelerate
        print(f"skip: transformers, {e}")
    decode = np.array([end > len(ids) - STEPS for ids, ends in texts for end in ends])
    pairs = [(name, "transformers") for name in found if name != "transformers" and "transformers" in found]
    pairs += [(f"riffle, {kv} KV", f"llama.cpp, {kv} KV") for kv in ("f32", "f16") if f"llama.cpp, {kv} KV" in found]
    if not pairs:
        print("skip: nothing to compare riffle with")
        sys.exit(77)
    print("| logits | compared with | | largest difference | mean | KL, nats, mean | largest | same best token |")
    print("|---|---|---|---|---|---|---|---|")
    for name, reference in pairs:
        for kind, rows in (("prefill", ~decode), ("decode", decode)):
            print(f"| {name} | {reference} | {kind} | {compared(found[name][rows], found[reference][rows])} |")
    print(f"\n{len(decode)} rows of {vocab:,} logits; the largest is "
          f"{max(float(np.abs(x).max()) for x in found.values()):.1f}")


if __name__ == "__main__":
    main()
