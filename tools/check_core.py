#!/usr/bin/env python3
"""The core names no paper's selector and no measuring.

    tools/check_core.py    prints each line of code of the core that does, and ends with 1 if there is one

The core is src/ and kernels/ without the folders papers and measure. Comments may name them. make CORE=1 builds it
alone.
"""
import pathlib
import re
import sys

from paper_names import paper_names

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = re.compile(rf"(?<![A-Za-z])({'|'.join(paper_names())}|token_select|vote)(?![a-z])|progressive|synthetic", re.I)
# Keys of model files.
OTHERS = re.compile(r"norm_topk_prob|topk_group|topk_method")
# Files that still name them. The list only gets shorter.
WOVEN = (
    "src/riffle_measure.h",  # the public structs
    "src/util/options.h", "src/backend/no_measure.cpp", "src/cli/foreign.cpp", "src/cli/settings.cpp",
    "src/engine/schedule/scheduler.cpp",
)
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.S)


def code(text):
    """Returns the text without comments; string literals and the number of lines stay."""
    return COMMENT.sub(lambda m: m[1] or "\n" * m[0].count("\n"), text)


def main():
    bad = 0
    for file in sorted((*(ROOT / "src").rglob("*"), *(ROOT / "kernels").rglob("*"))):
        path = file.relative_to(ROOT)
        if (file.suffix not in (".h", ".cpp", ".cu", ".cuh") or {"papers", "measure"} & set(path.parts)
                or str(path) in WOVEN):
            continue
        for number, line in enumerate(code(file.read_text()).splitlines(), 1):
            if found := NAMES.search(OTHERS.sub("", line)):
                bad += 1
                print(f"{path}:{number}: found {found[0]}, expected the core to name no selector of a paper and no "
                      "measuring: move it to a folder called papers or measure")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
