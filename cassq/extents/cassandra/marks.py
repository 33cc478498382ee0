"""Marks of extents on Cassandra: hints that a writer and its readers exchange in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cassq.base.clock import Stopwatch
from cassq.cassandra.session import Cql, Row
from cassq.errors import CassqError
from cassq.extents.cassandra import statements
from cassq.message.frames import Place

logger: logging.Logger = logging.getLogger("cassq")


class ExtentMarks(NamedTuple):
    """See `extent_marks` in the schema."""

    acked: int = 0  # the position of the acknowledged end
    closed: bool = False
    turn: bool = False


def marks_of(rows: Sequence[Row]) -> ExtentMarks:
    """The marks in these rows."""
    if not rows:
        return ExtentMarks()
    acked, closed, turn = rows[0]
    return ExtentMarks(acked or 0, bool(closed), bool(turn))


class RepeatedRead:
    """A read that is repeated, waited for or in the background; its rows go to `note` each time.

    note: also called in the driver's thread, so it only sets values.
    """

    def __init__(
        self, cql: Cql, text: str, values: Sequence[Any], note: Callable[[list[Row]], object]
    ) -> None:
        self._cql = cql
        self._text = text
        self._values = values
        self._note = note
        self._watch: Stopwatch | None = None
        self._busy = False

    def age(self) -> float:
        """Seconds since the last read began."""
        return self._watch.seconds() if self._watch is not None else float("inf")

    def looked(self, watch: Stopwatch) -> None:
        """Note that another caller read the rows when `watch` began."""
        self._watch = watch

    def now(self) -> None:
        """Read, and wait for the result. Cost: one read."""
        watch = Stopwatch()
        self._note(self._cql.read(self._text, self._values))
        self._watch = watch

    def soon(self) -> None:
        """Read in the background, unless a read is under way. Never fails. Cost: one background
        read."""
        if self._busy:
            return
        self._busy = True
        self._watch = Stopwatch()
        try:
            future = self._cql.send(self._cql.bound(self._text, self._values))
        except CassqError as exc:
            self._failed(exc)
            return
        future.add_callbacks(self._seen, self._failed)

    def _seen(self, rows: Any) -> None:
        self._note(list(rows or ()))
        self._busy = False

    def _failed(self, exc: Exception) -> None:
        # Callers that need the result read again, and wait for it.
        logger.debug("a background read failed: %s", exc)
        self._busy = False


class MarkWriter:
    """Publishes the acknowledged end in the background: one write at a time, the newest end."""

    def __init__(self, cql: Cql, extent: str) -> None:
        self._cql = cql
        self._extent = extent
        self._lock = threading.Lock()
        self._unsent: Any = None  # the newest statement that is not yet known to have succeeded
        self._busy = False

    def tell(self, end: Place, *, closed: bool = False) -> None:
        """Publish it soon; never waits, never fails."""
        text = statements.TELL_CLOSED if closed else statements.TELL_ACKED
        try:
            # Here, not in the driver's thread: the first statement of a kind must be prepared,
            # and that thread could not wait for the answer.
            statement = self._cql.bound(text, (self._extent, end.pos, end.seq + 1))
        except CassqError as exc:
            logger.debug("the end of %s could not be published: %s", self._extent, exc)
            return
        with self._lock:
            self._unsent = statement
        self.again()

    def again(self) -> None:
        """Publish what could not be published before."""
        with self._lock:
            statement = self._unsent
            if self._busy or statement is None:
                return
            self._busy = True
        try:
            future = self._cql.send(statement)
        except CassqError as exc:
            self._failed(exc)
            return
        future.add_callbacks(lambda _: self._done(statement), self._failed)

    def _done(self, sent: Any) -> None:
        with self._lock:
            if self._unsent is sent:
                self._unsent = None
            self._busy = False
        self.again()

    def _failed(self, exc: Exception) -> None:
        logger.debug("the end of %s could not be published: %s", self._extent, exc)
        with self._lock:
            self._busy = False
