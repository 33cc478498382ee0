"""Pushers: combine the pushes of many threads into few appends.

Group commit without a delay: the first thread that pushes becomes the *leader* and appends. What
arrives while its append is in flight is appended together by the next leader: one of the waiting
threads, or the writer thread if only futures wait.

Invariants:
1. A push returns, and a future gets its result, only after the append with its message is durable.
2. Appends happen in the order in which the pushes arrived.
3. `BUFFER_BYTES_MAX` and `BUFFER_MESSAGES_MAX` bound what futures wait for; `push_soon` blocks.

Messages of each priority and each key lane (each *level*) go to pipes of their own. Each level in
use has a pusher of its own within the pusher, so all of this holds for each of them, and they
append in parallel.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from itertools import chain
from itertools import count as counter
from queue import SimpleQueue
from types import NoneType
from typing import Any, NamedTuple, NoReturn

from cassq.base.arguments import refuse_pickling
from cassq.base.counters import Tally
from cassq.doorbell import Doorbell
from cassq.errors import BackendError, CassqError, ClosedError, UsageError
from cassq.lifecycle.ports import Lifecycle, operation
from cassq.message.batches import Batch, Intend
from cassq.message.message_ids import MessageId, MessageIds, ScatteredIds, ids_of_run
from cassq.model.priorities import PLAIN, Level, urgent_first
from cassq.producer.admission import (
    Admission,
    PendingPush,
    PushedColumns,
    assign_ids,
    is_unreadable,
    settle_futures,
    wake_in_turn,
)
from cassq.producer.level_pushes import LevelPush, push_levels
from cassq.producer.leveling import Leveling, of_some

BUFFER_BYTES_MAX = 32 * 1024 * 1024
BUFFER_MESSAGES_MAX = 100_000
_GROUP_MAX = 16_384

_writer_numbers = counter(1)


class Push(NamedTuple):
    """The arguments of a `Pusher.push`, in the order of `Admission.entry`."""

    payload: bytes
    headers: Mapping[str, str] | None = None
    key: bytes | None = None
    delay: float | None = None
    due: datetime | None = None
    dedup_id: str | None = None
    importance: str | None = None
    priority: int = 0

    def options(self) -> dict[str, Any]:
        """All but the payload, by name."""
        found = self._asdict()
        del found["payload"]
        return found


class Pusher:
    """Pushes to one queue; get one from `Queue.pusher`. Thread-safe.

    open_level: opens the pusher of a level, within a call of the client. side_by_side:
    whether a call may append to several levels at the same time, in threads of its own.
    """

    def __init__(
        self,
        admission: Admission,
        doorbell: Doorbell,
        life: Lifecycle,
        open_level: Callable[[Level], Pusher],
        side_by_side: Callable[[], bool],
    ) -> None:
        self.tally: Tally = admission.tally
        self._open_level = open_level
        self._side_by_side = side_by_side
        self._levels: dict[Level, Pusher] = {}
        self._admission = admission
        self._leveling = Leveling(admission)
        self._life = life
        self._doorbell = doorbell
        self._mutex = threading.Lock()
        self._opening = threading.Lock()  # held while the pusher of a level is opened
        self._waiting_locks: list[threading.Lock] = []  # locks of threads waiting for a change
        self._queue: deque[PendingPush] = deque()
        self._leader: PendingPush | None = None  # its thread may use the appender
        self._buffered_bytes = 0
        self._buffered = 0
        self._soon_submitted = self._soon_settled = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._to_settle: SimpleQueue[list[PendingPush]] = SimpleQueue()
        self._writing = PendingPush(b"", None, None)  # stands for the writer thread as the leader
        self._writing.wake = self._life.parked()
        self._ended = False

    # --- pushing ------------------------------------------------------------------------------

    @operation
    def push(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        delay: float | None = None,
        due: datetime | None = None,
        dedup_id: str | None = None,
        importance: str | None = None,
        priority: int = 0,
    ) -> MessageId:
        """Push one message; returns its id. Durable on return.

        delay: seconds before it can be delivered. due: the same as a time, with a time zone.
        dedup_id: pushes with the same id within the queue's `dedup_window` are one message.
        importance: a word, such as "high", by which alerts are routed if the message fails.
        priority: from 0 (default) to 9, the most urgent, delivered first; not in a cp queue. With
        `spill=`, the `spilled` of the id says whether the message is in the spool, as no quorum
        answered. Cost: one append and one sync, shared with all pushes that wait meanwhile; with a
        dedup id one more sync, shared with all pushes with one.
        """
        entry = self._admission.entry(payload, headers, key, delay, due, dedup_id, importance)
        plain = type(priority) is int and not priority and not self._leveling.by_key
        pusher = self if plain else self._of(self._leveling.level(priority, key))
        pusher._submit(entry)
        return entry.id

    @operation
    def push_many(
        self,
        payloads: Iterable[bytes],
        *,
        headers: Sequence[Mapping[str, str] | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
        delay: float | None = None,
        due: datetime | None = None,
        dedup_ids: Sequence[str | None] | None = None,
        importance: str | None = None,
        priority: int | Sequence[int] = 0,
    ) -> MessageIds:
        """Push messages in order; returns their ids. All are durable on return.

        headers, keys, dedup_ids: one entry per payload. If payloads have the same dedup id, only
        the first one is pushed, and all get its id. priority: of all messages, or a list with one
        for each; messages are pushed together by priority, the most urgent first, and by lane in a
        queue with `key_lanes`. Other arguments: as for `push`, for all messages. After an error,
        its `.fields["pushed"]` says how many messages, from the first, were pushed all the same. If
        later ones were too, as they are more urgent or in another lane, `outcome_unknown` is set.
        Cost: one append and one sync for every 8 MiB of each priority and lane, or more where that
        is quicker; on servers those of lanes at the same time. Well under a microsecond per
        message. With dedup ids, lanes one after the other, one more sync for every 5,000 messages,
        and about twenty microseconds per message, a hundred for a duplicate.
        """
        if not isinstance(priority, int) or (keys is not None and self._leveling.key_lanes > 1):
            return self._push_levels(
                PushedColumns(payloads, headers, keys, dedup_ids, priority), delay, due, importance
            )
        pusher = self._of(self._leveling.level(priority, None))
        entry = self._admission.entry_of_many(
            payloads, headers, keys, delay, due, dedup_ids, importance
        )
        assert entry.batch is not None
        if not entry.batch.payloads:
            return MessageIds([])
        pusher._submit(entry)
        assert entry.ids is not None
        return entry.ids

    def _push_levels(
        self,
        columns: PushedColumns,
        delay: float | None,
        due: datetime | None,
        importance: str | None,
    ) -> MessageIds:
        """`push_many` of messages of several levels. All are checked before any is pushed."""
        admission = self._admission
        pushes: list[LevelPush] = []
        by_level = columns.by_level(self._leveling.levels)
        for level, which, payloads, headers, keys, dedup_ids in by_level:
            entry = admission.entry_of_many(
                payloads, headers, keys, delay, due, dedup_ids, importance
            )
            pusher = self._of(level)
            pushes.append(LevelPush(level, which, entry, pusher._submit, pusher._submit_apart))
        # Equal ids wait for each other, and a limit counts what is pushed.
        in_turn = columns.dedup_ids is not None or admission.has_quota
        beside = not in_turn and self._side_by_side()
        return push_levels(pushes, side_by_side=beside)

    @operation
    def push_each(self, pushes: Sequence[Push]) -> list[MessageId | Exception]:
        """Push messages, each with its own arguments, in order. Returns for each its id, or the
        error that `push` would raise. All messages that were pushed are durable on return.

        Messages of each priority are pushed together, the most urgent first. Cost: one append and
        one sync for up to 16,384 messages of a priority that are not delayed; with dedup ids one
        more sync for every 5,000.
        """
        _check_pushes(pushes)
        return self._push_together(pushes) or self._push_singly(pushes)

    def _push_together(self, pushes: Sequence[Push]) -> list[MessageId | Exception]:
        """`push_each` as one batch, which is quicker. Empty if they cannot be one batch, or must be
        pushed singly. Then nothing was pushed, except perhaps messages with dedup ids."""
        apart = self._admission.has_quota or self._leveling.key_lanes > 1
        columns = None if apart else _columns_of(pushes)
        if columns is None:
            return []
        payloads, headers, keys, dedup_ids, _ = columns
        try:
            entry = self._admission.entry_of_many(
                payloads, headers, keys, None, None, dedup_ids, None
            )
        except CassqError:
            return []  # one of them is invalid
        entry.singly = dedup_ids is not None
        try:
            self._submit(entry)
        except CassqError as exc:
            if entry.singly and is_unreadable(exc):
                return []  # one id's earlier message is unreadable; those pushed are found again
            done = entry.done_ids
            if isinstance(exc, BackendError):
                exc.outcome_unknown |= exc.fields.get("pushed", 0) > len(done)
                exc.fields["pushed"] = 0
            return [done.get(at, exc) for at in range(len(pushes))]
        assert entry.ids is not None
        return [each for run in entry.ids.runs for each in ids_of_run(run)]

    def _push_singly(self, pushes: Sequence[Push]) -> list[MessageId | Exception]:
        """`push_each`, with an entry for each push."""
        outcomes: list[MessageId | Exception] = []
        entries: dict[Level, list[tuple[int, PendingPush]]] = {}
        for at, push in enumerate(pushes):
            try:
                payload, headers, key, delay, due, dedup_id, importance, priority = push
                entry = self._admission.entry(
                    payload, headers, key, delay, due, dedup_id, importance
                )
                level = self._leveling.level(priority, key)
                entries.setdefault(level, []).append((at, entry))
            except CassqError as exc:
                outcomes.append(exc)
            else:
                outcomes.append(entry.id)
        for level in urgent_first(entries):
            some = [entry for _, entry in entries[level]]
            try:
                self._of(level)._submit_all(some)
            except CassqError as exc:  # none was begun: closed, or the priority is not allowed
                for entry in some:
                    entry.error = exc
            for at, entry in entries[level]:
                outcomes[at] = entry.error or entry.id
        return outcomes

    def _of(self, level: Level) -> Pusher:
        """The pusher for messages of a level. Raises UsageError for a priority that the queue does
        not support."""
        if level == PLAIN:
            return self
        self._admission.check_allowed(level.priority)
        found = self._levels.get(level)
        if found is None:
            with self._opening:
                self._check_open()
                found = self._levels.get(level)
                if found is None:
                    found = self._levels[level] = self._open_level(level)
        return found

    @operation
    def push_soon(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        delay: float | None = None,
        due: datetime | None = None,
        dedup_id: str | None = None,
        importance: str | None = None,
        priority: int = 0,
    ) -> Future[MessageId]:
        """Push one message in the background; returns a future of its id, done when durable.

        It takes the arguments of `push`. Blocks while as much of its priority waits to be appended
        as `BUFFER_BYTES_MAX` (32 MiB) or `BUFFER_MESSAGES_MAX` (100,000) allow.
        """
        pusher = self._of(self._leveling.level(priority, key))
        entry = self._admission.entry(payload, headers, key, delay, due, dedup_id, importance)
        future = entry.future = Future()
        future.set_running_or_notify_cancel()
        pusher._await(lambda: pusher._add_soon(entry))
        return future

    def _add_soon(self, entry: PendingPush) -> bool:
        """Queue a future's entry to be appended, if there is room. The mutex is held."""
        self._check_open()
        size = entry.size
        if (
            self._buffered_bytes + size > BUFFER_BYTES_MAX and self._buffered
        ) or self._buffered >= BUFFER_MESSAGES_MAX:
            return False
        if len(self._threads) < 2:
            self._start_writer()
        self._buffered_bytes += size
        self._buffered += 1
        self._soon_submitted += 1
        try:
            self._queue.append(entry)
            if self._leader is None:
                self._hand_on(None)
        except BaseException:  # a signal handler's: the entry is queued, perhaps without a leader
            self._hand_on(None)
            raise
        return True

    def push_intended(
        self, batch: Batch, intend: Intend | None, lane: int | None = None
    ) -> MessageIds:
        """Push a batch (for moves). intend: gets the places of its messages before these are
        written. Messages of different key lanes are pushed separately. lane: of timer pipes, for
        messages with due times."""
        self._life.check()
        parts = self._leveling.parts(batch)
        if len(parts) == 1:
            return self._push_part(next(iter(parts)), batch, intend, lane)
        pushed: list[tuple[Sequence[int], MessageIds]] = []
        for level, which in parts.items():
            some = None if intend is None else of_some(intend, which)
            pushed.append((which, self._push_part(level, batch.only(which), some, lane)))
        return ScatteredIds(pushed)

    def _push_part(
        self, level: Level, batch: Batch, intend: Intend | None, lane: int | None
    ) -> MessageIds:
        entry = PendingPush(b"", None, None, batch)
        entry.intend, entry.lane = intend, lane
        self._of(level)._submit(entry)
        assert entry.ids is not None
        return entry.ids

    @operation
    def flush(self) -> None:
        """Wait until all messages pushed so far by `push_soon` are durable, or have failed.

        Raises UsageError in a future's callback, where it would wait for itself.
        """
        for pusher in (*self._levels.values(), self):
            pusher._flush()

    def _flush(self) -> None:
        if threading.current_thread() in self._threads:
            raise UsageError("flush() in a future's callback would wait for itself")
        with self._mutex:
            self._check_open()
            wanted = self._soon_submitted
        self._await(lambda: self._soon_settled >= wanted)

    # --- group commit -------------------------------------------------------------------------

    def _submit(self, entry: PendingPush) -> None:
        """Have an entry appended, by this thread or by another that leads."""
        try:
            with self._mutex:
                self._check_open()
                # Once queued, the entry leads or can be woken to lead: an interrupt may come
                # between any two steps, and another thread must then find a consistent state.
                if self._leader is None:
                    self._leader = entry
                else:
                    entry.wake = self._life.parked()
                self._queue.append(entry)
            if entry.wake is not None:
                entry.wake.acquire()
                if entry.after is not None:
                    entry.after.wake_up()
            if not _is_done(entry):
                self._lead(entry)
        except BaseException:  # most likely a signal handler's: pass the lead on
            self._withdraw(entry)
            raise
        if entry.error is not None:
            raise entry.error

    @operation
    def _submit_apart(self, entry: PendingPush) -> None:
        """`_submit`, as a call of its own thread."""
        self._submit(entry)

    def _submit_all(self, entries: Sequence[PendingPush]) -> None:
        """Have entries appended, in order; each gets its ids or its error.

        They share one lock, on which this thread waits. It is released for each entry that becomes
        the leader, and when the last one is done; when others are done, this thread is not woken.
        """
        wake, last = self._life.parked(), entries[-1]
        for entry in entries:
            entry.wake, entry.gone = wake, entry is not last
        try:
            with self._mutex:
                self._check_open()
                self._queue.extend(entries)
                if self._leader is None:
                    self._leader = entries[0]
                    wake.release()
            leader: PendingPush | None = None
            while leader is not last:
                wake.acquire()
                if _is_done(last):
                    break
                leader = self._leader  # one of these entries, as this thread was woken to lead
                assert leader is not None
                self._lead(leader)
        except BaseException:  # most likely a signal handler's: pass the lead on
            for entry in entries:
                self._withdraw(entry)
            raise
        if last.after is not None:
            last.after.wake_up()

    def _withdraw(self, entry: PendingPush) -> None:
        """The thread of an entry leaves: take the entry back, or let it finish if it is in flight.
        If it was the leader, another one takes over."""
        with self._mutex:
            entry.gone = True
            if entry in self._queue:
                self._queue.remove(entry)
        self._finish(entry, entry.flight)
        if entry.after is not None:
            entry.after.wake_up()

    def _lead(self, leader: PendingPush) -> None:
        """Append what waits, then hand the lead on."""
        leader.flight = []
        try:
            with self._mutex:
                self._take(leader.flight)
            self._append(leader.flight)
        finally:
            self._finish(leader, leader.flight)
            leader.flight = []  # breaks a reference cycle

    def _finish(self, leader: PendingPush, entries: list[PendingPush]) -> None:
        """Wake the threads whose entries were appended, and pass the lead on. Repeatable."""
        with self._mutex:
            if entries and self._queue and entries[-1] is self._queue[0]:
                entries.pop()  # the leader was interrupted while it took this one
            if self._queue and self._queue[0] is leader:
                self._queue.popleft()  # interrupted before it took its own: its thread is gone
            futures = 0
            for entry in entries:
                if not _is_done(entry):
                    entry.error = BackendError(
                        "the thread that was appending was interrupted", outcome_unknown=True
                    )
                futures += entry.future is not None
            if futures and self._leader is leader:
                self._forget_futures(entries, futures)
            self._hand_on(leader)
            if entries != [leader]:
                wake_in_turn([entry for entry in entries if entry is not leader])

    def _forget_futures(self, entries: list[PendingPush], count: int) -> None:
        """Free the buffer space of futures. The mutex is held."""
        size = sum(entry.size for entry in entries if entry.future is not None)
        self._buffered_bytes -= size
        self._buffered -= count
        self._wake_waiting()
        self._to_settle.put(entries)

    def _take(self, entries: list[PendingPush]) -> None:
        """Add the next entries to append together: one `push_many`, or a run of single pushes of
        one lane. The mutex is held."""
        queue = self._queue
        while queue and len(entries) < _GROUP_MAX:
            if entries and not entries[0].goes_with(queue[0]):
                return
            entries.append(queue[0])
            queue.popleft()

    def _append(self, entries: list[PendingPush]) -> None:
        """One append for all; each entry gets its ids or its error."""
        first = entries[0]
        try:
            done = self._admission.append(entries)
        except Exception as exc:
            left = [entry for entry in entries if entry.error is None]
            if not (first.singly and is_unreadable(exc)):
                self.tally.push_failed(len(first.batch.payloads) if first.batch else len(left), exc)
            for entry in left:
                entry.error = exc
            return
        self.tally.pushed += done.messages
        self.tally.spilled += done.spilled
        self.tally.written_bytes += done.written_bytes
        if done.failed is not None:
            left = [entry for entry in entries if entry.error is done.failed]
            self.tally.push_failed(len(left), done.failed)
        assign_ids(done.entries, done.receipts)
        self._doorbell.ring()

    def _hand_on(self, leader: PendingPush | None) -> None:
        """If `leader` is the leader (None: if there is none), make the next waiting entry the
        leader. Repeatable. The mutex is held."""
        if self._leader is leader:
            first = self._queue[0] if self._queue else None
            self._leader = self._writing if first and first.wake is None else first
        if self._leader is None:
            self._wake_waiting()
        elif self._leader.wake is not None:
            self._leader.wake_up()

    # Not a Condition: if a signal handler raises, its `wait` may end without the lock, and the end
    # of the `with` block then releases a lock that another thread holds.
    def _await(self, done: Callable[[], bool]) -> None:
        """Return once `done` is true; it is called with the mutex held."""
        while True:
            with self._mutex:
                if done():
                    return
                change = self._sleep()
            change.acquire()

    def _sleep(self) -> threading.Lock:
        """A lock to wait on until something changes. The mutex is held, but not while waiting."""
        change = self._life.parked()
        self._waiting_locks.append(change)
        return change

    def _wake_waiting(self) -> None:
        """Make waiting threads check again. The mutex is held."""
        while self._waiting_locks:
            if self._waiting_locks[-1].locked():
                self._waiting_locks[-1].release()
            self._waiting_locks.pop()

    def _start_writer(self) -> None:
        """Start the writer and the settler. If a signal handler raises in `start`, it is unknown
        whether the thread runs: then there may be two of a kind, which share the work."""
        number = next(_writer_numbers)
        kinds = ((self._write_for_futures, "writer"), (self._settle, "settler"))
        for target, name in kinds[len(self._threads) :]:
            thread = threading.Thread(target=target, name=f"cassq-{name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _write_for_futures(self) -> None:
        """Lead whenever the first waiting entry is a future."""
        wake = self._writing.wake
        assert wake is not None
        while True:
            wake.acquire()
            with self._mutex:
                mine = self._leader is self._writing
            if mine:
                self._lead(self._writing)
            elif self._ended:
                self._to_settle.put([])
                self._writing.wake_up()  # for a second one
                return

    def _settle(self) -> None:
        """Give futures their results. This has a thread of its own, as a callback may push."""
        while entries := self._to_settle.get():
            settled = settle_futures(entries)
            with self._mutex:
                self._soon_settled += settled
                self._wake_waiting()
        self._to_settle.put([])  # for a second one

    # --- life ---------------------------------------------------------------------------------

    def maintain(self) -> float:
        """Do housekeeping between appends; returns the seconds until the next time. Work on the
        catalog is done without the lead: others may hold the catalog for a long time."""
        keeper = PendingPush(b"", None, None)
        with self._mutex:
            if self._closed:
                return 3600.0
            if self._leader is not None:
                return 0.05
            self._leader = keeper
        try:
            again, jobs = self._admission.maintain()
        finally:
            with self._mutex:
                self._hand_on(keeper)
        self._admission.do(jobs)
        return again

    def close(self) -> None:
        """Append what waits, and seal the pipe. Later pushes raise ClosedError.

        If a signal handler calls this while its thread is inside another call of the client, the
        pusher is closed when that call ends.
        """
        self._life.end(self.close_inside)

    def close_inside(self) -> None:
        """`close`, inside a call of the client."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        with self._opening:
            levels = list(self._levels.values())
        for pusher in levels:
            pusher.close_inside()
        self._await(self._take_lead_for_good)
        if self._threads:
            self._writing.wake_up()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
        self._admission.close()
        self.tally.over = True
        with self._mutex:
            self._wake_waiting()

    def _take_lead_for_good(self) -> bool:
        """Take the lead for good, if nobody has it. The mutex is held."""
        if self._leader is None:
            self._leader = PendingPush(b"", None, None)
            self._ended = True
        return self._ended

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Pusher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            "pusher",
            "pass the names, and call cassq.connect(url).queue(name).pusher() there",
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this pusher is closed")


def _check_pushes(pushes: Sequence[Push]) -> None:
    if not isinstance(pushes, Sequence) or isinstance(pushes, str | bytes | Push):
        raise UsageError(f"push_each takes a list of Push, not {pushes!r:.100}")
    wrong = set(map(type, pushes)) - {Push}
    if wrong:
        raise UsageError(f"push_each takes a list of Push, not of {wrong.pop().__name__}")


def _columns_of(pushes: Sequence[Push]) -> PushedColumns | None:
    """The columns of pushes that can be one batch; None if there are none, or if their outcomes may
    differ: one has another argument than these, or only some have dedup ids."""
    if not pushes:
        return None
    payloads, headers, keys, delays, dues, dedup_ids, importances, priorities = zip(
        *pushes, strict=True
    )
    kinds = set(map(type, dedup_ids))
    if set(map(type, chain(delays, dues, importances))) != {NoneType} or any(priorities):
        return None
    if set(map(type, priorities)) != {int} or (NoneType in kinds and len(kinds) > 1):
        return None
    return PushedColumns(
        payloads,
        headers if any(headers) else None,
        keys if set(map(type, keys)) != {NoneType} else None,
        dedup_ids if NoneType not in kinds else None,
        0,
    )


def _is_done(entry: PendingPush) -> bool:
    """Whether an entry has its ids or its error."""
    return bool(entry.id) or entry.ids is not None or entry.error is not None
