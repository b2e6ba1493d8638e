"""The training data mix: sequences of token ids with one loss weight per token.

30% of the sequences are book text alone.  The others are filled with prompt-form documents:
    hay     70%  facts hidden at sentence ends of book text, then questions; 35% also ask to continue a quoted passage
    kv      14%  a register of keys and values, then questions
    plain   13%  a paragraph of nothing but facts, then questions
    chat     3%  greetings and the like
Prompt form: `<s>[INST] {document}\n{question} [/INST]` answer `</s>`, further turns `<s>[INST] {question} [/INST]`.
Answers weigh more than text in the loss (`answer_weight`, by phase), registers and bare facts less.

The order of random draws is part of the recipe: a seed gives the same stream as it gave for the shipped model.
"""
import math
import os
import random

import numpy as np
import sentencepiece
import torch
from torch.utils.data import IterableDataset, get_worker_info

import facts

BOS, EOS = 1, 2
BOOK_SHARE = 0.30
STREAMS = ("a.bin", "b.bin")  # uint16 token streams of tokenize_books.py; those present are used
SENTENCE_END_PIECES = (".", "!", "?", '."', ".”")
SHORTEST_DOCUMENT = 160  # tokens


def as_ids(x):
    return np.array(x, dtype=np.int32)


def as_weights(x):
    return np.array(x, dtype=np.float32)


class PromptForm:
    """Token ids of the parts of a prompt, as sentencepiece gives them inside a text."""

    def __init__(self, sp):
        self.sp = sp
        self.encode = sp.encode
        self.newline = sp.piece_to_id("<0x0A>")
        self.begin = sp.encode("[INST] x")[:2]  # the space before, and [INST]
        self.end = sp.encode("x [/INST]")[1:]

    def closing_question(self, question):
        """A question that closes a document: without the space sentencepiece puts before a text."""
        return self.encode("\n" + question)[1:] + self.end

    def turn(self, question):
        return [BOS] + self.begin + self.encode(question) + self.end


class Mix:
    """Draws documents. seq_len is the longest document; r a random.Random."""

    def __init__(self, sp, books, seq_len, answer_weight, r):
        self.form, self.books, self.r = PromptForm(sp), books, r
        self.seq_len, self.answer_weight = seq_len, answer_weight
        self.ends_sentence = np.zeros(65536, bool)
        for i in range(sp.get_piece_size()):
            if sp.id_to_piece(i) in SENTENCE_END_PIECES:
                self.ends_sentence[i] = True

    def book(self, n):
        """n tokens from anywhere in the books."""
        stream = self.books[self.r.randrange(len(self.books))]
        i = self.r.randrange(len(stream) - n - 1)
        return as_ids(stream[i:i + n])

    def questions(self, qa, closes_document):
        """Ids and weights of the questions with their answers, each a turn of its own."""
        ids, weights = [], []
        for j, (question, answer) in enumerate(qa):
            if closes_document and j == 0:
                t = self.form.closing_question(question)
            else:
                t = self.form.turn(question)
            ids += t
            weights += [1.0] * len(t)
            t = self.form.encode(answer) + [EOS]
            ids += t
            weights += [self.answer_weight] * len(t)
        return ids, weights

    def pick_quote(self, text):
        """(offset, first words, what follows) of a passage to be continued, or None if the one drawn will not do."""
        r, sp, newline = self.r, self.form.sp, self.form.newline
        ends = np.flatnonzero(self.ends_sentence[text[:len(text) * 3 // 4]])
        if len(ends) <= 4:
            return None
        e = int(ends[r.randrange(len(ends) - 1)]) + 1
        n_quote, n_more = r.randint(8, 16), r.randint(16, 40)
        quote = text[e:e + n_quote].tolist()
        more = text[e + n_quote:e + n_quote + n_more].tolist()
        one_line = EOS not in quote and EOS not in more and len(more) == n_more and newline not in quote + more
        return (e, quote, more) if one_line and sp.encode(sp.decode(quote)) == quote else None

    def hay(self, n):
        """About n tokens of book text with facts at sentence ends, then questions about some of them."""
        r, form = self.r, self.form
        n_facts = max(1, min(40, int(r.lognormvariate(0, 0.6) * n / 900) + 1))
        statements, qa = facts.facts(r, n_facts, set())
        r.shuffle(qa)
        qa = qa[:max(1, min(len(qa), r.randint(1, 6 + n // 2000)))]
        groups = [s[1] if isinstance(s, tuple) else [s] for s in statements]  # a group keeps its order
        text = self.book(max(64, n))
        quote = self.pick_quote(text) if r.random() < 0.35 and n > 700 else None
        ids, weights = self.questions(qa, closes_document=True)
        if quote:
            t = form.turn('Continue the passage that begins: "' + form.sp.decode(quote[1]) + '"')
            ids += t
            weights += [1.0] * len(t)
            t = quote[2] + [EOS]
            ids += t
            weights += [self.answer_weight / 2] * len(t)
        groups = [[form.encode(x) for x in g] for g in groups]
        n_fact_tokens = sum(len(y) for g in groups for y in g)
        n = max(n - len(ids) - n_fact_tokens - 4, 32)
        text = text[:n]
        ends = np.flatnonzero(self.ends_sentence[text])
        if quote:  # leave the quoted passage whole
            ends = ends[(ends < (quote[0] - 1)) | (ends > quote[0] + 60)]
        if len(ends) < 1:
            ends = np.array([n - 1])
        inserts = []  # (position, order among those at one position, ids)
        for g in groups:
            positions = sorted(int(ends[r.randrange(len(ends))]) for _ in g)
            inserts += [(p, r.random() if len(g) == 1 else i / 100, y) for i, (p, y) in enumerate(zip(positions, g))]
        inserts.sort(key=lambda z: (z[0], z[1]))
        parts, done = [], 0
        for p, _, y in inserts:
            parts += [text[done:p + 1], as_ids(y)]
            done = p + 1
        document = np.concatenate(parts + [text[done:]])
        document[document == EOS] = form.newline  # the end of a book is no end of the document
        head = as_ids([BOS] + form.begin)
        return (np.concatenate([head, document, as_ids(ids)]),
                np.concatenate([np.ones(len(head) + len(document), np.float32), as_weights(weights)]))

    def kv(self, n):
        text, qa = facts.kv_document(self.r, max(2, min(n // 22, 1200)))
        ids, weights = self.questions(qa, closes_document=True)
        head = [BOS] + self.form.begin + self.form.encode(text)
        return as_ids(head + ids), as_weights([0.3] * len(head) + weights)

    def plain(self, n):
        r = self.r
        statements, qa = facts.facts(r, max(1, n // 40), set())
        flat = []
        for s in statements:
            flat += s[1] if isinstance(s, tuple) else [s]
        if r.random() < 0.5 and not any(isinstance(s, tuple) for s in statements):
            r.shuffle(flat)
        r.shuffle(qa)
        ids, weights = self.questions(qa[:r.randint(1, 8)], closes_document=True)
        head = [BOS] + self.form.begin + self.form.encode(" ".join(flat))
        return as_ids(head + ids), as_weights([0.5] * len(head) + weights)

    def chat(self):
        qa = [self.r.choice(facts.CHAT) for _ in range(self.r.randint(1, 3))]
        ids, weights = self.questions(qa, closes_document=False)
        return as_ids(ids), as_weights(weights)

    def sequence(self):
        """(ids, weights) of seq_len + 1 tokens: inputs and targets overlap by all but one."""
        r, total = self.r, self.seq_len + 1
        if r.random() < BOOK_SHARE:
            return self.book(total), np.ones(total, np.float32)
        ids, weights, n = [], [], 0
        while n < total:
            room, kind = total - n, r.random()
            length = int(math.exp(r.uniform(math.log(SHORTEST_DOCUMENT), math.log(self.seq_len))))
            if r.random() < 0.5:
                length = self.seq_len
            length = min(length, room)
            if room < SHORTEST_DOCUMENT:
                x, w = self.book(room), np.ones(room, np.float32)
            elif kind < 0.70:
                x, w = self.hay(length)
            elif kind < 0.84:
                x, w = self.kv(min(length, 16384))
            elif kind < 0.97:
                x, w = self.plain(min(length, 3000))
            else:
                x, w = self.chat()
            ids.append(x)
            weights.append(w)
            n += len(x)
        return np.concatenate(ids)[:total], np.concatenate(weights)[:total]


class Sequences(IterableDataset):
    """Endless training sequences; each worker of the loader draws from a seed of its own."""

    def __init__(self, data_dir, seq_len, answer_weight, seed):
        self.data_dir, self.seq_len, self.answer_weight, self.seed = data_dir, seq_len, answer_weight, seed

    def __iter__(self):
        info = get_worker_info()
        r = random.Random(self.seed * 1000 + (info.id if info else 0))
        sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(self.data_dir, "tokenizer.model"))
        paths = [os.path.join(self.data_dir, f) for f in STREAMS]
        books = [np.memmap(p, dtype=np.uint16, mode="r") for p in paths if os.path.exists(p)]
        mix = Mix(sp, books, self.seq_len, self.answer_weight, r)
        while True:
            ids, weights = mix.sequence()
            yield torch.from_numpy(ids.astype(np.int32)), torch.from_numpy(weights)
