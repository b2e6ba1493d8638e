#!/usr/bin/env python3
"""Load on a server that speaks OpenAI's HTTP API: many clients at once, prompts and answers of mixed lengths, and a third
of the clients hang up midway.

    tools/bench/serve_load.py http://127.0.0.1:8080 --pid PID [--seconds 600] [--clients 64] [--csv FILE]

Prints a line every ten seconds and a summary: requests by outcome, answer tokens per second, time to the first token, and
the resident memory of process PID without mapped files. Ends with 1 if a request had an error that was not asked for. Standard library only, so
it runs the same against other servers.
"""
import argparse
import asyncio
import json
import random
import time

WORDS = "rain fell on the old town while a clerk counted coins and a bell rang twice before noon".split()


class Figures:
    def __init__(self):
        self.outcomes = {}
        self.tokens = 0
        self.first = []  # seconds to the first token
        self.errors = []

    def count(self, outcome):
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def resident(pid):
    """Returns the resident memory of a process in MiB, without files that it maps."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) / 1024


def prompt(draw, n_documents):
    """A text of 10 to 1,500 words; half of them begin as others do."""
    n = round(10 * 150 ** draw.random())
    document = draw.randrange(n_documents) if draw.random() < 0.5 else draw.randrange(10**9)
    words = random.Random(document)
    return " ".join(words.choice(WORDS) for _ in range(n)) + f" Question {draw.randrange(10**6)}?"


async def ask(host, port, draw, a, figures):
    body = {"model": a.model, "prompt": prompt(draw, a.documents), "stream": True, "temperature": 0.8,
            "max_tokens": round(4 * 50 ** draw.random()), "seed": draw.randrange(2**31)}
    leaves_after = draw.random() * 20 if draw.random() < a.leave else None  # events, or before the first one
    data = json.dumps(body).encode()
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: %b:%d\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % (host.encode(), port, len(data)) + data)
        await writer.drain()
        if leaves_after is not None and leaves_after < 3:
            await asyncio.sleep(draw.random() * 2)
            return figures.count("left early")
        status = int((await reader.readline()).split()[1])
        if status != 200:
            text = (await reader.read()).decode("utf-8", "replace")
            if status in (429, 503):
                figures.count("refused: busy")
                return await asyncio.sleep(1)
            figures.errors.append(text[-300:])
            return figures.count(f"status {status}")
        events = 0
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                return figures.count("done")
            if b'"error"' in line:
                figures.errors.append(line.decode()[-300:])
                return figures.count("error in the stream")
            events += 1
            figures.tokens += 1
            if events == 1:
                figures.first.append(time.monotonic() - begun)
            if leaves_after is not None and events >= leaves_after:
                return figures.count("left midway")
        figures.errors.append("the stream ended without [DONE]")
        figures.count("cut off")
    except OSError as error:
        figures.errors.append(repr(error))
        figures.count("connection error")
    finally:
        writer.close()


async def client(number, host, port, a, figures, end):
    draw = random.Random(number + a.seed)
    while time.monotonic() < end:
        await ask(host, port, draw, a, figures)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("--pid", type=int, required=True, help="process of the server")
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--leave", type=float, default=1 / 3, help="share of the requests whose client hangs up")
    p.add_argument("--documents", type=int, default=12, help="number of beginnings that prompts share")
    p.add_argument("--model", default="")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--csv", help="file for seconds, MiB, tokens")
    a = p.parse_args()
    host, port = a.url.split("//")[1].rstrip("/").rsplit(":", 1)
    figures, begun = Figures(), time.monotonic()
    end = begun + a.seconds
    tasks = [asyncio.ensure_future(client(i, host, int(port), a, figures, end)) for i in range(a.clients)]
    rows, before = [], 0
    while time.monotonic() < end:
        await asyncio.sleep(min(10, max(0.1, end - time.monotonic())))
        rows.append((time.monotonic() - begun, resident(a.pid), figures.tokens))
        print(f"{rows[-1][0]:5.0f} s  {rows[-1][1]:7.1f} MiB  {(figures.tokens - before) / 10:6.1f} tokens/s  {figures.outcomes}", flush=True)
        before = figures.tokens
    await asyncio.gather(*tasks)
    took = time.monotonic() - begun
    quarter = max(1, len(rows) // 4)
    print(f"requests: {sum(figures.outcomes.values())}: {figures.outcomes}")
    print(f"answer tokens: {figures.tokens}, {figures.tokens / took:.1f}/s")
    print(f"first token: median {percentile(figures.first, 0.5):.2f} s, 95% {percentile(figures.first, 0.95):.2f} s")
    print(f"resident memory without mapped files, MiB: first quarter at most {max(r[1] for r in rows[:quarter]):.1f}, last quarter at most {max(r[1] for r in rows[-quarter:]):.1f}")
    for text in figures.errors[:5]:
        print("error:", text)
    if a.csv:
        with open(a.csv, "w") as file:
            file.write("seconds,mib,tokens\n" + "".join(f"{s:.1f},{m:.1f},{t}\n" for s, m, t in rows))
    return 1 if figures.errors else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
