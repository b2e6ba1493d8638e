#!/usr/bin/env python3
"""Draws the table "A share that falls with the context" of real-models.md as bars.

    tools/bench/kept_bars.py tools/bench/results/real-models.md > tools/bench/results/kept-real.svg

Each bar is the share of the right dense answers that a setting keeps. The thin line is the 95%
interval (Wilson). A label at the bar names the share of KV that the setting reads.
"""
import math
import re
import sys

HEADING = "## A share that falls with the context"
NAMES = {
    "share share=0.002 (default)": "share (default)",
    "topk rank=codes budget=0.1": "best blocks by key codes",
    "topk digest=quest budget=0.1": "best blocks by Quest digests",
}
LEFT, WIDTH, ROW, BAR, RIGHT, TOP = 220, 420, 34, 18, 240, 46


def rows_of(path):
    """Returns (name, kept, of, KV read) of the table's settings that NAMES lists."""
    with open(path, encoding="utf-8") as file:
        section = file.read().split(HEADING, 1)[1].split("\n## ", 1)[0]
    for line in section.splitlines():
        cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")]
        counts = re.match(r"(\d+) of (\d+)", cells[1]) if len(cells) > 2 else None
        if counts and cells[0] in NAMES:
            yield NAMES[cells[0]], int(counts[1]), int(counts[2]), cells[2]


def wilson(kept, of, z=1.96):
    share, squared = kept / of, z * z
    centre = (share + squared / (2 * of)) / (1 + squared / of)
    half = z / (1 + squared / of) * math.sqrt(share * (1 - share) / of + squared / (4 * of * of))
    return centre - half, centre + half


def main():
    rows = list(rows_of(sys.argv[1]))
    if len(rows) != len(NAMES):
        sys.exit(f"{sys.argv[1]}: {len(rows)} rows of {HEADING!r} found, {len(NAMES)} expected")
    height = TOP + ROW * len(rows) + 12
    width = LEFT + WIDTH + RIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}">',
           "<title>Answers kept at 30,000 tokens, of those right when dense</title>",
           "<style>text{font:13px system-ui,sans-serif;fill:#1c1e21}.head{font-weight:600}"
           ".soft{fill:#5b6168}.page{fill:#fff}.bar{fill:#3a93c9}.first{fill:#0072b2}"
           ".line{stroke:#1c1e21;stroke-width:1.5}@media(prefers-color-scheme:dark){"
           "text{fill:#e6e8ea}.soft{fill:#a2a8af}.page{fill:#15171a}.line{stroke:#e6e8ea}}</style>",
           '<rect class="page" width="100%" height="100%"/>',
           f'<text class="head" x="12" y="24">Answers kept at 30,000 tokens, of the {rows[0][2]} '
           "that are right when dense (Qwen2.5-Coder-0.5B)</text>"]
    for number, (name, kept, of, read) in enumerate(rows):
        y = TOP + ROW * number
        low, high = (LEFT + WIDTH * edge for edge in wilson(kept, of))
        middle = y + BAR / 2
        kind = "first" if number == 0 else "bar"
        out += [f'<text x="{LEFT - 10}" y="{middle + 5}" text-anchor="end">{name}</text>',
                f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{WIDTH * kept / of:.1f}" '
                f'height="{BAR}"/>',
                f'<path class="line" d="M{low:.1f} {middle}H{high:.1f}"/>',
                f'<text class="soft" x="{LEFT + WIDTH + 12}" y="{middle + 5}">'
                f"{kept} of {of}, reads {read} of the KV</text>"]
    print("\n".join(out + ["</svg>"]))


if __name__ == "__main__":
    main()
