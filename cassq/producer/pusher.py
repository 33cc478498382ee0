"""Pushers: many threads' pushes made into few appends.

Group commit without a delay: the first thread that pushes becomes the *leader* and appends; what
arrives while its append is in flight is appended together by the next leader, one of those
waiting, or the writer thread when only futures wait.

Invariants:
1. A push returns, and a future gets its result, only after the append holding it is durable.
2. Appends happen in the order the pushes arrived.
3. What waits to be appended is bounded by `BUFFER_BYTES_MAX`; `push_soon` waits for room.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from itertools import count as counter
from queue import SimpleQueue
from typing import NoReturn

from cassq.base.arguments import refuse_pickling
from cassq.base.counters import Tally
from cassq.doorbell import Doorbell
from cassq.errors import BackendError, ClosedError, UsageError
from cassq.lifecycle.ports import Life, operation
from cassq.message.batches import Batch, Intend
from cassq.message.message_ids import MessageId, MessageIds
from cassq.producer.admission import Admission, PendingPush, settle_futures, tell, wake_in_turn

BUFFER_BYTES_MAX = 32 * 1024 * 1024
BUFFER_MESSAGES_MAX = 100_000
_GROUP_MAX = 16_384

_writer_numbers = counter(1)


class Pusher:
    """Pushes to one queue; made by `Queue.pusher`. Thread-safe."""

    def __init__(self, intake: Admission, doorbell: Doorbell, life: Life) -> None:
        self.tally: Tally = intake.tally
        self._intake = intake
        self._life = life
        self._doorbell = doorbell
        self._mutex = threading.Lock()
        self._sleepers: list[threading.Lock] = []  # what threads wait at until something changes
        self._queue: deque[PendingPush] = deque()
        self._leader: PendingPush | None = None  # whose thread may use the appender
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
    ) -> MessageId:
        """Push one message; its id. Durable when it returns.

        delay: seconds before which it is not delivered. due: the same as a time, with a zone.
        dedup_id: a push of the same one within the queue's `dedup_window` is this one.
        importance: a word that alerts are routed by, such as "high", if the message fails.
        The id's `spilled` tells whether it is in the spool, as no quorum answers (`spill=`).
        Cost: one append and one sync, shared with all pushes that wait meanwhile.
        """
        entry = self._intake.entry(payload, headers, key, delay, due, dedup_id, importance)
        self._submit(entry)
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
    ) -> MessageIds:
        """Push messages in their order; their ids. All are durable when it returns.

        headers, keys, dedup_ids: one entry a payload; of those with one dedup id the first alone
        is pushed, and all get its id. The others: as for `push`, for all of them. An error raised
        names in `.fields["pushed"]` how many, from the first, were pushed all the same.
        Cost: one append and one sync for every 8 MiB, or more where that is quicker; well under a
        microsecond a message. With
        dedup ids for every 5,000 messages one sync more, and some twenty microseconds a message,
        a hundred for a duplicate.
        """
        entry = self._intake.entry_of_many(
            payloads, headers, keys, delay, due, dedup_ids, importance
        )
        assert entry.batch is not None
        if not entry.batch.payloads:
            return MessageIds([])
        self._submit(entry)
        assert entry.ids is not None
        return entry.ids

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
    ) -> Future[MessageId]:
        """Push one message with others; a future of its id, done when it is durable.

        The arguments are those of `push`. Waits while more than `BUFFER_BYTES_MAX` bytes wait
        to be appended.
        """
        entry = self._intake.entry(payload, headers, key, delay, due, dedup_id, importance)
        future = entry.future = Future()
        future.set_running_or_notify_cancel()
        self._await(lambda: self._add_soon(entry))
        return future

    def _add_soon(self, entry: PendingPush) -> bool:
        """Add a future's entry to what waits to be appended, if there is room. The mutex is
        held."""
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
        except BaseException:  # a signal's: it is in the queue, and nobody may see to it
            self._hand_on(None)
            raise
        return True

    def push_intended(
        self, batch: Batch, intend: Intend | None, lane: int | None = None
    ) -> MessageIds:
        """Push a batch, telling `intend` the places before they are written (for moves). lane:
        of messages with due times."""
        entry = PendingPush(b"", None, None, batch)
        entry.intend, entry.lane = intend, lane
        self._life.check()
        self._submit(entry)
        assert entry.ids is not None
        return entry.ids

    @operation
    def flush(self) -> None:
        """Return when everything pushed before by `push_soon` is durable, or has failed.

        Raises UsageError in a callback of a future, which would wait for itself.
        """
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
                # Once it is in the queue it leads, or can be woken to: an interrupt comes between
                # any two steps, and another thread then sees what there is.
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
        except BaseException:  # a signal's, most likely: the lead must not go with this thread
            self._withdraw(entry)
            raise
        if entry.error is not None:
            raise entry.error

    def _withdraw(self, entry: PendingPush) -> None:
        """The thread of an entry leaves: take it back, or let it go if it is in flight; if it
        leads, somebody else is to."""
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

    def _finish(self, leader: PendingPush, entries: list[PendingPush]) -> None:
        """Tell everybody whose entry was appended, and hand on. Can be called again."""
        with self._mutex:
            if entries and self._queue and entries[-1] is self._queue[0]:
                entries.pop()  # interrupted while it was taken: it still waits
            if self._queue and self._queue[0] is leader:
                self._queue.popleft()  # interrupted before: nobody waits for it, or may lead
            for entry in entries:
                if not _is_done(entry):
                    entry.error = BackendError(
                        "the thread that was appending was interrupted", outcome_unknown=True
                    )
            futures = sum(entry.future is not None for entry in entries)
            if futures and self._leader is leader:
                self._forget_futures(entries, futures)
            self._hand_on(leader)
            if entries != [leader]:
                wake_in_turn([entry for entry in entries if entry is not leader])

    def _forget_futures(self, entries: list[PendingPush], count: int) -> None:
        """Make room for others. The mutex is held."""
        size = sum(entry.size for entry in entries if entry.future is not None)
        self._buffered_bytes -= size
        self._buffered -= count
        self._wake_sleepers()
        self._to_settle.put(entries)

    def _take(self, entries: list[PendingPush]) -> None:
        """Add the next entries to be appended together: one `push_many`, or a run of single ones
        of one lane. The mutex is held."""
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
            done = self._intake.append(entries)
        except Exception as exc:
            left = [entry for entry in entries if entry.error is None]
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
        tell(done.entries, done.receipts)
        self._doorbell.ring()

    def _hand_on(self, leader: PendingPush | None) -> None:
        """If `leader` leads, or nobody for None, make somebody who waits the next; repeatable. The
        mutex is held."""
        if self._leader is leader:
            first = self._queue[0] if self._queue else None
            self._leader = self._writing if first and first.wake is None else first
        if self._leader is None:
            self._wake_sleepers()
        elif self._leader.wake is not None:
            self._leader.wake_up()

    # Not a Condition: what a signal's handler raises in its `wait` can come out with its lock free,
    # and the end of the `with` block then lets go of what another thread holds.
    def _await(self, done: Callable[[], bool]) -> None:
        """Return once `done`, which is called with the mutex held."""
        while True:
            with self._mutex:
                if done():
                    return
                change = self._sleep()
            change.acquire()

    def _sleep(self) -> threading.Lock:
        """What to wait at, without the mutex, until something changes. The mutex is held."""
        change = self._life.parked()
        self._sleepers.append(change)
        return change

    def _wake_sleepers(self) -> None:
        """Let them look again. The mutex is held."""
        while self._sleepers:
            if self._sleepers[-1].locked():
                self._sleepers[-1].release()
            self._sleepers.pop()

    def _start_writer(self) -> None:
        """Start the writer and the settler. What a signal's handler raised in `start` leaves open
        whether a thread runs: of each kind there may be two then, which share the work."""
        number = next(_writer_numbers)
        kinds = ((self._write_for_futures, "writer"), (self._settle, "settler"))
        for target, name in kinds[len(self._threads) :]:
            thread = threading.Thread(target=target, name=f"cassq-{name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _write_for_futures(self) -> None:
        """Lead whenever what waits first is a future."""
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
        """Give futures their results, in a thread of its own: a callback may push."""
        while entries := self._to_settle.get():
            settled = settle_futures(entries)
            with self._mutex:
                self._soon_settled += settled
                self._wake_sleepers()
        self._to_settle.put([])  # for a second one

    # --- life ---------------------------------------------------------------------------------

    def tend(self) -> float:
        """Housekeeping, between appends; seconds until the next time. What takes the catalog is
        done beside them: others may hold it for long."""
        keeper = PendingPush(b"", None, None)
        with self._mutex:
            if self._closed:
                return 3600.0
            if self._leader is not None:
                return 0.05
            self._leader = keeper
        try:
            again, chores = self._intake.tend()
        finally:
            with self._mutex:
                self._hand_on(keeper)
        self._intake.do(chores)
        return again

    def close(self) -> None:
        """Append what waits, seal the pipe. Later pushes raise ClosedError.

        In the middle of another call of this thread, as in a signal's handler, it closes when that
        call ends.
        """
        self._life.end(self.close_inside)

    def close_inside(self) -> None:
        """`close`, inside a call of the client."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        self._await(self._take_lead_for_good)
        if self._threads:
            self._writing.wake_up()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
        self._intake.close()
        self.tally.over = True
        with self._mutex:
            self._wake_sleepers()

    def _take_lead_for_good(self) -> bool:
        """Lead from now on, if nobody does. The mutex is held."""
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
            "pass the names, and say cassq.connect(url).queue(name).pusher() there",
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this pusher is closed")


def _is_done(entry: PendingPush) -> bool:
    """Whether an entry has its ids or its error."""
    return bool(entry.id) or entry.ids is not None or entry.error is not None
