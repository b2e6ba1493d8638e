"""Requests in the form of OpenAI's API. The library reads and checks them, and writes answers."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, Callable

from . import _structs as C
from ._library import facts, lib
from ._scheduler import Job, JobEnd
from ._settings import Options

if TYPE_CHECKING:
    from . import Model


class Refusal(Exception):
    """A request that gets an error instead of an answer, as OpenAI names it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        riffle_code: int = C.BAD_ARGUMENT,
    ):
        super().__init__(message)
        self.status = status
        self.riffle_code = riffle_code
        self.error = {"message": message, "type": type, "param": param, "code": code}


class Request:
    """riffle_request: a body, then its prompts, then its answers. One thread uses it at a time."""

    def __init__(self, kind: int, body: bytes, defaults: Options, flags: int):
        self._pointer = pointer = ctypes.c_void_p()
        self._error = ctypes.create_string_buffer(1024)
        code = lib.riffle_request_create(
            kind,
            body,
            len(body),
            defaults.pointer,
            flags,
            ctypes.byref(pointer),
            self._error,
            len(self._error),
        )
        weakref.finalize(self, lib.riffle_request_free, pointer)
        self._check(code, self._error.value)
        #: Facts of riffle_request_info.
        self.info: dict[str, Any] = facts(lib.riffle_request_info(pointer))

    def _check(self, code: int, text: bytes | None = None) -> None:
        if code == C.OK:
            return
        refusal = lib.riffle_request_refusal(self._pointer) if self._pointer else None
        if not refusal:  # no memory for the request itself
            words = (text or b"").decode("utf-8", "replace") or "out of memory"
            raise Refusal(503, words, type="server_error", riffle_code=code)
        found = facts(refusal)
        raise Refusal(
            found["http_status"],
            found["message"],
            type=found["type"],
            code=found["code"] or None,
            param=found["param"] or None,
            riffle_code=code,
        )

    def prepare(self, model: Model) -> None:
        """Makes the prompts' tokens."""
        self._check(
            lib.riffle_request_prepare(
                self._pointer, model._handle.pointer, self._error, len(self._error)
            ),
            self._error.value,
        )
        self.info = facts(lib.riffle_request_info(self._pointer))

    def set_names(self, model: str, fingerprint: str) -> None:
        """Sets model and system_fingerprint of the answers."""
        self._check(
            lib.riffle_request_set_names(self._pointer, model.encode(), fingerprint.encode())
        )

    def tokens(self, index: int) -> tuple[Any, int]:
        """A pointer to the prompt's tokens, and their number. Valid until drop_prompts."""
        n = ctypes.c_size_t()
        return lib.riffle_request_tokens(self._pointer, index, ctypes.byref(n)), n.value

    def options_pointer(self, index: int) -> Any:
        """riffle_options of an answer, valid until drop_prompts."""
        return lib.riffle_request_options(self._pointer, index)

    def drop_prompts(self) -> None:
        lib.riffle_request_drop_prompts(self._pointer)

    def token(self, index: int, token: Any, chunk: bool = True) -> bytes | None:
        """Takes a pointer to an answer's next token. Returns a chunk, if there is one to send."""
        json = C.Json()
        self._check(
            lib.riffle_request_token(
                self._pointer, index, token, ctypes.byref(json) if chunk else None
            )
        )
        return json_bytes(json)

    def end(
        self, index: int, result: C.Result, cached_tokens: int, chunk: bool = True
    ) -> bytes | None:
        """Ends an answer. Returns its last chunk."""
        json = C.Json()
        self._check(
            lib.riffle_request_end(
                self._pointer,
                index,
                ctypes.byref(result),
                cached_tokens,
                ctypes.byref(json) if chunk else None,
            )
        )
        return json_bytes(json)

    def part(self) -> tuple[str, str]:
        """The text and the reasoning that the last token, or the end, has added."""
        part = C.AnswerPart()
        self._check(lib.riffle_request_part(self._pointer, ctypes.byref(part)))
        return (
            ctypes.string_at(part.content, part.content_len).decode(),
            ctypes.string_at(part.reasoning, part.reasoning_len).decode(),
        )

    def answer(self, index: int) -> dict[str, Any]:
        """Facts of riffle_request_answer."""
        return facts(lib.riffle_request_answer(self._pointer, index))

    def call(self, index: int, number: int) -> tuple[str, str, str, str]:
        """Id, name, arguments and error of a call."""
        call = C.ToolCall()
        if not lib.riffle_request_call(self._pointer, index, number, ctypes.byref(call)):
            raise IndexError(number)
        texts = (call.id, call.name, call.arguments, call.error)
        call_id, name, arguments, error = (text.decode("utf-8", "replace") for text in texts)
        return call_id, name, arguments, error

    def jobs(self, on_event: Callable[[AnswerJob], None]) -> list[AnswerJob]:
        """The jobs of all answers, in the order of riffle_request_tokens."""
        left = [self.info["n_answers"]]

        def submitted() -> None:
            left[0] -= 1
            if left[0] == 0:
                self.drop_prompts()

        return [
            AnswerJob(self, index, submitted, on_event)
            for index in range(self.info["n_answers"])
        ]

    def usage_chunk(self) -> bytes | None:
        """The chunk of the usage, after all answers have ended, if the request asks for it."""
        json = C.Json()
        self._check(lib.riffle_request_usage(self._pointer, ctypes.byref(json)))
        return json_bytes(json)

    def response(self) -> bytes:
        """The whole answer, after all answers have ended."""
        json = C.Json()
        self._check(lib.riffle_request_response(self._pointer, ctypes.byref(json)))
        return json_bytes(json) or b""


def json_bytes(json: Any) -> bytes | None:
    return ctypes.string_at(json.data, json.len) if json.data else None


class AnswerJob(Job):
    """One answer of a request. Its chunks wait in `chunks` until somebody takes them."""

    def __init__(
        self,
        request: Request,
        index: int,
        submitted: Callable[[], None],
        on_event: Callable[[AnswerJob], None],
    ):
        super().__init__(*request.tokens(index), request.options_pointer(index))
        self._request = request  # it lives as long as the job
        self._index = index
        self._submitted, self._on_event = submitted, on_event
        self._stream: bool = request.info["stream"]
        #: Chunks to send: the scheduler's thread appends, another thread takes them with popleft.
        self.chunks: collections.deque[bytes] = collections.deque()
        self.n_drawn = 0
        self.end: JobEnd | None = None

    def on_submit(self) -> None:
        self._submitted()

    def on_progress(self) -> None:
        self._on_event(self)

    def _take(self, chunk: bytes | None) -> None:
        if chunk is not None:
            self.chunks.append(chunk)

    def on_token(self, token: Any) -> bool:
        self._take(self._request.token(self._index, token, self._stream))
        if token.contents.id >= 0:
            self.n_drawn += 1
        self._on_event(self)
        return True

    def on_end(self, end: JobEnd) -> None:
        if end.status == C.OK:
            try:
                self._finish(end)
            except Refusal as error:
                end = dataclasses.replace(end, status=C.INTERNAL, error=str(error))
        self.end = end
        self._on_event(self)

    def _finish(self, end: JobEnd) -> None:
        result = C.Result(end.finish, end.n_tokens)
        self._take(self._request.end(self._index, result, end.cached_tokens, self._stream))
