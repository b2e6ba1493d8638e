"""The calls of a context, one at a time: threads wait for their turn."""

from __future__ import annotations

import collections
import queue
import threading
from typing import Any, Callable, TypeVar

from . import _structs as C
from ._library import BadArgument, Busy

T = TypeVar("T")


class Turn:
    """One thread's turn, from the moment in which it asks for it."""

    def __init__(self) -> None:
        self.woken = threading.Lock()  # locked: the thread waits
        self.woken.acquire()

    def wake(self) -> None:
        if self.woken.locked():
            self.woken.release()


class Turns:
    """A queue of calls, in the order in which they came. Ctrl-C ends the wait of one.

    A thread that holds the turn cannot wait for it: from a callback of the call, or with an answer
    that it has not read to its end.

    Ctrl-C may raise KeyboardInterrupt after any call and at the beginning of any function. So one
    assignment, to _holder, takes a turn or hands it over, and end(turn) may be called at any time:
    also twice, and also if begin(turn) was left before it had the turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the members below; held for a few instructions
        self._waiting: collections.deque[Turn] = collections.deque()
        self._holder: Turn | None = None
        self._closed = False
        self._owner: int | None = None  # the thread that has the turn
        self._worker: int | None = None  # the thread in which callbacks come
        self._idle = threading.Condition(self._lock)
        # SimpleQueue.put may be interrupted by itself: the garbage collector comes at any time.
        self._frees: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self, call: Callable[[], T]) -> T:
        """Runs the call when its turn has come."""
        return self._hold(self.begin, call)

    def _hold(self, begin: Callable[[Turn], None], call: Callable[[], T]) -> T:
        """Runs the call between begin(turn) and end(turn)."""
        turn = Turn()
        try:
            begin(turn)
            result = call()
        finally:
            # Twice, since a Ctrl-C may end the first before it has begun.
            try:
                self.end(turn)
            except BaseException:
                self.end(turn)
                raise
        return result

    def begin(self, turn: Turn) -> None:
        """Waits for the turn. Raises Busy if that would never end. end(turn) must follow, also after
        an exception."""
        with self._lock:
            self._refuse()
            if self._holder is None:
                self._take(turn)
                return
            self._waiting.append(turn)
        while True:
            turn.woken.acquire()
            with self._lock:
                self._refuse_closed()
                if self._holder is turn:
                    self._owner = threading.get_ident()
                    return

    def holds(self, turn: Turn) -> bool:
        return self._holder is turn

    def enter(self) -> None:
        """Records that this thread runs the call and its callbacks."""
        self._worker = threading.get_ident()

    def end(self, turn: Turn) -> None:
        """Gives the turn to the next waiting call; does nothing for a turn that is over."""
        while True:
            # Nobody else takes from it: this thread has the turn.
            while self._holder is turn and not self._frees.empty():
                self._frees.get()()
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                if self._holder is turn:
                    if not self._frees.empty():
                        continue
                    self._owner = self._worker = None
                    # A thread that is woken waits again if it does not hold the turn.
                    if self._waiting:
                        self._waiting[0].wake()
                        self._holder = self._waiting[0]
                        self._waiting.popleft()
                    else:
                        self._idle.notify_all()
                        self._holder = None
                break
        self._free_now()

    def free(self, call: Callable[[], None]) -> None:
        """Runs a function that frees a part of the context: now, or when the running call has ended. It does
        not wait, so that the garbage collector may call it anywhere."""
        self._frees.put(call)
        self._free_now()

    def close(self, abort: Callable[[bool], Any]) -> None:
        """Ends the running call, and refuses all waiting and later calls."""
        with self._lock:
            if self._holder is not None and threading.get_ident() == self._worker:
                self._refuse()
            self._closed = True
            for turn in self._waiting:
                turn.wake()
            self._waiting.clear()
            if self._holder is not None:
                abort(True)
        self.drain()

    def drain(self) -> None:
        """Waits until nothing uses the closed context, and frees its parts."""
        self._hold(self._begin_when_idle, lambda: None)

    def _begin_when_idle(self, turn: Turn) -> None:
        with self._lock:
            while self._holder is not None:
                try:
                    self._idle.wait()
                except KeyboardInterrupt:  # a running call uses memory that is about to be freed
                    pass
            self._take(turn)

    def _take(self, turn: Turn) -> None:
        self._holder = turn
        self._owner = threading.get_ident()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BadArgument(
                "this model, context, session or document is closed: make a new one", C.BAD_ARGUMENT
            )

    def _refuse(self) -> None:
        self._refuse_closed()
        if self._holder is None:
            return
        if threading.get_ident() == self._worker:
            raise Busy(
                "the call comes from a callback of a running call of this context and would wait "
                "forever for that call's end: call after it has ended, or use another context",
                C.BAD_ARGUMENT,
            )
        if threading.get_ident() == self._owner:
            raise Busy(
                "the context is busy with an answer that this thread has begun: read it to its "
                "end, close it, or make another context",
                C.BAD_ARGUMENT,
            )

    def _free_now(self) -> None:
        """Frees the queued parts. If another thread has the lock or the turn, that thread does so."""
        while not self._frees.empty():
            turn = Turn()
            locked: list[bool] = []
            try:
                try:
                    # One call of C, so that no Ctrl-C comes between the lock and the note of it.
                    locked.extend(map(self._lock.acquire, (False,)))
                    if not locked[0] or self._holder is not None:
                        return
                    self._take(turn)
                finally:
                    if locked and locked[0]:
                        self._lock.release()
            finally:
                if self._holder is turn:
                    try:
                        self.end(turn)
                    except BaseException:
                        self.end(turn)
                        raise
