"""Deduplication: pushes with the same `dedup_id` are one message.

Each id has a row in the catalog, which names the place that its message has or is about to get. It
is written before the message, as an intent. A pusher that finds the row of another push checks
whether the message is there: it waits a moment for a push in progress, then seals the pipe, so that
the answer is final. If the message is not there, it takes the row over by compare-and-set and
pushes.

Invariants:
1. A place in a row counts only if the message itself is there: the message has its dedup id in the
   header `cassq-dedup`; for a retired pipe its end decides.
2. Of any number of pushes of one dedup id within the window, one is appended, and all get its id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile

from cassq.base.clock import contended
from cassq.catalog.port import Catalog
from cassq.errors import (
    BackendError,
    CassqError,
    ConfigError,
    CorruptionError,
    InvalidPayloadError,
    MessageNotFoundError,
)
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import live_pipe, seal_pipe
from cassq.message.batches import AppendReceipt, Batch, Intend
from cassq.message.frames import Frame, Place
from cassq.model.rows import Dedup, PipeRow, PipeState, QueueRow

logger: logging.Logger = logging.getLogger("cassq")

# The header that binds a message to its dedup id.
DEDUP_HEADER = "cassq-dedup"
DEDUP_LENGTH_MAX = 500
# How long to wait for another push of the same id that is in progress.
ON_ITS_WAY_MS = 250
LOOK_SECONDS = 0.001
TRIES_MAX = 64
# Messages of one append, so that the catalog's transaction for their ids is short.
AT_ONCE = 5_000

Append = Callable[[Batch, Intend | None], list[AppendReceipt]]


class _TakenError(Exception):
    """Some ids have rows of other pushes. Nothing was written for messages from `start` on."""

    def __init__(self, rows: Sequence[Dedup], start: int) -> None:
        super().__init__(*(row.dedup_id for row in rows))
        self.rows = rows
        self.start = start


def marked(
    queue: QueueRow,
    headers: Sequence[Mapping[str, str] | None] | None,
    dedup_ids: Sequence[str | None],
) -> Sequence[Mapping[str, str] | None]:
    """Headers with the dedup ids added; None stands for a message without a dedup id.

    Raises ConfigError if the queue has no window, InvalidPayloadError for an invalid id.
    """
    _check_window(queue)
    if headers is None:
        headers = [None] * len(dedup_ids)
    return [
        given if name is None else _marked(given, name)
        for given, name in zip(headers, dedup_ids, strict=True)
    ]


def marked_with(
    queue: QueueRow, headers: Mapping[str, str] | None, dedup_id: str
) -> Mapping[str, str]:
    """`marked` for one message."""
    _check_window(queue)
    return _marked(headers, dedup_id)


def _marked(headers: Mapping[str, str] | None, dedup_id: str) -> Mapping[str, str]:
    check_dedup_id(dedup_id)
    if headers is None:
        return {DEDUP_HEADER: dedup_id}
    # Invalid headers are refused later, like any others.
    return {**headers, DEDUP_HEADER: dedup_id} if isinstance(headers, Mapping) else headers


def _check_window(queue: QueueRow) -> None:
    if queue.policy.dedup_window == 0:
        raise ConfigError(
            f"queue {queue.name!r} has no dedup_window",
            hint="set for how many seconds ids are remembered: queue.update(dedup_window=600)",
        )


def check_dedup_id(dedup_id: str) -> str:
    """`dedup_id` if it is valid; else raises InvalidPayloadError."""
    if not isinstance(dedup_id, str) or not 0 < len(dedup_id) <= DEDUP_LENGTH_MAX:
        raise InvalidPayloadError(
            f"a dedup_id must be a str of 1 to {DEDUP_LENGTH_MAX} characters, not {dedup_id!r:.200}"
        )
    return dedup_id


class DedupPush:
    """A push of messages with dedup ids; also the `intend` of its appends.

    dedup_ids: one for each message; None for a message without one. rows: the catalog with the ids'
    rows; None: the queue's catalog. Raises InvalidPayloadError for an invalid id.
    """

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        dedup_ids: Sequence[str | None],
        *,
        rows: Catalog | None = None,
    ) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._rows = rows or ports.catalog
        self._queue = queue
        self.found: int = 0  # how many messages had already been pushed
        self._dedup_ids = [None if each is None else check_dedup_id(each) for each in dedup_ids]
        self._leading: Sequence[int] = ()  # for each message, the first one that has its id
        self._before: dict[str, Dedup] = {}  # by id, the row that our next one replaces
        self._pipe_id = ""  # the pipe in which our rows name, or may name, places
        self._sent: list[int] = []  # the messages of the current append
        self._places: dict[int, tuple[str, int]] = {}  # where they are, or are about to be
        self._done: dict[int, tuple[str, int]] = {}  # where messages are
        self._looked_at: tuple[str, Frame | None] = "", None  # the last frame read, and its pipe

    def push(self, append: Append, batch: Batch) -> list[AppendReceipt]:
        """Append the messages, except those whose id was pushed within the window or occurs earlier
        in the batch. Returns where all of them are.

        Cost: for each append, of at most `AT_ONCE` messages, one synced catalog transaction; for
        each duplicate a read of its pipe's row, and of its frame (once for each frame) or its
        pipe's totals.
        """
        count = len(self._dedup_ids)
        firsts = dict(zip(reversed(self._dedup_ids), range(count - 1, -1, -1), strict=True))
        leading: Sequence[int] = range(count)
        if len(firsts) < count:  # some are None, or occur twice
            leading = [
                at if name is None else firsts[name] for at, name in enumerate(self._dedup_ids)
            ]
        self._leading = leading
        left = [index for index, first in enumerate(leading) if index == first]
        try:
            tries = 0
            while left:
                tries = 0 if self._push(append, batch, left[:AT_ONCE], firsts) else tries + 1
                left = [index for index in left if index not in self._done]
                if tries == TRIES_MAX:
                    name = str(self._dedup_ids[left[0]])
                    raise contended(f"dedup id {name!r}")
        except BackendError as exc:
            pushed = takewhile(self._done.__contains__, leading)
            exc.fields["pushed"] = sum(1 for _ in pushed)
            raise
        return _receipts([self._done[first] for first in leading])

    def _push(
        self, append: Append, batch: Batch, sent: list[int], firsts: Mapping[str | None, int]
    ) -> bool:
        """Append these messages, or find where those are whose id is taken. Returns whether any of
        them are done now."""
        before = len(self._done)
        self._sent, self._places, self._pipe_id = sent, {}, ""
        try:
            append(batch.only(sent), self)
            self._done.update(self._places)
        except _TakenError as exc:
            self._settle(exc.start)
            for row in exc.rows:
                self._before[row.dedup_id] = row
                if self._counts(row):
                    self._done[firsts[row.dedup_id]] = row.pipe_id, row.seq
                    self.found += 1
        except BaseException as exc:
            fields = exc.fields if isinstance(exc, BackendError) else {}
            self._settle(fields.get("pushed", 0))
            self._leave_place()
            raise
        return len(self._done) > before

    def done(self, index: int) -> tuple[str, int] | None:
        """The pipe and seq of a durably pushed message, also after an error."""
        return self._done.get(index)

    def done_receipts(self) -> tuple[list[int], list[AppendReceipt]]:
        """Which of the messages are durably pushed, also after an error, and where they are."""
        which = [at for at, first in enumerate(self._leading) if first in self._done]
        return which, _receipts([self._done[self._leading[at]] for at in which])

    def _settle(self, count: int) -> None:
        """Note that the first `count` messages of an append are durable."""
        self._done.update({index: self._places[index] for index in self._sent[:count]})

    def __call__(self, pipe_id: str, seq: int, messages: Sequence[int]) -> None:
        """Write the rows of the ids with the coming places; after a carry-over they replace our
        last rows."""
        queue_id, now_ms = self._queue().id, self._rows.now_ms()
        indices = [self._sent[number] for number in messages]
        self._places.update({n: (pipe_id, at) for at, n in enumerate(indices, seq)})
        rows = [
            Dedup(queue_id, name, pipe_id, at, now_ms)
            for at, name in enumerate((self._dedup_ids[n] for n in indices), seq)
            if name is not None
        ]
        self._pipe_id = pipe_id if rows else ""
        taken = self._write(rows)
        if taken:
            raise _TakenError(taken, messages[0])
        self._before.update({row.dedup_id: row for row in rows})

    def _write(self, rows: Sequence[Dedup]) -> list[Dedup]:
        if len(rows) != 1:
            return self._rows.records.dedup_many(rows, self._before) if rows else []
        found = self._rows.records.dedup(rows[0], self._before.get(rows[0].dedup_id))
        return [] if found == rows[0] else [found]

    def _leave_place(self) -> None:
        """Seal the pipe after an interrupted append, so that no other message gets a place that our
        rows name: once the pipe is retired, only its end is known."""
        if self._pipe_id:
            with suppress(CassqError):
                seal_pipe(self._catalog, self._ports.store, self._pipe_id)

    # --- checking another pusher's row ----------------------------------------------------------

    def _counts(self, row: Dedup) -> bool:
        """Whether a row stands for a message that was pushed within the window. The answer is
        final."""
        if self._is_over(row):
            return False
        pipe = self._catalog.pipes.by_id(row.pipe_id)
        if pipe is not None and pipe.end is None:
            pipe = self._awaited(pipe, row)
        if pipe is None or pipe.state is PipeState.CONSUMED:
            return self._was_there(row)
        if pipe.end is not None and pipe.end.seq <= row.seq:
            return False
        try:
            return self._is_there(row)
        except (ExtentMissingError, CorruptionError):
            if live_pipe(self._catalog, row.pipe_id) is not None:
                raise
            return self._was_there(row)  # it was retired just now

    def _is_over(self, row: Dedup) -> bool:
        """Whether an id's window is over."""
        window_ms = self._queue().policy.dedup_window * 1000
        return row.at_ms + window_ms <= self._rows.now_ms()

    def _awaited(self, pipe: PipeRow, row: Dedup) -> PipeRow | None:
        """Wait until it is known whether the row's place was written. Returns the pipe's row."""
        clock, store = self._ports.clock, self._ports.store
        started_ms = clock.boot_ms()
        try:
            reader = store.reader(pipe.id)
        except ExtentMissingError:
            return self._catalog.pipes.by_id(pipe.id)
        try:
            while reader.published().seq <= row.seq:
                late = clock.boot_ms() - started_ms >= ON_ITS_WAY_MS
                if late or store.abandoned(pipe.id):
                    logger.info("pipe %s is sealed to find out whether a push is in it", pipe.id)
                    seal_pipe(self._catalog, store, pipe.id)
                    return self._catalog.pipes.by_id(pipe.id)
                clock.sleep(LOOK_SECONDS)
        finally:
            reader.close()
        return pipe

    def _is_there(self, row: Dedup) -> bool:
        frame = self._frame_of(row)
        return self._bears(frame, row.seq - frame.base_seq, row)

    def _bears(self, frame: Frame, index: int, row: Dedup) -> bool:
        """Whether a message is the one that the row names."""
        return frame.headers_at(index).get(DEDUP_HEADER) == row.dedup_id

    def _frame_of(self, row: Dedup) -> Frame:
        """The frame with the row's place. It is kept, as the next duplicate is often in it."""
        pipe_id, frame = self._looked_at
        if (
            frame is None
            or pipe_id != row.pipe_id
            or not (frame.base_seq <= row.seq < frame.end_seq)
        ):
            reader = self._ports.store.reader(row.pipe_id)
            try:
                ((frame, _, _),) = reader.read(Place(row.seq, 0), row.seq + 1, 1, 0)
            finally:
                reader.close()
            self._looked_at = row.pipe_id, frame
        return frame

    def _target_id(self) -> str:
        """The id of the queue that the messages are pushed to."""
        return self._queue().id

    def _was_there(self, row: Dedup) -> bool:
        """Whether the row's place was in a retired pipe: then its message was delivered.

        If the pipe left no totals, this is unknown, and False: a duplicate is the lesser evil.
        """
        pipe = self._catalog.pipes.by_id(row.pipe_id)
        if pipe is not None and pipe.end is not None:
            return pipe.end.seq > row.seq
        totals = self._catalog.pipes.retired(self._target_id(), row.pipe_id)
        return any(total.pushed > row.seq for total in totals)


def find_message(ports: Ports, queue: QueueRow, dedup_id: str) -> str:
    """The place, PIPE:SEQ, of the message that was pushed with this dedup id within the window. A
    push in progress counts if it ends within `ON_ITS_WAY_MS`; otherwise its pipe is sealed, and it
    does not count.

    Raises MessageNotFoundError if there is none, InvalidPayloadError for an invalid id, ConfigError
    if the queue has no window. Cost: a read of the id's row, and that of a duplicate.
    """
    _check_window(queue)
    check_dedup_id(dedup_id)
    row = ports.catalog.records.find_dedup(queue.id, dedup_id)
    if row is None or not DedupPush(ports, lambda: queue, [dedup_id])._counts(row):
        raise MessageNotFoundError(
            f"no message was pushed to queue {queue.name!r} with dedup id {dedup_id!r} in the last"
            f" {queue.policy.dedup_window:g} seconds",
            hint="dedup ids are remembered for the queue's dedup_window; use the id that the push"
            " returned",
        )
    return f"{row.pipe_id}:{row.seq}"


def forget(ports: Ports, queue: QueueRow) -> int:
    """Delete the ids of a queue that are older than its window; returns how many.

    Cost: one range of an index, and the deletes.
    """
    window_ms = round(queue.policy.dedup_window * 1000)
    return ports.catalog.records.forget_dedups(queue.id, ports.catalog.now_ms() - window_ms)


def _receipts(places: Iterable[tuple[str, int]]) -> list[AppendReceipt]:
    """Places as runs."""
    found: list[AppendReceipt] = []
    pipe_id, first, end = "", 0, 0
    for place, seq in places:
        if seq != end or place != pipe_id:
            if end > first:
                found.append(AppendReceipt(pipe_id, first, end - first))
            pipe_id, first = place, seq
        end = seq + 1
    if end > first:
        found.append(AppendReceipt(pipe_id, first, end - first))
    return found
