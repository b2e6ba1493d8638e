"""Answers: text that arrives piece by piece while another thread computes it."""

from __future__ import annotations

import ctypes
import difflib
import json
import numbers
import queue
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import _structs as C
from ._library import (
    BadArgument,
    ProgressCallback,
    Watch,
    check,
    filled,
    join,
    lib,
    tokens_array,
    wrong_type,
)

if TYPE_CHECKING:
    from . import Session


class Grammar:
    """A compiled grammar, freed with the last answer that uses it."""

    def __init__(self, model: Any, kind: int, text: str):
        pointer, err = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        data = text.encode()
        check(
            lib.riffle_grammar_create(
                model, kind, data, len(data), ctypes.byref(pointer), err, len(err)
            ),
            err.value,
        )
        self.pointer = pointer

    @classmethod
    def behind(cls, grammar: Grammar, text: str) -> Grammar:
        """The same grammar for an answer that continues a text."""
        pointer, err = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        data = text.encode()
        check(
            lib.riffle_grammar_continue(
                grammar.pointer, data, len(data), ctypes.byref(pointer), err, len(err)
            ),
            b"the last message, which the answer continues: " + err.value,
        )
        rest = cls.__new__(cls)
        rest.pointer = pointer
        return rest

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            lib.riffle_grammar_free(self.pointer)


#: Options that are no member, or not as they stand.
HIDDEN = {
    "struct_size",
    "sampling",
    "n_stop",
    "n_logit_bias",
    "n_dry_sequence_breakers",
    "reserved",
}
GRAMMARS = {
    "grammar": C.GRAMMAR_GBNF,
    "json_schema": C.GRAMMAR_JSON_SCHEMA,
    "regex": C.GRAMMAR_REGEX,
}


def reasoning_of(inside: bool, thinking: bool | None) -> int:
    """Where the answer to a message may have reasoning, which a grammar does not constrain."""
    if inside:
        return C.REASONING_BEGUN
    return C.REASONING_NONE if thinking is False else C.REASONING_ALLOWED


#: What other packages call an option, and what to use here.
OTHER_NAMES = {
    "n_predict": "use max_tokens",
    "max_new_tokens": "use max_tokens",
    "max_completion_tokens": "use max_tokens",
    "temp": "use temperature",
    "repetition_penalty": "use repeat_penalty, with repeat_last_n=-1",
    "stream": "leave it out: iterate over the answer for its text as it arrives",
    "response_format": "use json_schema",
    "guided_json": "use json_schema",
    "guided_regex": "use regex",
    "guided_grammar": "use grammar",
    "stop_strings": "use stop",
    "typical_p": "use top_p or min_p",
    "n": "use a call with another seed for each answer",
}


def unknown_option(name: str, names: Iterable[str]) -> TypeError:
    near = difflib.get_close_matches(name, names, 1)
    return TypeError(
        f"unknown option {name!r}; "
        + (
            OTHER_NAMES[name]
            if name in OTHER_NAMES
            else f"did you mean {near[0]!r}?"
            if near
            else "expected one of " + ", ".join(sorted(names))
        )
    )


def texts_of(name: str, value: Any) -> list[str]:
    """A text or several."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Iterable):
        raise wrong_type(name, value, "a str or a list of them")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise wrong_type(name, text, "a str or a list of them")
        if "\0" in text:
            raise ValueError(f"{name}: found a NUL, expected text without one")
    return texts


def biases_of(value: Any) -> list[C.LogitBias]:
    expected = "a dict of tokens and numbers, such as {15043: -1.0}"
    if not isinstance(value, Mapping):
        raise wrong_type("logit_bias", value, expected)
    pairs = []
    for token, bias in value.items():
        if isinstance(token, str) and token.isdecimal():  # keys of a JSON object
            token = int(token)
        if not isinstance(token, numbers.Integral) or not isinstance(bias, numbers.Real):
            raise wrong_type("logit_bias", {token: bias}, expected)
        pairs.append(C.LogitBias(token, bias))
    return pairs


def grammar_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if name == "json_schema" and isinstance(value, (Mapping, bool)):
        return json.dumps(value if isinstance(value, bool) else dict(value))
    raise wrong_type(
        name, value, "a schema as a dict, or its JSON text" if name == "json_schema" else "a str"
    )


def set_number(target: Any, name: str, value: Any) -> None:
    """A member that is a number or a bool."""
    field = dict((f[0], f[1]) for f in type(target)._fields_)[name]
    example = field().value
    kind: type = numbers.Real
    expected = "a number"
    if isinstance(example, bool):
        kind, expected = bool, "True or False"
        if name == "logprobs":
            expected += "; top_logprobs gives the number"
    elif isinstance(example, int):
        kind, expected = numbers.Integral, "a whole number"
    if not isinstance(value, kind):
        raise wrong_type(name, value, expected)
    if isinstance(example, int) and field(value).value != value:
        fits = f"a number that fits {8 * ctypes.sizeof(field)} bits"
        if name == "seed":
            fits = f"a whole number from 0 to {2**64 - 1}, or -1 for a random seed"
        raise ValueError(f"{name}: found {value}, expected {fits}")
    setattr(target, name, value)


#: Bits of a random seed: JSON readers that keep numbers as doubles do not round such a seed.
SEED_BITS = 53


def with_seed(options: dict[str, Any]) -> dict[str, Any]:
    """The options with a random seed in place of -1."""
    seed = options.get("seed")
    if isinstance(seed, numbers.Integral) and seed == -1:
        return {**options, "seed": secrets.randbits(SEED_BITS)}
    return options


def generate_options(options: dict[str, Any], model: Any) -> tuple[C.GenerateOptions, Any]:
    """riffle_generate_options of keyword arguments, and what has to live as long.

    An option that is None is left out. _begun: the text of a message that the answer continues."""
    begun = options.get("_begun", "")
    options = {k: v for k, v in options.items() if v is not None and k != "_begun"}
    struct = filled(C.GenerateOptions)
    kept: list[Any] = []
    names = {name for name, *_ in C.GenerateOptions._fields_ + C.Sampling._fields_}
    names = (names | GRAMMARS.keys()) - HIDDEN
    if len(options.keys() & GRAMMARS.keys()) > 1:
        raise TypeError("found several of grammar, json_schema and regex; expected one")
    for name, value in options.items():
        if name in ("stop", "dry_sequence_breakers"):
            texts = texts_of(name, value)
            # One more, which is NULL: the pointer is none even without texts.
            strings = (ctypes.c_char_p * (len(texts) + 1))(*[s.encode() for s in texts])
            kept.append(strings)
            target = struct if name == "stop" else struct.sampling
            setattr(target, name, strings)
            setattr(target, "n_" + name, len(texts))
        elif name == "logit_bias":
            pairs = biases_of(value)
            biases = (C.LogitBias * len(pairs))(*pairs)
            kept.append(biases)
            struct.sampling.logit_bias, struct.sampling.n_logit_bias = biases, len(biases)
        elif name in GRAMMARS:
            kept.append(Grammar(model, GRAMMARS[name], grammar_text(name, value)))
            if begun:
                kept.append(Grammar.behind(kept[-1], begun))
            struct.grammar = kept[-1].pointer
        elif name not in names:
            raise unknown_option(name, names)
        else:
            set_number(struct if hasattr(struct, name) else struct.sampling, name, value)
    if struct.sampling.top_logprobs and not struct.sampling.logprobs:
        raise BadArgument(
            f"top_logprobs: found {struct.sampling.top_logprobs} without logprobs=True, "
            "expected both",
            C.BAD_ARGUMENT,
        )
    return struct, kept


class Run:
    """One call of riffle_generate in a thread of its own. It owns the context until it ends."""

    def __init__(
        self,
        session: Session,
        tokens: list[int],
        options: dict[str, Any],
        progress: ProgressCallback | None,
    ):
        # (token, text, log-probabilities or None); then the end
        self.pieces: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._session = session
        self._tokens = tokens_array(tokens)
        self._options, self._kept = generate_options(options, session.context.model._handle.pointer)
        self._watch = Watch(progress)
        self._token_fn = C.TokenFn(self._on_token)
        self._error: BaseException | None = None
        handles = (session._handle, session.context._handle)
        self._session_pointer, self._context_pointer = (h.pointer for h in handles)
        session.context._begin()
        for handle in handles:
            handle.stop = self.stop
        self._thread = threading.Thread(target=self._work, name="riffle", daemon=True)
        self._thread.start()

    def _on_token(self, _user: Any, _index: int, token: Any) -> bool:
        try:
            t = token.contents
            text = ctypes.string_at(t.text, t.text_len).decode() if t.text_len else ""
            logprobs = None
            if self._options.sampling.logprobs and t.id >= 0:
                logprobs = t.logprob, [(one.token, one.logprob) for one in t.top[: t.n_top]]
            self.pieces.put((t.id, text, logprobs))
            return not self._watch.stopped
        except BaseException as error:  # no exception passes through C
            self._error = error
            return False

    def _work(self) -> None:
        end: Any
        try:
            result = C.Result()
            check(
                lib.riffle_prefill_to(
                    self._session_pointer, self._tokens, len(self._tokens), self._watch.fn, None
                ),
                self._context_error(),
            )
            check(
                lib.riffle_generate(
                    self._session_pointer,
                    ctypes.byref(self._options),
                    self._token_fn,
                    None,
                    ctypes.byref(result),
                ),
                self._context_error(),
            )
            end = result
        except BaseException as error:
            end = error
        end = self._error or self._watch.error or end
        context = self._session.context
        for handle in (self._session._handle, context._handle):
            handle.stop = None
        context._end()
        self.pieces.put(end)

    def _context_error(self) -> bytes:
        text: bytes = lib.riffle_context_error(self._context_pointer)
        return text

    def stop(self) -> None:
        """Ends the call and waits for it."""
        self._watch.stopped = True
        if self._thread.is_alive():
            lib.riffle_abort(self._context_pointer, True)
            join(self._thread)
            lib.riffle_abort(self._context_pointer, False)


class Answer(Iterator[str]):
    """An answer: iterate over it for its text as it arrives, or take it whole from `text`.

    Nothing is computed before the first piece is asked for. An error of the library is raised
    there. `tokens`, `logprobs`, `n_tokens` and `finish` wait for the whole answer, as `text` does,
    if no piece has been asked for. During an iteration they tell what has arrived. Closing the
    answer stops it, and so does Ctrl-C while a piece is waited for. The session then holds what was
    computed, and can be used again.
    """

    def __init__(
        self,
        session: Session,
        tokens: list[int],
        options: dict[str, Any],
        progress: ProgressCallback | None = None,
        close_session: bool = False,
    ):
        options = with_seed(options)
        # A wrong option is an error now.
        struct, _ = generate_options(options, session.context.model._handle.pointer)
        #: The seed of the answer. With seed=-1 it is the random seed.
        self.seed = int(struct.sampling.seed)
        self._start: tuple[Any, ...] | None = (session, tokens, options, progress)
        self._close_session = close_session
        self._session: Session | None = session
        self._run: Run | None = None
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[tuple[float, list[tuple[int, float]]]] = []
        #: Tokens of the prompt.
        self.prompt_tokens = len(tokens)
        self._n_tokens: int | None = None
        self._finish: str | None = None

    def _whole(self) -> None:
        """Waits for the end of the answer if no piece has been asked for."""
        if self._start is not None:
            for _ in self:
                pass

    @property
    def tokens(self) -> list[int]:
        """The tokens of the answer, without an end token."""
        self._whole()
        return self._tokens

    @property
    def logprobs(self) -> list[tuple[float, list[tuple[int, float]]]]:
        """With logprobs=True, one item per token: (logprob, [(token id, logprob), ...]).

        The first number is the log-probability of the token. The list holds the top_logprobs most
        probable tokens, the most probable first. Without logprobs=True there are no items."""
        self._whole()
        return self._logprobs

    @property
    def n_tokens(self) -> int | None:
        """Tokens that were drawn, an end token included. None: the answer has not ended."""
        self._whole()
        return self._n_tokens

    @property
    def finish(self) -> str | None:
        """Why the answer ended: "stop", "length", "context" or "aborted". None: it has not."""
        self._whole()
        return self._finish

    def __next__(self) -> str:
        while self._finish is None:
            try:
                if self._start is not None:
                    start, self._start = self._start, None
                    self._run = Run(*start)
                assert self._run is not None
                item = self._run.pieces.get()
            except BaseException:
                self.close()
                raise
            if isinstance(item, BaseException):
                self._finished("aborted")
                raise item
            if isinstance(item, C.Result):
                self._n_tokens = item.n_tokens
                self._finished(C.FINISHES.get(item.finish, "none"))
                break
            token: int
            text: str
            token, text, logprobs = item
            if token >= 0:
                self._tokens.append(token)
            if logprobs is not None:
                self._logprobs.append(logprobs)
            if text:
                self._text.append(text)
                return text
        raise StopIteration

    def _finished(self, finish: str) -> None:
        self._finish = finish
        self._start = self._run = None
        session, self._session = self._session, None
        if self._close_session and session is not None:
            session.close()

    def close(self) -> None:
        """Stops the answer if it has not ended."""
        if self._finish is None:
            if self._run is not None:
                self._run.stop()
            self._finished("aborted")

    @property
    def text(self) -> str:
        """The whole text. Waits for the answer's end."""
        for _ in self:
            pass
        return "".join(self._text)

    def __str__(self) -> str:
        return self.text

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_finish", "none") is None:
            self.close()
