"""riffle: language models on very long texts.

    import riffle

    with riffle.Model("model.gguf") as model:
        for piece in model.chat([{"role": "user", "content": "Hello"}]):
            print(piece, end="", flush=True)

        with model.read(open("report.txt").read()) as document:   # read once
            print(document.ask("What was decided?"))
            print(document.ask("By whom?", max_tokens=100))
            document.save("report.kv")                            # for riffle run --session, too

Model holds weights and tokenizer, Context the memory to run it, Session one sequence of tokens.
Model.chat, Model.generate and Model.read use a context of their own. Answers are read piece by
piece or whole (Answer). Failures raise Error or one of its subclasses, with the library's text.
Each object can be closed, or used with `with`. An object keeps open what it was made from.

A model may be used by several threads. A context and its sessions belong to one call at a time.
"""

from __future__ import annotations

import ctypes
import difflib
import json
import numbers
import os
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from . import _structs as C
from ._answer import Answer, reasoning_of
from ._library import (
    Aborted,
    BadArgument,
    BadModel,
    BadSession,
    ContextFull,
    Error,
    FileError,
    Handle,
    OutOfMemory,
    ProgressCallback,
    Unsupported,
    Watch,
    bool_argument,
    check,
    filled,
    lib,
    shown,
    str_argument,
    text_argument,
    token_argument,
    tokens_argument,
    tokens_array,
)
from ._messages import Message, continued_text, messages_of

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    class GenerateOptions(TypedDict, total=False):
        """How an answer is drawn. What is left out, or None, has the library's default.

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
        xtc_probability: float  # how often a draw leaves out the likeliest tokens; 0: off
        xtc_threshold: float  # of the tokens this probable only the least likely stays
        dry_multiplier: float  # tokens that continue a repetition become less likely; 0: off
        dry_base: float  # factor of DRY's penalty for each token that a repetition is longer
        dry_allowed_length: int  # tokens of the shortest repetition that has a penalty
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
        reasoning: int  # 0, 1, 2: none, allowed, begun. With a grammar; chat and ask set it


__version__: str = lib.riffle_version().decode()

Path = Union[str, "os.PathLike[str]"]
#: A word, a number or a bool: what the setting takes.
SettingValue = Union[str, int, float, bool]


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a model."""

    name: str
    architecture: str
    format: str
    weight_type: str
    rope_scaling: str
    chat_template: str
    chat_template_name: str
    reasoning_begin: str
    reasoning_end: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dim: int
    hidden_dim: int
    vocab_size: int
    n_ctx_train: int
    n_params: int
    weight_bytes: int
    bos_id: int
    eos_id: int
    sliding_window: int
    n_experts: int
    n_experts_used: int
    chat_thinking: bool
    text_part: bool


class _Closable:
    """A handle that is closed at the end of `with`, or with the object."""

    _handle: Handle

    def _own(self, handle: Handle) -> None:
        self._handle = handle
        weakref.finalize(self, handle.close)

    def close(self) -> None:
        """Frees it, and what was made from it. It may be called again."""
        self._handle.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _settings() -> dict[str, Any]:
    """The settings of a context and its selection, by the names that riffle's JSON output uses and
    by those of riffle.h."""
    found: dict[str, Any] = {}
    index = 0
    while setting := lib.riffle_setting_at(index):
        s = setting.contents
        if s.options in (C.OPTIONS_CONTEXT, C.OPTIONS_SELECTION):
            found.setdefault(s.json.decode() or s.id.decode(), setting)
            found.setdefault(s.id.decode().split(".")[-1], setting)
        index += 1
    return found


#: What llama-cpp-python calls a setting, and what to use here.
OTHER_NAMES = {
    "n_gpu_layers": "use device='cuda' or device='cpu'; gpu_mem='12G' limits the GPU memory",
    "main_gpu": "set the environment variable CUDA_VISIBLE_DEVICES",
    "n_batch": "use prefill_chunk",
    "n_ubatch": "use prefill_chunk",
    "n_threads_batch": "use threads",
    "chat_format": "use chat_template",
    "type_k": "use kv",
    "type_v": "use kv",
    "verbose": "leave it out: riffle prints nothing",
    "seed": "use the seed of chat, generate and ask",
    "use_mmap": "leave it out: riffle maps the weights",
    "use_mlock": "leave it out: riffle maps the weights",
    "flash_attn": "leave it out: riffle's attention needs no switch",
    "logits_all": "use logprobs=True of chat, generate and ask",
}


def bytes_of(text: str) -> int | None:
    """A size such as 12G or 1.5G, as on the command line; None: the text is no size."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(?:([kmgt])(?:i?b)?)?", text, re.I | re.A)
    if not found:
        return None
    size = float(found[1]) * 2.0 ** (10 * " kmgt".index((found[2] or " ").lower()))
    if size >= 2.0**63 or (not found[2] and not size.is_integer()):
        return None
    return int(size)


def _set(options: C.ContextOptions, name: str, value: SettingValue) -> None:
    settings = _settings()
    setting = settings.get(name)
    if setting is None:
        near = difflib.get_close_matches(name, settings, 1)
        raise TypeError(
            f"unknown setting {name!r}; "
            + (
                OTHER_NAMES[name]
                if name in OTHER_NAMES
                else f"did you mean {near[0]!r}?"
                if near
                else "riffle.settings() lists all"
            )
        )
    s = setting.contents
    words = s.words.decode().split("|") if s.words else []
    if not isinstance(value, (str, numbers.Real)):
        raise TypeError(f"{name}: found {shown(value)}, expected a str, a number or a bool")
    is_size = s.id in (b"gpu_mem", b"host_mem")
    is_bool = s.type == C.MEMBER_BOOL and not words
    if is_bool:
        bool_argument(name, value)
    number: Any = value
    if isinstance(value, str) and value in words and not words[0].isdigit():
        number = s.low + words.index(value)
    elif isinstance(value, str) and is_size:
        number = bytes_of(value)
    target = options.selection if s.options == C.OPTIONS_SELECTION else options
    if not isinstance(number, numbers.Real) or not lib.riffle_setting_set(
        setting, ctypes.byref(target), float(number)
    ):
        expected = s.range.decode()
        if words and not words[0].isdigit():
            expected = ", ".join(words[:-1]) + f" or {words[-1]}"
        elif is_size:
            expected = "a number of bytes, or a text such as '12G'"
        elif isinstance(value, str):
            what = "a number of tokens" if s.id == b"n_ctx" else "a number"
            expected = f"{what}: {expected}"
        raise BadArgument(f"{name}: found {value!r}, expected {expected}", C.BAD_ARGUMENT)


def settings() -> dict[str, str]:
    """The settings that Model and Context take as keyword arguments, and what each does."""
    return {name: s.contents.help.decode() for name, s in _settings().items() if s.contents.help}


class Model(_Closable):
    """Weights and tokenizer of a GGUF file or a Hugging Face folder.

    chat_template: the name of a format, in place of the model's own template.
    weights: a type that the weights are converted to while loading, such as "q4_k_m".
    convert_threads: threads for that; 0: one per core.
    progress: called with (phase, done, total), in another thread; it may return False to stop.
    settings: of the context that chat, generate and read use: device, n_ctx, threads, selector, kv,
    gpu_mem, ... (settings() lists them).
    """

    def __init__(
        self,
        path: Path,
        *,
        chat_template: str | None = None,
        weights: str | None = None,
        convert_threads: int = 0,
        progress: ProgressCallback | None = None,
        **settings: SettingValue,
    ):
        context_options = filled(C.ContextOptions)
        for name, value in settings.items():  # a wrong setting is an error before loading
            _set(context_options, name, value)
        options = filled(C.ModelOptions)
        watch = Watch(progress)
        options.progress = watch.fn
        if chat_template is not None:
            options.chat_template = text_argument("chat_template", chat_template)
        if weights is not None:
            options.weights = text_argument("weights", weights)
        options.n_threads = convert_threads
        text = ctypes.create_string_buffer(1024)
        pointer, code = watch.make(
            lambda model: lib.riffle_model_load(
                os.fsencode(path), ctypes.byref(options), model, text, len(text)
            ),
            lib.riffle_model_free,
        )
        check(code, text.value)
        self._own(Handle(pointer, lib.riffle_model_free))
        self._settings = settings
        self._context: Context | None = None
        self._session: Session | None = None
        self._lock = threading.Lock()

    def _check(self, code: int) -> None:
        check(code, lib.riffle_model_error(self._handle.pointer))

    @property
    def info(self) -> ModelInfo:
        struct = filled(C.ModelInfo)
        self._check(lib.riffle_model_get_info(self._handle.pointer, ctypes.byref(struct)))
        values: dict[str, Any]
        values = {name: getattr(struct, name) for name in ModelInfo.__dataclass_fields__}
        for name, value in values.items():
            if isinstance(value, bytes):
                values[name] = value.decode("utf-8", "replace")
        return ModelInfo(**values)

    # ---- tokens

    def _filled_tokens(self, call: Any) -> list[int]:
        """Tokens of a function with (tokens, capacity, n): asked for their number first."""
        n = ctypes.c_size_t()
        code = call(None, 0, ctypes.byref(n))
        if code == C.OK:
            return []
        if code != C.BUFFER_TOO_SMALL:
            self._check(code)
        tokens = (ctypes.c_int32 * n.value)()
        self._check(call(tokens, len(tokens), ctypes.byref(n)))
        return list(tokens)

    def tokenize(self, text: str, *, bos: bool = True, special: bool = False) -> list[int]:
        """bos: the beginning-of-sequence token first, if the model's texts have one.
        special: control tokens that the text spells, such as <s>, become those tokens."""
        data = str_argument("text", text).encode()
        bos, special = bool_argument("bos", bos), bool_argument("special", special)
        flags = (C.TOKENIZE_BOS if bos else 0) | (C.TOKENIZE_SPECIAL if special else 0)
        return self._filled_tokens(
            lambda tokens, capacity, n: lib.riffle_tokenize(
                self._handle.pointer, data, len(data), flags, tokens, capacity, n
            )
        )

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of tokens. Control tokens give nothing."""
        array = tokens_array(tokens_argument("tokens", tokens, "a list of token ids"))
        n = ctypes.c_size_t()
        code = lib.riffle_detokenize(
            self._handle.pointer, array, len(array), None, 0, ctypes.byref(n)
        )
        if code == C.OK:
            return ""
        if code != C.BUFFER_TOO_SMALL:
            self._check(code)
        text = ctypes.create_string_buffer(n.value)
        self._check(
            lib.riffle_detokenize(
                self._handle.pointer, array, len(array), text, len(text), ctypes.byref(n)
            )
        )
        return text.raw.decode()

    def piece(self, token: int) -> str:
        """One token as the vocabulary spells it."""
        text = lib.riffle_token_piece(self._handle.pointer, token_argument(token))
        if text is None:
            raise BadArgument(
                f"token: found {token}, expected an id of the vocabulary", C.BAD_ARGUMENT
            )
        return str(text.decode("utf-8", "replace"))

    def is_end_token(self, token: int) -> bool:
        """Whether answers end with this token."""
        return bool(lib.riffle_is_end_token(self._handle.pointer, token_argument(token)))

    def chat_tokens(
        self,
        messages: str | Sequence[Message],
        *,
        thinking: bool | None = None,
        date: str | None = None,
        _inside: ctypes.c_bool | None = None,
    ) -> list[int]:
        """A conversation as tokens, ready for the model to answer, by the model's chat template.

        messages: dicts with role (system, developer, user or assistant) and content. A developer's
        message is a system message. A str is one message of a user. The content is a str, or a
        list of parts such as {"type": "text", "text": "Hi"}; each part becomes a line.
        thinking: whether the model is asked to reason first; None: as the template has it.
        date: today, as "2026-11-23", for templates that ask for it."""
        messages = messages_of(messages)
        array = (C.Message * len(messages))()
        reasoning = (ctypes.c_char_p * len(messages))()
        for i, message in enumerate(messages):
            for key in ("role", "content"):
                setattr(array[i], key, text_argument(f"messages[{i}].{key}", message[key]))
            if message["role"] == "developer":  # templates know it as the system's
                array[i].role = b"system"
            if message.get("reasoning_content"):
                reasoning[i] = text_argument(
                    f"messages[{i}].reasoning_content", message["reasoning_content"]
                )
        options = filled(C.ChatOptions)
        options.reasoning = reasoning
        if thinking is not None:
            on = bool_argument("thinking", thinking)
            options.thinking = C.THINKING_ON if on else C.THINKING_OFF
        if date is not None:
            options.date = text_argument("date", date)
        return self._filled_tokens(
            lambda tokens, capacity, n: lib.riffle_chat_prompt(
                self._handle.pointer,
                array,
                len(array),
                ctypes.byref(options),
                tokens,
                capacity,
                n,
                ctypes.byref(_inside) if _inside is not None else None,
            )
        )

    # ---- running

    def context(
        self, *, progress: ProgressCallback | None = None, **settings: SettingValue
    ) -> Context:
        """A new context with these settings."""
        return Context(self, progress=progress, **settings)

    @property
    def default_context(self) -> Context:
        """The context of chat, generate and read, with the settings given to Model."""
        with self._lock:
            if self._context is None:
                self._context = Context(self, progress=None, **self._settings)
            return self._context

    def _default_session(self) -> Session:
        context = self.default_context
        with self._lock:
            if self._session is None:
                self._session = context.session()
            return self._session

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        thinking: bool | None = None,
        date: str | None = None,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answers a conversation, see chat_tokens. What the last call has read of it is not read
        again. If the last message is an assistant's, the answer continues it; with json_schema,
        grammar or regex, that message and the answer together are a text that fits."""
        return self._default_session().chat(
            messages, thinking=thinking, date=date, progress=progress, **options
        )

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Continues a text, or tokens, without a chat template."""
        return self._default_session().generate(prompt, progress=progress, **options)

    def read(
        self,
        text: str,
        *,
        system: str = "",
        thinking: bool | None = None,
        progress: ProgressCallback | None = None,
    ) -> Document:
        """Reads a document once, for any number of questions. text: the text itself, no path."""
        return Document(
            self.default_context, text, system=system, thinking=thinking, progress=progress
        )

    def load_document(
        self, path: Path, *, thinking: bool | None = None, progress: ProgressCallback | None = None
    ) -> Document:
        """A document that Document.save or `riffle read` has kept."""
        return Document.load(self.default_context, path, thinking=thinking, progress=progress)


class Context(_Closable):
    """Threads, block store and slot pool: what running a model needs.

    settings: see riffle.settings()."""

    def __init__(
        self, model: Model, *, progress: ProgressCallback | None = None, **settings: SettingValue
    ):
        self.model = model
        options = filled(C.ContextOptions)
        for name, value in settings.items():
            _set(options, name, value)
        watch = Watch(progress)
        options.progress = watch.fn
        text = ctypes.create_string_buffer(1024)
        pointer, code = watch.make(
            lambda context: lib.riffle_context_create(
                model._handle.pointer, ctypes.byref(options), context, text, len(text)
            ),
            lib.riffle_context_free,
        )
        check(code, text.value)
        self._own(Handle(pointer, lib.riffle_context_free, model._handle))
        self._busy = threading.Lock()

    def _begin(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise BadArgument(
                "the context is busy with an answer: read it to its end, close it, "
                "or make another context",
                C.BAD_ARGUMENT,
            )

    def _end(self) -> None:
        self._busy.release()

    def _abort(self, abort: bool) -> None:
        lib.riffle_abort(self._handle.pointer, abort)

    def _check(self, code: int) -> None:
        check(code, lib.riffle_context_error(self._handle.pointer))

    @property
    def length(self) -> int:
        """Tokens that a session can hold."""
        return int(lib.riffle_context_length(self._handle.pointer))

    @property
    def notice(self) -> str:
        """What a user should know, such as a length below the trained one; "" if nothing."""
        return str(lib.riffle_context_notice(self._handle.pointer).decode("utf-8", "replace"))

    def stats(self) -> dict[str, float]:
        """Counters and times since the context was made, as in riffle_stats."""
        stats = filled(C.Stats)
        self._check(lib.riffle_get_stats(self._handle.pointer, ctypes.byref(stats)))
        return {
            name: getattr(stats, name) for name, *_ in C.Stats._fields_ if name != "struct_size"
        }

    def session(self) -> Session:
        """A new, empty session."""
        pointer = ctypes.c_void_p()
        self._check(lib.riffle_session_create(self._handle.pointer, ctypes.byref(pointer)))
        return Session(self, pointer)

    def load(self, path: Path, *, progress: ProgressCallback | None = None) -> Session:
        """A session that Session.save has kept. Its `data` is what was kept beside it."""
        pointer, text = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        check(
            lib.riffle_session_file_open(os.fsencode(path), ctypes.byref(pointer), text, len(text)),
            text.value,
        )
        file = Handle(pointer, lib.riffle_session_file_free)
        try:
            info = filled(C.SessionFileInfo)
            check(lib.riffle_session_file_get_info(file.pointer, ctypes.byref(info)), None)
            data = ctypes.string_at(info.data, info.data_size) if info.data else b""
            watch = Watch(progress)
            self._begin()
            try:
                made, code = watch.make(
                    lambda session: lib.riffle_session_load(
                        self._handle.pointer, file.pointer, session, watch.fn, None
                    ),
                    lib.riffle_session_free,
                    self._abort,
                )
                self._check(code)
            finally:
                self._end()
        finally:
            file.close()
        return Session(self, made, data)


class Session(_Closable):
    """One sequence of tokens with its keys and values. Context.session makes one."""

    def __init__(self, context: Context, pointer: ctypes.c_void_p, data: bytes = b""):
        self.context = context
        #: What Session.save kept beside it in the file that it was loaded from.
        self.data = data
        self._own(Handle(pointer, lib.riffle_session_free, context._handle))

    @property
    def n_tokens(self) -> int:
        """Tokens that the session holds."""
        return int(lib.riffle_session_length(self._handle.pointer))

    def _call(self, call: Any, watch: Watch | None = None) -> None:
        self.context._begin()
        try:
            code = watch.run(call, self.context._abort) if watch is not None else call()
            self.context._check(code)
        finally:
            self.context._end()

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.context.model.tokenize(prompt)
        return tokens_argument("prompt", prompt, "a str or a list of tokens")

    def prefill(
        self, prompt: str | Sequence[int], *, progress: ProgressCallback | None = None
    ) -> None:
        """Makes the session hold exactly this text or these tokens. It keeps the longest beginning
        that it holds already, and reads the rest."""
        tokens, watch = tokens_array(self._tokens(prompt)), Watch(progress)
        self._call(
            lambda: lib.riffle_prefill_to(
                self._handle.pointer, tokens, len(tokens), watch.fn, None
            ),
            watch,
        )

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Continues a text, or tokens. Only what the session does not hold yet is read."""
        return Answer(self, self._tokens(prompt), dict(options), progress)

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        thinking: bool | None = None,
        date: str | None = None,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answers a conversation, as Model.chat does. Only what the session does not hold yet is
        read."""
        messages = messages_of(messages)
        model, inside = self.context.model, ctypes.c_bool()
        tokens = model.chat_tokens(messages, thinking=thinking, date=date, _inside=inside)
        begun = "" if inside.value else continued_text(messages, model.info.reasoning_end)
        # White space behind text that is continued belongs to the answer.
        options.setdefault("trim_start", not begun)
        given = {"reasoning": reasoning_of(inside.value, thinking), "_begun": begun, **options}
        return Answer(self, tokens, given, progress)

    def truncate(self, n_tokens: int) -> None:
        """Keeps the first n_tokens."""
        if n_tokens < 0:
            raise BadArgument(f"n_tokens: found {n_tokens}, expected 0 or more", C.BAD_ARGUMENT)
        self._call(lambda: lib.riffle_session_truncate(self._handle.pointer, n_tokens))

    def fork(self, n_tokens: int | None = None) -> Session:
        """A new session that holds the first n_tokens; None: all."""
        pointer, n = ctypes.c_void_p(), self.n_tokens if n_tokens is None else n_tokens
        if n < 0:
            raise BadArgument(f"n_tokens: found {n}, expected 0 or more", C.BAD_ARGUMENT)
        self._call(lambda: lib.riffle_session_fork(self._handle.pointer, n, ctypes.byref(pointer)))
        return Session(self.context, pointer)

    def save(
        self, path: Path, *, data: bytes = b"", progress: ProgressCallback | None = None
    ) -> None:
        """Keeps the session in a file that only its owner can read. data: kept beside it."""
        options, watch = filled(C.SaveOptions), Watch(progress)
        kept = ctypes.create_string_buffer(data, len(data)) if data else None
        if kept is not None:
            options.data, options.data_size = ctypes.cast(kept, ctypes.c_void_p), len(data)
        options.progress = watch.fn
        self._call(
            lambda: lib.riffle_session_save(
                self._handle.pointer, os.fsencode(path), ctypes.byref(options)
            ),
            watch,
        )


def document_text(text: Any) -> None:
    """Refuses what is no text, with a hint at how it becomes one."""
    if isinstance(text, str):
        return
    found, hint = shown(text), ""
    if isinstance(text, os.PathLike):
        hint = "; use path.read_text()"
    elif hasattr(text, "read"):
        hint = "; use file.read()"
    elif isinstance(text, (bytes, bytearray)):
        hint = "; use text.decode()"
    if isinstance(text, os.PathLike) or hasattr(text, "read"):
        kind = type(text).__name__
        found = f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
    raise TypeError(f"text: found {found}, expected str (the text itself{hint})")


class Document:
    """A text that is read once and asked about often. Model.read makes one.

    Each question goes behind the text, in one message if the model has a chat template. Answers do
    not depend on earlier questions."""

    def __init__(
        self,
        context: Context,
        text: str,
        *,
        system: str = "",
        thinking: bool | None = None,
        progress: ProgressCallback | None = None,
    ):
        self._describe(context, text, system, bool(context.model.info.chat_template_name), thinking)
        self._session = context.session()
        self._session.prefill(self._beginning(), progress=progress)

    def _describe(
        self, context: Context, text: str, system: str, message: bool, thinking: bool | None
    ) -> None:
        document_text(text)
        str_argument("system", system)
        if thinking is not None:
            bool_argument("thinking", thinking)
        if not text:
            raise BadArgument("text: found an empty document, expected text", C.BAD_ARGUMENT)
        if system and not message:
            raise BadArgument(
                "system: the model has no chat template; Model(chat_template=...) " "names one",
                C.BAD_ARGUMENT,
            )
        self.context = context
        #: The document.
        self.text = text
        self._system, self._message, self._thinking = system, message, thinking
        self._inside = ctypes.c_bool()  # whether the last prompt ended inside of reasoning

    def _prompt(self, question: str) -> list[int]:
        text = self.text.rstrip("\r\n") + "\n" + question
        if not self._message:
            return self.context.model.tokenize(text)
        messages = [{"role": "system", "content": self._system}] if self._system else []
        return self.context.model.chat_tokens(
            messages + [{"role": "user", "content": text}],
            thinking=self._thinking,
            _inside=self._inside,
        )

    def _beginning(self) -> list[int]:
        """The tokens that all questions have in common, as `riffle read` finds them."""
        prompts = [self._prompt(question) for question in ("What", "1", "\u00bf", "the")]
        return list(os.path.commonprefix(prompts))

    @classmethod
    def load(
        cls,
        context: Context,
        path: Path,
        *,
        thinking: bool | None = None,
        progress: ProgressCallback | None = None,
    ) -> Document:
        """A document that Document.save or `riffle read` has kept."""
        session = context.load(path, progress=progress)
        try:
            kept = json.loads(session.data)
            if kept["riffle"] != 1 or kept["kind"] != "document":
                raise KeyError(kept["kind"])
            text, system, message = kept["document"], kept["system"], kept["message"]
        except (ValueError, KeyError, TypeError):
            session.close()
            raise BadSession(
                f"{os.fspath(path)}: expected a document of Document.save or riffle "
                "read; Context.load opens other sessions",
                C.BAD_SESSION,
            ) from None
        document = cls.__new__(cls)
        document._describe(context, text, system, message, thinking)
        document._session = session
        return document

    @property
    def n_tokens(self) -> int:
        """Tokens that were read."""
        return self._session.n_tokens

    def ask(
        self,
        question: str,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answers a question about the document."""
        tokens = self._prompt(str_argument("question", question))
        options.setdefault("trim_start", self._message)
        try:
            session, own = self._session.fork(), True
        except (
            Unsupported
        ):  # selectors that cannot fork: the document's session goes back and forth
            session, own = self._session, False
        if self._message:
            options = {"reasoning": reasoning_of(self._inside.value, self._thinking), **options}
        return Answer(session, tokens, dict(options), progress, close_session=own)

    def save(self, path: Path, *, progress: ProgressCallback | None = None) -> None:
        """Keeps what was read in a file that only its owner can read, for Model.load_document and
        `riffle run --session`."""
        data = {
            "riffle": 1,
            "kind": "document",
            "message": self._message,
            "system": self._system,
            "document": self.text,
        }
        self._session.save(
            path, data=json.dumps(data, ensure_ascii=False).encode(), progress=progress
        )

    def close(self) -> None:
        """Frees what was read."""
        self._session.close()

    def __enter__(self) -> Document:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


__all__ = [
    "Aborted",
    "Answer",
    "BadArgument",
    "BadModel",
    "BadSession",
    "Context",
    "ContextFull",
    "Document",
    "Error",
    "FileError",
    "Message",
    "Model",
    "ModelInfo",
    "OutOfMemory",
    "Session",
    "Unsupported",
    "settings",
]
