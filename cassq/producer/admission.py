"""Admission: checks pushes, turns them into entries, and decides which of these may be appended.

A `PendingPush` is the entry of a push that waits; the thread that pushes checks and makes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cassq.base.arguments import DELAY_MAX_SECONDS, check_zone, milliseconds
from cassq.base.clock import Clock
from cassq.base.counters import Tally
from cassq.errors import (
    BackendError,
    BackendUnavailableError,
    CassqError,
    CorruptionError,
    InvalidPayloadError,
    MessageTooLargeError,
    UsageError,
    is_outage,
)
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn
from cassq.message.batches import AppendReceipt, Batch, Intend
from cassq.message.columns import COLUMN_BYTES_MAX, encode_headers
from cassq.message.frames import MESSAGE_BYTES_MAX
from cassq.message.importance import all_with_importance, with_importance
from cassq.message.message_ids import MessageId, MessageIds, ids_of_run
from cassq.model.lanes import lane_of
from cassq.model.priorities import (
    PLAIN,
    PRIORITY_MAX,
    Level,
    Levels,
    check_allowed,
    check_priority,
    urgent_first,
)
from cassq.model.queues import QueuePolicy
from cassq.model.rows import QueueRow
from cassq.pipes import AppendSnapshot, Maintenance, MaintenanceJob, PipeWriter, PipeWriters
from cassq.producer.dedup import DedupPush, marked, marked_with
from cassq.producer.quota import Quota
from cassq.producer.spilling import Overflow, spilled_count, spilled_rest

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

OVERHEAD_BYTES = 200  # of memory for a waiting message, besides its payload


class PendingPush:
    """A push that waits to be appended: one message, or the many of a `push_many`."""

    __slots__ = (
        "after", "batch", "dedup_ids", "done", "due_ms", "error", "flight", "future", "gone",
        "header", "id", "ids", "intend", "key", "lane", "payload", "singly", "wake",
    )  # fmt: skip

    def __init__(
        self, payload: bytes, header: bytes | None, key: bytes | None, batch: Batch | None = None
    ) -> None:
        self.payload: bytes = payload
        self.header: bytes | None = header
        self.key: bytes | None = key
        self.batch: Batch | None = batch
        self.lane: int | None = None  # of timer pipes
        self.due_ms: int = 0  # when it is due, if it has a lane
        self.dedup_ids: Sequence[str | None] | None = None
        self.intend: Intend | None = None  # for a move, or for a message from a spool
        self.future: Future[MessageId] | None = None
        self.wake: threading.Lock | None = None  # the lock its thread waits on
        self.after: PendingPush | None = None  # the entry whose thread that thread wakes next
        self.flight: list[PendingPush] = []  # what its thread appends, as the leader
        self.gone: bool = False  # its thread left without waiting for the outcome
        self.id: MessageId = MessageId()
        self.ids: MessageIds | None = None
        # Of a batch that failed: which messages were pushed all the same, and where they are.
        self.done: tuple[Sequence[int], Sequence[AppendReceipt]] = (), ()
        # Whether the caller pushes the messages of the batch one by one if the earlier message of
        # one of their dedup ids cannot be read.
        self.singly: bool = False
        self.error: Exception | None = None

    @property
    def size(self) -> int:
        """Roughly the memory it takes while it waits."""
        return len(self.payload) + len(self.header or b"") + len(self.key or b"") + OVERHEAD_BYTES

    @property
    def done_ids(self) -> dict[int, MessageId]:
        """The known ids of the messages of a failed batch that were pushed all the same, by their
        indexes."""
        which, receipts = self.done
        ids = (each for receipt in receipts for each in ids_of_run(receipt))
        return dict(zip(which, ids, strict=True))

    def goes_with(self, other: PendingPush) -> bool:
        """Whether both may be appended together."""
        alike = (self.dedup_ids is None) == (other.dedup_ids is None) and self.lane == other.lane
        return self.batch is None and other.batch is None and alike

    def wake_up(self) -> None:
        assert self.wake is not None
        if self.wake.locked():
            self.wake.release()


class AppendedPushes(NamedTuple):
    """The outcome of an append: the pushes that are durable, their message count, and where."""

    entries: list[PendingPush]
    messages: int
    receipts: list[AppendReceipt]
    written_bytes: int
    failed: BackendError | None = None  # the error of the pushes that are not among them
    spilled: int = 0  # how many of the messages are in the spool


class Writing(NamedTuple):
    """What appends pushes to pipes."""

    ports: Ports
    appenders: PipeWriters
    gate: Quota


class Admission:
    """One pusher's admission. Any thread may call `entry`; only the leader calls the others.

    ports: returns the client's; raises BackendUnavailableError while no server has answered yet.
    queue: called at each push, so that a changed policy applies. group_id: the only group that gets
    the messages; empty: all groups. overflow: if given, takes pushes that no quorum accepts.
    patient: whether to try another pipe when the outcome of a write is unknown; never done with a
    spool. level: of all its messages.
    """

    def __init__(
        self,
        ports: Callable[[], Ports],
        clock: Clock,
        queue: Callable[[], QueueRow],
        dead_letter: DeadLetterFn,
        *,
        group_id: str = "",
        overflow: Overflow | None = None,
        patient: bool = True,
        level: Level = PLAIN,
    ) -> None:
        self.tally: Tally = Tally()
        self._priority, self._key_lane = level
        self._ports = ports
        self._clock = clock
        self._queue = queue
        self._dead_letter = dead_letter
        self._group_id = group_id
        self._overflow = overflow
        self._patient = patient and overflow is None
        self._writing: Writing | None = None

    def _begin(self) -> Writing:
        """Create what is needed for writing, at the first push that can be appended."""
        ports = self._ports()
        appenders = PipeWriters(
            ports,
            self._queue,
            self._group_id,
            patient=self._patient,
            tally=self.tally,
            priority=self._priority,
            key_lane=self._key_lane,
        )
        self._writing = Writing(ports, appenders, Quota(ports, self._queue, self._dead_letter))
        return self._writing

    def check_allowed(self, priority: int) -> None:
        """Raise UsageError for a priority that the queue does not support."""
        check_allowed(priority, self._queue().policy)

    @property
    def has_key_lanes(self) -> bool:
        """Whether the queue has, or may have, several key lanes. With a spool this may be unknown,
        as no quorum answers; then it is true."""
        return self._overflow is not None or self.key_lanes > 1

    @property
    def key_lanes(self) -> int:
        return self._queue().policy.key_lanes

    @property
    def has_quota(self) -> bool:
        """Whether some of several pushes may be refused."""
        return has_quota(self._queue().policy)

    def entry(
        self,
        payload: bytes,
        headers: Mapping[str, str] | None,
        key: bytes | None,
        delay: float | None,
        due: datetime | None,
        dedup_id: str | None,
        importance: str | None,
    ) -> PendingPush:
        """Check a single push; returns its entry."""
        if importance is not None:
            headers = with_importance(headers, importance)
        if dedup_id is not None:
            headers = marked_with(self._queue(), headers, dedup_id)
        header = encode_headers(headers) if headers else None
        entry = PendingPush(check_payload(payload), header, check_key(key))
        if delay is not None or due is not None:
            entry.lane, entry.due_ms = self._lane_and_due_ms(delay, due)
        if dedup_id is not None:
            entry.dedup_ids = [dedup_id]
        return entry

    def entry_of_many(
        self,
        payloads: Iterable[bytes],
        headers: Sequence[Mapping[str, str] | None] | None,
        keys: Sequence[bytes | None] | None,
        delay: float | None,
        due: datetime | None,
        dedup_ids: Sequence[str | None] | None,
        importance: str | None,
    ) -> PendingPush:
        """Check a `push_many`; returns its entry, which is appended separately."""
        found, length = check_payloads(payloads)
        check_columns(len(found), headers=headers, keys=keys, dedup_ids=dedup_ids)
        headers, keys, dedup_ids = as_list(headers), as_list(keys), as_list(dedup_ids)
        headers = all_with_importance(headers, importance, len(found))
        if dedup_ids is not None:
            headers = marked(self._queue(), headers, dedup_ids)
        batch = batched(found, length, headers, keys, self._clock.wall_ms())
        entry = PendingPush(b"", None, None, batch)
        entry.dedup_ids = dedup_ids
        if delay is not None or due is not None:
            entry.lane, due_ms = self._lane_and_due_ms(delay, due)
            if entry.lane is not None:
                entry.batch = replace(batch, dues_ms=due_ms)
        return entry

    def _lane_and_due_ms(self, delay: float | None, due: datetime | None) -> tuple[int | None, int]:
        """The lane and due time (catalog milliseconds) of a delayed message; the lane is None if
        it is due already.

        Raises UsageError for an invalid time, and on strictly ordered queues.
        """
        delay_ms = check_delay_ms(delay, due, self._clock.wall_ms())
        if self._queue().policy.strict:
            raise UsageError(
                "a cp queue delivers messages in the order in which they were pushed, so none can"
                " be delayed",
                hint="push it when it is due, or use an ap queue",
            )
        lane = lane_of(delay_ms) if delay_ms > 0 else None
        try:
            catalog = self._ports().catalog
        except BackendUnavailableError:
            if self._overflow is None:
                raise
            return lane, self._clock.wall_ms() + delay_ms  # the best estimate
        return lane, catalog.now_ms() + delay_ms

    def append(self, entries: list[PendingPush]) -> AppendedPushes:
        """Append pushes that wait together, or spill them while no quorum answers. Pushes that are
        refused, and single pushes that could not be appended after others were, get their error."""
        first = entries[0]
        clock = self._clock
        now_ms, boot_ms, queue = clock.wall_ms(), clock.boot_ms(), self._queue()
        overflow = self._overflow_for(first, queue)
        if overflow is not None and overflow.down:
            batch = first.batch or gathered(entries, now_ms)
            return _spilled(entries, batch, overflow.hold(queue, self._spillable(batch), None))
        appender = once = None
        try:
            writing = self._writing or self._begin()
            entries = admitted(writing.gate, entries, queue)
            once = self._once(entries, writing.ports)
            batch = first.batch or gathered(entries, now_ms)
            appender = writing.appenders.of(first.lane, keyed=batch.keys is not None)
            before_bytes = appender.written_bytes
            if once is not None:
                receipts = once.push(appender.append, batch)
            else:
                receipts = appender.append(batch, first.intend, AppendSnapshot(queue, boot_ms))
            size = appender.written_bytes - before_bytes
            return AppendedPushes(entries, len(batch.payloads), receipts, size)
        except (CorruptionError, BackendError) as exc:
            if is_unreadable(exc) and once is not None and len(entries) > 1:
                return self._one_by_one(entries)
            if isinstance(exc, CorruptionError):
                raise
            if overflow is None or not is_outage(exc):
                return _pushed_of(entries, once, appender, exc)
            overflow.trouble(exc)
            batch = first.batch or gathered(entries, now_ms)
            try:
                rest = self._spillable(batch)
                receipts = spilled_rest(overflow, queue, rest, once, appender, exc)
            except BackendError as unspilled:
                return _pushed_of(entries, once, appender, unspilled)
            return _spilled(entries, batch, receipts)

    def _one_by_one(self, entries: list[PendingPush]) -> AppendedPushes:
        """Append pushes with dedup ids one by one, since the earlier message of one of the ids
        cannot be read, and the others must not fail for that. Messages that were already pushed are
        found by their ids."""
        done: list[AppendedPushes] = []
        for entry in entries:
            try:
                done.append(self.append([entry]))
            except CassqError as exc:
                entry.error = exc
                self.tally.push_failed(1, exc)
        if not done:
            assert entries[-1].error is not None
            raise entries[-1].error
        return AppendedPushes(
            [entry for each in done for entry in each.entries],
            sum(each.messages for each in done),
            [receipt for each in done for receipt in each.receipts],
            sum(each.written_bytes for each in done),
            spilled=sum(each.spilled for each in done),
        )

    def _spillable(self, batch: Batch) -> Batch:
        """The batch with its priority, which in the queue only its pipe has."""
        return replace(batch, priority=self._priority) if self._priority else batch

    def _once(self, entries: list[PendingPush], ports: Ports) -> DedupPush | None:
        first = entries[0]
        if first.dedup_ids is not None:
            ids = [name for entry in entries for name in entry.dedup_ids or ()]
            return DedupPush(ports, self._queue, ids)
        return first.intend if isinstance(first.intend, DedupPush) else None

    def maintain(self) -> Maintenance:
        """Housekeeping of the appenders, as `PipeWriter.maintain`."""
        if self._overflow is not None and self._overflow.down:
            return Maintenance(1.0, [])  # a push would have to wait for this
        with self._noticing_outages():
            return (self._writing or self._begin()).appenders.maintain()

    def do(self, jobs: Iterable[MaintenanceJob]) -> None:
        """Do the jobs that `maintain` returned. No push waits for them."""
        with self._noticing_outages():
            for job in jobs:
                job()

    @contextmanager
    def _noticing_outages(self) -> Iterator[None]:
        try:
            yield
        except BackendError as exc:
            if self._overflow is not None and is_outage(exc):
                self._overflow.trouble(exc)
            raise

    def _overflow_for(self, first: PendingPush, queue: QueueRow) -> Overflow | None:
        """The spool for a push, if it may be spilled: not a move, and not in a cp queue."""
        if self._overflow is None or first.intend is not None or queue.policy.strict:
            return None
        return self._overflow

    def close(self) -> None:
        """Seal what is open."""
        if self._writing is not None:
            self._writing.appenders.close()


def has_quota(policy: QueuePolicy) -> bool:
    """Whether pushes may be refused, as the queue has a limit or is paused."""
    return policy.max_length is not None or policy.push_paused


def admitted(gate: Quota, entries: list[PendingPush], queue: QueueRow) -> list[PendingPush]:
    """The pushes that may be appended now; the others get their error. Moves are always admitted:
    they add no messages. Raises as `Quota.admit` does."""
    first = entries[0]
    if not has_quota(queue.policy) or first.intend is not None:
        return entries
    if first.batch is not None:
        gate.admit(len(first.batch.payloads), whole=True)
        return entries
    count = gate.admit(len(entries), whole=False)
    for entry in entries[count:]:
        entry.error = gate.full_error()
    return entries[:count]


def _spilled(
    entries: list[PendingPush], batch: Batch, receipts: list[AppendReceipt]
) -> AppendedPushes:
    """The outcome for a batch that is partly or wholly in the spool, as `receipts` say."""
    count = spilled_count(receipts)
    return AppendedPushes(entries, len(batch.payloads), receipts, 0, spilled=count)


def is_unreadable(exc: Exception) -> bool:
    """Whether a push failed because stored data cannot be read."""
    return isinstance(exc, (CorruptionError, ExtentMissingError))


def _pushed_of(
    entries: list[PendingPush],
    once: DedupPush | None,
    appender: PipeWriter | None,
    failed: BackendError,
) -> AppendedPushes:
    """The single pushes that were pushed although the append failed; the others get the error.
    Raises the error if there are none, or for a batch, whose `done` then says what was pushed.
    once: the push of messages with dedup ids. appender: of this append; None: it never began."""
    receipts = [] if appender is None else appender.receipts
    which: Sequence[int] = range(sum(receipt.length for receipt in receipts))
    if once is not None:
        which, receipts = once.done_receipts()
    if entries[0].batch is not None:
        entries[0].done = which, receipts
        raise failed
    pushed = [entries[index] for index in which]
    if not pushed:
        raise failed
    # The ids of messages that a spool took before it failed are unknown.
    failed.outcome_unknown |= failed.fields.get("pushed", 0) > len(pushed)
    failed.fields["pushed"] = 0
    done = set(map(id, pushed))
    for entry in entries:
        if id(entry) not in done:
            entry.error = failed
    return AppendedPushes(pushed, len(pushed), receipts, 0, failed)


# --- checks of what is pushed ----------------------------------------------------------------


def check_payload(payload: bytes) -> bytes:
    if type(payload) is not bytes:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise InvalidPayloadError(
                f"a payload must be bytes, not {type(payload).__name__}",
                hint="encode it first, for instance with json.dumps(...).encode()",
            )
        payload = bytes(payload)
    if len(payload) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"the message has {len(payload)} bytes, the limit is {MESSAGE_BYTES_MAX}"
        )
    return payload


def check_payloads(payloads: Iterable[bytes]) -> tuple[Sequence[bytes], int | None]:
    """Check payloads; returns them as a list, and their length if all have the same. Two passes in
    C."""
    if isinstance(payloads, (bytes, str, bytearray, memoryview)):
        raise InvalidPayloadError(
            "push_many takes a list of payloads, not a single one",
            hint="use push() for a single message",
        )
    if not isinstance(payloads, Iterable):
        raise InvalidPayloadError(
            f"push_many takes a list of payloads, each of bytes, not {type(payloads).__name__}"
        )
    found = payloads if isinstance(payloads, list) else list(payloads)
    if set(map(type, found)) - {bytes}:
        found = [check_payload(payload) for payload in found]
    lengths = set(map(len, found))
    if lengths and max(lengths) > MESSAGE_BYTES_MAX:
        for payload in found:
            check_payload(payload)
    return found, lengths.pop() if len(lengths) == 1 else None


def check_key(key: bytes | None) -> bytes | None:
    if key is None or isinstance(key, bytes):
        if key is not None and len(key) > COLUMN_BYTES_MAX:
            raise MessageTooLargeError(f"a key of {len(key)} bytes is too large")
        return key
    raise InvalidPayloadError(f"a key must be bytes, not {type(key).__name__}")


def _checked_keys(keys: Sequence[bytes | None]) -> list[bytes | None]:
    """Check keys; returns them. Two passes in C."""
    odd = set(map(type, keys)) - {bytes, NoneType}
    if odd or max(map(len, filter(None, keys)), default=0) > COLUMN_BYTES_MAX:
        return [check_key(key) for key in keys]
    return list(keys)


def gathered(entries: list[PendingPush], now_ms: int) -> Batch:
    """Single pushes of one lane as a batch. now_ms: wall time."""
    headers = [entry.header for entry in entries]
    keys = [entry.key for entry in entries]
    dues: int | list[int] | None = None
    if entries[0].lane is not None:
        dues = entries[0].due_ms if len(entries) == 1 else [entry.due_ms for entry in entries]
    return Batch(
        [entry.payload for entry in entries],
        now_ms,
        headers if any(headers) else None,
        keys if keys.count(None) < len(keys) else None,
        dues_ms=dues,
    )


def check_delay_ms(delay: float | None, due: datetime | None, wall_ms: int) -> int:
    """How long a message is delayed. Raises UsageError for an invalid time."""
    if due is None:
        return milliseconds("delay", delay)
    if delay is not None:
        raise UsageError("delay and due exclude each other: pass only one of them")
    if not isinstance(due, datetime):
        raise UsageError(f"due must be a datetime, not {due!r}", hint="for seconds use delay")
    check_zone("due", due)
    delay_ms = round(due.astimezone(UTC).timestamp() * 1000) - wall_ms
    if delay_ms > DELAY_MAX_SECONDS * 1000:
        raise UsageError(f"due is more than ten years away: {due}")
    return max(0, delay_ms)


class PushedColumns(NamedTuple):
    """The arguments of a `push_many` for each message. priorities: one for each, or one for all."""

    payloads: Iterable[bytes]
    headers: Sequence[Mapping[str, str] | None] | None
    keys: Sequence[bytes | None] | None
    dedup_ids: Sequence[str | None] | None
    priorities: int | Sequence[int]

    def by_level(
        self, levels_of: Callable[[Sequence[int], Sequence[bytes | None] | None], Levels]
    ) -> Iterator[LevelColumns]:
        """The messages of each level, the most urgent first. levels_of: returns the levels, from
        priorities and keys. Raises UsageError and InvalidPayloadError for invalid columns."""
        found, _ = check_payloads(self.payloads)
        headers, keys, dedup_ids = self.headers, self.keys, self.dedup_ids
        check_columns(len(found), headers=headers, keys=keys, dedup_ids=dedup_ids)
        headers, keys, dedup_ids = as_list(headers), as_list(keys), as_list(dedup_ids)
        if keys is not None:
            keys = _checked_keys(keys)
        levels = levels_of(self._checked_priorities(len(found)), keys)
        for level in urgent_first(levels):
            which = levels[level]
            yield LevelColumns(
                level,
                which,
                [found[index] for index in which],
                _chosen(headers, which),
                _chosen(keys, which),
                _chosen(dedup_ids, which),
            )

    def _checked_priorities(self, count: int) -> Sequence[int]:
        priorities = self.priorities
        if isinstance(priorities, int):
            return [check_priority(priorities)] * count
        if isinstance(priorities, (str, bytes)) or not isinstance(priorities, Sequence):
            raise UsageError(
                "priority must be a whole number, or a list with one for each payload, not"
                f" {priorities!r:.100}",
                hint=f"they are 0 to {PRIORITY_MAX}; {PRIORITY_MAX} is the most urgent",
            )
        if len(priorities) != count:
            raise UsageError(
                f"priority has {len(priorities)} numbers for {count} payloads",
                hint="give one number for each payload, or a single one for all",
            )
        return [check_priority(priority) for priority in priorities]


def as_list(column: Collection[T] | None) -> Sequence[T] | None:
    """A column that passed `check_columns`, as a sequence."""
    return column if column is None or isinstance(column, Sequence) else list(column)


def _chosen(column: Sequence[T] | None, which: Sequence[int]) -> list[T] | None:
    return None if column is None else [column[index] for index in which]


class LevelColumns(NamedTuple):
    """The columns of messages of one level. which: their indexes."""

    level: Level
    which: Sequence[int]
    payloads: list[bytes]
    headers: Sequence[Mapping[str, str] | None] | None
    keys: Sequence[bytes | None] | None
    dedup_ids: Sequence[str | None] | None


def check_columns(count: int, **columns: Collection[object] | None) -> None:
    """Raise InvalidPayloadError for a column that is not a list, or has not the length of the
    payloads. Arrays and views of a dict are also accepted; sets and dicts are not."""
    for name, column in columns.items():
        unordered = isinstance(column, (set, frozenset, Mapping))
        if column is not None and (unordered or not isinstance(column, Collection)):
            raise InvalidPayloadError(
                f"{name} must be a list with one for each payload, not {type(column).__name__}"
            )
        if column is not None and len(column) != count:
            raise InvalidPayloadError(
                f"{count} payloads came with {len(column)} {name}",
                hint="give one value for each payload, or None for payloads without one",
            )


def batched(
    payloads: Sequence[bytes],
    length: int | None,
    headers: Sequence[Mapping[str, str] | None] | None,
    keys: Sequence[bytes | None] | None,
    now_ms: int,
) -> Batch:
    """A `push_many`, its columns checked, as a batch. now_ms: wall time."""
    return Batch(
        payloads,
        now_ms,
        None if headers is None else _encoded(headers),
        None if keys is None else _checked_keys(keys),
        length=length,
    )


def _encoded(headers: Sequence[Mapping[str, str] | None]) -> list[bytes | None]:
    """Headers as stored; headers that all messages share are encoded once."""
    if headers and all(each is headers[0] for each in headers):
        return [encode_headers(headers[0])] * len(headers)
    return [encode_headers(each) for each in headers]


# --- outcomes ----------------------------------------------------------------------------------


def assign_ids(entries: list[PendingPush], receipts: Sequence[AppendReceipt]) -> None:
    """Give each push its ids: one to each single push, or all to one `push_many`."""
    if entries[0].batch is not None:
        entries[0].ids = MessageIds(receipts)
        entries[0].id = entries[0].ids[0]
        return
    waiting = iter(entries)
    for receipt in receipts:
        # zip asks for an id first, so no entry is lost after the last one.
        for message_id, entry in zip(ids_of_run(receipt), waiting, strict=False):
            entry.id = message_id


def wake_in_turn(entries: list[PendingPush]) -> None:
    """Wake the threads of these entries one after the other: each wakes the next one, so that they
    do not all compete for the interpreter lock at once."""
    waiting = [entry for entry in entries if entry.wake is not None and not entry.gone]
    for entry, after in pairwise(waiting):
        entry.after = after
    if waiting:
        waiting[0].wake_up()


def settle_futures(entries: list[PendingPush]) -> int:
    """Resolve the entries' unresolved futures; returns how many. Their callbacks run here."""
    settled = 0
    for entry in entries:
        if entry.future is not None and not entry.future.done():
            settled += 1
            if entry.error is not None:
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.id)
    return settled
