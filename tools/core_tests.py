#!/usr/bin/env python3
"""Tests of the core that a build of the core alone (make CORE=1) cannot have.

    tools/core_tests.py           prints the files of tests/, outside folders called papers and measure, that use a
                                  selector of a paper or the interface for measuring, by themselves or by a header
    tools/core_tests.py --find    prints them as conditions of find
"""
import pathlib
import re
import sys

from paper_names import paper_names

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Names that belong only to papers' selectors and to measuring.
USES = re.compile(
    rf"SelectorKind::({'|'.join(paper_names()).upper()})"
    r'|"selection?\.?(rank|stop|base)"|riffle_measure\.h|"(select|kernels|backend)/[^"]*/?papers/|"[^"]*measure/'
    r"|riffle_(set_row_report|prefill_scored|profile_step)")
# Lists of selectors of which a build takes those that it has (tests/select/selectors_here.h), and comparisons, which
# are false in a build without the selector.
HARMLESS = re.compile(r"\bhere\(\s*\{[^{}]*\}|first_here\(\s*\{[^{}]*\}|[=!]=\s*SelectorKind::\w+|is_here\((?:\w+::)*SelectorKind::\w+")
INCLUDE = re.compile(r'^\s*#\s*include\s+"(tests/[^"]+)"', re.M)


def uses(file, known):
    """Tells whether the file, or a header of tests/ that it includes, uses them."""
    if file not in known:
        known[file] = False  # ends a cycle
        text = file.read_text()
        known[file] = bool(USES.search(HARMLESS.sub("", text))) or any(
            uses(ROOT / name, known) for name in INCLUDE.findall(text) if (ROOT / name).is_file())
    return known[file]


def main():
    known = {}
    for file in sorted((ROOT / "tests").rglob("*_test.cpp")):
        path = file.relative_to(ROOT)
        if {"papers", "measure"} & set(path.parts) or not uses(file, known):
            continue
        print(f"! -path {path}" if "--find" in sys.argv[1:] else path)


if __name__ == "__main__":
    main()
