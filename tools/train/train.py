#!/usr/bin/env python3
"""Train riffle-27m-32k, one phase at a time, for a given number of seconds.

    train.py --phase 1 --seconds 600 [--data DIR] [--checkpoints DIR]
    train.py --smoke                      a tiny model on a few sentences of our own, on the CPU, in about a minute

--data (or $DATA) holds tokenizer.model and the token streams a.bin, b.bin; --checkpoints (or $CK) gets ck.pt, from
which phases 2 and 3 go on.  The learning rate falls linearly over the given time, so a phase is meant to run to its
end.
"""
import argparse
import os
import random
import tempfile
import time

import torch
from torch.utils.data import DataLoader

import data
import facts
import make_tokenizer
import model as model_file
import tokenize_books

# batch: sequences per microbatch; accumulate: microbatches per step; final: share of the learning rate left at the end
PHASES = {
    1: dict(seq_len=4096, batch=24, accumulate=4, lr=3e-3, final=0.45, warmup=60, answer_weight=3.0),
    2: dict(seq_len=8192, batch=12, accumulate=4, lr=2e-3, final=0.3, warmup=20, answer_weight=4.0),
    3: dict(seq_len=32768, batch=3, accumulate=4, lr=7e-4, final=0.05, warmup=20, answer_weight=8.0),
}
CHECKPOINT = "ck.pt"
CLIP_NORM = 1.0
LOADER_WORKERS = 13


def save(path, model, optimizers, step):
    torch.save(dict(m=model.state_dict(), o1=optimizers[0].state_dict(), o2=optimizers[1].state_dict(), step=step),
               path)


def resume(path, device, model, optimizers):
    """Load model and optimizer state; returns the steps done."""
    z = torch.load(path, map_location=device)
    model.load_state_dict(z["m"])
    optimizers[0].load_state_dict(z["o1"])
    optimizers[1].load_state_dict(z["o2"])
    return z["step"]


def report(elapsed, step, tokens, lr, loss, token_loss, weights):
    """Prints one line: `text` is the mean loss of plain text and questions, `answers` that of the answer tokens."""
    w = weights.reshape(-1)
    text, answers = w == 1.0, w > 1.5
    mean_answers = token_loss[answers].mean().item() if answers.any() else -1
    print(f"{elapsed:6.0f}s step {step} tok {tokens / 1e6:.2f}M {tokens / max(elapsed, 1) / 1e3:.0f}K/s lr {lr:.5f} "
          f"loss {loss.item():.3f} text {token_loss[text].mean().item():.3f} answers {mean_answers:.3f}", flush=True)


def train(phase, p, config, seconds, data_dir, checkpoint_dir, device, workers, compile_model, max_steps=None):
    """Run one phase; returns the loss after each step. Saves a checkpoint at the end."""
    torch.manual_seed(phase)
    torch.set_float32_matmul_precision("high")
    os.makedirs(checkpoint_dir, exist_ok=True)
    checkpoint = os.path.join(checkpoint_dir, CHECKPOINT)
    model = model_file.Model(config).to(device)
    optimizers = model_file.optimizers(model, p["lr"])
    steps_before = 0
    if phase > 1:
        if not os.path.exists(checkpoint):
            raise SystemExit(f"{checkpoint}: not found; phase {phase} goes on from the phase before")
        steps_before = resume(checkpoint, device, model, optimizers)
        print("resumed at step", steps_before)
    run = torch.compile(model) if compile_model else model
    batches = iter(DataLoader(data.Sequences(data_dir, p["seq_len"], p["answer_weight"], 100 + phase),
                              batch_size=p["batch"], num_workers=workers, pin_memory=device == "cuda",
                              prefetch_factor=4 if workers else None))
    begin, tokens, step, losses = time.time(), 0, 0, []
    while max_steps is None or step < max_steps:
        elapsed = time.time() - begin
        if elapsed > seconds:
            break
        lr = p["lr"] * min(1, (step + 1) / p["warmup"]) * (1 - (1 - p["final"]) * elapsed / seconds)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        for _ in range(p["accumulate"]):
            ids, weights = next(batches)
            ids, weights = ids.to(device, non_blocking=True).long(), weights.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss, token_loss = run(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weights[:, 1:].contiguous())
            (loss / p["accumulate"]).backward()
            tokens += ids.numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if max_steps is not None:  # waits for the device, so only where speed does not matter
            losses.append(loss.item())
        if step % 50 == 0 or step in (1, 5, 20):
            report(elapsed, step, tokens, lr, loss, token_loss, weights[:, 1:])
    save(checkpoint, model, optimizers, steps_before + step)
    print("saved at step", steps_before + step, f"after {tokens / 1e6:.2f}M tokens in this phase")
    return losses


def smoke():
    """The whole path on sentences of our own: tokenizer, token streams, data mix, two phases; the loss must fall."""
    r = random.Random(1)
    lines = []
    for _ in range(600):
        a, b = facts.person_name(r), r.choice(facts.NOUNS)
        lines.append(r.choice([
            f"{a} walked to the {r.choice(facts.ADJECTIVES)} {b} and came home at {r.randint(1, 12)} o'clock.",
            f"The {b} was {r.choice(facts.ADJECTIVES)}, said {a}, but who would carry it to {r.choice(facts.CITIES)}?",
            f'"Where is my {r.choice(facts.ANIMALS)}?" asked {a} on {r.choice(facts.DAYS)}.']))
    text = "\n".join(lines) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        books = os.path.join(folder, "books.txt")
        with open(books, "w", encoding="utf-8") as f:
            f.write(text)
        make_tokenizer.train(os.path.join(folder, "tokenizer"), [books], vocab_size=600, minloglevel=2)
        sp = data.sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
        tokenize_books.tokenize(sp, text.encode()).tofile(os.path.join(folder, "a.bin"))
        config = dict(vocab=600, dim=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=64, theta=500000.0)
        losses = []
        for phase, steps in ((1, 25), (2, 10)):
            p = dict(PHASES[phase], seq_len=256 * phase, batch=2, accumulate=2, warmup=5)
            losses += train(phase, p, config, 1e9, folder, folder, "cpu", 0, False, max_steps=steps)
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    print(f"smoke: loss {first:.3f} -> {last:.3f}")
    if not last < 0.9 * first:
        raise SystemExit("smoke: the loss did not fall")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", type=int, choices=PHASES)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--data", default=os.environ.get("DATA", "data"))
    parser.add_argument("--checkpoints", default=os.environ.get("CK", "ck"))
    parser.add_argument("--workers", type=int, default=LOADER_WORKERS, help="the data stream depends on this number")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        smoke()
    elif args.phase is None or args.seconds is None:
        parser.error("--phase and --seconds are needed")
    else:
        train(args.phase, PHASES[args.phase], model_file.CONFIG, args.seconds, args.data, args.checkpoints, "cuda",
              args.workers, True)


if __name__ == "__main__":
    main()
