"""Many answers at once: an engine over the library's scheduler."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import dataclasses
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, Union

from . import _structs as C
from ._library import (
    BadArgument,
    Handle,
    Path,
    ProgressCallback,
    Watch,
    check,
    facts,
    lib,
    str_argument,
    tokens_argument,
)
from ._prompt import ChatPrompt, Message, Piece, Prompt, Said, ToolCall, split_options
from ._scheduler import Job, JobEnd, SchedulerThread
from ._settings import Options, SettingValue, set_setting

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from . import Model
    from ._options import GenerateOptions
    from ._prompt import AnswerOptions


class Reply(Job, Iterator[str], AsyncIterator[str]):
    """An answer of an engine: iterate over it with `for` or `async for`, or take it whole.

    It is computed whether or not anyone reads it. Closing it ends it. `text` waits for the end, and
    `await reply.wait()` does so without blocking an event loop. The other members tell what has
    arrived; Answer describes those of an answer to a conversation. An error of the library is
    raised by the iteration, `text` and `wait`.
    """

    def __init__(self, thread: SchedulerThread, prompt: Prompt):
        assert prompt.options is not None
        super().__init__(prompt.tokens, prompt.n_tokens, prompt.options.pointer)
        self._thread = thread
        self._prompt = prompt
        #: The seed of the answer. With seed=-1 it is the random seed.
        self.seed = prompt.seed
        self._change = threading.Condition()
        self._waiting: set[Callable[[], None]] = set()  # event loops to wake
        self._unread: collections.deque[str] = collections.deque()
        self._said = Said()
        #: Tokens so far, without an end token.
        self.tokens_so_far = self._said.tokens
        #: With logprobs=True, per token: (logprob, [(token id, logprob), ...]).
        self.logprobs = self._said.logprobs
        self._end: JobEnd | None = None
        self._finish: str | None = None
        #: The answer to a conversation as its next message; None: it has not ended by itself.
        self.message: dict[str, Any] | None = None
        thread.submit(self)

    # ---- in the scheduler's thread

    def on_submit(self) -> None:
        self.tokens = self.options = None
        self._prompt.drop()

    def on_token(self, token: Any) -> bool:
        piece = self._prompt.piece(token)
        with self._change:
            self._take(piece)
        return True

    def on_end(self, end: JobEnd) -> None:
        finish = C.FINISHES[end.finish]
        with self._change:
            if end.status == C.OK:
                try:
                    last = self._prompt.end(C.Result(end.finish, end.n_tokens))
                except Exception as error:  # no memory: nobody else can report it
                    end = dataclasses.replace(end, status=C.INTERNAL, error=str(error))
                else:
                    self._take(last.piece)
                    finish, self.message = last.finish, last.message
            self._end, self._finish = end, finish
            self._wake()

    def _take(self, piece: Piece) -> None:
        self._said.add(piece)
        if piece.text:
            self._unread.append(piece.text)
            self._wake()

    def _wake(self) -> None:
        self._change.notify_all()
        for wake in self._waiting:
            wake()

    # ---- for the caller

    @property
    def done(self) -> bool:
        return self._end is not None

    @property
    def finish(self) -> str | None:
        """Returns "stop", "tool_calls", "length", "context" or "aborted"; None: the answer has not
        ended."""
        return self._finish

    @property
    def reasoning(self) -> str:
        """The model's reasoning so far."""
        with self._change:
            return "".join(self._said.reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of tools that have ended."""
        with self._change:
            return list(self._said.calls)

    @property
    def n_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.n_tokens

    @property
    def n_answer_tokens(self) -> int | None:
        """Tokens that were drawn, an end token included. None: the answer has not ended."""
        return None if self._end is None else self._end.n_tokens

    @property
    def n_cached_tokens(self) -> int | None:
        """Tokens of the prompt that were not read, since an earlier prompt had them. None: the
        answer has not ended."""
        return None if self._end is None else self._end.cached_tokens

    @property
    def text(self) -> str:
        """The whole text. Waits for the end of the answer."""
        with self._change:
            while self._end is None:
                self._change.wait()
        return self._whole()

    async def wait(self) -> str:
        """Returns the whole text when the answer has ended."""
        await self._until(lambda: self._end is not None)
        return self._whole()

    def _whole(self) -> str:
        self._raise()
        return "".join(self._said.text)

    def _raise(self) -> None:
        error = self._end.exception() if self._end is not None else None
        if error is not None:
            raise error

    async def _until(self, ready: Callable[[], Any]) -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        try:
            while True:
                with self._change:
                    event.clear()
                    if ready():
                        return
                    self._waiting.add(wake)
                await event.wait()
        finally:
            with self._change:
                self._waiting.discard(wake)

    def __iter__(self) -> Reply:
        return self

    def __next__(self) -> str:
        with self._change:
            while not self._unread and self._end is None:
                self._change.wait()
            if self._unread:
                return self._unread.popleft()
        self._raise()
        raise StopIteration

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> str:
        await self._until(lambda: self._unread or self._end is not None)
        if self._unread:
            return self._unread.popleft()
        self._raise()
        raise StopAsyncIteration

    def close(self) -> None:
        """Ends the answer, if it has not ended. It does not wait."""
        if self._end is None:
            self._thread.cancel(self)

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> Reply:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()


#: generate_many submits this number of prompts ahead of the one that is read.
AHEAD = 64


class Engine:
    """Computes many answers together, in a thread of its own.

        with riffle.Engine(model) as engine:
            replies = [engine.chat(question) for question in questions]
            for reply in replies:
                print(reply.text)

            async for piece in engine.generate("Once upon a time"):
                print(piece, end="")

    Prompts wait in order of arrival. A prompt that begins as an earlier one did is read from there
    on only: while other answers are computed, from keep_seqs finished ones, and with prefix_cache
    also from the disk. All functions may be called by any thread.

    max_seqs: answers computed at once; 0: 8, or fewer if memory is short.
    keep_seqs: finished sequences kept in memory for later prompts, the last used ones.
    prefix_cache: a folder that keeps prompts for later processes. riffle batch uses the same.
    prefix_cache_size: bytes that the folder may have; 0: half of the disk's free space.
    settings: those of a context, see riffle.settings(), and of the scheduler (riffle-batch(1)).
    """

    def __init__(
        self,
        model: Model,
        *,
        max_seqs: int = 0,
        keep_seqs: int = 8,
        prefix_cache: Path | None = None,
        prefix_cache_size: int = 0,
        progress: ProgressCallback | None = None,
        **settings: SettingValue,
    ):
        self.model = model
        options, watch = Options(), Watch(progress)
        for name, value in settings.items():
            set_setting(options, name, value, ("context", "selection", "scheduler"))
        options.set("keep-seqs", keep_seqs, "keep_seqs")
        options.check(lib.riffle_plan_scheduler(model._handle.pointer, options.pointer, max_seqs))
        #: Answers computed at once.
        self.max_seqs = int(options.get("max-seqs"))
        #: The memory plan: facts of riffle_plan_memory.
        self.plan = plan_of(model, options)
        if self.plan.get("device_memory") and keep_seqs > 0:
            # On a GPU, kept sequences count against the planned ones.
            options.set("sessions", self.max_seqs + keep_seqs)
            if plan := plan_of(model, options):
                self.plan = plan
            else:  # the GPU has no room for them
                options.set("sessions", self.max_seqs)
                options.set("keep-seqs", 0)
        options.set_progress(watch.fn)
        text = ctypes.create_string_buffer(1024)
        cache = open_cache(prefix_cache, prefix_cache_size)
        context, code = watch.make(
            lambda context: lib.riffle_context_create(
                model._handle.pointer, options.pointer, context, text, len(text)
            ),
            lib.riffle_context_free,
        )
        if code != C.OK:
            lib.riffle_prefix_cache_free(cache)
        check(code, text.value)
        #: Tokens that a prompt and its answer may have together.
        self.context_length = int(lib.riffle_context_length(context))
        #: Notices for the user, one a line, such as a length below the trained one; "": none.
        self.notice = lib.riffle_context_notice(context).decode("utf-8", "replace")
        fingerprint = ctypes.c_uint64()
        check(
            lib.riffle_context_fingerprint(context, ctypes.byref(fingerprint)),
            lib.riffle_context_error(context),
        )
        #: The number of riffle_context_fingerprint, as riffle batch prints it.
        self.fingerprint = f"fp_{fingerprint.value:016x}"
        try:
            thread = SchedulerThread(context, options, cache)
        except BaseException:
            lib.riffle_context_free(context)
            lib.riffle_prefix_cache_free(cache)
            raise
        self.notice = "\n".join(filter(None, (self.notice, thread.notice)))
        self._thread = thread
        self._handle = Handle(context, lambda _: thread.close(), model._handle)
        weakref.finalize(self, self._handle.close)

    def generate(
        self, prompt: Union[str, Sequence[int]], **options: Unpack[GenerateOptions]
    ) -> Reply:
        """Continues a text, or tokens, without a chat template."""
        tokens = (
            self.model.tokenize(prompt)
            if isinstance(prompt, str)
            else tokens_argument("prompt", prompt, "a str or a list of tokens")
        )
        return self._reply(Prompt.of_tokens(self.model, tokens, options))

    def chat(
        self, messages: Union[str, Sequence[Message]], **options: Unpack[AnswerOptions]
    ) -> Reply:
        """Answers a conversation, as Model.chat does."""
        return self._reply(ChatPrompt(self.model, messages, *split_options(options)))

    def generate_many(
        self,
        prompts: Iterable[Union[str, Sequence[int]]],
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Reply]:
        """Yields an answer for each prompt, in the order of the prompts. They are computed
        together. The answers that have not ended are closed with the generator."""
        if isinstance(prompts, str):
            raise BadArgument("prompts: found a str, expected a list of prompts", C.BAD_ARGUMENT)
        replies: collections.deque[Reply] = collections.deque()
        try:
            for prompt in prompts:
                replies.append(self.generate(prompt, **options))
                if len(replies) >= AHEAD:
                    yield replies.popleft()
            while replies:
                yield replies.popleft()
        finally:
            for reply in replies:
                reply.close()

    def _reply(self, prompt: Prompt) -> Reply:
        self._handle.pointer  # an error if the engine is closed
        return Reply(self._thread, prompt)

    def submit(self, job: Job) -> None:
        """Adds a job. Programs use generate and chat; servers have jobs of their own."""
        self._thread.submit(job)

    def cancel(self, job: Job) -> None:
        """Ends a job soon; it does nothing for a job that has ended."""
        self._thread.cancel(job)

    @property
    def failure(self) -> Exception | None:
        """The error after which the engine can answer nothing more, such as a lost GPU."""
        return self._thread.failure

    def stats(self) -> dict[str, Any]:
        """Counters and times of the last moments: those of Context.stats, of the last iteration
        (n_waiting, n_prefilling, n_decoding, ...) and of the prefix cache (prefix_cache_saved,
        prefix_cache_notice)."""
        return dict(self._thread.snapshot)

    def close(self) -> None:
        """Ends all answers, and frees the memory. It may be called again."""
        self._handle.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def open_cache(folder: Path | None, size: int) -> ctypes.c_void_p | None:
    if folder is None:
        return None
    if not isinstance(folder, os.PathLike):
        str_argument("prefix_cache", folder)
    cache, text = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
    code = lib.riffle_prefix_cache_open(
        os.fsencode(folder), size, ctypes.byref(cache), text, len(text)
    )
    check(code, b"prefix_cache: " + text.value)
    return cache


def plan_of(model: Model, options: Options) -> dict[str, Any]:
    """Facts of the memory plan for these options; empty if there is none that fits."""
    plan, text = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
    code = lib.riffle_plan_memory(
        model._handle.pointer, options.pointer, ctypes.byref(plan), text, len(text)
    )
    try:
        return facts(plan) if code == C.OK else {}
    finally:
        lib.riffle_info_free(plan)
