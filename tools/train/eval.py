#!/usr/bin/env python3
"""Retrieval accuracy by task and length, and loss by position, on text held out from training.

    eval.py --checkpoints DIR --data DIR --out eval.json

--data holds tokenizer.model and held.bin (made by tokenize_books.py from books training never saw).  An answer counts
when every token of it, and the end, is the model's first choice after the ones before.  `magic` answers of several
values are compared in the order they were drawn, which the training never fixed: about a fifth of those cases cannot
be won here (`riffle eval` scores them as sets).
"""
import argparse
import json
import os
import random
import time

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F

import data
import facts
from export import load_checkpoint

LENGTHS = (1024, 4096, 8192, 16384, 32000)
CASES = 20
TASKS = (("passkey", facts.passkey), ("magic", facts.magic), ("person", facts.person), ("thing", facts.thing),
         ("vars", facts.variables))
WINDOW = 32768
BANDS = ((0, 1024), (1024, 4096), (4096, 16384), (16384, 32768))  # positions whose loss is averaged


class Evaluation:
    def __init__(self, model, sp, held, device, seed=99):
        self.model, self.form, self.held, self.device = model, data.PromptForm(sp), held, device
        self.ends_sentence = np.isin(held, [i for i in range(sp.get_piece_size())
                                            if sp.id_to_piece(i) in (".", "!", "?")])
        self.r = random.Random(seed)

    @torch.no_grad()
    def logits(self, ids):
        x = torch.tensor(ids, device=self.device)[None]
        with torch.autocast(self.device, dtype=torch.bfloat16):
            h = self.model.hidden(x)
            return F.linear(h[0], self.model.embedding.weight.to(h.dtype))

    def answers(self, prompt, answer):
        """Tells whether greedy decoding after `prompt` gives exactly `answer` (teacher-forced: one pass)."""
        return self.logits(prompt + answer)[len(prompt) - 1:-1].argmax(-1).tolist() == answer

    def needle(self, make, length, depth):
        """One fact group in held-out text at `depth` (0 to 1), among one distracting fact per 2,000 tokens."""
        r, form, encode = self.r, self.form, self.form.encode
        used = set()
        statements, qa = make(r, used)
        flat = statements[0][1] if isinstance(statements[0], tuple) else statements
        question, answer = qa[0]
        tail, answer = form.closing_question(question), encode(answer) + [data.EOS]
        distractors = []
        for _ in range(max(0, length // 2000)):
            distractors += facts.magic(r, used)[0]
        needles, distractors = [encode(x) for x in flat], [encode(x) for x in distractors]
        n = length - len(tail) - len(answer) - sum(map(len, needles)) - sum(map(len, distractors)) - 4
        i = r.randrange(len(self.held) - n - 1)
        text = self.held[i:i + n].copy()
        text[text == data.EOS] = form.newline
        ends = np.flatnonzero(self.ends_sentence[i:i + n])

        def anywhere():
            return int(ends[r.randrange(len(ends))])

        if len(needles) == 1:
            positions = [int(ends[min(len(ends) - 1, int(depth * len(ends)))])]
        else:
            positions = sorted(anywhere() for _ in needles)
        inserts = list(zip(positions, needles)) + [(anywhere(), y) for y in distractors]
        inserts.sort(key=lambda z: z[0])
        out, done = [], 0
        for p, y in inserts:
            out += text[done:p + 1].tolist() + y
            done = p + 1
        out += text[done:].tolist()
        return self.answers([data.BOS] + form.begin + out + tail, answer)

    def register(self, length):
        """One question about a register that fills the length (16,000 tokens at most)."""
        text, qa = facts.kv_document(self.r, min(length, 16000) // 24)
        question, answer = qa[0]
        prompt = [data.BOS] + self.form.begin + self.form.encode(text) + self.form.closing_question(question)
        return self.answers(prompt, self.form.encode(answer) + [data.EOS])

    def tasks(self, lengths=LENGTHS, cases=CASES):
        begin, out = time.time(), {}
        for length in lengths:
            for name, make in TASKS:
                ok = [self.needle(make, length, (j + 0.5) / cases) for j in range(cases)]
                out[f"{name}@{length}"] = sum(ok) / len(ok)
            out[f"kv@{length}"] = sum(self.register(length) for _ in range(cases)) / cases
            print(length, {k: v for k, v in out.items() if k.endswith(f"@{length}")}, f"{time.time() - begin:.0f}s",
                  flush=True)
        return out

    def loss_by_position(self, windows=16):
        """Mean negative log-likelihood of held-out text, by position in windows of 32K tokens."""
        sums = {b: [] for b in BANDS}
        for i in range(0, min(len(self.held) - WINDOW - 1, WINDOW * windows), WINDOW):
            x = self.held[i:i + WINDOW + 1].copy()
            x[x == data.EOS] = self.form.newline
            logits = self.logits([data.BOS] + x[:-1].tolist())
            target = torch.tensor(self.held[i:i + WINDOW], device=self.device)
            loss = F.cross_entropy(logits[:WINDOW].float(), target, reduction="none")
            for begin, end in BANDS:
                sums[(begin, end)].append(loss[begin:end].mean().item())
        return {f"{b}-{e}": sum(v) / len(v) for (b, e), v in sums.items() if v}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", default=os.environ.get("CK", "ck"))
    parser.add_argument("--data", default=os.environ.get("DATA", "data"))
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "eval.json"))
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(args.data, "tokenizer.model"))
    held = np.fromfile(os.path.join(args.data, "held.bin"), dtype=np.uint16).astype(np.int64)
    evaluation = Evaluation(load_checkpoint(args.checkpoints, args.device), sp, held, args.device)
    result = dict(tasks=evaluation.tasks(), nll=evaluation.loss_by_position())
    print("held-out loss by position", result["nll"])
    with open(args.out, "w") as f:
        json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
