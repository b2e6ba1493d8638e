#!/usr/bin/env python3
"""Train the sentencepiece tokenizer; the settings are those stored in the shipped tokenizer.model.

    make_tokenizer.py OUT_PREFIX TEXT...          writes OUT_PREFIX.model and OUT_PREFIX.vocab
"""
import argparse

import sentencepiece

PROMPT_PIECES = ["[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"]


def train(prefix, texts, vocab_size=8192, **more):
    sentencepiece.SentencePieceTrainer.train(
        input=texts, model_prefix=prefix, model_type="bpe", vocab_size=vocab_size, character_coverage=0.9998,
        byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=PROMPT_PIECES,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True,
        input_sentence_size=400000, max_sentence_length=16384, num_threads=2, **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix")
    parser.add_argument("texts", nargs="+")
    args = parser.parse_args()
    train(args.prefix, args.texts)


if __name__ == "__main__":
    main()
