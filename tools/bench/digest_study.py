#!/usr/bin/env python3
"""Why block digests lose the block that holds an answer, and which summary of the keys finds it.

    digest_study.py capture --model M.gguf --text A.txt B.txt --lengths 2048 4096 --out DIR
    digest_study.py analyse --data DIR --books B --fit DIR/A-4096-1.pt --causes

capture hides facts in the text of books, runs the prompt, keeps the questions that the model
answers correctly, and writes the keys of every layer and the queries of the steps that produce the
digits of the answer. analyse needs no model: it ranks the blocks of those keys by each summary
(digest_summaries.py) and prints tables. It needs numpy and torch; capture also needs transformers
and gguf. Rows that take means, codebooks or stretches from data take them from the file given with
--fit, which should be of another book; "balanced" rows need it, and fit to the queries of its
text, not of its answers.
"""
import argparse
import glob
import math
import os
import random
import sys
import time

import numpy as np
import torch

from digest_summaries import SUMMARIES, Layer, scores

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
    """Returns the answer, and its steps: queries, and the digit that each produces; None if it is wrong."""
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
        # The prompt has the wanted length up to a few tokens, since the text is cut by its tokens.
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
    """Adds to `out` the results of each summary for each answer head of a prompt."""
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
    """Adds to `out` figures on why a block is missed: RoPE inside it, one sharp token, the bound's slack, the group."""
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
