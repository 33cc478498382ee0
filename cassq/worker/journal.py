"""The journal of a worker: logs a line for each task that ends, and counts tasks by outcome."""

from __future__ import annotations

import enum
import logging
import threading
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, NamedTuple

from cassq.base.clock import Stopwatch
from cassq.consumer.delivery import Message
from cassq.errors import CassqError
from cassq.plurals import counted

# A separate logger, so that a program can leave out the lines of tasks that were done.
logger: logging.Logger = logging.getLogger("cassq.worker")

# Upper bounds of the buckets by which durations are counted, in seconds.
TASK_SECONDS = (0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0, 300.0, 1800.0)


class Outcome(enum.StrEnum):
    """How a task ended."""

    DONE = "done"  # the handler returned: acked
    FAILED = "failed"  # the handler raised: nacked, with its error
    SETTLED = "settled"  # the handler had acked the message, or given it back, itself
    REJECTED = "rejected"  # the handler raised Reject, or this was its last attempt: a dead letter
    TIME_LIMIT = "time_limit"  # it ran for too long: nacked
    ABANDONED = "abandoned"  # it still ran when the grace of a stop was over: nacked
    LOST = "lost"  # others have the message, or may have it
    UNWRITTEN = "unwritten"  # the storage failed: it may be delivered again


_WARNED = frozenset(Outcome) - {Outcome.DONE, Outcome.SETTLED}
_REFUSED = frozenset({Outcome.LOST, Outcome.UNWRITTEN})


class Terms(NamedTuple):
    """How one call of a handler is treated, if differently from the worker's other calls.

    name: of its task, for the log. time_limit: in seconds. delay: seconds until the next attempt if
    it fails; None: by the group's `retry_schedule`. last: if it fails, the message becomes a dead
    letter. ended: what the log says instead of "done".
    """

    name: str = ""
    time_limit: float | None = None
    delay: float | None = None
    last: bool = False
    ended: str = ""


class HandlerCall:
    """One call of the handler. message: its argument. thread: the thread that calls it."""

    __slots__ = ("message", "terms", "thread", "watch")

    def __init__(self, message: Message, thread: threading.Thread, terms: Terms) -> None:
        self.message: Message = message
        self.thread: threading.Thread = thread
        self.terms: Terms = terms
        self.watch: Stopwatch = Stopwatch()

    def left(self) -> float | None:
        """How many seconds of its time limit are left; None: it has none."""
        limit = self.terms.time_limit
        return None if limit is None else limit - self.watch.seconds()


class Journal:
    """Notes how tasks end. Thread-safe. Cost of a line that is not logged: about a microsecond."""

    def __init__(self, queue: str, group: str) -> None:
        self._queue = queue
        self._group = group
        self._mutex = threading.Lock()
        self._outcomes: dict[str, int] = {}
        self._buckets: list[int] = [0] * (len(TASK_SECONDS) + 1)
        self._seconds = 0.0

    def ended(
        self, task: HandlerCall, outcome: Outcome, failure: BaseException | None = None
    ) -> None:
        """A task ended. failure: what the handler, or settling the message, raised."""
        seconds = task.watch.seconds()
        bucket = bisect_left(TASK_SECONDS, seconds)
        with self._mutex:
            self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
            self._buckets[bucket] += 1
            self._seconds += seconds
        level = logging.INFO
        if outcome in _WARNED or failure is not None:
            level = logging.WARNING
        if not logger.isEnabledFor(level):
            return
        message, name = task.message, task.terms.name
        # A traceback helps a user if the handler failed, but not if cassq refused to settle.
        refused = failure if outcome in _REFUSED and isinstance(failure, CassqError) else None
        fields = {
            "queue": self._queue,
            **({"task": name} if name else {}),
            "id": message.id,
            "outcome": str(outcome),
            "seconds": round(seconds, 6),
            "attempts": message.attempts,
        }
        logger.log(
            level,
            "%s %s %s after %.3f s, attempt %d%s",
            f"{self._queue} {name}" if name else self._queue,
            message.id,
            (outcome is Outcome.DONE and task.terms.ended) or outcome.replace("_", " "),
            seconds,
            message.attempts,
            f": {refused}" if refused else "",
            exc_info=None if refused else failure,
            extra={"fields": fields},
        )

    def late(self, task: HandlerCall) -> None:
        """A task ended after its message had been given back."""
        logger.warning(
            "%s %s ended %.3f s after it began, too late: it had been given back",
            self._queue,
            task.message.id,
            task.watch.seconds(),
        )

    def stopping(self, tasks: int) -> None:
        """The worker takes no more messages."""
        logger.info("%s: stopping, with %s in hand", self._queue, counted(tasks, "task"))

    def still_running(self, tasks: int) -> None:
        """Tasks are left behind."""
        logger.warning("%s: %s still running", self._queue, counted(tasks, "task"))

    def totals(self) -> dict[str, Any]:
        """The tasks that ended so far: counts by outcome, counts by bucket of duration, and the sum
        of durations in seconds."""
        with self._mutex:
            return {
                "outcomes": dict(self._outcomes),
                "buckets": list(self._buckets),
                "seconds": self._seconds,
            }


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two journals' totals; other entries are left out."""
    names = [*one["outcomes"], *(n for n in other["outcomes"] if n not in one["outcomes"])]
    return {
        "outcomes": {n: one["outcomes"].get(n, 0) + other["outcomes"].get(n, 0) for n in names},
        "buckets": [a + b for a, b in zip(one["buckets"], other["buckets"], strict=True)],
        "seconds": one["seconds"] + other["seconds"],
    }


def nothing() -> dict[str, Any]:
    """The totals of a journal without entries."""
    return {"outcomes": {}, "buckets": [0] * (len(TASK_SECONDS) + 1), "seconds": 0.0}
