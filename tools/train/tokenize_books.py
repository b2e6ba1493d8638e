#!/usr/bin/env python3
"""Tokenise books into one uint16 stream; each book ends with </s>.

    tokenize_books.py TOKENIZER.model OUT.bin < list-of-paths
"""
import argparse
import sys

import numpy as np
import sentencepiece

EOS = 2
CHUNK = 4000  # bytes encoded at a time, as BPE slows down with length; each chunk begins with the text-start space


def chunks(text):
    """Split bytes after the first line end beyond each CHUNK bytes."""
    begin = 0
    while begin < len(text):
        end = min(len(text), begin + CHUNK)
        if end < len(text):
            n = text.find(b"\n", end)
            end = len(text) if n < 0 else n + 1
        yield text[begin:end]
        begin = end


def tokenize(sp, text):
    """bytes -> uint16 array"""
    out = []
    for piece in chunks(text):
        out += sp.encode(piece.decode("utf-8", errors="replace"))
    out.append(EOS)
    return np.array(out, dtype=np.uint16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    args = parser.parse_args()
    sp = sentencepiece.SentencePieceProcessor(model_file=args.tokenizer)
    total = 0
    with open(args.out, "wb") as out:
        for path in sys.stdin.read().splitlines():
            with open(path, "rb") as f:
                ids = tokenize(sp, f.read())
            ids.tofile(out)
            total += len(ids)
    print(total, "tokens")


if __name__ == "__main__":
    main()
