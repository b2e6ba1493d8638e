#!/usr/bin/env python3
"""Draws decode speed by context length: riffle with selected blocks, riffle dense, and llama.cpp.

    tools/bench/decode_chart.py tools/bench/results/decode-by-depth.tsv > tools/bench/results/decode-by-depth.svg

The file has a line for each bar: panel, context, series, tokens/s. Each panel has its own scale from 0. All panels
have the same series in the same order. Lines that begin with # are notes.
"""
import csv
import sys

PANELS = {
    "cpu": ("Two CPU threads", "27M parameters, Q8_0"),
    "gpu": ("One H100", "8B shape, Q4_K; riffle with selected blocks in 8 GiB, the others all in GPU memory"),
}
COLOURS = ("#8a929a", "#7cb5dc", "#0072b2")
WIDTH, HEIGHT, TOP, BAR, GAP, LEFT = 760, 300, 74, 26, 30, 16


def panels_of(path):
    """Returns {panel: {context: {series: tokens/s}}} and the series, all in the order of the file."""
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t"))
    panels, series = {}, list(dict.fromkeys(row["series"] for row in rows))
    for number, row in enumerate(rows, 1):
        if row["panel"] not in PANELS:
            sys.exit(f"{path}: row {number}: found panel {row['panel']!r}, expected {', '.join(PANELS)}")
        bars = panels.setdefault(row["panel"], {}).setdefault(int(row["context"]), {})
        bars[row["series"]] = float(row["tokens_per_second"])
    if len(series) > len(COLOURS):
        sys.exit(f"{path}: found {len(series)} series, expected at most {len(COLOURS)}")
    for panel, contexts in panels.items():
        for context, bars in contexts.items():
            if list(bars) != series:
                sys.exit(f"{path}: {panel} at {context}: found {list(bars)}, expected {series}")
    return panels, series


def bars_of(contexts, series, left, floor, room):
    """Yields the elements of one panel."""
    highest = max(max(bars.values()) for bars in contexts.values())
    x = left
    for context, bars in contexts.items():
        middle = x + BAR * len(series) / 2
        for number, name in enumerate(series):
            height = room * bars[name] / highest
            top = floor - height
            yield f'<rect fill="{COLOURS[number]}" x="{x}" y="{top:.1f}" width="{BAR - 2}" height="{height:.1f}"/>'
            yield f'<text class="small" x="{x + BAR / 2 - 1}" y="{top - 4:.1f}" text-anchor="middle">{bars[name]:.0f}</text>'
            x += BAR
        yield f'<text class="soft" x="{middle}" y="{floor + 16}" text-anchor="middle">{context:,}</text>'
        x += GAP


def main():
    panels, series = panels_of(sys.argv[1])
    floor, room = HEIGHT - 46, HEIGHT - 46 - TOP - 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
           "<title>Decode speed by context length</title>",
           "<style>text{font:13px system-ui,sans-serif;fill:#1c1e21}.head{font-weight:600}.soft{fill:#5b6168}"
           ".small{font-size:11px}.page{fill:#fff}.axis{stroke:#5b6168}@media(prefers-color-scheme:dark){"
           "text{fill:#e6e8ea}.soft{fill:#a2a8af}.page{fill:#15171a}}</style>",
           '<rect class="page" width="100%" height="100%"/>',
           f'<text class="head" x="{LEFT}" y="24">Answers at a long context, tokens per second</text>']
    x = LEFT
    for number, name in enumerate(series):
        out += [f'<rect fill="{COLOURS[number]}" x="{x}" y="36" width="12" height="12"/>',
                f'<text x="{x + 18}" y="47">{name}</text>']
        x += 40 + 7.2 * len(name)
    left = LEFT
    for panel, contexts in panels.items():
        title, note = PANELS[panel]
        width = len(contexts) * (BAR * len(series) + GAP) - GAP
        out += [f'<text class="head" x="{left}" y="{TOP + 6}">{title}</text>',
                *bars_of(contexts, series, left, floor, room),
                f'<path class="axis" d="M{left - 4} {floor}H{left + width + 4}"/>']
        words, line, row = note.split(), "", 0
        for word in [*words, ""]:  # the note, in lines that the panel has room for
            if word and len(line) + len(word) < max(width, 330) / 6.3:
                line += (" " if line else "") + word
                continue
            out.append(f'<text class="small soft" x="{left}" y="{floor + 31 + 12 * row}">{line}</text>')
            line, row = word, row + 1
        left += width + 70
    print("\n".join(out + ["</svg>"]))


if __name__ == "__main__":
    main()
