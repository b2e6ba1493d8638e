"""One request: its body goes to the library, its tokens come back as JSON or as events."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from .. import _structs as C
from .._request import AnswerJob, Refusal, Request
from .._scheduler import JobEnd

if TYPE_CHECKING:
    from .app import Served

#: Seconds before the headers of a stream are sent, so that an early error has a status of its own.
PATIENCE = 1.0
#: Seconds between two comments about the progress of a prompt; and without news.
COMMENT_SECONDS, IDLE_SECONDS = 1.0, 10.0


class TooLate(Exception):
    """The time of the request is over."""


def refusal_of(end: JobEnd, context_field: str) -> Refusal:
    """The scheduler's error as an HTTP status. context_field: the field that asks for more than the
    context holds."""
    if end.status == C.CONTEXT_FULL:
        return Refusal(400, end.error, code="context_length_exceeded", param=context_field)
    if end.status in (C.OUT_OF_MEMORY, C.NO_SLOT):
        return Refusal(503, end.error, type="server_error", code="out_of_memory")
    if end.status in (C.BAD_ARGUMENT, C.BAD_TEXT):
        return Refusal(400, end.error)
    return Refusal(500, end.error, type="server_error")


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if coding.lower() != "identity":
        raise Refusal(415, f"header Content-Encoding is {coding[:40]!r}, expected none")
    too_large = Refusal(
        413,
        f"the body has more than {limit} bytes, expected at most that (--max-body)",
        code="request_too_large",
    )
    try:
        length = int(headers.get(b"content-length", b"0"))
    except ValueError:
        length = 0
    if length > limit:
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limit:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


class Answering:
    """Answers one request; Starlette calls it as it calls a response."""

    def __init__(self, served: Served, kind: int):
        self.served, self.kind = served, kind
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()
        self._told = False  # news will be set
        self.limit_field = ""  # the field that limits the answers, as the body has it
        self.jobs: list[AnswerJob] = []
        self.left = 0  # answers that have not ended
        self.gone = False  # the client has gone
        self.headers_sent = False

    # ---- from the scheduler's thread

    def on_event(self, job: AnswerJob) -> None:
        if job.end is None and self._told:
            return
        self._told = True
        try:
            self.loop.call_soon_threadsafe(self._wake, job if job.end is not None else None)
        except RuntimeError:  # the event loop is closed: the server has ended
            pass

    # ---- in the event loop

    def _wake(self, ended: AnswerJob | None) -> None:
        if ended is not None:
            self.left -= 1
            self.served.records.count(ended)
        self.news.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served = self.served
        self.deadline = time.monotonic() + served.serving.timeout
        self.record = served.records.begin(scope["path"])
        outcome = "failed"
        try:
            request = await self.begin(scope, receive)
            watch = asyncio.ensure_future(self.watch(receive))
            try:
                answer = self.stream if request.info["stream"] else self.whole
                await answer(request, send)
            finally:
                watch.cancel()
            outcome = "gone" if self.gone else "done"
        except Refusal as refusal:
            outcome = "refused" if refusal.status < 500 else "failed"
            await self.refuse(refusal, send)
        except ClientDisconnect:
            outcome = "gone"
        except TooLate:
            outcome = "late"
            limit = served.serving.timeout
            await self.refuse(
                Refusal(504, f"no answer within {limit:g} s (--timeout)", type="server_error",
                        code="timeout"), send)  # fmt: skip
        except OSError:  # the client has gone while an answer was sent
            outcome = "gone"
        except asyncio.CancelledError:  # the shutdown time is over
            outcome = "ended"
            await self.refuse(
                Refusal(503, "the server is shutting down", type="server_error"), send
            )
        finally:
            for job in self.jobs:
                if job.end is None:
                    self.cancel(job)
            self.jobs = []  # they refer to this object: memory is freed without a search for cycles
            served.records.end(self.record, outcome)
            if served.serving.access_log:
                print(f"[{self.record.line()}]", file=sys.stderr, flush=True)

    def cancel(self, job: AnswerJob) -> None:
        try:
            self.served.engine.cancel(job)
        except Exception:  # the engine has ended, and the job with it
            pass

    async def begin(self, scope: Scope, receive: Receive) -> Request:
        """Reads and checks the request, and hands its prompts to the scheduler."""
        served, serving = self.served, self.served.serving
        served.admit(1)
        body = read_body(receive, dict(scope["headers"]), served.max_body)
        try:
            data = await asyncio.wait_for(body, serving.read_timeout)
        except asyncio.TimeoutError:
            raise Refusal(
                408, f"the body did not arrive within {serving.read_timeout:g} s (--read-timeout)"
            ) from None
        request = await self.loop.run_in_executor(served.workers, self.prepare, data)
        self.limit_field = request.info["limit_field"]
        self.jobs = self.record.jobs = request.jobs(self.on_event)
        served.admit(len(self.jobs))
        for job in self.jobs:
            served.engine.submit(job)
            self.left += 1
            served.records.n_answers += 1
        return request

    def prepare(self, data: bytes) -> Request:
        served = self.served
        flags = C.REQUEST_DRAW_SEED
        if served.serving.ignore_unknown:
            flags |= C.REQUEST_IGNORE_UNKNOWN
        request = Request(self.kind, data, served.serving.defaults, flags)
        served.check_model(request.info["model"])
        request.prepare(served.engine.model)
        request.set_names(served.name, served.engine.fingerprint)
        return request

    async def watch(self, receive: Receive) -> None:
        """Waits until the client goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.news.set()

    async def wait(self, seconds: float) -> None:
        """Waits for news, but no longer."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TooLate
        try:
            await asyncio.wait_for(self.news.wait(), min(seconds, left))
        except asyncio.TimeoutError:
            pass
        self.news.clear()
        self._told = False
        if not self.record.first_token and any(job.n_drawn for job in self.jobs):
            self.record.first_token = time.monotonic()

    def failed(self) -> Refusal | None:
        """The error of an answer that has ended with one."""
        for job in self.jobs:
            if job.end is not None and job.end.status != C.OK:
                return refusal_of(job.end, self.context_field(job))
        return None

    def context_field(self, job: AnswerJob) -> str:
        """The field that must be smaller: that of the answer's length, unless the prompt leaves no
        token for an answer. The library's text names the same field."""
        if self.limit_field and job.n_tokens < self.served.engine.context_length:
            return self.limit_field
        return "messages" if self.kind == C.REQUEST_CHAT else "prompt"

    def check(self) -> None:
        if (refusal := self.failed()) is not None:
            raise refusal
        if self.left == 0 and any(job.end and job.end.finish == ABORTED for job in self.jobs):
            raise Refusal(503, "the answer was ended by the server", type="server_error")

    async def whole(self, request: Request, send: Send) -> None:
        while self.left > 0 and not self.gone and self.failed() is None:
            await self.wait(IDLE_SECONDS)
        if self.gone:
            return
        self.check()
        await send_json(send, 200, request.response())

    async def stream(self, request: Request, send: Send) -> None:
        begun = time.monotonic()
        said, said_at = "", begun
        while not self.gone:
            chunks = self.take()
            over = self.left == 0
            if over:
                chunks += self.take()
            if not self.headers_sent and not chunks:
                self.check()
            if not self.headers_sent and (chunks or over or time.monotonic() > begun + PATIENCE):
                await self.send_headers(send)
            if chunks:
                await send_bytes(send, b"".join(b"data: %b\n\n" % chunk for chunk in chunks))
                said_at = time.monotonic()
            if over or self.failed() is not None:
                break
            await self.wait(COMMENT_SECONDS)
            now, text = time.monotonic(), self.progress()
            apart = IDLE_SECONDS if text == said else COMMENT_SECONDS
            if (
                self.headers_sent
                and now > said_at + apart
                and not any(job.chunks for job in self.jobs)
            ):
                await send_bytes(send, f": {text}\n\n".encode())
                said, said_at = text, now
        if self.gone:
            return
        self.check()
        usage = request.usage_chunk()
        if usage is not None:
            await send_bytes(send, b"data: %b\n\n" % usage)
        await send_bytes(send, b"data: [DONE]\n\n", more=False)

    def take(self) -> list[bytes]:
        """The chunks that wait, in the order of the answers."""
        chunks = []
        for job in self.jobs:
            while job.chunks:
                chunks.append(job.chunks.popleft())
        return chunks

    def progress(self) -> str:
        reading = [job for job in self.jobs if not job.n_drawn]
        if not reading:
            return "answering"
        if not any(job.started for job in reading):
            return "waiting"
        return f"reading {100 * min(job.share for job in reading if job.started):.0f}%"

    async def send_headers(self, send: Send) -> None:
        self.headers_sent = True
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no"),
                ],
            }
        )

    async def refuse(self, refusal: Refusal, send: Send) -> None:
        """Sends an error: with its status, or as the last event of a stream."""
        body = json.dumps({"error": refusal.error}).encode()
        if self.headers_sent:
            return await send_bytes(send, b"data: %b\n\n" % body, more=False)
        headers = [(b"retry-after", b"2")] if refusal.status in (429, 503) else []
        if refusal.status == 408:
            headers.append((b"connection", b"close"))
        await send_json(send, refusal.status, body, headers)


ABORTED = next(value for value, name in C.FINISHES.items() if name == "aborted")


async def send_bytes(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def send_json(send: Send, status: int, body: bytes, headers: Any = ()) -> None:
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send_bytes(send, body, more=False)
