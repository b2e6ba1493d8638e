"""The HTTP server: one process, one event loop, and limits on what a client may cost."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .. import BadModel, Engine, FileError, Model, Unsupported
from .. import _structs as C
from .app import Served, make_app
from .options import Serving


#: Tokens of a prompt that are read between two tokens of the other answers.
PROMPT_PART = 256


def say(serving: Serving, text: str) -> None:
    if not serving.quiet:
        print(f"[{text}]", file=sys.stderr, flush=True)


class Log(logging.Handler):
    """uvicorn's log in the form of this program's lines."""

    def __init__(self, serving: Serving):
        super().__init__(logging.WARNING)
        self.serving = serving

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)  # with the traceback of an exception
        if text.startswith("Cancel "):  # "Cancel N running task(s), timeout ... exceeded"
            text = "--shutdown-timeout is over: the running answers are ended"
            say(self.serving, text)
        elif record.levelno >= logging.ERROR:
            print(f"riffle-serve: {text}", file=sys.stderr, flush=True)
        elif self.serving.access_log:  # such as a request that is not HTTP, which is answered
            say(self.serving, text)


def protocol_of(serving: Serving) -> type[H11Protocol]:
    """uvicorn's protocol, with time limits for headers and for readers that stop."""

    class Protocol(H11Protocol):
        _headers_late: asyncio.TimerHandle | None = None
        _reader_late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= serving.max_connections:
                transport.abort()
                self.transport, self.flow = transport, None  # type: ignore[assignment]
                return
            super().connection_made(transport)
            self._wait_for_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._headers_late, self._reader_late):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            self._wait_for_headers()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._wait_for_headers()

        def _wait_for_headers(self) -> None:
            """Limits the time for headers, and for the rest of a body that nobody reads."""
            state, answered = self.conn.their_state, self.cycle and self.cycle.response_complete
            # After an answer, the keep-alive timer waits for the first byte of the next request.
            begun = self.cycle is None or bool(self.conn.trailing_data[0])
            waiting = (state is h11.IDLE and begun) or (state is h11.SEND_BODY and answered)
            if waiting and self._headers_late is None:
                self._headers_late = self.loop.call_later(serving.read_timeout, self._cut)
            elif not waiting and self._headers_late is not None:
                self._headers_late.cancel()
                self._headers_late = None

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._reader_late is None:
                self._reader_late = self.loop.call_later(serving.write_timeout, self._cut)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._reader_late is not None:
                self._reader_late.cancel()
                self._reader_late = None

        def _cut(self) -> None:
            self.transport.abort()

        def send_400_response(self, msg: str) -> None:
            error = {"message": msg, "type": "invalid_request_error", "param": None, "code": None}
            body = json.dumps({"error": error}).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(body))),
                       ("connection", "close")]  # fmt: skip
            try:
                for event in (
                    h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(event) or b"")
            except h11.LocalProtocolError:  # an answer has begun already
                pass
            self.transport.close()

    return Protocol


def listen(serving: Serving) -> socket.socket:
    """A socket that listens, or an error that names host and port."""
    try:
        found = socket.getaddrinfo(
            serving.host, serving.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it: a client that reads nothing costs no more of the system's memory.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
        made.bind(address)
        made.listen(256)
    except OSError as error:
        raise OSError(
            f"--host {serving.host} --port {serving.port}: {error.strerror or error}"
        ) from None
    return made


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, which ends the answers that outlast the shutdown time."""

    def __init__(self, config: uvicorn.Config, served: Served):
        super().__init__(config)
        self._served = served

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._served.shutting_down = True
        await super().shutdown(sockets)


def load(serving: Serving) -> Model:
    """Loads the model. A file that is missing or not supported is a bad model, as for riffle."""
    try:
        return Model(serving.model, chat_template=serving.chat_template, weights=serving.weights)
    except (FileError, Unsupported) as error:
        raise BadModel(str(error), C.BAD_MODEL) from None


def serve(serving: Serving) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    listener = listen(serving)  # a busy port is an error before the model is loaded
    try:
        with load(serving) as model:
            # Parts of a second: other answers wait while a part of a prompt is read.
            part = PROMPT_PART * model.info.n_layers
            serving.settings.setdefault("max_inject_tokens", part)
            with Engine(
                model,
                max_seqs=serving.max_seqs,
                keep_seqs=serving.keep_seqs,
                prefix_cache=serving.prefix_cache,
                prefix_cache_size=serving.prefix_cache_size,
                **serving.settings,
            ) as engine:
                run(serving, engine, listener)
    finally:
        listener.close()


def run(serving: Serving, engine: Engine, listener: socket.socket) -> None:
    served = Served(serving, engine)
    config = uvicorn.Config(
        make_app(served),
        http=protocol_of(serving),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(serving.shutdown_timeout)),
        h11_max_incomplete_event_size=32768,
    )
    log = logging.getLogger("uvicorn")
    log.handlers, log.propagate = [Log(serving)], False
    for line in engine.notice.splitlines():
        say(serving, line)
    if not serving.loopback and not serving.api_keys:
        say(serving, f"--host {serving.host} without --api-key: anyone who reaches it may use it")
    say(
        serving,
        f"{served.name}; {engine.context_length} tokens of context; {engine.max_seqs} answers at "
        f"once; process {os.getpid()}",
    )
    print(f"{url_of(listener)}/v1", flush=True)
    # uvicorn raises the signal that ended it again, for these handlers; the engine closes then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Server(config, served).run(sockets=[listener])
    notice = engine.stats().get("prefix_cache_notice")
    if notice:
        say(serving, notice)
