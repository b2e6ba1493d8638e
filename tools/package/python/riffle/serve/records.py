"""Figures of requests, for the page. They hold no text."""

from __future__ import annotations

import collections
import time
from typing import Any

from .._request import AnswerJob

#: Ended requests that the page shows.
SHOWN = 20


class Record:
    """One request, and the figures of its answers."""

    def __init__(self, number: int, path: str):
        self.number, self.path = number, path
        self.begun, self.ended = time.monotonic(), 0.0
        self.first_token = 0.0
        self.jobs: list[AnswerJob] = []
        self.outcome = ""
        self._final: dict[str, Any] | None = None

    @property
    def state(self) -> str:
        """Returns "checking", "waiting", "reading", "answering", or the outcome."""
        if self.outcome:
            return self.outcome
        if not self.jobs:
            return "checking"
        if any(job.n_drawn for job in self.jobs):
            return "answering"
        return "reading" if any(job.started for job in self.jobs) else "waiting"

    def figures(self) -> dict[str, Any]:
        if self._final is not None:
            return self._final
        jobs = self.jobs
        ends = [job.end for job in jobs if job.end is not None]
        return {
            "number": self.number,
            "path": self.path,
            "state": self.state,
            "read": min((job.share for job in jobs), default=0),
            "n_answers": len(jobs),
            "prompt_tokens": sum(job.n_tokens for job in jobs),
            "cached_tokens": sum(end.cached_tokens for end in ends),
            "answer_tokens": sum(job.n_drawn for job in jobs),
            "seconds": (self.ended or time.monotonic()) - self.begun,
            "first_token": self.first_token - self.begun if self.first_token else None,
        }

    def line(self) -> str:
        """The line of --access-log."""
        f = self.figures()
        return (
            f"{time.strftime('%H:%M:%S')} {self.number} {self.path} {f['state']}: "
            f"{f['prompt_tokens']} tokens of prompts, {f['cached_tokens']} cached, "
            f"{f['answer_tokens']} of answers, {f['seconds']:.1f} s"
        )

    def end(self, outcome: str) -> None:
        self.outcome, self.ended = outcome, time.monotonic()
        self._final = self.figures()
        self.jobs = []


class Records:
    """The requests under way, the last ended ones, and totals."""

    def __init__(self) -> None:
        self._running: dict[int, Record] = {}
        self._ended: collections.deque[Record] = collections.deque(maxlen=SHOWN)
        self._number = 0
        #: Answers that the scheduler has, or will have.
        self.n_answers = 0
        self._totals: collections.Counter[str] = collections.Counter()

    def begin(self, path: str) -> Record:
        self._number += 1
        record = Record(self._number, path)
        self._running[record.number] = record
        return record

    def end(self, record: Record, outcome: str) -> None:
        record.end(outcome)
        self._running.pop(record.number, None)
        self._ended.append(record)
        self._totals["requests"] += 1
        self._totals[outcome] += 1

    def count(self, job: AnswerJob) -> None:
        """Adds an ended answer to the totals."""
        self.n_answers -= 1
        if job.end is not None:
            self._totals["prompt_tokens"] += job.end.prompt_tokens
            self._totals["cached_tokens"] += job.end.cached_tokens
            self._totals["answer_tokens"] += job.end.n_tokens

    def totals(self) -> dict[str, int]:
        return dict(self._totals)

    def shown(self) -> list[dict[str, Any]]:
        """Figures of the requests under way, then of the ended ones, the newest first."""
        running = [record.figures() for record in self._running.values()]
        return running + [record.figures() for record in reversed(self._ended)]
