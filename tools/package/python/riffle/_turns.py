"""The calls of a context, one at a time: threads wait for their turn."""

from __future__ import annotations

import collections
import queue
import threading
from typing import Any, Callable

from . import _structs as C
from ._library import BadArgument, Busy


class Waiting:
    """A thread in the queue."""

    def __init__(self) -> None:
        self.given = False  # the turn; without it the context was closed
        self.woken = threading.Lock()
        self.woken.acquire()


class Turns:
    """A queue of calls, in the order in which they came. Ctrl-C ends the wait of one.

    A thread that holds the turn cannot wait for it: from a callback of the call, or with an answer
    that it has not read to its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the members below; held for a few instructions
        self._waiting: collections.deque[Waiting] = collections.deque()
        self._held = self._closed = False
        self._owner: int | None = None  # the thread that has the turn
        self._worker: int | None = None  # the thread in which callbacks come
        self._idle = threading.Condition(self._lock)
        # SimpleQueue.put may be interrupted by itself: the garbage collector comes at any time.
        self._frees: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def begin(self) -> None:
        """Waits for the turn. Raises Busy if that would never end."""
        me = Waiting()
        with self._lock:
            self._refuse()
            if not self._held:
                self._take()
                return
            self._waiting.append(me)
        try:
            me.woken.acquire()
            with self._lock:
                if me.given:
                    self._owner = threading.get_ident()
                self._refuse_closed()
        except BaseException:  # Ctrl-C, or the context was closed
            with self._lock:
                if me in self._waiting:
                    self._waiting.remove(me)
            if me.given:
                self.end()
            raise

    def enter(self) -> None:
        """Records that this thread runs the call and its callbacks."""
        self._worker = threading.get_ident()

    def end(self) -> None:
        """Gives the turn to the next waiting call."""
        while True:
            while not self._frees.empty():
                self._frees.get()()  # nobody else takes from it: this thread has the turn
            with self._lock:
                if not self._frees.empty():
                    continue
                self._owner = self._worker = None
                if self._waiting:
                    first = self._waiting.popleft()
                    first.given = True
                    first.woken.release()
                else:
                    self._held = False
                    self._idle.notify_all()
                break
        self._free_now()

    def free(self, call: Callable[[], None]) -> None:
        """Runs what frees a part of the context: now, or when the call under way has ended. It does
        not wait, so that the garbage collector may call it anywhere."""
        self._frees.put(call)
        self._free_now()

    def close(self, abort: Callable[[bool], Any]) -> None:
        """Ends the running call, and refuses all waiting and later calls."""
        with self._lock:
            if self._held and threading.get_ident() == self._worker:
                self._refuse()
            self._closed = True
            while self._waiting:
                self._waiting.popleft().woken.release()
            if self._held:
                abort(True)
        self.drain()

    def drain(self) -> None:
        """Waits until nothing uses the closed context, and frees its parts."""
        with self._lock:
            while self._held:
                try:
                    self._idle.wait()
                except KeyboardInterrupt:  # what is under way uses what is about to be freed
                    pass
            self._take()
        self.end()

    def _take(self) -> None:
        self._held = True
        self._owner = threading.get_ident()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BadArgument(
                "this model, context, session or document is closed: make a new one", C.BAD_ARGUMENT
            )

    def _refuse(self) -> None:
        self._refuse_closed()
        if not self._held:
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
        while not self._frees.empty() and self._lock.acquire(blocking=False):
            try:
                if self._held:
                    return
                self._take()
            finally:
                self._lock.release()
            self.end()
