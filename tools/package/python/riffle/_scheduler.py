"""The library's scheduler in a thread of its own: jobs go in, tokens come out."""

from __future__ import annotations

import collections
import ctypes
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable

from . import _structs as C
from ._library import ERRORS, BadArgument, Error, check, facts, join, lib
from ._settings import Options


@dataclass(frozen=True)
class JobEnd:
    """The end of a job, as riffle_request_end_fn gives it."""

    status: int
    error: str
    finish: int
    n_tokens: int
    prompt_tokens: int
    cached_tokens: int  # not read: taken over from another prompt, or from the prefix cache
    facts: dict[str, Any]

    def exception(self) -> Error | None:
        if self.status == C.OK:
            return None
        return ERRORS.get(self.status, Error)(self.error, self.status)


class Job:
    """A prompt on its way to its answer. The scheduler's thread calls the methods."""

    id = 0
    share = 0.0  # share of the prompt that has been read, from 0 to 1
    started = False  # a part of the prompt has been read, or a token drawn

    def __init__(self, tokens: Any, n_tokens: int, options: Any):
        """tokens: a pointer to the prompt's tokens; options: riffle_options. Both stay valid until
        on_submit."""
        self.tokens, self.n_tokens, self.options = tokens, n_tokens, options

    def on_submit(self) -> None:
        """The scheduler has copied the tokens and the options."""

    def on_progress(self) -> None:
        """`share` has changed."""

    def on_token(self, token: Any) -> bool:
        """Takes a pointer to a token, valid during the call. Returns False to end the answer."""
        raise NotImplementedError

    def on_end(self, end: JobEnd) -> None:
        """Called once, last."""
        raise NotImplementedError


#: Seconds between two snapshots of the statistics.
SNAPSHOT_SECONDS = 0.25


class SchedulerThread:
    """Runs jobs until it is closed. All calls of the context come from its thread.

    post and close may be called from any thread."""

    def __init__(self, context: ctypes.c_void_p, options: Options, cache: ctypes.c_void_p | None):
        self._context, self._cache = context, cache
        self._wake = threading.Condition()
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._closing = self._stepping = False
        self._jobs: dict[int, Job] = {}
        self._failure: Error | None = None
        #: Statistics of the context, of the prefix cache ("prefix_cache_saved", ...), and
        #: n_waiting, n_prefilling and n_decoding, at most SNAPSHOT_SECONDS old.
        self.snapshot: dict[str, Any] = {}
        self._snapshot_time = 0.0
        # The library calls these as long as the scheduler lives.
        self._token_fn = C.RequestTokenFn(self._on_token)
        self._end_fn = C.RequestEndFn(self._on_end)
        pointer = ctypes.c_void_p()
        check(
            lib.riffle_scheduler_create(context, options.pointer, None, ctypes.byref(pointer)),
            lib.riffle_context_error(context),
        )
        self._scheduler = pointer
        lib.riffle_scheduler_on_token(pointer, self._token_fn)
        lib.riffle_scheduler_on_end(pointer, self._end_fn)
        self.notice = ""
        if cache is not None:
            code = lib.riffle_scheduler_use_prefix_cache(pointer, cache, C.KEEP_ALL)
            if code == C.UNSUPPORTED:
                text = lib.riffle_context_error(context).decode("utf-8", "replace")
                self.notice = f"the prefix cache is not used: {text}"
            else:
                check(code, lib.riffle_context_error(context))
        self._take_snapshot()
        self._thread = threading.Thread(target=self._run, name="riffle scheduler", daemon=True)
        self._thread.start()

    # ---- from any thread

    @property
    def failure(self) -> Error | None:
        """The error after which nothing can run any more."""
        return self._failure

    def submit(self, job: Job) -> None:
        self._post(lambda: self._submit(job))

    def cancel(self, job: Job) -> None:
        """Ends a job soon, also inside a step. It does nothing for a job that has ended."""
        self._post(lambda: self._cancel(job), now=True)

    def _post(self, command: Callable[[], None], now: bool = False) -> None:
        with self._wake:
            if self._closing:
                raise BadArgument("the engine is closed: make a new one", C.BAD_ARGUMENT)
            if self._failure is not None:
                raise self._failure
            self._commands.append(command)
            if now and self._stepping:
                lib.riffle_abort(self._context, True)  # the step continues after the command
            self._wake.notify()

    def close(self) -> None:
        """Ends all jobs, and frees scheduler, prefix cache and context."""
        with self._wake:
            self._closing = True
            if self._stepping:
                lib.riffle_abort(self._context, True)
            self._wake.notify()
        join(self._thread)
        lib.riffle_scheduler_free(self._scheduler)
        lib.riffle_prefix_cache_free(self._cache)
        lib.riffle_context_free(self._context)

    # ---- in the thread

    def _run(self) -> None:
        while True:
            with self._wake:
                self._stepping = False
                while not (self._commands or self._jobs or self._closing):
                    self._wake.wait()
                if self._closing:
                    break
                commands, self._commands = self._commands, collections.deque()
                self._stepping = bool(self._jobs) and not commands
            for command in commands:
                command()
            if not commands:
                code = lib.riffle_scheduler_step(self._scheduler)
                if code not in (C.OK, C.ABORTED):
                    self._fail(code)
                    break
                if code == C.OK:
                    self._report_progress()
            self._take_snapshot(SNAPSHOT_SECONDS if self._jobs else 0)
        for job in list(self._jobs.values()):
            if self._failure is None:
                self._cancel(job)
        self._drop_all(self._failure)

    def _fail(self, code: int) -> None:
        text = lib.riffle_context_error(self._context).decode("utf-8", "replace")
        with self._wake:
            self._stepping = False
            self._failure = ERRORS.get(code, Error)(text, code)

    def _drop_all(self, failure: Error | None) -> None:
        """Ends the jobs for which the library calls no callback any more."""
        with self._wake:
            commands, self._commands = self._commands, collections.deque()
        for command in commands:
            command()  # a job that was posted and not yet submitted ends with this error
        for job in list(self._jobs.values()):
            self._end(job, self._ended(failure.code if failure else C.OK, str(failure or "")))

    @staticmethod
    def _ended(code: int, text: str, job: Job | None = None) -> JobEnd:
        aborted = next(value for value, name in C.FINISHES.items() if name == "aborted")
        n = job.n_tokens if job is not None else 0
        return JobEnd(code, text, aborted, 0, n, 0, {})

    def _submit(self, job: Job) -> None:
        if self._closing or self._failure is not None:
            failure = self._failure
            job.on_submit()
            return job.on_end(
                self._ended(failure.code if failure else C.OK, str(failure or ""), job)
            )
        number = ctypes.c_uint64()
        code = lib.riffle_scheduler_submit(
            self._scheduler, job.tokens, job.n_tokens, job.options, ctypes.byref(number)
        )
        text = b"" if code == C.OK else lib.riffle_context_error(self._context)
        if code == C.OK:
            job.id = number.value
            self._jobs[job.id] = job
        job.on_submit()
        if code != C.OK:
            job.on_end(self._ended(code, text.decode("utf-8", "replace"), job))

    def _cancel(self, job: Job) -> None:
        if job.id in self._jobs:
            lib.riffle_scheduler_cancel(self._scheduler, job.id)

    def _end(self, job: Job, end: JobEnd) -> None:
        self._jobs.pop(job.id, None)
        job.on_end(end)

    def _report_progress(self) -> None:
        info = lib.riffle_scheduler_iteration(self._scheduler)
        job = self._jobs.get(int(lib.riffle_info_number(info, b"prefill_request")))
        if job is not None:
            job.share = lib.riffle_info_number(info, b"prefill_share")
            job.started = True
            job.on_progress()

    def _on_token(self, _user: Any, number: int, token: Any) -> bool:
        try:
            job = self._jobs.get(number)
            if job is None:
                return False
            job.share, job.started = 1.0, True
            return job.on_token(token)
        except BaseException as error:  # no exception passes through C
            report(error)
            return False

    def _on_end(self, _user: Any, number: int, status: int, info: Any) -> None:
        try:
            job = self._jobs.get(number)
            if job is None:
                return
            found = facts(info)
            cached = found["reused_tokens"] + found["loaded_tokens"]
            self._end(
                job,
                JobEnd(
                    status,
                    found["error"],
                    found["finish"],
                    found["n_tokens"],
                    found["prompt_tokens"],
                    cached,
                    found,
                ),
            )
        except BaseException as error:
            report(error)

    def _take_snapshot(self, apart: float = 0) -> None:
        now = time.monotonic()
        if now < self._snapshot_time + apart:
            return
        self._snapshot_time = now
        found = facts(lib.riffle_context_stats(self._context))
        found.update(facts(lib.riffle_scheduler_iteration(self._scheduler)))
        if not self._jobs:  # the last ones were cancelled between two iterations
            found.update(n_waiting=0, n_prefilling=0, n_decoding=0)
        if self._cache is not None:
            cache = facts(lib.riffle_prefix_cache_info(self._cache))
            found.update({f"prefix_cache_{name}": value for name, value in cache.items()})
        self.snapshot = found


def report(error: BaseException) -> None:
    """Prints an exception that no caller can get, as threading does."""
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
