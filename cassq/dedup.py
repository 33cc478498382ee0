"""Deduplication: a push with the `dedup_id` of an earlier one is that one.

The id has a row in the catalog, which names the place its message has or is about to get. It is
written before the message, as an intent. Who finds an intent looks whether the message is there:
it waits a moment for a pusher that is on its way, then seals the pipe, so that the answer is
final; if the message is not there, it takes the row over by compare-and-set and pushes.

Invariants:
1. A place in a row that is not the message's own never counts: the message bears its id in the
   header `cassq-dedup`, and of a pipe that was retired the end decides.
2. Of any number of pushes of one id within the window, one is appended, and all get its id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from cassq.batches import Batch, Intend, Receipt
from cassq.catalog.rows import Dedup, PipeRow, PipeState, QueueRow
from cassq.errors import BackendTimeoutError, CassqError, ConfigError, InvalidPayloadError
from cassq.extents.port import ExtentMissingError
from cassq.frames import Place
from cassq.ports import Ports
from cassq.sealing import live_pipe, seal_pipe

logger = logging.getLogger("cassq")

# The header that binds a message to its dedup id.
DEDUP_HEADER = "cassq-dedup"
DEDUP_LENGTH_MAX = 500
# How long a pusher that is on its way with the same id is waited for.
ON_ITS_WAY_MS = 250
LOOK_SECONDS = 0.001
TRIES_MAX = 64


class _TakenError(Exception):
    """The id has a row that is not ours."""

    def __init__(self, row: Dedup) -> None:
        super().__init__(row.dedup_id)
        self.row = row


def check_dedup_id(dedup_id: str) -> str:
    """`dedup_id` if it can be one; else InvalidPayloadError."""
    if not isinstance(dedup_id, str) or not 0 < len(dedup_id) <= DEDUP_LENGTH_MAX:
        raise InvalidPayloadError(
            f"a dedup_id is a str of 1 to {DEDUP_LENGTH_MAX} characters, not {dedup_id!r:.200}"
        )
    return dedup_id


class Once:
    """The push of one dedup id, as the `intend` of its append.

    Raises ConfigError when the queue has no window, InvalidPayloadError for what is no id.
    """

    def __init__(self, ports: Ports, queue: Callable[[], QueueRow], dedup_id: str) -> None:
        if queue().policy.dedup_window == 0:
            raise ConfigError(
                f"queue {queue().name!r} has no dedup_window",
                hint="set how many seconds ids are remembered: queue.update(dedup_window=600)",
            )
        self._ports = ports
        self._catalog = ports.catalog
        self._queue = queue
        self._dedup_id = check_dedup_id(dedup_id)
        self._before: Dedup | None = None  # what our next row takes the place of
        self._pipe_id = ""  # where a row of ours names, or may name, a place

    def marked(self, headers: Mapping[str, str] | None) -> Mapping[str, str]:
        """The message's headers with its id among them."""
        if headers is not None and not isinstance(headers, Mapping):
            return headers  # to be refused like any other
        return {**(headers or {}), DEDUP_HEADER: self._dedup_id}

    def push(self, append: Callable[[], list[Receipt]]) -> list[Receipt]:
        """Append the message, unless one of its id was pushed within the window; where it is.

        Cost: one synced catalog transaction beside the append; for a duplicate a read of its
        frame, or of the totals of its pipe.
        """
        for _ in range(TRIES_MAX):
            self._pipe_id = ""
            try:
                return append()
            except _TakenError as exc:
                found = self._before = exc.row
            except BaseException:
                self._leave_place()
                raise
            if self._counts(found):
                return [Receipt(found.pipe_id, found.seq, 1)]
        name = self._dedup_id
        raise BackendTimeoutError(f"dedup id {name!r} is being pushed by others all the time")

    def __call__(self, pipe_id: str, seq: int, _messages: range) -> None:
        """Write the id's row for the place that comes; when carried over, instead of our last."""
        queue_id, now_ms = self._queue().id, self._catalog.now_ms()
        row = Dedup(queue_id, self._dedup_id, pipe_id, seq, now_ms)
        self._pipe_id = pipe_id
        found = self._catalog.dedup(row, self._before)
        if found != row:
            raise _TakenError(found)
        self._before = row

    def _leave_place(self) -> None:
        """The append was broken off: nothing else may get the place that our row names, for of a
        retired pipe only the end is known."""
        if self._pipe_id:
            with suppress(CassqError):
                seal_pipe(self._catalog, self._ports.store, self._pipe_id)

    # --- looking at another's row ---------------------------------------------------------------

    def _counts(self, row: Dedup) -> bool:
        """Whether a row stands for a message that was pushed within the window. Final."""
        window_ms = self._queue().policy.dedup_window * 1000
        if row.at_ms + window_ms <= self._catalog.now_ms():
            return False
        pipe = self._catalog.pipe(row.pipe_id)
        if pipe is not None and pipe.end is None:
            pipe = self._awaited(pipe, row)
        if pipe is None or pipe.state is PipeState.CONSUMED:
            return self._was_there(row)
        if pipe.end is not None and pipe.end.seq <= row.seq:
            return False
        try:
            return self._is_there(row)
        except ExtentMissingError:
            if live_pipe(self._catalog, row.pipe_id) is not None:
                raise
            return self._was_there(row)  # it was retired this moment

    def _awaited(self, pipe: PipeRow, row: Dedup) -> PipeRow | None:
        """The pipe once it is known whether the row's place in it was written."""
        clock, store = self._ports.clock, self._ports.store
        started_ms = clock.boot_ms()
        try:
            reader = store.reader(pipe.id)
        except ExtentMissingError:
            return self._catalog.pipe(pipe.id)
        try:
            while reader.published().seq <= row.seq:
                late = clock.boot_ms() - started_ms >= ON_ITS_WAY_MS
                if late or store.abandoned(pipe.id):
                    logger.info("pipe %s is sealed to see what became of a push", pipe.id)
                    seal_pipe(self._catalog, store, pipe.id)
                    return self._catalog.pipe(pipe.id)
                clock.sleep(LOOK_SECONDS)
        finally:
            reader.close()
        return pipe

    def _is_there(self, row: Dedup) -> bool:
        reader = self._ports.store.reader(row.pipe_id)
        try:
            ((frame, first, _),) = reader.read(Place(row.seq, 0), row.seq + 1, 1, 0)
        finally:
            reader.close()
        return frame.headers_at(first).get(DEDUP_HEADER) == row.dedup_id

    def _was_there(self, row: Dedup) -> bool:
        """Whether a pipe that is gone had the row's place: then its message was delivered.

        Of a pipe that left no totals nobody can tell: a duplicate is the lesser evil.
        """
        pipe = self._catalog.pipe(row.pipe_id)
        if pipe is not None and pipe.end is not None:
            return pipe.end.seq > row.seq
        totals = self._catalog.retired(row.queue_id, row.pipe_id)
        return any(total.pushed > row.seq for total in totals)


def forget(ports: Ports, queue: QueueRow) -> int:
    """Forget the ids of a queue that are older than its window; how many.

    Cost: one range of an index.
    """
    window_ms = round(queue.policy.dedup_window * 1000)
    return ports.catalog.forget_dedups(queue.id, ports.catalog.now_ms() - window_ms)


def append_once(
    append: Callable[[Batch, Intend | None], list[Receipt]], batch: Batch, intend: Intend | None
) -> list[Receipt]:
    """Append a batch; with a `Once` only if its message is not there yet."""
    if isinstance(intend, Once):
        return intend.push(lambda: append(batch, intend))
    return append(batch, intend)
