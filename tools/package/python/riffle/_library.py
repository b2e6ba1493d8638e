"""libriffle.so: where it is found, the types of its functions, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import operator
import os
import pathlib
import queue
import threading
from collections.abc import Iterable, Mapping
from ctypes import (
    POINTER,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Callable, Union

from . import _structs as C

Path = Union[str, "os.PathLike[str]"]

CREATE: list[Any] = [POINTER(c_void_p), POINTER(c_char), c_size_t]  # the handle, and an error's text

# Result and arguments of each function, as the headers declare them.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "riffle_version": (c_char_p, []),
    "riffle_status_name": (c_char_p, [c_int]),
    "riffle_options_create": (c_void_p, []),
    "riffle_options_copy": (c_void_p, [c_void_p]),
    "riffle_options_free": (None, [c_void_p]),
    "riffle_options_set": (c_int, [c_void_p, c_char_p, c_char_p]),
    "riffle_options_get": (c_char_p, [c_void_p, c_char_p]),
    "riffle_options_error": (c_char_p, [c_void_p]),
    "riffle_options_set_progress": (None, [c_void_p, C.ProgressFn, c_void_p]),
    "riffle_options_set_stop": (c_int, [c_void_p, POINTER(c_char_p), c_size_t]),
    "riffle_options_set_breakers": (c_int, [c_void_p, POINTER(c_char_p), c_size_t]),
    "riffle_options_set_logit_bias": (c_int, [c_void_p, POINTER(C.LogitBias), c_size_t]),
    "riffle_options_set_grammar": (c_int, [c_void_p, c_void_p]),
    "riffle_info_name": (c_char_p, [c_void_p, c_size_t]),
    "riffle_info_kind_of": (c_int, [c_void_p, c_char_p]),
    "riffle_info_number": (c_double, [c_void_p, c_char_p]),
    "riffle_info_text": (c_char_p, [c_void_p, c_char_p]),
    "riffle_setting_at": (c_void_p, [c_size_t]),
    "riffle_model_load": (c_int, [c_char_p, c_void_p, *CREATE]),
    "riffle_model_free": (None, [c_void_p]),
    "riffle_model_error": (c_char_p, [c_void_p]),
    "riffle_model_info": (c_void_p, [c_void_p]),
    "riffle_tokenize": (
        c_int,
        [c_void_p, c_char_p, c_size_t, c_uint32, POINTER(c_int32), c_size_t, POINTER(c_size_t)],
    ),
    "riffle_detokenize": (
        c_int,
        [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_char), c_size_t, POINTER(c_size_t)],
    ),
    "riffle_token_piece": (c_char_p, [c_void_p, c_int32]),
    "riffle_is_end_token": (c_bool, [c_void_p, c_int32]),
    "riffle_document_question": (
        c_int,
        [c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_char), c_size_t, POINTER(c_size_t)],
    ),
    "riffle_document_tokens": (
        c_int,
        [
            c_void_p,
            c_char_p,
            c_size_t,
            c_char_p,
            c_bool,
            c_void_p,
            POINTER(c_int32),
            c_size_t,
            POINTER(c_size_t),
        ],
    ),
    "riffle_context_create": (c_int, [c_void_p, c_void_p, *CREATE]),
    "riffle_context_free": (None, [c_void_p]),
    "riffle_context_error": (c_char_p, [c_void_p]),
    "riffle_context_length": (c_size_t, [c_void_p]),
    "riffle_context_notice": (c_char_p, [c_void_p]),
    "riffle_context_stats": (c_void_p, [c_void_p]),
    "riffle_abort": (None, [c_void_p, c_bool]),
    "riffle_session_create": (c_int, [c_void_p, POINTER(c_void_p)]),
    "riffle_session_free": (None, [c_void_p]),
    "riffle_session_length": (c_size_t, [c_void_p]),
    "riffle_session_truncate": (c_int, [c_void_p, c_size_t]),
    "riffle_session_fork": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "riffle_prefill_to": (c_int, [c_void_p, POINTER(c_int32), c_size_t, C.ProgressFn, c_void_p]),
    "riffle_session_save": (
        c_int,
        [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_uint64), c_void_p],
    ),
    "riffle_session_file_open": (c_int, [c_char_p, *CREATE]),
    "riffle_session_file_free": (None, [c_void_p]),
    "riffle_session_file_data": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "riffle_session_load": (c_int, [c_void_p, c_void_p, POINTER(c_void_p), C.ProgressFn, c_void_p]),
    "riffle_generate": (c_int, [c_void_p, c_void_p, C.TokenFn, c_void_p, POINTER(C.Result)]),
    "riffle_context_fingerprint": (c_int, [c_void_p, POINTER(c_uint64)]),
    "riffle_plan_memory": (c_int, [c_void_p, c_void_p, *CREATE]),
    "riffle_info_free": (None, [c_void_p]),
    "riffle_plan_scheduler": (c_int, [c_void_p, c_void_p, c_int32]),
    "riffle_scheduler_create": (c_int, [c_void_p, c_void_p, c_void_p, POINTER(c_void_p)]),
    "riffle_scheduler_free": (None, [c_void_p]),
    "riffle_scheduler_on_token": (None, [c_void_p, C.RequestTokenFn]),
    "riffle_scheduler_on_end": (None, [c_void_p, C.RequestEndFn]),
    "riffle_scheduler_submit": (
        c_int,
        [c_void_p, POINTER(c_int32), c_size_t, c_void_p, POINTER(c_uint64)],
    ),
    "riffle_scheduler_cancel": (c_int, [c_void_p, c_uint64]),
    "riffle_scheduler_step": (c_int, [c_void_p]),
    "riffle_scheduler_iteration": (c_void_p, [c_void_p]),
    "riffle_prefix_cache_open": (c_int, [c_char_p, c_uint64, *CREATE]),
    "riffle_prefix_cache_free": (None, [c_void_p]),
    "riffle_prefix_cache_info": (c_void_p, [c_void_p]),
    "riffle_scheduler_use_prefix_cache": (c_int, [c_void_p, c_void_p, c_int]),
    "riffle_request_create": (
        c_int,
        [c_int, c_char_p, c_size_t, c_void_p, c_uint32, *CREATE],
    ),
    "riffle_request_prepare": (c_int, [c_void_p, c_void_p, POINTER(c_char), c_size_t]),
    "riffle_request_free": (None, [c_void_p]),
    "riffle_request_refusal": (c_void_p, [c_void_p]),
    "riffle_request_info": (c_void_p, [c_void_p]),
    "riffle_request_tokens": (POINTER(c_int32), [c_void_p, c_size_t, POINTER(c_size_t)]),
    "riffle_request_options": (c_void_p, [c_void_p, c_size_t]),
    "riffle_request_drop_prompts": (None, [c_void_p]),
    "riffle_request_set_names": (c_int, [c_void_p, c_char_p, c_char_p]),
    "riffle_request_token": (c_int, [c_void_p, c_size_t, POINTER(C.Token), POINTER(C.Json)]),
    "riffle_request_part": (c_int, [c_void_p, POINTER(C.AnswerPart)]),
    "riffle_request_end": (
        c_int,
        [c_void_p, c_size_t, POINTER(C.Result), c_size_t, POINTER(C.Json)],
    ),
    "riffle_request_usage": (c_int, [c_void_p, POINTER(C.Json)]),
    "riffle_request_response": (c_int, [c_void_p, POINTER(C.Json)]),
    "riffle_request_answer": (c_void_p, [c_void_p, c_size_t]),
    "riffle_request_call": (c_bool, [c_void_p, c_size_t, c_size_t, POINTER(C.ToolCall)]),
    "riffle_random_seed": (c_uint64, []),
    "riffle_options_set_names": (None, [c_void_p, C.SettingNameFn]),
    "riffle_nearest_word": (c_char_p, [c_char_p, POINTER(c_char_p), c_size_t]),
    "riffle_grammar_create": (c_int, [c_void_p, c_int, c_char_p, c_size_t, *CREATE]),
    "riffle_grammar_free": (None, [c_void_p]),
}


#: Machines of ELF files (e_machine), by the names that os.uname() uses.
MACHINES = {62: "x86_64", 183: "aarch64"}


def _machine_of(path: str) -> str:
    """Returns the machine that a library is for; this one, if the file says none."""
    here = os.uname().machine
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return here
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return here
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return MACHINES.get(number, f"another machine (ELF machine {number})")


def _load() -> ctypes.CDLL:
    """$RIFFLE_LIBRARY, else the library in this package, else the system's."""
    own = pathlib.Path(__file__).with_name("libriffle.so")
    path = os.environ.get("RIFFLE_LIBRARY") or (str(own) if own.exists() else "libriffle.so.0")
    try:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        found, here = _machine_of(path), os.uname().machine
        # The loader says "No such file" of a library for another machine.
        why = str(error) if found == here else f"found a library for {found}, expected {here}"
        raise ImportError(
            f"riffle: {path}: {why}; install riffle, or set RIFFLE_LIBRARY to the "
            "path of its libriffle.so"
        ) from None
    return library


lib = _load()


class Error(Exception):
    """The library's description of a failure. status is its name, such as "context full"."""

    def __init__(self, text: str, code: int = C.INTERNAL):
        super().__init__(text)
        self.code = code
        self.status = lib.riffle_status_name(code).decode()


class BadArgument(Error, ValueError):
    """A value is out of range, or a call does not fit the state of the object."""


class Busy(Error, RuntimeError):
    """Raised by a call that cannot wait for its turn, because the running call waits for it."""


class BadModel(Error):
    """The model file is damaged or contradicts itself."""


class Unsupported(Error):
    """A model, an option or a device that riffle does not have."""


class FileError(Error):
    """A file could not be opened, read or written."""


class OutOfMemory(Error, MemoryError):
    """An allocation failed, or the plan does not fit the memory."""


class ContextFull(Error):
    """The tokens do not fit the context. Nothing was changed."""


class Aborted(Error):
    """A callback or a closed answer stopped the call."""


class BadSession(Error):
    """The file of a session is damaged or contradicts itself."""


ERRORS: dict[int, type[Error]] = {
    C.BAD_ARGUMENT: BadArgument,
    C.BAD_TEXT: BadArgument,
    C.BAD_MODEL: BadModel,
    C.UNSUPPORTED: Unsupported,
    C.IO: FileError,
    C.OUT_OF_MEMORY: OutOfMemory,
    C.CONTEXT_FULL: ContextFull,
    C.ABORTED: Aborted,
    C.BAD_SESSION: BadSession,
}


def check(code: int, text: bytes | None) -> None:
    """Raises the exception of a status, with the library's text."""
    if code != C.OK:
        words = (text or b"").decode("utf-8", "replace") or lib.riffle_status_name(code).decode()
        raise ERRORS.get(code, Error)(words, code)


def facts(info: Any) -> dict[str, Any]:
    """The numbers and texts of a riffle_info."""
    found: dict[str, Any] = {}
    while name := lib.riffle_info_name(info, len(found)):
        kind = lib.riffle_info_kind_of(info, name)
        value: Any
        if kind == C.INFO_TEXT:
            value = lib.riffle_info_text(info, name).decode("utf-8", "replace")
        else:
            types = {C.INFO_INTEGER: int, C.INFO_BOOL: bool}
            value = types.get(kind, float)(lib.riffle_info_number(info, name))
        found[name.decode()] = value
    return found


class Handle:
    """A pointer that the library has to free. A handle frees the handles made from it first."""

    def __init__(
        self, pointer: c_void_p, free: Callable[[c_void_p], None], parent: Handle | None = None
    ):
        self._pointer: c_void_p | None = pointer
        self._free = free
        self._parent = parent
        self._children: set[Handle] = set()
        self.stop: Callable[[], None] | None = None  # ends the call that runs on it
        self.before_close: Callable[[], None] | None = None
        if parent is not None:
            parent._children.add(self)

    @property
    def pointer(self) -> c_void_p:
        if self._pointer is None:
            raise BadArgument(
                "this model, context, session or document is closed: make a new one", C.BAD_ARGUMENT
            )
        return self._pointer

    def close(self) -> None:
        stop = self.stop
        if stop is not None:
            stop()
        if self._pointer is not None and self.before_close is not None:
            self.before_close()
        for child in list(self._children):
            child.close()
        if self._pointer is not None:
            pointer, self._pointer = self._pointer, None
            self._free(pointer)
        if self._parent is not None:
            self._parent._children.discard(self)


ProgressCallback = Callable[[str, float, float], Any]


def join(thread: threading.Thread) -> None:
    """Waits for a thread that will end soon. Another Ctrl-C does not end the wait: the thread uses
    objects that the caller is about to free."""
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt:
            pass


class Watch:
    """One call with progress. The callback gets (phase, done, total) and may return False to stop.
    An exception in it stops the call and is raised by run()."""

    def __init__(self, callback: ProgressCallback | None):
        self.stopped = False
        self.error: BaseException | None = None

        def call(_user: Any, progress: Any) -> bool:
            try:
                p = progress.contents
                if callback is not None and not self.stopped:
                    phase = C.PHASES.get(p.phase, "other")
                    self.stopped = callback(phase, p.done, p.total) is False
                return not self.stopped
            except BaseException as error:  # no exception passes through C
                self.error = error
                return False

        self.fn = C.ProgressFn(call)

    def run(self, call: Callable[[], int], abort: Callable[[bool], None] | None = None) -> int:
        """The status of a call. Python looks for Ctrl-C only in the main thread, and not inside of
        C. So there the call has a thread of its own, and Ctrl-C stops it."""
        if threading.current_thread() is not threading.main_thread():
            code = call()
        else:
            ends: queue.SimpleQueue[Any] = queue.SimpleQueue()

            def work() -> None:
                try:
                    ends.put(call())
                except BaseException as error:  # a closed handle
                    ends.put(error)

            thread = threading.Thread(target=work, name="riffle", daemon=True)
            thread.start()
            try:
                code = ends.get()
            except BaseException:
                self.stopped = True
                if abort is not None:
                    abort(True)
                join(thread)
                if abort is not None:
                    abort(False)
                raise
        if isinstance(code, BaseException):
            raise code
        if self.error is not None:
            raise self.error
        return code

    def make(
        self,
        call: Callable[[Any], int],
        free: Callable[[c_void_p], None],
        abort: Callable[[bool], None] | None = None,
    ) -> tuple[c_void_p, int]:
        """The pointer that a call makes, and its status. A pointer that is not handed out is
        freed."""
        pointer = c_void_p()
        try:
            code = self.run(lambda: call(ctypes.byref(pointer)), abort)
        except BaseException:
            free(pointer)
            raise
        return pointer, code


def nearest_word(typed: str, words: Iterable[str]) -> str | None:
    """The word that was most likely meant; None: no word is near."""
    array = [word.encode() for word in words]
    near = lib.riffle_nearest_word(
        typed.encode("utf-8", "replace"), (c_char_p * len(array))(*array), len(array)
    )
    return None if near is None else str(near.decode())


def unknown_name(
    kind: str, name: str, names: Iterable[str], other_names: Mapping[str, str], hint: str
) -> TypeError:
    """other_names: names in other programs, and the names to use; hint: if nothing is alike."""
    if name in other_names:
        hint = other_names[name]
    elif (near := nearest_word(name, names)) is not None:
        hint = f"did you mean {near!r}?"
    return TypeError(f"unknown {kind} {name!r}; {hint}")


def wrong_type(name: str, value: Any, expected: str) -> TypeError:
    return TypeError(f"{name}: found {shown(value)}, expected {expected}")


def str_argument(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, value, "a str")
    return value


def bool_argument(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(name, value, "True or False")
    return value


def text_argument(name: str, text: Any) -> bytes:
    """UTF-8 for an argument that ends at a NUL."""
    if "\0" in str_argument(name, text):
        raise BadArgument(
            f"{name}: found the character U+0000, expected text without it", C.BAD_ARGUMENT
        )
    data: bytes = text.encode()
    return data


def is_token(value: Any) -> bool:
    try:
        return -(2**31) <= operator.index(value) < 2**31
    except TypeError:
        return False


def token_argument(value: Any) -> int:
    if not is_token(value):
        raise wrong_type("token", value, "a token id")
    return operator.index(value)


def tokens_argument(name: str, value: Any, expected: str) -> list[int]:
    """Token ids in any iterable. The bytes of a text are no tokens."""
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Iterable):
        raise wrong_type(name, value, expected)
    given = list(value)
    try:
        tokens = list(map(operator.index, given))
        if not tokens or (is_token(min(tokens)) and is_token(max(tokens))):
            return tokens
    except TypeError:
        pass
    wrong = next(token for token in given if not is_token(token))
    raise TypeError(f"{name}: found {shown(wrong)} in a list, expected {expected}")


def tokens_array(tokens: list[int]) -> Any:
    return (c_int32 * len(tokens))(*tokens)


def shown(value: Any) -> str:
    """A value for a message, on one short line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
