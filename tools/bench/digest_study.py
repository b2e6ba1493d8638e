#!/usr/bin/env python3
"""Why block digests lose the block that holds an answer, and which summary of the keys finds it.

    digest_study.py capture --model M.gguf --text A.txt B.txt --lengths 2048 4096 --out DIR
    digest_study.py analyse --data DIR --books B --fit DIR/A-4096-1.pt --causes

capture hides facts in the text of books, runs the prompt, keeps the questions that the model
answers rightly, and writes the keys of every layer and the queries of the steps that produce the
digits of the answer. analyse needs no model: it ranks the blocks of those keys by each summary and
prints tables. It needs numpy and torch; capture also needs transformers and gguf. Rows that take
means, codebooks or stretches from data take them from the file given with --fit, which should be
of another book; "balanced" rows need it, and fit to the queries of its text, not of its answers.
"""
import argparse
import functools
import glob
import math
import os
import random
import sys
import time

import numpy as np
import torch

COLOURS = "amber cobalt crimson ivory jade ochre russet scarlet silver teal umber violet".split()
THINGS = ("anchor beacon candle dagger falcon garnet hammer lantern mirror orchard ribbon "
          "violin").split()
INTRO = ("Some special magic numbers are hidden in the text below. Read it and remember them.\n\n")
QUESTION = "\n\nWhat is the special magic number for {} in the text above?"
ANSWER = "The special magic number for {} is"


# ---------------------------------------------------------------- capture


def hide(text, rng, keys):
    """Puts one sentence for each key at spread depths of the text, at ends of sentences."""
    names = rng.sample([f"{c}-{t}" for c in COLOURS for t in THINGS], keys)
    facts = {n: str(rng.randrange(10**6, 10**7)) for n in names}
    out, start = [], 0
    for i, (name, value) in enumerate(facts.items()):
        at = text.find(". ", int(len(text) * (i + 0.2 + 0.6 * rng.random()) / keys))
        at = len(text) if at < 0 else at + 2
        out += [text[start:at], f"The special magic number for {name} is {value}. "]
        start = at
    return "".join(out) + text[start:], facts


class Queries:
    """Records the query of every layer, after RoPE, through the interface for attention kernels."""

    def __init__(self):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.masking_utils import sdpa_mask
        self.rows, self.stride = [], 0

        def attend(module, query, key, value, mask, **kw):
            if self.stride:
                self.rows.append(query[0].flip(1)[:, ::self.stride].clone())
            return sdpa_attention_forward(module, query, key, value, mask, **kw)

        AttentionInterface.register("recorded", attend)
        AttentionMaskInterface.register("recorded", sdpa_mask)

    def take(self):
        rows, self.rows = torch.stack(self.rows), []
        return rows  # [layer, head, position, d], the last position first.


def layer_keys(cache, start, end):
    return torch.stack([layer.keys[0, :, start:end] for layer in cache.layers]).clone()


def ask(model, tok, queries, cache, length, tail, value):
    """The answer's steps: queries, and the digit that each produces; nothing if it is wrong."""
    steps, digits, text = [], [], ""
    ids, queries.stride = torch.tensor([tail]), 10**9
    for _ in range(len(value) + 3):
        logits = model(ids, past_key_values=cache, logits_to_keep=1).logits[0, -1]
        token, row = int(logits.argmax()), queries.take()[:, :, 0]
        piece = tok.decode([token]).strip()
        if piece:
            steps.append(row)
            digits.append(len(text))
            text += piece
        if not value.startswith(text) or text == value:
            break
        ids = torch.tensor([[token]])
    if text != value:
        return text, None
    return text, dict(q=torch.stack(steps), digit=digits, tail=layer_keys(cache, length, None))


def capture(a):
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
    torch.set_num_threads(a.threads)
    where, name = os.path.split(os.path.abspath(a.model))
    tok = AutoTokenizer.from_pretrained(where, gguf_file=name)
    queries = Queries()
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32,
                                                 attn_implementation="recorded").eval()
    theta = getattr(model.config, "rope_theta", None) or model.config.rope_parameters["rope_theta"]
    os.makedirs(a.out, exist_ok=True)
    # Seeds first, then lengths: a run that is stopped early has all lengths and books.
    for seed, length, book in [(s, n, b) for s in a.seeds for n in a.lengths for b in a.text]:
        title = os.path.splitext(os.path.basename(book))[0]
        rng = random.Random(f"{title} {length} {seed}")
        with open(book, encoding="utf-8") as f:
            whole = " ".join(f.read().split())
        # The prompt's length is met to a few tokens: text is cut by the tokens that it takes.
        at = rng.randrange(len(whole) // 10, len(whole) // 2)
        part = tok(whole[at:at + 8 * length], add_special_tokens=False)["input_ids"]
        body = tok.decode(part[:length - 24 * a.keys - 80])
        body, facts = hide(body[body.find(". ") + 2:], rng, a.keys)
        prompt = tok.apply_chat_template([{"role": "user", "content": INTRO + body + "\0"}],
                                         tokenize=False, add_generation_prompt=True)
        doc, after = prompt.split("\0")
        coded = tok(doc, add_special_tokens=False, return_offsets_mapping=True)
        ids, spans = coded["input_ids"], coded["offset_mapping"]
        began, cache, sample = time.time(), DynamicCache(), []
        with torch.inference_mode():
            for i in range(0, len(ids), a.chunk):
                queries.stride = 16
                model.model(torch.tensor([ids[i:i + a.chunk]]), past_key_values=cache)
                sample.append(queries.take())
            keys, cases = layer_keys(cache, 0, len(ids)), []
            for key, value in facts.items():
                c = doc.index(value)
                where = [i for i, (s, e) in enumerate(spans) if s < c + len(value) and e > c]
                tail = tok(QUESTION.format(key) + after + ANSWER.format(key),
                           add_special_tokens=False)["input_ids"]
                got, case = ask(model, tok, queries, cache, len(ids), tail, value)
                cache.crop(-(cache.get_seq_length() - len(ids)))
                if case:
                    cases.append(dict(case, value_at=where, key=key))
        torch.save(dict(keys=keys, cases=cases, theta=theta, book=title, length=length,
                        asked=len(facts), sample=torch.cat(sample, 2)),
                   f"{a.out}/{title}-{length}-{seed}.pt")
        print(f"{title} {length} seed {seed}: {len(ids)} tokens, {len(cases)} of {len(facts)} "
              f"answered rightly, {time.time() - began:.0f} s", flush=True)


# ---------------------------------------------------------------- summaries of keys


class Layer:
    """The keys k [KV head, token, d] of one layer after RoPE, in blocks. `ref` is a layer of
    another prompt that means, axes and codebooks are fitted to; `fits` keeps what was fitted."""

    def __init__(self, k, block, theta, ref=None, queries=None):
        self.k, self.block, self.d = k, block, k.shape[-1]
        self.blocks = k.shape[1] // block
        self.frequency = theta ** (-torch.arange(self.d // 2) * 2 / self.d)
        self.position = torch.arange(k.shape[1]).float()
        self.ref, self.queries, self.fits = ref or self, queries, {}

    def rotate(self, x, position):
        """RoPE of x [..., d] by position, which broadcasts against x without its last axis."""
        angle = position[..., None] * self.frequency
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :self.d // 2], x[..., self.d // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def split(self, x, size=None):
        return x.unflatten(1, (-1, size or self.block))

    def fitted(self, key, fit):
        if key not in self.ref.fits:
            self.ref.fits[key] = fit(self.ref)
        return self.ref.fits[key]

    # The three kinds of estimate. Each gives log of a block's mass, [step, KV head, head, block].
    def tokens(self, khat):
        return lambda q: scores(q, khat).unflatten(-1, (-1, self.block)).logsumexp(-1)

    def points(self, c, count):
        """c: [KV head, block, point, d], each standing for `count` tokens."""
        log = torch.as_tensor(count).float().log()
        log = log[:, None] if log.dim() else log
        return lambda q: (scores(q, c.flatten(1, 2)).unflatten(-1, c.shape[1:3])
                          + log).logsumexp(-1)

    def box(self, c, r, parts):
        """c, r: [KV head, part of a block, d]. A block has the score of its best part."""
        n = math.log(self.block)
        return lambda q: (scores(q, c) + scores(q.abs(), r) + n).unflatten(
            -1, (-1, parts)).amax(-1)


def scores(q, k):
    return torch.einsum("sghd,gnd->sghn", q, k) / math.sqrt(k.shape[-1])


def half(x):
    return x.half().float()


def coded(x, bits, dim=-1):
    """Asymmetric codes: the least value and the step are kept as f16."""
    low = half(x.amin(dim, keepdim=True))
    step = half(((x.amax(dim, keepdim=True) - low) / (2 ** bits - 1)).clamp(min=1e-6))
    return low + step * ((x - low) / step).round().clamp(0, 2 ** bits - 1)


@functools.lru_cache(None)
def levels(bits):
    """The 2^bits levels of least error for a normal distribution of unit variance."""
    x = torch.special.ndtri((torch.arange(20001) + 0.5) / 20001)
    c = torch.special.ndtri((torch.arange(2 ** bits) + 0.5) / 2 ** bits)
    for _ in range(100):
        own = torch.bucketize(x, (c[1:] + c[:-1]) / 2)
        c = torch.zeros_like(c).index_add_(0, own, x) / torch.bincount(own, minlength=2 ** bits)
    return c


def normal(x, bits):
    """Codes on the levels of a normal distribution, and one f16 a token that makes the estimate
    of x.x right: least squares would shrink the scores that matter, the great ones."""
    c, u = levels(bits), x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-9)
    c = c[torch.bucketize(u, (c[1:] + c[:-1]) / 2)]
    scale = x.square().sum(-1, keepdim=True) / (c * x).sum(-1, keepdim=True).clamp(min=1e-9)
    return c * half(scale)


def hadamard(d):
    """Spreads a key's outliers over all dimensions; q.k stays if q is turned the same way."""
    h = torch.ones(1, 1)
    while h.shape[0] < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    signs = torch.randint(0, 2, (d,), generator=torch.Generator().manual_seed(5)) * 2 - 1
    return h * signs / math.sqrt(d)


def mean_key(y, before=False):
    """The mean of all keys. Its score is the same for all tokens, so no token needs to store it.
    before: the mean before RoPE, turned to each token's position."""
    if not before:
        return y.fitted("mean", lambda z: z.k.mean(1, keepdim=True))
    mean = y.fitted("before", lambda z: z.rotate(z.k, -z.position).mean(1, keepdim=True))
    return y.rotate(mean.expand_as(y.k), y.position)


def centred(y, code, before):
    mean, h = mean_key(y, before), hadamard(y.d)
    return y.tokens(mean + code((y.k - mean) @ h) @ h.T)


def clusters(x, m, rounds=6):
    """k-means inside each block, x [KV head, block, token, d], begun with the farthest keys."""
    flat = x.flatten(0, 1)
    c = flat.mean(1, keepdim=True)
    for i in range(m):
        far = torch.cdist(flat, c).amin(-1).argmax(-1)
        new = flat[torch.arange(len(flat)), far][:, None]
        c = new if i == 0 else torch.cat([c, new], 1)
    for _ in range(rounds):
        own = torch.nn.functional.one_hot(torch.cdist(flat, c).argmin(-1), m).float()
        n = own.sum(1)
        total = own.transpose(1, 2) @ flat
        c = torch.where(n[..., None] > 0, total / n[..., None].clamp(min=1), c)
    return c.unflatten(0, x.shape[:2]), n.unflatten(0, x.shape[:2])


def codebook(y, parts, centres, rounds=6):
    x = y.k - y.k.mean(1, keepdim=True)
    x = x[:, torch.linspace(0, x.shape[1] - 1, min(2048, x.shape[1])).long()]
    some = x.unflatten(-1, (parts, -1)).transpose(1, 2).flatten(0, 1)
    c = some[:, torch.linspace(0, some.shape[1] - 1, centres).long()]
    for _ in range(rounds):
        own = torch.cdist(some, c).argmin(-1)
        total = torch.zeros_like(c).scatter_add_(1, own[..., None].expand_as(some), some)
        n = torch.zeros(c.shape[:2]).scatter_add_(1, own, torch.ones(own.shape))
        c = torch.where(n[..., None] > 0, total / n[..., None].clamp(min=1), c)
    return c


def product(y, parts, centres):
    """Product quantisation: each of `parts` pieces of a key becomes the number of a centre."""
    c = y.fitted(("product", parts, centres), lambda z: codebook(z, parts, centres))
    p = (y.k - mean_key(y)).unflatten(-1, (parts, -1)).transpose(1, 2).flatten(0, 1)
    own = torch.cat([torch.cdist(piece, c).argmin(-1) for piece in p.split(1024, 1)], 1)
    out = c.gather(1, own[..., None].expand(-1, -1, c.shape[-1]))
    return y.tokens(mean_key(y) + out.unflatten(0, (len(y.k), parts)).transpose(1, 2).flatten(2))


def root(m, power):
    val, vec = torch.linalg.eigh(m)
    return (vec * val.clamp(min=1e-9)[:, None] ** power) @ vec.transpose(1, 2)


def balance(y):
    """The stretch that spends equal bits best: keys and queries then vary alike in all directions
    (the geometric mean of the queries' covariance and the inverse of the keys')."""
    c = []
    for x in (y.k - y.k.mean(1, keepdim=True), y.queries):
        v = x.transpose(1, 2) @ x / x.shape[1]
        c.append(v + 0.03 * torch.eye(y.d) * v.diagonal(dim1=1, dim2=2).mean(-1)[:, None, None])
    a, b = root(c[0], 0.5), root(c[0], -0.5)
    return root(b @ root(a @ c[1] @ a, 0.5) @ b, 0.5)


def balanced(y, bits, before=False):
    mean, to = mean_key(y, before), y.fitted("balance", balance)
    x = (y.k - mean) @ to @ hadamard(y.d)
    return y.tokens(mean + normal(x, bits) @ hadamard(y.d).T @ torch.linalg.inv(to))


def cuboid(y, size=None, inner="mean", bits=None):
    x = y.split(y.k, size)
    low, high = x.amin(2), x.amax(2)
    c = (low + high) / 2
    r = (high - low) / 2 if inner == "max" else (x - c[:, :, None]).abs().mean(2)
    if bits:
        c, r = coded(c, bits), coded(r, bits)
    return y.box(c, r, y.block // (size or y.block))


def before_rope(y, radius):
    """A digest of keys before RoPE; the query is turned back by the position of a block's middle,
    so that the digest holds what the keys say and not how far each has turned."""
    x = y.split(y.rotate(y.k, -y.position))
    middle = y.split(y.position[None])[0].mean(1)
    c = (x.amin(2) + x.amax(2)) / 2 if radius else x.mean(2)
    r = (x - c[:, :, None]).abs().mean(2) * radius

    def estimate(q):
        turned = y.rotate(q[..., None, :], -middle)
        s = torch.einsum("sghbd,gbd->sghb", turned, c)
        s = s + torch.einsum("sghbd,gbd->sghb", turned.abs(), r)
        return s / math.sqrt(y.d) + math.log(y.block)
    return estimate


def slow(y, estimate):
    """The estimate without the faster half of RoPE's pairs."""
    keep = (torch.arange(y.d) % (y.d // 2) >= y.d // 4).float()
    return lambda q: estimate(q * keep)


def variance(y):
    """Mean and variance of each dimension: the log of a mean of exp of normal scores is their mean
    and half of their variance."""
    x = y.split(y.k)
    mean, var = half(x.mean(2)), half(x.var(2, unbiased=False))
    return lambda q: (scores(q, mean) + scores(q * q, var) / math.sqrt(y.d) / 2
                      + math.log(y.block))


def means(y, size, bits=None):
    c = y.split(y.k, size).mean(2)
    c = coded(c, bits) if bits else half(c)
    return y.points(c.unflatten(1, (y.blocks, -1)), size)


def picked(y, m, bits=None):
    c, n = clusters(y.split(y.k), m)
    return y.points(coded(c, bits) if bits else half(c), n)


def apart(y):
    """The key farthest from the box's centre is kept, and the mean of the others."""
    x = y.split(y.k)
    centre = (x.amin(2) + x.amax(2)) / 2
    far = (x - centre[:, :, None]).norm(dim=-1).argmax(-1)
    one = x.gather(2, far[..., None, None].expand(-1, -1, 1, y.d))
    rest = (x.sum(2, keepdim=True) - one) / (y.block - 1)
    n = torch.tensor([1.0, y.block - 1]).expand(*x.shape[:2], 2)
    return y.points(half(torch.cat([one, rest], 2)), n)


def channels(y, group):
    """2-bit codes with a least value and a step for each channel of a group of tokens."""
    return y.tokens(coded(y.split(y.k, group), 2, 2).flatten(1, 2))


def turned(bits, before=False):
    return lambda y: centred(y, lambda x: normal(x, bits), before)


# name: bytes a token and KV head for blocks of B and dimension d, and how the estimate is made.
SUMMARIES = {
    "exact": ("2*d", lambda y: y.tokens(y.k)),
    "INT4 keys": ("d/2 + 4", lambda y: y.tokens(coded(y.k, 4))),
    "mean": ("2*d/B", lambda y: means(y, y.block)),
    "Quest": ("4*d/B", lambda y: cuboid(y, inner="max")),
    "cuboid-mean": ("4*d/B", cuboid),
    "mean, slow half": ("d/B", lambda y: slow(y, means(y, y.block))),
    "cuboid-mean, slow half": ("2*d/B", lambda y: slow(y, cuboid(y))),
    "exact, slow half": ("d", lambda y: slow(y, y.tokens(y.k))),
    "mean before RoPE": ("2*d/B", lambda y: before_rope(y, 0)),
    "cuboid-mean before RoPE": ("4*d/B", lambda y: before_rope(y, 1)),
    "mean and variance": ("4*d/B", variance),
    "means of 8, f16": ("2*d/8", lambda y: means(y, 8)),
    "means of 4, f16": ("2*d/4", lambda y: means(y, 4)),
    "means of 2, f16": ("2*d/2", lambda y: means(y, 2)),
    "Quest of 4, f16": ("4*d/4", lambda y: cuboid(y, 4, "max")),
    "cuboid-mean of 4, f16": ("4*d/4", lambda y: cuboid(y, 4)),
    "means of 4, 8 bit": ("(d + 4)/4", lambda y: means(y, 4, 8)),
    "means of 2, 4 bit": ("(d/2 + 4)/2", lambda y: means(y, 2, 4)),
    "cuboid-mean of 8, 8 bit": ("2*(d + 4)/8", lambda y: cuboid(y, 8, bits=8)),
    "2 k-means, f16": ("4*d/B", lambda y: picked(y, 2)),
    "4 k-means, 8 bit": ("4*(d + 5)/B", lambda y: picked(y, 4, 8)),
    "8 k-means, 4 bit": ("8*(d/2 + 5)/B", lambda y: picked(y, 8, 4)),
    "farthest key and mean": ("4*d/B", apart),
    "2 bit a token": ("d/4 + 4", lambda y: y.tokens(coded(y.k, 2))),
    "2 bit a channel of 64": ("d/4 + 4*d/64", lambda y: channels(y, 64)),
    "2 bit normal": ("d/4 + 2", turned(2)),
    "2 bit normal, pre-RoPE mean": ("d/4 + 2", turned(2, True)),
    "2 bit balanced": ("d/4 + 2", lambda y: balanced(y, 2)),
    "2 bit balanced, pre-RoPE mean": ("d/4 + 2", lambda y: balanced(y, 2, True)),
    "1 bit balanced": ("d/8 + 2", lambda y: balanced(y, 1)),
    "3 bit normal": ("3*d/8 + 2", turned(3)),
    "PQ 16 x 8 bit": ("16", lambda y: product(y, 16, 256)),
    "PQ 8 x 8 bit": ("8", lambda y: product(y, 8, 256)),
}


# ---------------------------------------------------------------- measures

SHARES, TOPS = (0.02, 0.01, 0.005), (0.05, 0.1, 0.2)
FORCED = 64  # Tokens at the start that every selector reads; the end of the prompt is read too.


def wilson(hits, n, z=1.96):
    p, zz = hits / n, z * z / n
    mid, dev = p + zz / 2, z * math.sqrt(p * (1 - p) / n + zz / n / 4)
    return f"{100 * p:.0f}% ({100 * (mid - dev) / (1 + zz):.0f}-{100 * (mid + dev) / (1 + zz):.0f})"


def steps_of(doc, digits):
    """Case, place in the case, digit and visible tokens after the text of each step studied."""
    return [(c, j, x, c["tail"].shape[2] - (len(c["digit"]) - 1 - j))
            for c in doc["cases"] for j, x in enumerate(c["digit"]) if x in digits]


def study(doc, reference, args, block, out):
    """Adds to `out` what each summary makes of each answer head of a prompt."""
    layers, groups, n, _ = doc["keys"].shape
    last, skip = n // FORCED * FORCED, FORCED // block
    steps = steps_of(doc, args.digits)
    for index in range(layers):
        every = doc["keys"][index].float()
        y = Layer(every[:, :last], block, doc["theta"], reference and reference[index])
        q = torch.stack([c["q"][j, index] for c, j, _, _ in steps]).unflatten(1, (groups, -1))
        # Log of the mass of the tokens that every selector reads.
        forced = torch.stack([scores(q[s:s + 1], torch.cat(
            [every[:, :FORCED], every[:, last:], c["tail"][index, :, :end].float()], 1)
            ).logsumexp(-1)[0] for s, (c, _, _, end) in enumerate(steps)])
        token = scores(q, y.k)
        mass = token.unflatten(-1, (-1, block)).logsumexp(-1)[..., skip:]
        total = torch.logaddexp(mass.logsumexp(-1), forced)[..., None]
        weight = (mass - total).exp()
        # An answer head gives the value's own tokens more than a tenth of its weight. The block to
        # find is the one that holds most of that weight.
        heads = []
        for s, (case, _, digit, _) in enumerate(steps):
            at = torch.tensor([t for t in case["value_at"] if FORCED <= t < last])
            w = (token[s][..., at] - total[s]).exp() if len(at) else torch.zeros(1, 1, 1)
            for g, h in (w.sum(-1) > args.answer_head).nonzero().tolist():
                heads.append((s, g, h, int(at[w[g, h].argmax()]) // block - skip))
                out["heads"].append(dict(
                    layer=index, head=g * q.shape[2] + h, digit=digit, length=doc["length"],
                    weight=float(w[g, h].sum()), third=index * 3 // layers, depth=int(
                        heads[-1][3] * 3 / mass.shape[-1]), case=f"{doc['name']} {case['key']}"))
        S, G, H, at = torch.tensor(heads, dtype=torch.long).reshape(-1, 4).T
        if args.causes:
            causes(y, q, token, mass, heads, skip, out["causes"])
        for name in args.only or SUMMARIES:
            guess = SUMMARIES[name][1](y)(q)[..., skip:]
            share = (guess - torch.logaddexp(guess.logsumexp(-1), forced)[..., None]).exp()
            union = share.amax(2)
            ways = dict(own=guess[S, G, H], mean=guess.mean(2)[S, G], union=union[S, G],
                        soft=guess.softmax(-1).sum(2)[S, G])
            rec = {way: (v > v.gather(-1, at[:, None])).float().mean(-1) for way, v in ways.items()}
            v, e = ways["own"], mass[S, G, H]
            v, e = v - v.mean(-1, keepdim=True), e - e.mean(-1, keepdim=True)
            rec["r"] = (v * e).mean(-1) / (v.square().mean(-1) * e.square().mean(-1)).sqrt()
            rec["z"] = v.gather(-1, at[:, None])[:, 0] / v.square().mean(-1).sqrt()
            rec |= {f"read {s}": union[S, G, at] > s for s in SHARES}
            out["ranks"].setdefault(name, []).append({k: x.numpy() for k, x in rec.items()})
            order = union[:, :, None].argsort(-1, descending=True).expand_as(guess)
            got = weight.gather(-1, order).cumsum(-1)
            out["sums"].setdefault(name, []).append(
                [float(weight.sum())] + [float(got[..., int(p * got.shape[-1]) - 1].sum())
                                         for p in TOPS]
                + [float((union > s).sum()) for s in SHARES] + [union.numel()])


def causes(y, q, token, mass, heads, skip, out):
    """Why a block is missed: turning inside it, one sharp token, the bound's slack, the group."""
    plain, middle = y.rotate(y.k, -y.position), y.split(y.position[None])[0].mean(1)
    still = y.rotate(y.split(plain), middle[None, :, None]).flatten(1, 2)
    boxes, root = y.split(y.k)[:, skip:], math.sqrt(y.d)
    for s, g, h, b in heads:
        t = slice((b + skip) * y.block, (b + skip + 1) * y.block)
        x, z, query = token[s, g, h], token[s, g, h, t], q[s, g, h]
        every, best = x.unflatten(-1, (-1, y.block))[skip:], z.argmax()
        # Pairs of dimensions in four bands, from those that RoPE turns fastest to the slowest.
        part = (y.k[g] * query).unflatten(-1, (2, 4, -1)).sum((1, 3)) / root
        dev = part[t] - part[t].mean(0)
        stand = part[t][best] - part.mean(0)
        calm = still[g, t] @ query / root
        bound = (torch.maximum(boxes[g].amin(1) * query, boxes[g].amax(1) * query).sum(-1) / root)
        top = every.amax(-1)
        rec = {"weight of the best token in its block": z.softmax(-1).max(),
               "best token over block's mean, nats": z.max() - z.mean(),
               "best token over block's mean, sd of scores": (z.max() - z.mean()) / x.std(),
               "best token over all tokens' mean, sd of scores": (z.max() - x.mean()) / x.std(),
               "block's mean over all, sd of scores": (z.mean() - x.mean()) / x.std(),
               "log mass over mean key's estimate, nats": mass[s, g, h, b] - z.mean()
               - math.log(y.block),
               "variance inside blocks, of all": every.var(-1, unbiased=False).mean() / x.var(),
               "variance in the block without turning, of with": calm.var() / z.var(),
               "best over mean without turning, of with": (calm[best] - calm.mean())
               / (z.max() - z.mean()),
               "box bound over best token, sd of scores": (bound[b] - top[b]) / x.std(),
               "box bound over best token, all blocks": (bound - top).mean() / x.std(),
               "spread of that slack over blocks, sd of scores": (bound - top).std() / x.std(),
               "spread of best tokens over blocks, sd of scores": top.std() / x.std(),
               "correlation of bound and best token": torch.corrcoef(
                   torch.stack([bound, top]))[0, 1],
               "own log mass over group's mean, nats": mass[s, g, h, b] - mass[s, g, :, b].mean()}
        for i, band in enumerate(("fastest", "fast", "slow", "slowest")):
            rec[f"variance in the block by the {band} quarter"] = (
                dev[:, i] * dev.sum(1)).mean() / dev.sum(1).square().mean()
            rec[f"best over all tokens' mean by the {band} quarter"] = stand[i] / stand.sum()
        out.append({k: float(v) for k, v in rec.items()})


# ---------------------------------------------------------------- tables


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |")


def header(*cells):
    print()
    row(*cells)
    row(*["---"] * len(cells))


def percent(x):
    return f"{100 * x:.1f}%"


def tables(found, block, d):
    heads = {k: np.array([h[k] for h in found["heads"]]) for k in found["heads"][0]}
    ranks = {name: {k: np.concatenate([r[k] for r in v]) for k in v[0]}
             for name, v in found["ranks"].items()}
    n, cases = len(heads["case"]), set(heads["case"])
    print(f"\n## Blocks of {block}: {len(cases)} answers, {n} answer heads at their steps, "
          f"{len(set(zip(heads['layer'], heads['head'])))} different heads")
    header("summary", "B/token", "median", "p90", *[f"best {percent(p)}" for p in TOPS],
           "p90 group mean", "p90 soft sum", "p90 union", "answers all in union's best 10%, 20%",
           "z", "r")
    for name, r in ranks.items():
        whole = [len(cases) - len(set(heads["case"][r["union"] >= p])) for p in TOPS[1:]]
        size = eval(SUMMARIES[name][0], dict(B=block, d=d))
        row(name, f"{size:.1f}", percent(np.median(r["own"])),
            percent(np.quantile(r["own"], .9)), *[wilson((r["own"] < p).sum(), n) for p in TOPS],
            *[percent(np.quantile(r[way], .9)) for way in ("mean", "soft", "union")],
            f"{whole[0]}, {whole[1]}", f"{r['z'].mean():.1f}", f"{r['r'].mean():.2f}")
    header("summary", *[f"weight in best {percent(p)}" for p in TOPS],
           *[f"share {s}: KV read; needle's blocks read; answers with all" for s in SHARES])
    for name, r in ranks.items():
        total, *now = np.sum(found["sums"][name], axis=0)
        cells = [f"{percent(now[3 + i] / now[-1])}; {wilson(r[f'read {s}'].sum(), n)}; "
                 f"{len(cases) - len(set(heads['case'][~r[f'read {s}']]))}"
                 for i, s in enumerate(SHARES)]
        row(name, *[percent(x / total) for x in now[:3]], *cells)
    some = [x for x in ("mean", "Quest", "cuboid-mean", "INT4 keys") if x in ranks]
    header("class", "heads", *[f"{x}: own median, p90; group mean p90" for x in some])
    for what in ("third", "depth", "digit", "length"):
        for value in sorted(set(heads[what])):
            w = heads[what] == value
            cells = [f"{percent(np.median(ranks[x]['own'][w]))}, "
                     f"{percent(np.quantile(ranks[x]['own'][w], .9))}; "
                     f"{percent(np.quantile(ranks[x]['mean'][w], .9))}" for x in some]
            row(f"{what} {value}", w.sum(), *cells)
    if found["causes"]:
        header("cause", "median", "p10", "p90")
        for k in found["causes"][0]:
            row(k, *[f"{x:.2f}" for x in np.quantile([c[k] for c in found["causes"]],
                                                     [.5, .1, .9])])


def load(folder, books, lengths):
    for path in sorted(glob.glob(os.path.join(folder, "*.pt"))):
        name = os.path.basename(path)[:-3]
        doc = torch.load(path, weights_only=False)
        if doc["book"] in books and doc["cases"] and doc["length"] in (lengths or [doc["length"]]):
            yield dict(doc, name=name)


def analyse(a):
    torch.set_num_threads(a.threads)
    found = {b: dict(heads=[], ranks={}, sums={}, causes=[]) for b in a.blocks}
    with torch.inference_mode():
        reference = {b: [] for b in a.blocks}
        if a.fit:
            fit = torch.load(a.fit, weights_only=False)
            for index in range(len(fit["keys"])):
                k = fit["keys"][index].float()
                q = fit["sample"][index].unflatten(0, (len(k), -1)).flatten(1, 2)
                y = Layer(k[:, :k.shape[1] // 64 * 64], 64, fit["theta"], queries=q)
                for b in a.blocks:
                    reference[b].append(y)
        asked = right = prompts = 0
        for doc in load(a.data, a.books, a.lengths):
            prompts, asked, right = prompts + 1, asked + doc["asked"], right + len(doc["cases"])
            print(doc["name"], len(doc["cases"]), "answers", file=sys.stderr, flush=True)
            for b in a.blocks:
                study(doc, reference[b], a, b, found[b])
    print(f"{prompts} texts, {right} of {asked} questions answered rightly")
    for b in a.blocks:
        tables(found[b], b, doc["keys"].shape[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = p.add_subparsers(dest="command", required=True)
    c = sub.add_parser("capture", help="run a model and write keys and queries")
    c.add_argument("--model", required=True, help="a GGUF file of a Llama or Qwen2 model")
    c.add_argument("--text", nargs="+", required=True, help="books to hide facts in")
    c.add_argument("--lengths", nargs="+", type=int, default=[2048, 4096, 7168])
    c.add_argument("--seeds", nargs="+", type=int, default=[1])
    c.add_argument("--keys", type=int, default=8, help="facts hidden and asked for in one prompt")
    c.add_argument("--chunk", type=int, default=1024, help="tokens of prefill at a time")
    c.add_argument("--threads", type=int, default=1)
    c.add_argument("--out", required=True, help="folder for the arrays")
    c = sub.add_parser("analyse", help="rank blocks by each summary")
    c.add_argument("--data", required=True, help="the folder that capture wrote")
    c.add_argument("--books", nargs="+", required=True, help="names of books without .txt")
    c.add_argument("--fit", help="a file of capture, of another book, that codes are fitted to")
    c.add_argument("--lengths", nargs="+", type=int, default=[])
    c.add_argument("--blocks", nargs="+", type=int, default=[16], help="tokens, at most 64")
    c.add_argument("--digits", nargs="+", type=int, default=[0, 3], help="digits of the answer")
    c.add_argument("--answer-head", type=float, default=0.1, help="least weight on the value")
    c.add_argument("--only", nargs="+", choices=list(SUMMARIES), help="these summaries alone")
    c.add_argument("--causes", action="store_true", help="measure why digests miss")
    c.add_argument("--threads", type=int, default=1)
    a = p.parse_args()
    capture(a) if a.command == "capture" else analyse(a)


if __name__ == "__main__":
    main()
