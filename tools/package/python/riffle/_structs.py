"""The structs, enums and callbacks of riffle.h that this package uses, in the header's order.

tests/python/test_structs.py compares sizes, offsets and values with the header.
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
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)


class Struct(ctypes.Structure):
    """C_NAME is the struct's name in riffle.h. DEFAULTS is the function that fills it, or None for
    a struct that the library fills."""

    C_NAME = ""
    DEFAULTS: str | None = None


class Progress(Struct):
    C_NAME = "riffle_progress"
    _fields_ = [("phase", c_int), ("done", c_double), ("total", c_double)]


ProgressFn = ctypes.CFUNCTYPE(c_bool, c_void_p, POINTER(Progress))


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


TokenFn = ctypes.CFUNCTYPE(c_bool, c_void_p, c_size_t, POINTER(Token))


class ModelOptions(Struct):
    C_NAME = "riffle_model_options"
    DEFAULTS = "riffle_model_defaults_sized"
    _fields_ = [
        ("struct_size", c_size_t),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
        ("n_threads", c_int32),
        ("chat_template", c_char_p),
        ("weights", c_char_p),
    ]


class WeightShare(Struct):
    C_NAME = "riffle_weight_share"
    _fields_ = [("type", c_char_p), ("n_params", c_uint64), ("bytes", c_uint64)]


class ModelInfo(Struct):
    C_NAME = "riffle_model_info"
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("architecture", c_char_p),
        ("format", c_char_p),
        ("weight_type", c_char_p),
        ("dim", c_int32),
        ("hidden_dim", c_int32),
        ("head_dim", c_int32),
        ("n_layers", c_int32),
        ("n_heads", c_int32),
        ("n_kv_heads", c_int32),
        ("vocab_size", c_int32),
        ("n_ctx_train", c_int32),
        ("rope_theta", c_float),
        ("norm_eps", c_float),
        ("tied_output", c_bool),
        ("bos_id", c_int32),
        ("eos_id", c_int32),
        ("n_params", c_uint64),
        ("weight_bytes", c_uint64),
        ("chat_template", c_char_p),
        ("chat_template_name", c_char_p),
        ("rope_scaling", c_char_p),
        ("sliding_window", c_int32),
        ("chat_thinking", c_bool),
        ("reasoning_begin", c_char_p),
        ("reasoning_end", c_char_p),
        ("n_experts", c_int32),
        ("n_experts_used", c_int32),
        ("expert_dim", c_int32),
        ("expert_params", c_uint64),
        ("expert_bytes", c_uint64),
        ("weight_types", POINTER(WeightShare)),
        ("n_weight_types", c_size_t),
        ("text_part", c_bool),
        ("qk_norm", c_char_p),
        ("n_window_layers", c_int32),
        ("n_expert_layers", c_int32),
        ("logit_softcap", c_float),
        ("attention_sinks", c_bool),
        ("attention_gate", c_bool),
        ("chat_effort", c_bool),
    ]


class Message(Struct):
    C_NAME = "riffle_message"
    _fields_ = [("role", c_char_p), ("content", c_char_p)]


class ChatOptions(Struct):
    C_NAME = "riffle_chat_options"
    DEFAULTS = "riffle_chat_defaults_sized"
    _fields_ = [
        ("struct_size", c_size_t),
        ("thinking", c_int),
        ("reasoning", POINTER(c_char_p)),
        ("date", c_char_p),
        ("reasoning_effort", c_char_p),
    ]


class Selection(Struct):
    C_NAME = "riffle_selection"
    DEFAULTS = "riffle_selection_defaults_sized"
    _fields_ = [
        ("struct_size", c_size_t),
        ("selector", c_int),
        ("digest", c_int),
        ("gqa", c_int),
        ("rank", c_int),
        ("stop", c_int),
        ("epsilon", c_float),
        ("microbatch", c_int32),
        ("budget", c_float),
        ("sink_blocks", c_int32),
        ("recent_blocks", c_int32),
        ("dense_layers", c_int32),
        ("lookahead", c_int32),
        ("base", c_int),
        ("base_budget", c_float),
        ("top_p", c_float),
        ("share", c_float),
        ("select_tokens", c_int32),
        ("init_tokens", c_int32),
        ("local_tokens", c_int32),
        ("vote", c_int),
        ("cache_threshold", c_float),
        ("positions", c_int),
        ("top_tokens", c_float),
        ("alpha", c_float),
        ("decay", c_float),
        ("bypass", c_float),
        ("reserved", c_uint64 * 8),
    ]


class ContextOptions(Struct):
    C_NAME = "riffle_context_options"
    DEFAULTS = "riffle_context_defaults_sized"
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int),
        ("n_ctx", c_int32),
        ("n_threads", c_int32),
        ("block_size", c_int32),
        ("kv_type", c_int),
        ("isa", c_int),
        ("slots", c_int64),
        ("gpu_mem", c_uint64),
        ("host_mem", c_uint64),
        ("evict", c_int),
        ("pool_per_layer", c_bool),
        ("prefill_chunk", c_int32),
        ("selection", Selection),
        ("residency", c_int),
        ("no_pin", c_bool),
        ("n_sessions", c_int32),
        ("cpu_experts", c_int32),
        ("lookup", c_int32),
        ("synthetic_attention", c_void_p),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
        ("setting_name", c_void_p),
    ]


class SaveOptions(Struct):
    C_NAME = "riffle_save_options"
    DEFAULTS = "riffle_save_defaults_sized"
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("data_size", c_size_t),
        ("n_tokens", c_size_t),
        ("save_id", POINTER(c_uint64)),
        ("progress", ProgressFn),
        ("progress_user", c_void_p),
    ]


class SessionFileInfo(Struct):
    C_NAME = "riffle_session_file_info"
    _fields_ = [
        ("struct_size", c_size_t),
        ("model", c_char_p),
        ("architecture", c_char_p),
        ("n_tokens", c_size_t),
        ("n_layers", c_int32),
        ("n_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab_size", c_int32),
        ("block_size", c_int32),
        ("kv_type", c_int),
        ("has_logits", c_bool),
        ("list_positions", c_bool),
        ("state", c_char_p),
        ("created", c_int64),
        ("saved", c_int64),
        ("saves", c_uint64),
        ("save_id", c_uint64),
        ("newest_damaged", c_bool),
        ("file_bytes", c_uint64),
        ("kv_bytes", c_uint64),
        ("data", c_void_p),
        ("data_size", c_size_t),
    ]


class LogitBias(Struct):
    C_NAME = "riffle_logit_bias"
    _fields_ = [("token", c_int32), ("bias", c_float)]


class Sampling(Struct):
    C_NAME = "riffle_sampling"
    DEFAULTS = "riffle_sampling_defaults_sized"
    _fields_ = [
        ("struct_size", c_size_t),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("seed", c_uint64),
        ("repeat_penalty", c_float),
        ("repeat_last_n", c_int32),
        ("frequency_penalty", c_float),
        ("presence_penalty", c_float),
        ("logit_bias", POINTER(LogitBias)),
        ("n_logit_bias", c_size_t),
        ("logprobs", c_bool),
        ("top_logprobs", c_int32),
        ("xtc_probability", c_float),
        ("xtc_threshold", c_float),
        ("dry_multiplier", c_float),
        ("dry_base", c_float),
        ("dry_allowed_length", c_int32),
        ("dry_penalty_last_n", c_int32),
        ("dry_sequence_breakers", POINTER(c_char_p)),
        ("n_dry_sequence_breakers", c_size_t),
        ("reserved", c_uint64 * 3),
    ]


class GenerateOptions(Struct):
    C_NAME = "riffle_generate_options"
    DEFAULTS = "riffle_generate_defaults_sized"
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_tokens", c_int32),
        ("sampling", Sampling),
        ("stop", POINTER(c_char_p)),
        ("n_stop", c_size_t),
        ("ignore_eos", c_bool),
        ("trim_start", c_bool),
        ("reasoning", c_int),
        ("grammar", c_void_p),
    ]


class Result(Struct):
    C_NAME = "riffle_result"
    _fields_ = [("finish", c_int), ("n_tokens", c_int32), ("reserved", c_uint64 * 4)]


class Stats(Struct):
    C_NAME = "riffle_stats"
    _fields_ = [
        ("struct_size", c_size_t),
        ("prefill_tokens", c_uint64),
        ("decode_tokens", c_uint64),
        ("decode_steps", c_uint64),
        ("lookup_proposed", c_uint64),
        ("lookup_accepted", c_uint64),
        ("prefill_seconds", c_double),
        ("decode_seconds", c_double),
        ("kv_blocks_total", c_uint64),
        ("kv_blocks_read", c_uint64),
        ("kv_tokens_total", c_uint64),
        ("kv_tokens_read", c_uint64),
        ("kv_bytes_read", c_uint64),
        ("index_bytes_read", c_uint64),
        ("cached_selections", c_uint64),
        ("selections", c_uint64),
        ("index_bytes", c_uint64),
        ("pool_lookups", c_uint64),
        ("pool_hits", c_uint64),
        ("loaded_bytes", c_uint64),
        ("flushed_bytes", c_uint64),
        ("evictions", c_uint64),
        ("host_kv_bytes", c_uint64),
        ("peak_rss_bytes", c_uint64),
        ("pool_slots", c_int64),
        ("host_syncs", c_uint64),
        ("device_bytes", c_uint64),
        ("peak_device_bytes", c_uint64),
        ("pinned_bytes", c_uint64),
    ]


class Setting(Struct):
    C_NAME = "riffle_setting"
    _fields_ = [
        ("id", c_char_p),
        ("options", c_int),
        ("offset", c_size_t),
        ("type", c_int),
        ("words", c_char_p),
        ("standard", c_double),
        ("low", c_double),
        ("high", c_double),
        ("above_low", c_bool),
        ("below_high", c_bool),
        ("range", c_char_p),
        ("flag", c_char_p),
        ("json", c_char_p),
        ("spec", c_char_p),
        ("group", c_char_p),
        ("help", c_char_p),
        ("comparison", c_bool),
        ("selectors", c_uint32),
        ("bases", c_uint32),
    ]


STRUCTS = [
    Progress,
    Logprob,
    Token,
    LogitBias,
    ModelOptions,
    WeightShare,
    ModelInfo,
    Message,
    ChatOptions,
    Selection,
    ContextOptions,
    SaveOptions,
    SessionFileInfo,
    Sampling,
    GenerateOptions,
    Result,
    Stats,
    Setting,
]

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
TOKENIZE_BOS = 1
TOKENIZE_SPECIAL = 2
THINKING_DEFAULT = 0
THINKING_ON = 1
THINKING_OFF = 2
FINISHES = {0: "none", 1: "stop", 2: "length", 3: "context", 4: "aborted"}
GRAMMAR_GBNF = 0
GRAMMAR_JSON_SCHEMA = 1
GRAMMAR_REGEX = 2
REASONING_NONE = 0
REASONING_ALLOWED = 1
REASONING_BEGUN = 2
OPTIONS_SELECTION = 0
OPTIONS_CONTEXT = 1
MEMBER_BOOL = 0

# Enumerators by their names in riffle.h.
ENUMS = {
    "RIFFLE_" + name: value
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, int)
}
ENUMS |= {f"RIFFLE_PHASE_{name.upper()}": value for value, name in PHASES.items()}
ENUMS |= {f"RIFFLE_FINISH_{name.upper()}": value for value, name in FINISHES.items()}
