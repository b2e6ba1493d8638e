"""The structs, enumerators and callbacks of riffle's headers that this package uses.

tests/python/test_structs.py compares sizes, offsets and values with the headers.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_size_t,
    c_uint64,
    c_void_p,
)


class Struct(ctypes.Structure):
    """C_NAME is the struct's name in the headers."""

    C_NAME = ""


class Progress(Struct):
    C_NAME = "riffle_progress"
    _fields_ = [("phase", c_int), ("done", c_double), ("total", c_double)]


class Logprob(Struct):
    C_NAME = "riffle_logprob"
    _fields_ = [("token", c_int32), ("logprob", c_float)]


class Token(Struct):
    C_NAME = "riffle_token"
    _fields_ = [
        ("id", c_int32),
        ("text", POINTER(c_char)),
        ("text_len", c_size_t),
        ("logprob", c_float),
        ("top", POINTER(Logprob)),
        ("n_top", c_size_t),
    ]


class Result(Struct):
    C_NAME = "riffle_result"
    _fields_ = [("finish", c_int), ("n_tokens", c_int32)]


class LogitBias(Struct):
    C_NAME = "riffle_logit_bias"
    _fields_ = [("token", c_int32), ("bias", c_float)]


class Json(Struct):
    C_NAME = "riffle_json"
    _fields_ = [("data", POINTER(c_char)), ("len", c_size_t)]


class AnswerPart(Struct):
    C_NAME = "riffle_answer_part"
    _fields_ = [
        ("reasoning", POINTER(c_char)),
        ("reasoning_len", c_size_t),
        ("content", POINTER(c_char)),
        ("content_len", c_size_t),
    ]


class ToolCall(Struct):
    C_NAME = "riffle_tool_call"
    _fields_ = [
        ("id", c_char_p),
        ("name", c_char_p),
        ("arguments", c_char_p),
        ("error", c_char_p),
    ]


STRUCTS = [Progress, Logprob, Token, Result, LogitBias, Json, AnswerPart, ToolCall]

ProgressFn = ctypes.CFUNCTYPE(c_bool, c_void_p, POINTER(Progress))
TokenFn = ctypes.CFUNCTYPE(c_bool, c_void_p, c_size_t, POINTER(Token))
# The result is an address: if it were a c_char_p, ctypes would never free the text.
SettingNameFn = ctypes.CFUNCTYPE(c_void_p, c_char_p)
RequestTokenFn = ctypes.CFUNCTYPE(c_bool, c_void_p, c_uint64, POINTER(Token))
RequestEndFn = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_int, c_void_p)

OK = 0
BAD_ARGUMENT = 1
BAD_MODEL = 2
UNSUPPORTED = 3
IO = 4
OUT_OF_MEMORY = 5
CONTEXT_FULL = 6
NO_SLOT = 7
ABORTED = 8
BAD_TEXT = 9
BUFFER_TOO_SMALL = 10
INTERNAL = 11
DEVICE_LOST = 12
BAD_SESSION = 13
FILE_CHANGED = 14
PHASES = {0: "load", 1: "prefill", 2: "quantize", 3: "upload", 4: "save_session", 5: "load_session"}
INFO_NONE = 0
INFO_INTEGER = 1
INFO_REAL = 2
INFO_BOOL = 3
INFO_TEXT = 4
TOKENIZE_BOS = 1
TOKENIZE_SPECIAL = 2
FINISHES = {0: "none", 1: "stop", 2: "length", 3: "context", 4: "aborted"}
GRAMMAR_GBNF = 0
GRAMMAR_JSON_SCHEMA = 1
GRAMMAR_REGEX = 2
KEEP_SHARED = 0
KEEP_ALL = 1
REQUEST_CHAT = 0
REQUEST_COMPLETION = 1
REQUEST_BATCH_LINE = 2
REQUEST_IGNORE_UNKNOWN = 1
REQUEST_DRAW_SEED = 2

# Enumerators by their names in the headers.
ENUMS = {
    "RIFFLE_" + name: value
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, int)
}
ENUMS |= {f"RIFFLE_PHASE_{name.upper()}": value for value, name in PHASES.items()}
ENUMS |= {f"RIFFLE_FINISH_{name.upper()}": value for value, name in FINISHES.items()}
