"""Answers: text that arrives piece by piece while another thread computes it."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _structs as C
from ._library import Busy, ProgressCallback, Watch, check, join, lib, tokens_array
from ._options import generate_options, with_seed
from ._turns import Turn

if TYPE_CHECKING:
    from . import Session


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
        self._options = generate_options(options, session.context.model._handle.pointer)
        self._with_logprobs = self._options.get("logprobs") == "true"
        self._watch = Watch(progress)
        self._token_fn = C.TokenFn(self._on_token)
        self._error: BaseException | None = None
        self._over = False
        self._stopping = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="riffle", daemon=True)
        self._working = False  # the thread uses the context, and gives the turn back
        self._context_pointer: Any = None
        self._turn = Turn()
        turns = session.context._turns
        try:
            turns.begin(self._turn)
            # A handle may have been closed while this waited.
            handles = (session._handle, session.context._handle)
            self._session_pointer, self._context_pointer = (h.pointer for h in handles)
            for handle in handles:
                handle.stop = self.stop
            self._thread.start()
        except BaseException:  # Ctrl-C may come when the thread runs already
            with self._stopping:
                working = self._working
                self._over = self._over or not working
            if working:
                self.stop()
            elif turns.holds(self._turn):
                self._let_go()
            turns.end(self._turn)
            raise

    def _let_go(self) -> None:
        with self._stopping:
            self._over = True
            if self._context_pointer is not None:
                lib.riffle_abort(self._context_pointer, False)  # it was only for this call
        context = self._session.context
        for handle in (self._session._handle, context._handle):
            handle.stop = None
        context._turns.end(self._turn)

    def _on_token(self, _user: Any, _index: int, token: Any) -> bool:
        try:
            t = token.contents
            text = ctypes.string_at(t.text, t.text_len).decode() if t.text_len else ""
            logprobs = None
            if self._with_logprobs and t.id >= 0:
                logprobs = t.logprob, [(one.token, one.logprob) for one in t.top[: t.n_top]]
            self.pieces.put((t.id, text, logprobs))
            return not self._watch.stopped
        except BaseException as error:  # no exception passes through C
            self._error = error
            return False

    def _work(self) -> None:
        with self._stopping:
            if self._over:  # the caller that started it was interrupted
                return
            self._working = True
        end: Any
        try:
            result = C.Result()
            self._session.context._turns.enter()
            check(
                lib.riffle_prefill_to(
                    self._session_pointer, self._tokens, len(self._tokens), self._watch.fn, None
                ),
                self._context_error(),
            )
            check(
                lib.riffle_generate(
                    self._session_pointer,
                    self._options.pointer,
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
        self._let_go()
        self.pieces.put(end)

    def _context_error(self) -> bytes:
        text: bytes = lib.riffle_context_error(self._context_pointer)
        return text

    def stop(self) -> None:
        """Ends the call and waits for it."""
        self._watch.stopped = True
        if threading.current_thread() is self._thread:
            raise Busy(
                "the call was closed by its own callback and would wait forever for its own end: "
                "return False from the callback to stop the call",
                C.BAD_ARGUMENT,
            )
        with self._stopping:
            if not self._over:
                lib.riffle_abort(self._context_pointer, True)
        join(self._thread)


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
        made = generate_options(options, session.context.model._handle.pointer)
        #: The seed of the answer. With seed=-1 it is the random seed.
        self.seed = int(made.get("seed"))
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
                    if self._finish is not None:  # closed by another thread while this waited
                        self._run.stop()
                        break
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
