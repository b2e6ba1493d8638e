"""riffle: language models on very long texts.

    import riffle

    with riffle.Model("model.gguf") as model:
        for piece in model.chat([{"role": "user", "content": "Hello"}]):
            print(piece, end="", flush=True)

        with model.read_file("report.txt") as document:           # read once
            print(document.ask("What was decided?"))
            print(document.ask("By whom?", max_tokens=100))
            document.save("report.kv")                            # for riffle run --session, too

Model holds weights and tokenizer, Context the memory to run it, Session one sequence of tokens.
Model.chat, Model.generate and Model.read use a context of their own. Answers are read piece by
piece or whole (Answer). Failures raise Error or one of its subclasses, with the library's text.
Each object can be closed, or used with `with`. An object keeps its parent open.

Models and contexts may be used by several threads. A context runs one call at a time. Other calls
wait for their turn, in order of arrival. A call that cannot wait raises Busy.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _structs as C
from ._answer import Answer
from ._document import Document
from ._engine import Engine, Reply
from ._library import (
    Aborted,
    BadArgument,
    BadModel,
    BadSession,
    Busy,
    ContextFull,
    Error,
    FileError,
    Handle,
    OutOfMemory,
    Path,
    ProgressCallback,
    Unsupported,
    Watch,
    bool_argument,
    check,
    facts,
    lib,
    str_argument,
    text_argument,
    token_argument,
    tokens_argument,
    tokens_array,
)
from ._options import Thinking
from ._prompt import ChatPrompt, Message, Prompt, ToolCall
from ._prompt import chat_tokens as _chat_tokens
from ._prompt import split_options
from ._settings import Options, set_setting, settings
from ._settings import SettingValue as SettingValue
from ._turns import Turns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import GenerateOptions as GenerateOptions
    from ._prompt import AnswerOptions as AnswerOptions

__version__: str = lib.riffle_version().decode()


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
    qk_norm: str
    n_window_layers: int
    n_recurrent_layers: int
    state_bytes: int
    n_expert_layers: int
    logit_softcap: float
    attention_sinks: bool
    attention_gate: bool
    chat_effort: bool


class _Closable:
    """A handle that is closed at the end of `with`, or with the object."""

    _handle: Handle

    def _own(self, handle: Handle) -> None:
        self._handle = handle
        weakref.finalize(self, handle.close)

    def close(self) -> None:
        """Frees it, and the objects made from it. It may be called again."""
        self._handle.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Model(_Closable):
    """Weights and tokenizer of a GGUF file, a folder with one, or a Hugging Face folder.

    chat_template: the name of a format, in place of the model's own template.
    weights: a type that the weights are converted to while loading, such as "q4_k_m".
    convert_threads: threads for that; 0: one for each core that the process may use.
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
        context_options = Options()
        for name, value in settings.items():  # a wrong setting is an error before loading
            set_setting(context_options, name, value)
        options, watch = Options(), Watch(progress)
        options.set_progress(watch.fn)
        if chat_template is not None:
            text_argument("chat_template", chat_template)
            options.set("chat-template", chat_template)
        if weights is not None:
            text_argument("weights", weights)
            options.set("weights", weights)
        options.set("threads", convert_threads, "convert_threads")
        text = ctypes.create_string_buffer(1024)
        pointer, code = watch.make(
            lambda model: lib.riffle_model_load(
                os.fsencode(path), options.pointer, model, text, len(text)
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
        found = facts(lib.riffle_model_info(self._handle.pointer))
        return ModelInfo(**{name: found[name] for name in ModelInfo.__dataclass_fields__})

    # ---- tokens

    def _filled_tokens(self, call: Any, guess: int) -> list[int]:
        """Tokens of a function with (tokens, capacity, n). guess: their number, or more."""
        n = ctypes.c_size_t()
        tokens = (ctypes.c_int32 * guess)()
        code = call(tokens, len(tokens), ctypes.byref(n))
        if code == C.BUFFER_TOO_SMALL:
            tokens = (ctypes.c_int32 * n.value)()
            code = call(tokens, len(tokens), ctypes.byref(n))
        self._check(code)
        return list(tokens[: n.value])

    def tokenize(self, text: str, *, bos: bool = True, special: bool = False) -> list[int]:
        """bos: the beginning-of-sequence token first, if the model's texts have one.
        special: control tokens that the text spells, such as <s>, become those tokens."""
        data = str_argument("text", text).encode()
        bos, special = bool_argument("bos", bos), bool_argument("special", special)
        flags = (C.TOKENIZE_BOS if bos else 0) | (C.TOKENIZE_SPECIAL if special else 0)
        return self._filled_tokens(
            lambda tokens, capacity, n: lib.riffle_tokenize(
                self._handle.pointer, data, len(data), flags, tokens, capacity, n
            ),
            len(data) + 2,
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
        """Tells whether answers end with this token."""
        return bool(lib.riffle_is_end_token(self._handle.pointer, token_argument(token)))

    def chat_tokens(
        self,
        messages: str | Sequence[Message],
        *,
        thinking: Thinking = None,
        date: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """A conversation as tokens, ready for the model to answer, by the model's chat template.

        messages: as in OpenAI's API: dicts with role (system, developer, user, assistant or tool)
        and content. A str is one message of a user. The content is a str, or a list of parts such
        as {"type": "text", "text": "Hi"}; each part becomes a line. If the template refuses the
        messages, neighbours of one role are joined, and system messages become the user's.
        thinking: whether the model is asked to reason first; None: the template decides. "low",
        "medium" or "high" also sets how long, if the template asks for reasoning_effort.
        date: today, as "2026-11-23", for templates that ask for it.
        tools: functions that the model may call."""
        return _chat_tokens(self, messages, {"thinking": thinking, "date": date, "tools": tools})

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
        if self._session is None:
            session = context.session()  # may wait: not with the lock
            with self._lock:
                if self._session is None:
                    self._session = session
            if self._session is not session:
                session.close()
        return self._session

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        """Answers a conversation, see chat_tokens. The part that the last call has read is not read
        again. If the last message is an assistant's, the answer continues it; with json_schema,
        grammar or regex, that message and the answer together are a text that fits.

        tools, tool_choice, parallel_tool_calls: as in OpenAI's API. Answer.tool_calls has the
        calls, Answer.message the message to append to the conversation."""
        return self._default_session().chat(messages, progress=progress, **options)

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
        thinking: Thinking = None,
        progress: ProgressCallback | None = None,
    ) -> Document:
        """Reads a document once, for any number of questions. text: the text itself. For the
        name of a file, use read_file."""
        return Document(
            self.default_context, text, system=system, thinking=thinking, progress=progress
        )

    def read_file(
        self,
        path: Path,
        *,
        system: str = "",
        thinking: Thinking = None,
        progress: ProgressCallback | None = None,
    ) -> Document:
        """Reads a document from a file of UTF-8 text, as read does."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except UnicodeDecodeError as error:
            raise BadArgument(
                f"{os.fspath(path)!s}: byte {error.start + 1} is not UTF-8, expected a text file",
                C.BAD_TEXT,
            ) from None
        return self.read(text, system=system, thinking=thinking, progress=progress)

    def load_document(
        self, path: Path, *, thinking: Thinking = None, progress: ProgressCallback | None = None
    ) -> Document:
        """A document that Document.save or `riffle read` has kept."""
        return Document.load(self.default_context, path, thinking=thinking, progress=progress)


class Context(_Closable):
    """The resources that run a model: threads, block store and slot pool.

    settings: see riffle.settings()."""

    def __init__(
        self, model: Model, *, progress: ProgressCallback | None = None, **settings: SettingValue
    ):
        self.model = model
        options, watch = Options(), Watch(progress)
        for name, value in settings.items():
            set_setting(options, name, value)
        options.set_progress(watch.fn)
        text = ctypes.create_string_buffer(1024)
        pointer, code = watch.make(
            lambda context: lib.riffle_context_create(
                model._handle.pointer, options.pointer, context, text, len(text)
            ),
            lib.riffle_context_free,
        )
        check(code, text.value)
        self._turns = turns = Turns()

        def free(context: ctypes.c_void_p) -> None:
            turns.drain()  # turns of its sessions
            lib.riffle_context_free(context)

        handle = Handle(pointer, free, model._handle)
        handle.before_close = lambda: turns.close(
            lambda abort: lib.riffle_abort(pointer, abort)
        )
        self._own(handle)

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
        """Returns a notice for the user, such as a length below the trained one; "" if there is
        none."""
        return str(lib.riffle_context_notice(self._handle.pointer).decode("utf-8", "replace"))

    def stats(self) -> dict[str, float]:
        """Counters and times since the context was made, as riffle_context_stats lists them."""
        stats = lib.riffle_context_stats(self._handle.pointer)
        if not stats:
            raise MemoryError
        return facts(stats)

    def session(self) -> Session:
        """A new, empty session."""
        pointer = ctypes.c_void_p()
        self._call(lambda: lib.riffle_session_create(self._handle.pointer, ctypes.byref(pointer)))
        return Session(self, pointer)

    def _call(self, call: Callable[[], int], watch: Watch | None = None) -> None:
        """Waits for its turn, then calls the library."""

        def run() -> int:
            self._turns.enter()
            return call()

        self._turns.run(
            lambda: self._check(watch.run(run, self._abort) if watch is not None else run())
        )

    def load(self, path: Path, *, progress: ProgressCallback | None = None) -> Session:
        """Loads a session that Session.save has saved, with the `data` that was saved with it."""
        pointer, text = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        check(
            lib.riffle_session_file_open(os.fsencode(path), ctypes.byref(pointer), text, len(text)),
            text.value,
        )
        file = Handle(pointer, lib.riffle_session_file_free)
        try:
            n = ctypes.c_size_t()
            kept = lib.riffle_session_file_data(file.pointer, ctypes.byref(n))
            data = ctypes.string_at(kept, n.value) if kept else b""
            watch = Watch(progress)

            def load(session: Any) -> int:
                self._turns.enter()
                code: int = lib.riffle_session_load(
                    self._handle.pointer, file.pointer, session, watch.fn, None
                )
                return code

            def turn() -> ctypes.c_void_p:
                made, code = watch.make(load, lib.riffle_session_free, self._abort)
                self._check(code)
                return made

            made = self._turns.run(turn)
        finally:
            file.close()
        return Session(self, made, data)


class Session(_Closable):
    """One sequence of tokens with its keys and values. Context.session makes one."""

    def __init__(self, context: Context, pointer: ctypes.c_void_p, data: bytes = b""):
        self.context = context
        #: Data that Session.save kept in the file from which the session was loaded.
        self.data = data
        turns = context._turns
        self._own(
            Handle(
                pointer,
                lambda session: turns.free(lambda: lib.riffle_session_free(session)),
                context._handle,
            )
        )

    @property
    def n_tokens(self) -> int:
        """Tokens that the session holds."""
        return int(lib.riffle_session_length(self._handle.pointer))

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
        self.context._call(
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
        tokens = self._tokens(prompt)
        return Answer(self, Prompt.of_tokens(self.context.model, tokens, options), progress)

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        """Answers a conversation, as Model.chat does. Only what the session does not hold yet is
        read."""
        prompt = ChatPrompt(self.context.model, messages, *split_options(options))
        return Answer(self, prompt, progress)

    def truncate(self, n_tokens: int) -> None:
        """Keeps the first n_tokens."""
        if n_tokens < 0:
            raise BadArgument(f"n_tokens: found {n_tokens}, expected 0 or more", C.BAD_ARGUMENT)
        self.context._call(lambda: lib.riffle_session_truncate(self._handle.pointer, n_tokens))

    def fork(self, n_tokens: int | None = None) -> Session:
        """A new session that holds the first n_tokens; None: all."""
        pointer, n = ctypes.c_void_p(), self.n_tokens if n_tokens is None else n_tokens
        if n < 0:
            raise BadArgument(f"n_tokens: found {n}, expected 0 or more", C.BAD_ARGUMENT)
        self.context._call(
            lambda: lib.riffle_session_fork(self._handle.pointer, n, ctypes.byref(pointer))
        )
        return Session(self.context, pointer)

    def save(
        self, path: Path, *, data: bytes = b"", progress: ProgressCallback | None = None
    ) -> None:
        """Keeps the session in a file that only its owner can read. data: saved with it."""
        options, watch = Options(), Watch(progress)
        options.set_progress(watch.fn)
        self.context._call(
            lambda: lib.riffle_session_save(
                self._handle.pointer,
                os.fsencode(path),
                0,
                data or None,
                len(data),
                None,
                options.pointer,
            ),
            watch,
        )


__all__ = [
    "Aborted",
    "Answer",
    "BadArgument",
    "BadModel",
    "BadSession",
    "Busy",
    "Context",
    "ContextFull",
    "Document",
    "Engine",
    "Error",
    "FileError",
    "Message",
    "Model",
    "ModelInfo",
    "OutOfMemory",
    "Reply",
    "Session",
    "ToolCall",
    "Unsupported",
    "settings",
]
