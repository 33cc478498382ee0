"""Forwarding: pushes the messages of a spool to their queues once a quorum answers again.

A spool is a directory of queues, one for each queue of the cluster that has spilled messages; its
name is `NAME~ID`, from the name and the id of that queue. Forwarding pops from the spool and pushes
to the cluster. Before a message is written to the cluster, its place there is noted in the spool.
After a crash, or a write that got no answer, forwarding looks at that place first, and pushes the
message again only if it is not there: see `cassq.producer.dedup`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from cassq.client.queue import Queue
from cassq.consumer.delivery import Message, Messages
from cassq.errors import CassqError, CorruptionError, OwnershipError
from cassq.lifecycle.ports import Ports
from cassq.message.batches import Batch, Intend
from cassq.message.columns import encode_headers
from cassq.message.frames import Frame
from cassq.model.lanes import lane_of
from cassq.model.queues import QueuePolicy
from cassq.model.rows import Dedup, QueueRow
from cassq.model.scaling import key_lane_of
from cassq.popper import Popper
from cassq.producer.dedup import DEDUP_HEADER, DedupPush
from cassq.producer.pusher import Pusher
from cassq.settings import QueueSettings

logger: logging.Logger = logging.getLogger("cassq")

# The header with the cluster time before which a spilled message must not be delivered.
DUE_HEADER = "cassq-spill-due"
_HEADER_ROOM = 64
# How long the note of a place is kept: a forwarder that stalls for longer may duplicate messages.
NOTES_SECONDS = 7 * 86400.0
AT_ONCE = 5_000
LEASE_MS = 30_000
# Called with how many messages are now in their queues, and how many of these were there before;
# returns whether to continue.
Progress = Callable[[int, int], bool]
_NAME = re.compile(r"(?P<name>.+)~(?P<id>[0-9a-f]{24})")

# The policy of a spool's queues: their messages are kept, however often forwarding fails.
SPOOL_POLICY: QueueSettings = {
    "claim_timeout": 60.0,
    "max_deliveries": 1_000_000,
    "sick_check": False,
    "idle_seal": 2.0,
    "dedup_window": NOTES_SECONDS,
    "alert_no_consumer": None,
}


class ForwardTarget(NamedTuple):
    """The queue of the cluster to which the messages of a spool's queue are forwarded."""

    name: str
    id: str

    @property
    def spool_name(self) -> str:
        return f"{self.name}~{self.id}"


def target_of(spool_name: str) -> ForwardTarget | None:
    """The target of a spool's queue; None if cassq did not create that queue."""
    match = _NAME.fullmatch(spool_name)
    return ForwardTarget(match["name"], match["id"]) if match else None


@dataclass(slots=True)
class Forwarded:
    """The result of a pass. count: messages now in their queues; found: how many of these were
    there before. stuck: spool queue → why its messages cannot be forwarded."""

    count: int = 0
    found: int = 0
    stuck: dict[str, str] = field(default_factory=dict)


class ForwardedPush(DedupPush):
    """A push of spooled messages, each noted in the spool under its id. ids: of the messages."""

    def __init__(
        self, ports: Ports, spool: Ports, queue: QueueRow, target_id: str, ids: Sequence[str]
    ) -> None:
        super().__init__(ports, lambda: queue, ids, rows=spool.catalog)
        self._id = target_id

    def _target_id(self) -> str:
        return self._id

    def _bears(self, frame: Frame, index: int, row: Dedup) -> bool:
        # If it was pushed without an answer, and then spilled, its id there is its place.
        own = f"{row.pipe_id}:{row.seq}"
        return frame.id_at(index, row.pipe_id).decode() in (row.dedup_id, own)


class Forwarder:
    """Forwards everything in a spool. spool: the spool's ports; queues: lists its queues. ports:
    the cluster's; open_pusher: opens a pusher there that does not spill."""

    def __init__(
        self,
        spool: Ports,
        queues: Callable[[], list[Queue]],
        ports: Ports,
        open_pusher: Callable[[QueueRow], Pusher],
    ) -> None:
        self._spool = spool
        self._queues = queues
        self._ports = ports
        self._open_pusher = open_pusher
        self._owner = spool.ids.version()

    def forward(self, on_progress: Progress = lambda _count, _found: True) -> Forwarded:
        """Forward everything; one forwarder works on a spool's queue at a time.

        Calls `on_progress` with the counts of each batch, and, before each pop, with zeros; stops
        if that call returns False. Raises BackendError if the cluster does not answer.
        """
        done = Forwarded()
        live = set(self._spool.catalog.queues.live())
        for queue in self._queues():
            target = target_of(queue.name)
            if target is None or queue.row.id not in live:
                continue
            lease = f"forward:{queue.row.id}"
            if not self._take(lease):
                continue
            try:
                self._forward_queue(queue, target, lease, done, on_progress)
            finally:
                self._spool.catalog.leases.drop(lease, self._owner)
        return done

    def _take(self, lease: str) -> bool:
        return self._spool.catalog.leases.take(lease, self._owner, LEASE_MS) is not None

    def _forward_queue(
        self,
        queue: Queue,
        target: ForwardTarget,
        lease: str,
        done: Forwarded,
        on_progress: Progress,
    ) -> None:
        row = self._ports.catalog.queues.by_id(target.id)
        if row is None or row.deleted:
            done.stuck[queue.name] = f"queue {target.name!r} was deleted"
            return
        if row.policy.push_paused:
            done.stuck[queue.name] = f"pushing to {target.name!r} is paused"
            return
        with queue.popper() as popper, self._open_pusher(row) as pusher:
            while on_progress(0, 0) and self._take(lease):
                try:
                    messages = popper.pop(AT_ONCE)
                except CorruptionError as exc:
                    logger.warning("messages spilled for %s cannot be read: %s", target.name, exc)
                    continue
                if not messages:
                    return
                self._carry(queue.row, row, messages, popper, pusher, done, on_progress)

    def _carry(
        self,
        spool_row: QueueRow,
        row: QueueRow,
        messages: Messages,
        popper: Popper,
        pusher: Pusher,
        done: Forwarded,
        on_progress: Progress,
    ) -> None:
        """Push messages, one run of the same batch key after another, and commit each run."""
        now_ms = self._ports.catalog.now_ms()
        left = list(_spilled(messages))
        if row.policy.key_lanes > 1:  # only the order of each key must be kept
            left.sort(key=lambda each: each.key_lane(row.policy) or 0)
        try:
            runs = groupby(list(left), lambda each: each.batch_key(now_ms, row.policy))
            for batch_key, run in runs:
                spilled = list(run)
                intend = self._intend(batch_key, spool_row, row, spilled)
                batch = _batch(spilled, batch_key)
                pusher.push_intended(batch, intend, batch_key.lane)
                popper.commit([each.message for each in spilled])
                left = left[len(spilled) :]
                done.count += len(spilled)
                done.found += intend.found
                pusher.tally.forwarded += len(spilled)
                pusher.tally.found += intend.found
                on_progress(len(spilled), intend.found)
        except CassqError as exc:
            if not isinstance(exc, OwnershipError):
                popper.release([each.message for each in left])
            raise

    def _intend(
        self,
        batch_key: BatchKey,
        spool_row: QueueRow,
        row: QueueRow,
        spilled: Iterable[SpilledMessage],
    ) -> DedupPush:
        if batch_key.deduplicated:
            users = [each.headers.get(DEDUP_HEADER) for each in spilled]
            return DedupPush(self._ports, lambda: row, users)
        ids = [str(each.message.id) for each in spilled]
        return ForwardedPush(self._ports, self._spool, spool_row, row.id, ids)


# --- messages as stored in a spool ----------------------------------------------------------------


class BatchKey(NamedTuple):
    """What messages that are pushed together must have in common."""

    lane: int | None
    deduplicated: bool
    priority: int
    key_lane: int | None


class SpilledMessage(NamedTuple):
    """A spilled message. due_ms: in cluster time; 0: at once."""

    message: Message
    stored: bytes | None  # its headers, as in a frame
    headers: dict[str, str]
    due_ms: int

    def batch_key(self, now_ms: int, policy: QueuePolicy) -> BatchKey:
        delay_ms = self.due_ms - now_ms
        lane = lane_of(delay_ms) if delay_ms > 0 and not policy.strict else None
        deduplicated = policy.dedup_window > 0 and DEDUP_HEADER in self.headers
        priority = 0 if policy.strict else self.message.priority
        return BatchKey(lane, deduplicated, priority, self.key_lane(policy))

    def key_lane(self, policy: QueuePolicy) -> int | None:
        """The lane of its key; None without a key, or if the queue has only one lane."""
        key, lanes = self.message.key, policy.key_lanes
        return None if key is None or lanes == 1 else key_lane_of(key, lanes)


def _spilled(messages: Messages) -> Iterator[SpilledMessage]:
    for message in messages:
        headers = message.headers
        due_ms = int(headers.pop(DUE_HEADER, "0"))
        yield SpilledMessage(message, encode_headers(headers, room=_HEADER_ROOM), headers, due_ms)


def _batch(spilled: Sequence[SpilledMessage], batch_key: BatchKey) -> Batch:
    """Messages as originally pushed, with the ids that their pushers got."""
    return Batch(
        [each.message.payload for each in spilled],
        [each.message.pushed_ms for each in spilled],
        [each.stored for each in spilled],
        [each.message.key for each in spilled],
        [each.message.id.encode() for each in spilled],
        dues_ms=None if batch_key.lane is None else [each.due_ms for each in spilled],
        priority=batch_key.priority,
    )


def spoolable(batch: Batch) -> Batch:
    """A batch as kept in a spool: due times are moved to headers, as the spool delays nothing."""
    dues = batch.dues_ms
    if dues is None:
        return batch
    count = len(batch.payloads)
    each = [dues] * count if isinstance(dues, int) else dues
    stored = batch.headers or [None] * count
    headers = [
        encode_headers(
            {**(json.loads(header) if header else {}), DUE_HEADER: str(due_ms)}, room=_HEADER_ROOM
        )
        for header, due_ms in zip(stored, each, strict=True)
    ]
    return replace(batch, headers=headers, dues_ms=None)


def notes(spool: Ports, queue_id: str, pipe_id: str, seq: int) -> Intend:
    """An `Intend` for pushes to a spool: notes that the messages may already be in the cluster,
    from the place `pipe_id`, `seq` on."""

    def note(spool_pipe: str, spool_seq: int, messages: Sequence[int]) -> None:
        now_ms = spool.catalog.now_ms()
        rows = [
            Dedup(queue_id, f"{spool_pipe}:{spool_seq + at}", pipe_id, seq + which, now_ms)
            for at, which in enumerate(messages)
        ]
        spool.catalog.records.dedup_many(rows, {})

    return note
