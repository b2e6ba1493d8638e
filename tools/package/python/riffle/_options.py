"""Options of an answer from keyword arguments."""

from __future__ import annotations

import ctypes
import json
import numbers
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Union

from . import _structs as C
from ._library import BadArgument, check, lib, unknown_name, wrong_type
from ._settings import Options, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict, Union

    from . import Model

    class GenerateOptions(TypedDict, total=False):
        """Settings with which an answer is drawn. A setting that is not given, or None, has the
        library's default.

        The same seed gives the same text. For another text each time, give seed=-1."""

        max_tokens: int  # -1: until the context is full
        temperature: float  # 0: greedy
        top_k: int  # 0: off
        top_p: float  # 1: off
        min_p: float  # 0: off
        seed: int  # -1: a random seed, which Answer.seed tells
        stop: Union[str, Sequence[str]]  # the answer ends before the first found
        ignore_eos: bool
        # Drop the white space that an answer begins with; with a grammar: what it does not allow.
        trim_start: bool
        repeat_penalty: float  # 1: off; of the last repeat_last_n tokens, prompt included
        repeat_last_n: int  # -1: all
        frequency_penalty: float  # for each time that the answer has a token
        presence_penalty: float  # for each token that the answer has
        xtc_probability: float  # probability that a draw leaves out the likeliest tokens; 0: off
        xtc_threshold: float  # only the least likely of the tokens at least this probable stays
        dry_multiplier: float  # tokens that continue a repetition become less likely; 0: off
        dry_base: float  # factor on DRY's penalty for each further token of a repetition
        dry_allowed_length: int  # length in tokens of the shortest repetition that is penalised
        dry_penalty_last_n: int  # where DRY looks for repetitions; -1: everywhere
        dry_sequence_breakers: Sequence[str]  # texts that end a repetition; [] for none
        # token: what is added to its logit; -inf forbids the token
        logit_bias: Union[Mapping[int, float], Mapping[str, float]]
        # Fills Answer.logprobs, per token: (logprob, [(token id, logprob), ...])
        logprobs: bool
        top_logprobs: int  # length of that list, at most 20; needs logprobs=True
        grammar: str  # GBNF; at most one of grammar, json_schema and regex
        json_schema: Union[str, Mapping[str, Any]]  # a dict, or its JSON text
        regex: str  # the whole answer matches it
        # Where reasoning may be in an answer with a grammar; chat and ask set it.
        reasoning: Literal["none", "allowed", "begun"]


class Grammar:
    """A compiled grammar."""

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

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            lib.riffle_grammar_free(self.pointer)


GRAMMARS = {
    "grammar": C.GRAMMAR_GBNF,
    "json_schema": C.GRAMMAR_JSON_SCHEMA,
    "regex": C.GRAMMAR_REGEX,
}


#: The fields of a request with these meanings.
FIELDS = {"grammar": "grammar", "json_schema": "json_schema", "regex": "guided_regex"}


#: Asks the model to reason or not to; a word also says how long.
Thinking = Union[bool, Literal["low", "medium", "high"], None]


def thinking_argument(value: Any) -> bool | str:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("low", "medium", "high"):
        return value
    raise wrong_type("thinking", value, "True, False, 'low', 'medium' or 'high'")


#: Names of options in other packages, and the names to use here.
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


#: The one option whose name here is not that of the command's flag.
NAMES = {"temp": "temperature"}


def options_by_name() -> dict[str, dict[str, Any]]:
    rows = [row for row in table() if row["options"] in ("sampling", "answer")]
    return {NAMES.get(row["name"], row["name"].replace("-", "_")): row for row in rows}


def set_option(options: Options, name: str, row: Mapping[str, Any], value: Any) -> None:
    """An option of the library's table."""
    kinds: dict[str, tuple[type, str]] = {
        "switch": (bool, "True or False"),
        "integer": (numbers.Integral, "a whole number"),
        "number": (numbers.Real, "a number"),
    }
    kind, expected = kinds.get(row["type"], (str, row["expected"]))
    if name == "logprobs":
        expected += "; top_logprobs gives the number"
    if not isinstance(value, kind):
        raise wrong_type(name, value, expected)
    if name == "seed" and not 0 <= value < 2**64:
        raise ValueError(
            f"seed: found {value}, expected a whole number from 0 to {2**64 - 1}, or -1 for a "
            "random seed"
        )
    options.set(row["name"], value, name)


def with_seed(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with a random seed in place of -1."""
    seed = options.get("seed")
    if isinstance(seed, numbers.Integral) and seed == -1:
        return {**options, "seed": lib.riffle_random_seed()}
    return options


def generate_options(given: Mapping[str, Any], model: Any) -> Options:
    """Returns the library's options of keyword arguments. An option that is None is left out."""
    given = {k: v for k, v in given.items() if v is not None}
    rows = options_by_name()
    check_one_grammar(given)
    options = Options()
    for name, value in given.items():
        if name in rows:
            set_option(options, name, rows[name], value)
        elif name == "stop":
            options.set_stop(texts_of(name, value))
        elif name == "dry_sequence_breakers":
            options.set_breakers(texts_of(name, value))
        elif name == "logit_bias":
            options.set_logit_bias(biases_of(value))
        elif name in GRAMMARS:
            grammar = Grammar(model, GRAMMARS[name], grammar_text(name, value))
            options.set_grammar(grammar.pointer)  # the options keep it
        else:
            names = rows.keys() | GRAMMARS.keys() | {"stop", "dry_sequence_breakers", "logit_bias"}
            raise unknown_name(
                "option", name, names, OTHER_NAMES, "expected one of " + ", ".join(sorted(names))
            )
    top = options.get("top-logprobs")
    if top != "0" and options.get("logprobs") != "true":
        raise BadArgument(
            f"top_logprobs: found {top} without logprobs=True, expected both", C.BAD_ARGUMENT
        )
    return options


def check_one_grammar(given: Mapping[str, Any]) -> None:
    if len(given.keys() & GRAMMARS.keys()) > 1:
        raise TypeError("found several of grammar, json_schema and regex; expected one")


def grammar_fields(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the field of a request that constrains its answer, and the options without it."""
    given = {k: v for k, v in given.items() if v is not None}
    check_one_grammar(given)
    fields = {
        FIELDS[name]: grammar_text(name, value) for name, value in given.items() if name in GRAMMARS
    }
    return fields, {name: value for name, value in given.items() if name not in GRAMMARS}
