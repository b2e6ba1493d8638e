"""Answers: text that arrives piece by piece while another thread computes it."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _structs as C
from ._library import Busy, ProgressCallback, Watch, check, join, lib
from ._prompt import End, Piece, Prompt, Said, ToolCall
from ._turns import Turn

if TYPE_CHECKING:
    from . import Session


class Run:
    """One call of riffle_generate in a thread of its own. It owns the context until it ends."""

    def __init__(self, session: Session, prompt: Prompt, progress: ProgressCallback | None):
        #: Pieces; then the end, or an exception.
        self.pieces: queue.SimpleQueue[Piece | End | BaseException] = queue.SimpleQueue()
        self._session = session
        self._prompt = prompt
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
            self.pieces.put(self._prompt.piece(token))
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
            result, prompt = C.Result(), self._prompt
            assert prompt.options is not None
            self._session.context._turns.enter()
            check(
                lib.riffle_prefill_to(
                    self._session_pointer, prompt.tokens, prompt.n_tokens, self._watch.fn, None
                ),
                self._context_error(),
            )
            check(
                lib.riffle_generate(
                    self._session_pointer,
                    prompt.options.pointer,
                    self._token_fn,
                    None,
                    ctypes.byref(result),
                ),
                self._context_error(),
            )
            end = prompt.end(result)
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
    there. The text of an answer to a conversation has no reasoning and no calls of tools:
    `reasoning` and `tool_calls` have them. All members wait for the whole answer, as `text` does,
    if no piece has been asked for. During an iteration they tell what has arrived. Closing the
    answer stops it, and so does Ctrl-C while a piece is waited for. The session then holds what was
    computed, and can be used again.
    """

    def __init__(
        self,
        session: Session,
        prompt: Prompt,
        progress: ProgressCallback | None = None,
        close_session: bool = False,
    ):
        #: The seed of the answer. With seed=-1 it is the random seed.
        self.seed = prompt.seed
        self._start: tuple[Any, ...] | None = (session, prompt, progress)
        self._close_session = close_session
        self._session: Session | None = session
        self._run: Run | None = None
        self._said = Said()
        #: Tokens of the prompt.
        self.prompt_tokens = prompt.n_tokens
        self._n_tokens: int | None = None
        self._message: dict[str, Any] | None = None
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
        return self._said.tokens

    @property
    def logprobs(self) -> list[tuple[float, list[tuple[int, float]]]]:
        """With logprobs=True, one item per token: (logprob, [(token id, logprob), ...]).

        The first number is the log-probability of the token. The list holds the top_logprobs most
        probable tokens, the most probable first. Without logprobs=True there are no items."""
        self._whole()
        return self._said.logprobs

    @property
    def n_tokens(self) -> int | None:
        """Tokens that were drawn, an end token included. None: the answer has not ended."""
        self._whole()
        return self._n_tokens

    @property
    def reasoning(self) -> str:
        """The model's reasoning before its answer to a conversation; "" if there is none."""
        self._whole()
        return "".join(self._said.reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of tools. During an iteration: those that have ended."""
        self._whole()
        return self._said.calls

    @property
    def message(self) -> dict[str, Any] | None:
        """The answer to a conversation as the conversation's next message, in OpenAI's form. None:
        the answer has not ended, was closed, or continues a text."""
        self._whole()
        return self._message

    @property
    def finish(self) -> str | None:
        """Why the answer ended: "stop", "tool_calls", "length", "context" or "aborted". None: it
        has not."""
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
            text = self._take(item)
            if text:
                return text
        raise StopIteration

    def _take(self, item: Piece | End) -> str:
        """Keeps what has arrived. Returns its text."""
        piece = item.piece if isinstance(item, End) else item
        self._said.add(piece)
        if isinstance(item, End):
            self._n_tokens, self._message = item.n_tokens, item.message
            self._finished(item.finish)
        return piece.text

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
        return "".join(self._said.text)

    def __str__(self) -> str:
        return self.text

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_finish", "none") is None:
            self.close()
