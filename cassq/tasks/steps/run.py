"""One run of a task with steps: its records as the task reaches them, and how the run ends."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any, NoReturn

from cassq.consumer.delivery import Message
from cassq.errors import CassqError, UsageError
from cassq.tasks.calls import decode_record
from cassq.tasks.steps.moving import MoveContext, MovedCall, begin, moves_of, settle_move
from cassq.tasks.steps.records import (
    KEPT_SECONDS,
    OVER,
    SLEEP,
    STEP,
    STEP_PREFIX,
    WAIT,
    CallPlace,
    History,
    Record,
    free_signal,
    name_of,
    over_at,
    place_in,
    record_of,
)

# If the oldest record is older than this when a sleep or wait ends, all are kept for longer.
RENEWED_MS = 300 * 86_400_000
EXTEND_SECONDS = 60.0
# If a call is delivered this much too early, at most, the worker sleeps for the rest.
MOVED_ABOVE_MS = 100


class Suspended(BaseException):
    """A task sleeps or waits: its run ends here. Not an Exception, so that `except Exception` in
    the task does not catch it."""


class Run:
    """The records of a task in one run, as `Context` needs them. rows: as they were when it began.
    results_kept: for how many seconds its records are kept when it is over."""

    def __init__(
        self,
        context: MoveContext,
        message: Message,
        task: str,
        rows: dict[str, bytes],
        results_kept: float,
    ) -> None:
        self._context = context
        self._steps = context.ports.catalog.steps
        self._message = message
        self._id = message.id
        self._moves = moves_of(message.headers)
        self._task = task
        self._rows = rows
        self._results_kept = results_kept
        self._history = History(task, rows)
        self._suspended: CallPlace | None = None
        self.goes_on: str = ""  # how it goes on, if it sleeps or waits, for the log

    @classmethod
    def of(
        cls, context: MoveContext, message: Message, task: str, results_kept: float
    ) -> Run | None:
        """A run of the call in a message; None if it must not run: see `begin`."""
        rows = begin(context, message)
        return None if rows is None else cls(context, message, task, rows, results_kept)

    # --- steps ----------------------------------------------------------------------------------

    def come_to(self, kind: str, name: str) -> tuple[str, int]:
        """See `History.come_to`. Raises Suspended again if it was raised before in this run."""
        if self._suspended is not None:
            raise Suspended()
        return self._history.come_to(kind, name)

    def find(self, label: str) -> tuple[Any] | None:
        """The recorded result of a step. If there is none, the step may begin. Raises UsageError if
        the step returned what cannot be written, ClaimLostError if another worker has the call."""
        record = self._history.records.get(label)
        if record is None:
            self._check_claim()
            return None
        if record.error:
            raise UsageError(record.error)
        self._history.returned(label)
        return (record.value,)

    def _check_claim(self) -> None:
        """Extend a claim that is past its deadline. Raises ClaimLostError if it was lost. Cost: a
        synced write, if it is past its deadline."""
        now_ms = self._context.ports.catalog.now_ms()
        at_once = self._message.is_written_at_once
        if at_once(now_ms) and not at_once(0):
            self._message.extend(EXTEND_SECONDS)

    def returned(self, label: str, at: int, began_ms: int, value: object) -> Any:
        """Record what a step returned. Returns the recorded result; if another process recorded one
        before, that one."""
        history, where = self._history, f"the result of step {label!r} of task {self._task!r}"
        record = Record(STEP, at, value, "", history.failed, None, "", began_ms, self.now_ms())
        try:
            raw = record.encoded(self._context.codec, where)
        except UsageError as exc:
            record = record._replace(value=None, error=exc.message)
            self._add(label, record.encoded(self._context.codec, where))
            raise
        found = decode_record(self._add(label, raw))
        if found["error"]:
            raise UsageError(found["error"])
        history.returned(label)
        return found["value"]

    def raised(self, label: str) -> None:
        """A step raised: it will be called again."""
        self._history.raised(label)

    def now_ms(self) -> int:
        """Wall time."""
        return self._context.wall_ms

    # --- sleeping and waiting -------------------------------------------------------------------

    def sleep(self, label: str, at: int, seconds: float) -> None:
        """Return if the sleep is over; else record when it will be, and raise Suspended."""
        record = self._pause(SLEEP, label, at, seconds)
        if record.ended_ms is not None:
            return
        if not self._is_awake(label, record):
            self._suspend(label, record)
        self._end_pause(label, record)

    def wait(self, label: str, at: int, name: str, seconds: float) -> Any:
        """The value of a signal, or None if the timeout is over; otherwise as `sleep`."""
        record = self._history.records.get(label)
        if record is None or record.ended_ms is None:
            self._rows = self._context.rows(self._id)
            record = self._pause(WAIT, label, at, seconds)
        if record.ended_ms is None:
            signal = free_signal(self._rows, name)
            if signal is None and not self._is_awake(label, record):
                self._suspend(label, record)
            record = self._end_pause(label, record, signal or "")
        return decode_record(self._rows[record.signal])["value"] if record.signal else None

    def _pause(self, kind: str, label: str, at: int, seconds: float) -> Record:
        """The record of a sleep or wait. It begins now, unless an earlier run began it, or another
        process that has the call since."""
        key = STEP_PREFIX + label
        if key not in self._rows:
            now_ms = self.now_ms()
            until_ms = now_ms + round(seconds * 1000)
            record = Record(kind, at, None, "", self._history.failed, until_ms, "", now_ms)
            raw = self._encoded(record)
            if self._add(label, raw, seconds) != raw:
                self._rows = self._context.rows(self._id)
        self._history.records[label] = record_of(self._rows[key])
        return self._history.records[label]

    def _end_pause(self, label: str, record: Record, signal: str = "") -> Record:
        """Record that a sleep or wait is over. Returns the record as it is then: another process
        that had the call before may have been faster."""
        key = STEP_PREFIX + label
        ended = record._replace(signal=signal, ended_ms=self.now_ms())
        new = self._encoded(ended)
        if self._steps.change(self._id, key, self._rows[key], new, KEPT_SECONDS):
            self._rows[key] = new
        else:
            self._rows = self._context.rows(self._id)
            ended = record_of(self._rows[key])
        self._history.records[label] = ended
        return ended

    def _is_awake(self, label: str, record: Record) -> bool:
        """Whether this message was delivered because a sleep or wait is over.

        Messages are due by the catalog's time. After a reboot that may be ahead of the wall clock,
        by the deadline of a claim; then some of the sleep is left.
        """
        place = place_in(self._rows)
        if place is None or place.moves != self._moves or place.label != label:
            return False
        left_ms = (record.until_ms or 0) - self.now_ms()
        if 0 < left_ms <= MOVED_ABOVE_MS:
            self._context.ports.clock.sleep(left_ms / 1000)
        return left_ms <= MOVED_ABOVE_MS

    def _suspend(self, label: str, record: Record) -> NoReturn:
        if self._context.queue(self._queue).policy.strict:
            raise UsageError(
                f"task {self._task!r} cannot sleep or wait in cp queue {self._queue!r}, which keeps"
                " one order",
                hint="put it in an ap queue: @app.task(queue=...)",
            )
        until_ms = record.until_ms or 0
        self._suspended = CallPlace(
            self._moves + 1, label, until_ms, self._queue, self._message.group_id
        )
        verb = "sleeps" if record.kind == SLEEP else f"waits for {name_of(label)!r}"
        until = datetime.fromtimestamp(until_ms / 1000, UTC)
        self.goes_on = f"{verb} until {until:%Y-%m-%d %H:%M:%S} UTC"
        raise Suspended()

    @property
    def _queue(self) -> str:
        catalog = self._context.ports.catalog
        pipe = catalog.pipes.by_id(self._message.pipe_id)
        row = None if pipe is None else catalog.queues.by_id(pipe.queue_id)
        return "" if row is None else row.name

    def _add(self, label: str, raw: bytes, seconds: float = 0.0) -> bytes:
        key = STEP_PREFIX + label
        self._rows[key] = self._steps.add(self._id, key, raw, seconds + KEPT_SECONDS)
        return self._rows[key]

    def _encoded(self, record: Record) -> bytes:
        return record.encoded(self._context.codec, "")

    # --- the end of the run ---------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Whether the task sleeps or waits: then its run ends by `move`."""
        return self._suspended is not None

    def move(self) -> None:
        """Push the call again, for when the task goes on. After that the message may be acked."""
        place = self._suspended
        assert place is not None
        oldest_ms = min((r.began_ms for r in self._history.records.values()), default=0)
        now_ms = self.now_ms()
        if place.until_ms - oldest_ms > RENEWED_MS:
            left = max(0, place.until_ms - now_ms) / 1000
            self._steps.keep(self._id, left + KEPT_SECONDS)
        settle_move(self._context, MovedCall.of(self._message), place)

    def end(self) -> None:
        """The task returned: record that it is over, if it has records, so that it never runs
        again, even if the ack of its message is lost."""
        if self._rows:
            self._steps.add(self._id, OVER, over_at(self.now_ms()), self._results_kept)
            with contextlib.suppress(CassqError):  # then they expire later
                self._steps.keep(self._id, self._results_kept)
