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
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count as counter
from itertools import pairwise
from queue import SimpleQueue

from cassq.clock import Clock
from cassq.doorbell import Doorbell
from cassq.entries import Entry, check_key, check_payload, check_payloads, settle_futures
from cassq.errors import (
    BackendError,
    ClosedError,
    InvalidPayloadError,
    UsageError,
)
from cassq.frames import encode_headers
from cassq.messages import MessageIds
from cassq.pipes import Appender, Batch, Intend, Receipt
from cassq.ports import Life

BUFFER_BYTES_MAX = 32 * 1024 * 1024
BUFFER_MESSAGES_MAX = 100_000
_GROUP_MAX = 16_384

_writer_numbers = counter(1)


class Pusher:
    """Pushes to one queue; made by `Queue.pusher`. Thread-safe."""

    def __init__(
        self,
        appender: Appender,
        clock: Clock,
        life: Life,
        doorbell: Doorbell,
    ) -> None:
        self._appender = appender
        self._clock = clock
        self._life = life
        self._doorbell = doorbell
        self._mutex = threading.Lock()
        self._room = threading.Condition(self._mutex)
        self._queue: deque[Entry] = deque()
        self._leader: Entry | None = None  # whose thread may use the appender
        self._buffered_bytes = 0
        self._buffered = 0
        self._soon_submitted = self._soon_settled = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._to_settle: SimpleQueue[list[Entry]] = SimpleQueue()
        self._writing = Entry(b"", None, None)  # stands for the writer thread as the leader
        self._writing.wake = threading.Lock()
        self._writing.wake.acquire()
        self._ended = False

    # --- pushing ------------------------------------------------------------------------------

    def push(
        self, payload: bytes, *, headers: Mapping[str, str] | None = None, key: bytes | None = None
    ) -> str:
        """Push one message; its id. Durable when it returns.

        Cost: one append and one sync, shared with all pushes that wait meanwhile.
        """
        entry = Entry(check_payload(payload), encode_headers(headers), check_key(key))
        self._submit(entry)
        return entry.id

    def push_many(
        self,
        payloads: Iterable[bytes],
        *,
        headers: Sequence[Mapping[str, str] | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
    ) -> MessageIds:
        """Push messages in their order; their ids. All are durable when it returns.

        headers, keys: one entry a payload. An error raised names in `.fields["pushed"]` how many,
        from the first, were pushed all the same.
        Cost: one append and one sync for every 8 MiB; well under a microsecond a message.
        """
        batch = self._batch(*check_payloads(payloads), headers, keys)
        if not batch.payloads:
            return MessageIds([])
        entry = Entry(b"", None, None, batch)
        self._submit(entry)
        assert entry.ids is not None
        return entry.ids

    def push_soon(
        self, payload: bytes, *, headers: Mapping[str, str] | None = None, key: bytes | None = None
    ) -> Future[str]:
        """Push one message with others; a future of its id, done when it is durable.

        Waits while more than `BUFFER_BYTES_MAX` bytes wait to be appended.
        """
        self._life.check()
        entry = Entry(check_payload(payload), encode_headers(headers), check_key(key))
        entry.future = Future()
        entry.future.set_running_or_notify_cancel()
        size = entry.size
        with self._mutex:
            while not self._closed and (
                (self._buffered_bytes + size > BUFFER_BYTES_MAX and self._buffered)
                or self._buffered >= BUFFER_MESSAGES_MAX
            ):
                self._room.wait()
            self._check_open()
            if not self._threads:
                self._start_writer()
            self._buffered_bytes += size
            self._buffered += 1
            self._soon_submitted += 1
            self._queue.append(entry)
            if self._leader is None:
                self._leader = self._writing
                self._writing.wake_up()
        return entry.future

    def push_intended(self, batch: Batch, intend: Intend) -> None:
        """Push a batch of one, telling `intend` its place before it is written (for moves)."""
        entry = Entry(b"", None, None, batch)
        entry.intend = intend
        self._submit(entry)

    def flush(self) -> None:
        """Return when everything pushed before by `push_soon` is durable, or has failed.

        Raises UsageError in a callback of a future, which would wait for itself.
        """
        self._life.check()
        if threading.current_thread() in self._threads:
            raise UsageError("flush() in a future's callback would wait for itself")
        with self._mutex:
            self._check_open()
            wanted = self._soon_submitted
            while self._soon_settled < wanted:
                self._room.wait()

    # --- group commit -------------------------------------------------------------------------

    def _submit(self, entry: Entry) -> None:
        """Have an entry appended, by this thread or by another that leads."""
        self._life.check()
        try:
            with self._mutex:
                self._check_open()
                self._queue.append(entry)
                if self._leader is None:
                    self._leader = entry
                else:
                    entry.wake = threading.Lock()
                    entry.wake.acquire()
            if entry.wake is not None:
                entry.wake.acquire()
                if entry.after is not None:
                    entry.after.wake_up()
            if not entry.done:
                self._lead(entry)
        except BaseException:  # a signal's, most likely: the lead must not go with this thread
            self._withdraw(entry)
            raise
        if entry.error is not None:
            raise entry.error

    def _withdraw(self, entry: Entry) -> None:
        """The thread of an entry leaves: take it back, or let it go if it is in flight; if it
        leads, somebody else is to."""
        with self._mutex:
            entry.gone = True
            if entry in self._queue:
                self._queue.remove(entry)
        self._finish(entry, entry.flight)
        if entry.after is not None:
            entry.after.wake_up()

    def _lead(self, leader: Entry) -> None:
        """Append what waits, then hand the lead on."""
        leader.flight = []
        try:
            with self._mutex:
                self._take(leader.flight)
            self._append(leader.flight)
        finally:
            self._finish(leader, leader.flight)

    def _finish(self, leader: Entry, entries: list[Entry]) -> None:
        """Tell everybody whose entry was appended, and hand on. Can be called again."""
        with self._mutex:
            if entries and self._queue and entries[-1] is self._queue[0]:
                entries.pop()  # interrupted while it was taken: it still waits
            for entry in entries:
                if not entry.done:
                    entry.error = BackendError(
                        "the thread that was appending was interrupted", outcome_unknown=True
                    )
            futures = sum(entry.future is not None for entry in entries)
            if futures and self._leader is leader:
                self._forget_futures(entries, futures)
            self._hand_on(leader)
            self._wake([entry for entry in entries if entry is not leader])

    def _wake(self, entries: list[Entry]) -> None:
        """Wake the threads of these entries, one by one: each wakes the next, so that they do not
        all stand in line for the interpreter at once. The mutex is held."""
        waiting = [entry for entry in entries if entry.wake is not None and not entry.gone]
        for entry, after in pairwise(waiting):
            entry.after = after
        if waiting:
            waiting[0].wake_up()

    def _forget_futures(self, entries: list[Entry], count: int) -> None:
        """Make room for others. The mutex is held."""
        size = sum(entry.size for entry in entries if entry.future is not None)
        self._buffered_bytes -= size
        self._buffered -= count
        self._room.notify_all()
        self._to_settle.put(entries)

    def _take(self, entries: list[Entry]) -> None:
        """Add the next entries to be appended together: one `push_many`, or a run of single ones.
        The mutex is held."""
        queue = self._queue
        while queue and len(entries) < _GROUP_MAX:
            if entries and (queue[0].batch is not None or entries[0].batch is not None):
                return
            entries.append(queue[0])
            queue.popleft()

    def _append(self, entries: list[Entry]) -> None:
        """One append for all; each entry gets its ids or its error."""
        first = entries[0]
        try:
            batch = first.batch or self._group(entries)
            receipts = self._appender.append(batch, first.intend)
        except Exception as exc:
            for entry in entries:
                entry.error = exc
        else:
            if first.batch is not None:
                first.ids = MessageIds(receipts)
            else:
                _tell(entries, receipts)
            self._doorbell.ring()

    def _group(self, entries: list[Entry]) -> Batch:
        if len(entries) == 1:
            (e,) = entries
            return Batch(
                [e.payload],
                self._clock.wall_ms(),
                [e.header] if e.header else None,
                None if e.key is None else [e.key],
            )
        headers = [e.header for e in entries] if any(e.header for e in entries) else None
        keys = [e.key for e in entries] if any(e.key is not None for e in entries) else None
        return Batch([e.payload for e in entries], self._clock.wall_ms(), headers, keys)

    def _hand_on(self, leader: Entry) -> None:
        """If `leader` leads, make somebody who waits the next; repeatable. The mutex is held."""
        if self._leader is leader:
            first = self._queue[0] if self._queue else None
            self._leader = self._writing if first and first.wake is None else first
        if self._leader is None:
            self._room.notify_all()
        elif self._leader.wake is not None:
            self._leader.wake_up()

    def _start_writer(self) -> None:
        number = next(_writer_numbers)
        for target, name in ((self._write_for_futures, "writer"), (self._settle, "settler")):
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
                return

    def _settle(self) -> None:
        """Give futures their results, in a thread of its own: a callback may push."""
        while entries := self._to_settle.get():
            settled = settle_futures(entries)
            with self._mutex:
                self._soon_settled += settled
                self._room.notify_all()

    # --- life ---------------------------------------------------------------------------------

    def tend(self) -> float:
        """Housekeeping, if no append is in flight; seconds until the next time."""
        keeper = Entry(b"", None, None)
        with self._mutex:
            if self._closed:
                return 3600.0
            if self._leader is not None:
                return 0.05
            self._leader = keeper
        try:
            return self._appender.tend()
        finally:
            with self._mutex:
                self._hand_on(keeper)

    def close(self) -> None:
        """Append what waits, seal the pipe. Later pushes raise ClosedError."""
        if self._life.forked:
            return  # it is the parent's
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            while self._leader is not None:
                self._room.wait()
            self._leader = Entry(b"", None, None)  # for good
            self._ended = True
        if self._threads:
            self._writing.wake_up()
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
        self._appender.close()
        with self._mutex:
            self._room.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Pusher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this pusher is closed")

    def _batch(
        self,
        payloads: Sequence[bytes],
        length: int | None,
        headers: Sequence[Mapping[str, str] | None] | None,
        keys: Sequence[bytes | None] | None,
    ) -> Batch:
        for name, column in (("headers", headers), ("keys", keys)):
            if column is not None and len(column) != len(payloads):
                raise InvalidPayloadError(
                    f"{len(payloads)} payloads came with {len(column)} {name}",
                    hint="give one for each payload, None where there is none",
                )
        return Batch(
            payloads,
            self._clock.wall_ms(),
            None if headers is None else [encode_headers(h) for h in headers],
            None if keys is None else [check_key(k) for k in keys],
            length=length,
        )


def _tell(entries: list[Entry], receipts: list[Receipt]) -> None:
    """Give each single push the id that it got."""
    at = iter(entries)
    for pipe_id, first, count in receipts:
        for seq in range(first, first + count):
            next(at).id = f"{pipe_id}:{seq}"
