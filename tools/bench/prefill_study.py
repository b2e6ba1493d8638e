#!/usr/bin/env python3
"""Rules that choose the key tiles of a prompt: what they read, and what the text behind it loses.

    prefill_study.py MODEL.gguf --length 16384 --texts A.txt B.txt --rules "max:share=0.02/0.05"

The model runs in float32 by transformers, on a GPU if there is one, with this file's attention. All but the
last 1,024 tokens of each text are the prompt, whose queries read chosen tiles of keys. The last
1,024 read all keys. A line a setting: the share of the tiles that the prompt reads, the mean KL
divergence of the last tokens' predictions from those of dense attention, their nll less that of
dense attention (for each text, with its standard error), and how often the likeliest token is the
same. It needs torch, transformers and gguf.

A rule chooses tiles of `key_tile` keys for each head and `query_tile` queries. The first tile, the
`near` tiles before the queries and the queries' own are always read. Rules, with share=X/Y/...:
    max, mean        the largest (mean) share of a query, by the score of a tile's mean key
    variance         max, with half the variance of the tile's scores added to the score
    row              max, but a query reads only the tiles to which it gives the share itself
    flash            FlashPrefill (arXiv 2603.06199): exp(log-sum over queries less the largest)
    chunk            the best X of all tiles for 1,024 queries and a KV head, by 16 of the queries
    oracle-max, oracle-mean, oracle-row
                     the same with exact weights
Two rules choose single keys of all earlier tokens, for `chunk` queries at a time:
    quoka            QuoKA (arXiv 2602.08722): the share X of the keys with the largest cosine to
                     one of the 16 queries least like the mean query; for each KV head
    vote             TokenSelect (arXiv 2411.02886, 4.1) with keys at their own positions: the
                     share X with the most votes of all heads' mean queries; for all heads
Settings: layers=A, until=B (the rule applies to layers A to B - 1; the others are dense); query_tile, key_tile, near; part (keys a mean, so that a tile has several); standin=1 (a
tile that is not read counts as its mean key and mean value, as often as it has keys).

--heads prints what each layer loses under the first setting: the weight that its prompts leave
unread, and the error of attention's output over its size (root mean squares), both as the mean of
all heads and for the worst head. The inputs of a layer are those that the setting produces.
"""
import argparse
import math
import os
import time

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

TAIL = 1024  # tokens behind the prompt
CHUNK = 1024  # queries at a time
DEFAULTS = {"rule": "dense", "query_tile": 128, "key_tile": 64, "near": 3, "part": 0, "standin": 0,
            "chunk": 512, "layers": 0, "until": 1000}
TOKEN_RULES = ("quoka", "vote")
setting: dict = {}
counts = [0, 0]  # tiles (or keys) read, tiles seen
losses_of_layers: dict = {}  # layer: sums by head of weight unread, squared error and size, queries


def means(x, n):
    """[heads][tokens][d] -> [heads][tokens / n][d]"""
    heads, tokens, d = x.shape
    return x.reshape(heads, tokens // n, n, d).mean(2)


def tile_scores(q, keys, scale, scores):
    """Returns the log-weight of each tile of keys [heads][queries][tiles]."""
    size, rule = setting["key_tile"], setting["rule"]
    heads, rows, _ = q.shape
    tiles = keys.shape[1] // size
    if rule.startswith("oracle"):
        return torch.logsumexp(scores.reshape(heads, rows, tiles, size), -1)
    part = setting["part"] or size
    of_parts = torch.matmul(q, means(keys, part).transpose(1, 2)) * scale + math.log(part)
    estimate = torch.logsumexp(of_parts.reshape(heads, rows, tiles, size // part), -1)
    if rule == "variance":
        spread = means(keys * keys, size) - means(keys, size) ** 2
        estimate += scale * scale / 2 * torch.matmul(q * q, spread.clamp_min(0).transpose(1, 2))
    return estimate


def choose(estimate, share, group, past):
    """Returns the tiles that are read: [heads][query tiles][tiles]; rule row: for each query."""
    rule = setting["rule"].removeprefix("oracle-")
    heads, rows, tiles = estimate.shape
    grouped = (heads, rows // setting["query_tile"], setting["query_tile"], tiles)
    if rule == "flash":
        total = torch.logsumexp(estimate.masked_fill(~past[None], -math.inf).reshape(grouped), 2)
        return total - total.amax(-1, keepdim=True) >= math.log(share)
    if rule == "chunk":
        some = estimate[:, rows // 16 - 1::rows // 16]
        some = some - some.amax(-1, keepdim=True)
        best = some.reshape(heads // group, group * 16, tiles).amax(1)
        keep = torch.zeros_like(best, dtype=torch.bool)
        keep.scatter_(1, best.topk(max(1, int(share * tiles)), -1).indices, True)
        return keep.repeat_interleave(group, 0)[:, None].expand(-1, grouped[1], -1)
    weights = torch.softmax(estimate, -1)
    if rule == "row":
        return weights >= share
    grouped_weights = weights.reshape(grouped)
    return (grouped_weights.mean(2) if rule == "mean" else grouped_weights.amax(2)) >= share


def choose_keys(q, keys, group, scale, first):
    """Returns the keys that a chunk of queries reads, of those before it: [heads][keys]."""
    heads, past = q.shape[0], keys[:, :first]
    n_forced = setting["key_tile"], setting["near"] * setting["key_tile"]
    n = max(1, int(setting["share"] * first))
    if setting["rule"] == "vote":
        weights = torch.softmax(torch.matmul(q.mean(1, keepdim=True), past.transpose(1, 2)), -1)
        votes = weights.sum((0, 1))[None].expand(heads, -1)
    else:
        unit = torch.nn.functional.normalize(q, dim=-1)
        mean = torch.nn.functional.normalize(q.mean(1), dim=-1)
        least = torch.einsum("hnd,hd->hn", unit, mean).topk(16, largest=False).indices
        some = unit.gather(1, least[..., None].expand(-1, -1, q.shape[2]))
        some = some.reshape(heads // group, group, 16, -1).mean(1)
        cosines = torch.matmul(some, torch.nn.functional.normalize(past[::group], dim=-1).mT)
        votes = cosines.amax(1).repeat_interleave(group, 0)
    keep = torch.zeros_like(votes, dtype=torch.bool)
    keep.scatter_(1, votes.topk(min(n, first), -1).indices, True)
    keep[:, :n_forced[0]] = True
    keep[:, max(0, first - n_forced[1]):] = True
    return keep


def record_losses(layer, scores, kept_scores, values, dense_values):
    """Adds up a chunk's losses: scores and values with all keys and with those that are read."""
    unread = 1 - torch.exp(torch.logsumexp(kept_scores, -1) - torch.logsumexp(scores, -1))
    error, size = (values - dense_values).square().sum((1, 2)), dense_values.square().sum((1, 2))
    entry = losses_of_layers.setdefault(layer, [0, 0, 0, 0])
    for i, more in enumerate((unread.sum(1), error, size, scores.shape[1])):
        entry[i] = entry[i] + more


def attention(module, query, key, value, mask, scaling=None, sliding_window=None, **_):
    q, k, v = query[0], key[0], value[0]
    heads, n, d = q.shape
    group = heads // k.shape[0]
    scale = scaling if scaling is not None else d ** -0.5
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    size, query_tile = setting["key_tile"], setting["query_tile"]
    windowed = sliding_window is not None and sliding_window < n
    layer = module.layer_idx
    chosen = (setting["rule"] != "dense" and not windowed
              and setting["layers"] <= layer < setting["until"])
    position = torch.arange(n, device=q.device)
    out = torch.empty_like(q)
    for first in range(0, n, CHUNK):
        end = min(first + CHUNK, n)
        rows, at = q[:, first:end], position[first:end]
        scores = torch.matmul(rows, k[:, :end].transpose(1, 2)) * scale
        hidden = position[:end][None] > at[:, None]
        if windowed:
            hidden |= position[:end][None] <= at[:, None] - sliding_window
        scores.masked_fill_(hidden[None], -math.inf)
        values = v[:, :end]
        all_scores = scores.clone() if chosen and setting["heads"] else None
        if chosen and first < n - TAIL and setting["rule"] in TOKEN_RULES:
            for at_row in range(0, end - first, setting["chunk"]):
                rows_end = min(at_row + setting["chunk"], end - first)
                own = first + at_row
                if own == 0:
                    continue
                keep = choose_keys(rows[:, at_row:rows_end], k, group, scale, own)
                scores[:, at_row:rows_end, :own].masked_fill_(~keep[:, None], -math.inf)
                n_own = (rows_end - at_row) / 2 * heads
                counts[0] += keep.sum().item() + n_own
                counts[1] += own * heads + n_own
        elif chosen and first < n - TAIL:
            tiles = end // size
            tile = torch.arange(tiles, device=q.device)
            past = tile[None] < (at // size)[:, None]
            upto = tile[None] <= (at // size)[:, None]
            estimate = tile_scores(rows, k[:, :end], scale, scores)
            estimate = estimate.masked_fill(~upto[None], -math.inf)
            keep = choose(estimate, setting["share"], group, past)
            own = first + torch.arange(0, end - first, query_tile, device=q.device)
            always = (tile[None] >= (own // size)[:, None] - setting["near"]) | (tile[None] == 0)
            if keep.shape[1] != len(own):  # a choice for each query
                keep_rows = keep | always.repeat_interleave(query_tile, 0)[None]
                keep = keep_rows.reshape(heads, len(own), query_tile, tiles).any(2)
            else:
                keep = keep | always[None]
                keep_rows = keep.repeat_interleave(query_tile, 1)
            seen = tile[None] * size < (own + query_tile)[:, None]
            counts[0] += (keep & seen[None]).sum().item()
            counts[1] += seen.sum().item() * heads
            scores.reshape(heads, end - first, tiles, size).masked_fill_(~keep_rows[..., None],
                                                                         -math.inf)
            if setting["standin"]:
                other = torch.matmul(rows, means(k[:, :end], size).transpose(1, 2)) * scale
                other = (other + math.log(size)).masked_fill(keep_rows | ~past[None], -math.inf)
                scores = torch.cat([scores, other], -1)
                values = torch.cat([values, means(values, size)], 1)
        out[:, first:end] = torch.matmul(torch.softmax(scores, -1), values)
        if all_scores is not None and first < n - TAIL:
            record_losses(layer, all_scores, scores[..., :end], out[:, first:end],
                          torch.matmul(torch.softmax(all_scores, -1), v[:, :end]))
    return out.transpose(0, 1)[None], None


def settings_of(rules):
    for spec in filter(None, (r.strip() for r in rules.split(";"))):
        rule, fields = spec.split(":", 1)
        named = dict(field.split("=") for field in fields.split(","))
        shares = named.pop("share").split("/")
        for share in shares:
            yield {"rule": rule, "share": float(share), **{k: int(v) for k, v in named.items()}}


def print_losses():
    print("layer  unread: mean, worst head (its number)  error: mean, worst head (its number)")
    for layer, (unread, error, size, queries) in sorted(losses_of_layers.items()):
        unread, error = unread / queries, (error / size).sqrt()
        print(f"{layer:5}  {100 * unread.mean():5.2f}% {100 * unread.max():5.1f}% "
              f"({unread.argmax().item():2})  {100 * error.mean():5.2f}% "
              f"{100 * error.max():5.1f}% ({error.argmax().item():2})")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--length", type=int, default=16384, help="a multiple of 1,024")
    parser.add_argument("--texts", nargs="+", required=True)
    parser.add_argument("--skip", type=int, default=60000, help="characters left out at the start")
    parser.add_argument("--rules", required=True)
    parser.add_argument("--heads", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    AttentionInterface.register("tiles", attention)
    folder, name = os.path.split(os.path.abspath(args.model))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32,
                                                 attn_implementation="tiles")
    model = model.to(device).eval()
    texts = []
    for path in args.texts:
        with open(path, encoding="utf-8") as file:
            text = file.read()[args.skip:args.skip + 10 * args.length]
        texts.append(torch.tensor(tokenizer(text)["input_ids"][:args.length])
                     .to(device)[None])

    @torch.no_grad()
    def predictions(tokens, **changes):
        setting.clear()
        setting.update(DEFAULTS, heads=args.heads, **changes)
        hidden = model.model(tokens, use_cache=False).last_hidden_state[:, -TAIL:]
        return torch.log_softmax(model.lm_head(hidden).float()[0], -1)

    dense = [predictions(tokens) for tokens in texts]
    for changes in settings_of(args.rules):
        counts[:] = 0, 0
        start = time.time()
        divergences, losses, same = [], [], []
        for tokens, want in zip(texts, dense):
            got = predictions(tokens, **changes)
            divergences.append((want.exp() * (want - got)).sum(-1).mean().item())
            following = tokens[0, -TAIL + 1:, None]
            loss = (want[:-1].gather(1, following) - got[:-1].gather(1, following))[:, 0]
            losses.append("%+.4f±%.4f" % (loss.mean().item(), loss.std().item() / len(loss)**0.5))
            same.append((got.argmax(-1) == want.argmax(-1)).float().mean().item())
        words = " ".join(f"{k}={v:g}" for k, v in changes.items() if k != "rule")
        print(f"{changes['rule']:12}{words:40}{100 * counts[0] / counts[1]:5.1f}%  "
              f"KL {sum(divergences) / len(divergences):.4f}  nll {' '.join(losses)}  "
              f"same {100 * sum(same) / len(same):.1f}%  {time.time() - start:.1f} s", flush=True)
        if args.heads:
            print_losses()
            return


if __name__ == "__main__":
    main()
