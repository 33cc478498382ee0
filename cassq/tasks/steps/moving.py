"""Moving a task's call: pushes it again, once, due when its sleep ends, or at once for a signal.

A move is a push like one with a dedup id (`cassq.producer.dedup`), but the place that the message
is about to get is noted in the task's own record, as for the ticks of schedules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cassq.base.clock import attempts, contended
from cassq.consumer.delivery import Message
from cassq.errors import CassqError, CorruptionError, OwnershipError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.cancelling import cancel
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of, live_pipe
from cassq.message.batches import Batch
from cassq.message.columns import encode_headers
from cassq.message.frames import Frame
from cassq.message.frames import Place as FramePlace
from cassq.model.lanes import lane_of
from cassq.model.rows import Dedup, QueueRow
from cassq.producer.dedup import DedupPush
from cassq.producer.pusher import Pusher
from cassq.tasks.calls import Codec
from cassq.tasks.steps.records import (
    BEGUN,
    CANCELLED,
    KEPT_SECONDS,
    OVER,
    PLACE,
    WAIT,
    WAITING,
    CallPlace,
    free_signal,
    name_of,
    over_at,
    place_in,
    records_in,
    signal_key,
)

logger: logging.Logger = logging.getLogger("cassq")

# The header that says how often a call was pushed again.
MOVES_HEADER = "cassq-task-moves"
# How long the record that a call was cancelled is kept.
CANCELLED_KEPT_SECONDS = 30 * 86_400.0


class MoveContext(NamedTuple):
    """What moving a call needs of its app. pusher: opens the pusher for a queue, by its name, and
    the only group that receives its messages, by its id."""

    ports: Ports
    codec: Codec
    pusher: Callable[[str, str], Pusher]

    @property
    def wall_ms(self) -> int:
        return self.ports.catalog.wall_ms()

    def rows(self, task_id: str) -> dict[str, bytes]:
        """The records of a task. Cost: one read."""
        return self.ports.catalog.steps.find(task_id)

    def queue(self, name: str) -> QueueRow:
        """Raises OwnershipError if it was deleted: then nothing is left to do."""
        row = self.ports.catalog.queues.named(name)
        if row is None:
            raise OwnershipError(f"queue {name!r} was deleted")
        return row


class MovedCall(NamedTuple):
    """A call as it is pushed again."""

    id: str
    payload: bytes
    headers: Mapping[str, str]
    key: bytes | None
    pushed_ms: int
    priority: int

    @classmethod
    def of(cls, message: Message) -> MovedCall:
        return cls(
            message.id,
            message.payload,
            message.headers,
            message.key,
            message.pushed_ms,
            message.priority,
        )


def moves_of(headers: Mapping[str, str]) -> int:
    """How often a call was pushed again."""
    text = headers.get(MOVES_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() else 0


class MovePush(DedupPush):
    """A push of a call to the place that its record names, or will name. place: the wanted one."""

    def __init__(
        self, context: MoveContext, queue: QueueRow, task_id: str, place: CallPlace
    ) -> None:
        super().__init__(context.ports, lambda: queue, [f"{place.moves}"])
        self._steps = context.ports.catalog.steps
        self._task_id = task_id
        self._wanted = place
        left_ms = max(0, place.until_ms - context.wall_ms)
        self._kept = left_ms / 1000 + KEPT_SECONDS

    def _write(self, rows: Sequence[Dedup]) -> list[Dedup]:
        """Note the place of the message. If the record names another place for this move, return
        that. Raises OwnershipError if the call has gone on."""
        (wanted,) = rows
        mine = self._wanted._replace(pipe_id=wanted.pipe_id, seq=wanted.seq)
        new = mine.encoded()
        before = self._before.get(wanted.dedup_id)
        for _ in attempts(self._ports.clock):
            found = self._steps.find(self._task_id)
            there = place_in(found)
            if OVER in found or (there is not None and _is_past(there, mine)):
                raise OwnershipError(f"another process runs task {self._task_id}")
            if there is None:
                if self._steps.add(self._task_id, PLACE, new, self._kept) == new:
                    return []
                continue
            if there.moves == mine.moves:
                if there == mine:
                    return []
                if before is None or there.spot != (before.pipe_id, before.seq):
                    return [replace(wanted, pipe_id=there.pipe_id, seq=there.seq)]
            if self._steps.change(self._task_id, PLACE, found[PLACE], new, self._kept):
                return []
        raise contended(f"the place of task {self._task_id}")

    def _is_over(self, row: Dedup) -> bool:
        return False

    def _bears(self, frame: Frame, index: int, row: Dedup) -> bool:
        same = frame.id_at(index, row.pipe_id) == self._task_id.encode()
        return same and moves_of(frame.headers_at(index)) == self._wanted.moves


def _is_past(there: CallPlace, mine: CallPlace) -> bool:
    """Whether a task's call was delivered or cancelled at the place of a move, or moved on from
    there. For the move of a signal, the same at the place before."""
    if there.moves < mine.moves:
        return mine.came_from is not None and there.state != WAITING
    return there.moves > mine.moves or there.state != WAITING


def push_again(context: MoveContext, call: MovedCall, place: CallPlace) -> None:
    """Push a call as the message of a move, unless it is there already. Durable on return. Raises
    OwnershipError if the call has gone on since. Cost: a read, two synced writes."""
    queue, catalog = context.queue(place.queue), context.ports.catalog
    left_ms = place.until_ms - context.wall_ms
    lane = lane_of(left_ms) if left_ms > 0 else None
    headers = {**call.headers, MOVES_HEADER: str(place.moves)}
    batch = Batch(
        [call.payload],
        [call.pushed_ms],
        [encode_headers(headers)],
        None if call.key is None else [call.key],
        [call.id.encode()],
        dues_ms=None if lane is None else catalog.now_ms() + left_ms,
        priority=call.priority,
    )
    push = MovePush(context, queue, call.id, place)
    context.pusher(place.queue, place.group_id).push_intended(batch, push, lane)


# --- delivered ------------------------------------------------------------------------------------


def begin(context: MoveContext, message: Message) -> dict[str, bytes] | None:
    """Begin, or begin again, to run the call in a message. Returns the records of its task; None if
    this message must not run, because the task is over or cancelled, or its call has gone on in
    another message.

    Cost: a read. The first time after a sleep or wait, also a synced write and a read; after a
    signal, also cancelling the message that waited.
    """
    steps, task_id = context.ports.catalog.steps, message.id
    moves = moves_of(message.headers)
    for _ in attempts(context.ports.clock):
        rows = context.rows(task_id)
        place = place_in(rows)
        if OVER in rows:
            return None
        if place is None or place.moves < moves:
            return rows
        if place.moves > moves:
            if place.moves == moves + 1:
                settle_move(context, MovedCall.of(message), place)
            return None
        if place.state == CANCELLED:
            return None
        if place.state == BEGUN:
            _take_back(context, place)
            return rows
        begun = place._replace(state=BEGUN).encoded()
        if steps.change(task_id, PLACE, rows[PLACE], begun, KEPT_SECONDS):
            _take_back(context, place)
            return context.rows(task_id)
    raise contended(f"the place of task {task_id}")


def settle_move(context: MoveContext, call: MovedCall, place: CallPlace) -> None:
    """Make sure that a call is at the place of its move. After that its old message may be
    acked."""
    try:
        push_again(context, call, place)
        wake(context, call.id)
    except OwnershipError as exc:
        logger.debug("%s", exc)  # it has gone on since


def cancel_place(context: MoveContext, task_id: str) -> bool:
    """Cancel a call that sleeps or waits; False if it does neither. Cost: a read, a synced write,
    and cancelling its message."""
    steps = context.ports.catalog.steps
    rows = context.rows(task_id)
    place = place_in(rows)
    if place is None or place.state != WAITING or OVER in rows:
        return False
    cancelled = place._replace(state=CANCELLED).encoded()
    if not steps.change(task_id, PLACE, rows[PLACE], cancelled, KEPT_SECONDS):
        return False
    _take_back(context, place)
    _take_back(context, place._replace(came_from=place.spot))
    return True


def note_cancelled(context: MoveContext, task_id: str) -> None:
    """Record that a task is over because it was cancelled. Cost: two synced writes."""
    steps = context.ports.catalog.steps
    steps.add(task_id, OVER, over_at(context.wall_ms), CANCELLED_KEPT_SECONDS)
    steps.keep(task_id, CANCELLED_KEPT_SECONDS)


# --- signals --------------------------------------------------------------------------------------


def put_signal(context: MoveContext, task_id: str, name: str, value: Any) -> bool:
    """Record a signal for a task, and wake the task if it waits for it; False if it is over."""
    steps = context.ports.catalog.steps
    token = context.ports.ids.version()
    fields = {"at_ms": context.wall_ms, "token": token}
    raw = context.codec.record(f"the value of signal {name!r}", value, fields)
    number = 0
    while True:
        rows = context.rows(task_id)
        if OVER in rows:
            return False
        while signal_key(name, number) in rows:
            number += 1
        if steps.add(task_id, signal_key(name, number), raw, KEPT_SECONDS) == raw:
            break
        number += 1
    wake(context, task_id)
    return True


def wake(context: MoveContext, task_id: str) -> bool:
    """Have a task run now if a signal that it waits for has come; returns whether it will run.

    Its call is pushed once more; when that runs, it cancels the message that waited. Cost: a read;
    with a signal, a read of the call's frame, and that of `push_again`.
    """
    rows = context.rows(task_id)
    place = place_in(rows)
    if place is None or place.state != WAITING:
        return False
    record = records_in(rows).get(place.label)
    if record is None or record.kind != WAIT or free_signal(rows, name_of(place.label)) is None:
        return False
    old = place.came_from or place.spot
    call = call_at(context.ports, old, task_id)
    if call is None:
        return False  # it was delivered just now, and sees the signal
    if place.came_from is None:
        place = place._replace(moves=place.moves + 1, until_ms=context.wall_ms, came_from=old)
    try:
        push_again(context, call, place)
    except OwnershipError as exc:
        logger.debug("%s", exc)  # it runs
    return True


def _take_back(context: MoveContext, place: CallPlace) -> None:
    """Cancel the message at `came_from`, if there is one: it waited until the signal came. If this
    fails, it is delivered when it is due, to no effect."""
    if place.came_from is None:
        return
    pipe_id, seq = place.came_from
    try:
        cancel(context.ports, context.queue(place.queue), f"{pipe_id}:{seq}")
    except CassqError as exc:
        logger.debug("a message that was woken is left until it is due: %s", exc)


def call_at(ports: Ports, spot: tuple[str, int], task_id: str) -> MovedCall | None:
    """The call at a place; None if it is not there, or no longer. Cost: reads its frame."""
    pipe_id, seq = spot
    pipe = live_pipe(ports.catalog, pipe_id)
    if pipe is None:
        return None
    try:
        if end_of(ports.catalog, ports.store, pipe).seq <= seq:
            return None
        reader = ports.store.reader(pipe_id)
    except ExtentMissingError:
        return None
    try:
        ((frame, first, last),) = reader.read(FramePlace(seq, 0), seq + 1, 1, 0)
        if frame.id_at(first, pipe_id).decode() != task_id:
            return None
        (payload,) = frame.payloads(first, last)
        return MovedCall(
            task_id,
            payload,
            frame.headers_at(first),
            frame.key_at(first),
            frame.time_ms(first),
            pipe.priority,
        )
    except (ExtentMissingError, CorruptionError) as exc:
        logger.warning("a call that waits cannot be read: %s", exc)
        return None
    finally:
        reader.close()
