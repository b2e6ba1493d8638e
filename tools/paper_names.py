#!/usr/bin/env python3
"""Names of the papers' selectors, as src/select/papers/settings.cpp has them: tools/paper_names.py prints psa|topk|..."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def paper_names():
    text = (ROOT / "src/select/papers/settings.cpp").read_text()
    return re.search(r'add_words\("selection.selector", "([a-z|]+)"\)', text)[1].split("|")


if __name__ == "__main__":
    print("|".join(paper_names()))
