"""Poppers: claim messages for a group, hand them out, and keep what is said of them.

A popper is thread-safe. Acks are collected and written in groups: at the next `commit`, before
the popper waits, and after `ACK_INTERVAL_MS` at the latest.

Invariants:
1. A message is handed out only after its claim, with the delivery counted, was written.
2. What `commit` returned for is durable; an ack that was not yet written can only cause a
   redelivery.
3. On exclusive groups nothing is handed out while anything is unacked, and acks are written at
   once, on the condition that the pipe is still ours.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from cassq import claims
from cassq.arguments import check_count, check_seconds, milliseconds
from cassq.catalog.port import GroupRow, QueueRow
from cassq.claimer import Claimer
from cassq.clock import Stopwatch
from cassq.doorbell import LOOK_AGAIN_SECONDS, Doorbell
from cassq.errors import ClaimLostError, ClosedError, GroupNotFoundError, QueueNotFoundError
from cassq.holdings import Holding, by_holding, holding_of
from cassq.messages import Message, Messages
from cassq.pace import Pace
from cassq.ports import Ports
from cassq.ranges import RangeSet
from cassq.retries import Bury, bury_or_leave
from cassq.settling import Settler

ACK_INTERVAL_MS = 50
POP_MAX = 1_000_000
EXTEND_MAX_SECONDS = 7 * 86400.0
WAIT_MAX_SECONDS = 365 * 86400.0
_NEVER = 3600.0


class Popper:
    """Takes messages for one group of a queue; made by `Queue.popper`."""

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        *,
        bury: Bury,
        doorbell: Doorbell,
        hurry: Callable[[float], None],
        keep_alive: float | None = None,
    ) -> None:
        if keep_alive is not None:
            check_seconds("keep_alive", keep_alive, WAIT_MAX_SECONDS, least=0.001)
        self._catalog = ports.catalog
        self._life = ports.life
        self._queue = queue
        self._group = group
        self._claimer = Claimer(ports, queue, group, bury)
        self._settler = Settler(
            ports,
            self._claimer.name,
            self._finished,
            lambda: self._claimer.max_deliveries,
        )
        self._bury = bury
        self._doorbell = doorbell
        self._waiter = doorbell.listen()
        self._hurry = hurry
        self._keep_alive_ms = None if keep_alive is None else keep_alive * 1000
        self._lock = threading.RLock()
        self._buffer: deque[Message] = deque()  # claimed ahead by an iteration
        self._pace = Pace()
        self._closed = False

    @property
    def lost(self) -> int:
        """How many messages' claims were lost before they were settled."""
        return self._settler.lost

    @property
    def broken(self) -> dict[str, Exception]:
        """Pipes that cannot be read, each told once by `pop`, and why."""
        return dict(self._claimer.window.broken)

    # --- taking -------------------------------------------------------------------------------

    def pop(self, max_messages: int = 1, wait: float = 0.0) -> Messages:
        """At most `max_messages` messages; none when there are none after `wait` seconds.

        Cost: one unsynced catalog transaction and one read of the pipe, however many messages.
        Raises CorruptionError or ExtentMissingError once for a pipe that cannot be read.
        """
        check_count("max_messages", max_messages, POP_MAX)
        check_seconds("wait", wait, WAIT_MAX_SECONDS)
        self._life.check()
        watch = Stopwatch()
        while True:
            with self._lock:
                messages = self.pop_now(max_messages)
                if messages:
                    return messages
                left = wait - watch.seconds()
                if left <= 0:
                    return messages
                self._flush()
                left = min(left, self._until_due())
            self._waiter.wait(left, self._has_news)

    def pop_now(self, max_messages: int) -> Messages:
        """`pop` without waiting."""
        with self._lock:
            if not self._may_hand_out():
                return Messages()
            if self._buffer:
                count = min(max_messages, len(self._buffer))
                return Messages([self._buffer.popleft().as_run() for _ in range(count)])
            return self._claim(max_messages)

    def _may_hand_out(self) -> bool:
        """Do what is due before anything is handed out; whether it may be."""
        self._check_open()
        self._flush_old()
        if self._claimer.exclusive and self._settler.open_count > len(self._buffer):
            return False
        self._forget_stale()
        return True

    def _claim(self, max_messages: int) -> Messages:
        limit = self._pace.allowed(max_messages, self._claimer.timeout_ms)
        found = self._claimer.claim(limit, self)
        if found is None:
            if self._claimer.window.untold:
                raise self._claimer.window.untold.pop(0)
            return Messages()
        holding, slices = found
        self._settler.holdings[holding] = None
        if self._keep_alive_ms is not None:
            self._hurry(self._claimer.timeout_ms / 3000)
        return holding.messages(slices)

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, for ever: waits when there are none, ends when closed.

        Claims ahead what it has been finishing in a tenth of a second.
        """
        while True:
            self._life.check()
            try:
                message = self._next()
                messages = self.pop(1, wait=_NEVER) if message is None else (message,)
            except ClosedError:
                return
            yield from messages

    def _next(self) -> Message | None:
        """The next message of an iteration, if there is one."""
        with self._lock:
            if not self._may_hand_out():
                return None
            if not self._buffer:
                self._buffer.extend(self._claim(self._pace.ahead()))
            return self._buffer.popleft() if self._buffer else None

    def _forget_stale(self) -> None:
        """Drop what was claimed ahead and is, or may be, another's by now."""
        while self._buffer:
            holding = holding_of(self._buffer[0])
            if not holding.lost and holding.due_ms > self._catalog.now_ms():
                return
            self._buffer.popleft()

    @contextmanager
    def transaction(self, max_messages: int = 1, wait: float = 0.0) -> Iterator[Messages]:
        """Pop for a `with` block: committed at its end, rolled back if it raises.

        Messages acked or given back inside the block are left as they are.
        """
        messages = self.pop(max_messages, wait)
        try:
            yield messages
        except BaseException as exc:
            self._roll_back_open(messages, f"{type(exc).__name__}: {exc}")
            raise
        left = [m for m in messages if m.seq not in holding_of(m).given]
        self.commit(messages if len(left) == len(messages) else left)

    def _finished(self, holding: Holding, now_ms: int) -> None:
        """A holding is over: learn how fast messages are finished; others may go on."""
        if not holding.lost and not holding.given:
            self._pace.learn(holding.count, now_ms - holding.claimed_ms)
        if self._claimer.exclusive:
            self._doorbell.ring()

    def _until_due(self) -> float:
        if self._claimer.exclusive:
            return LOOK_AGAIN_SECONDS
        broken = tuple(self._claimer.window.broken)
        due_ms = self._catalog.next_due_ms(self._group().id, without=broken)
        if due_ms is None:
            return LOOK_AGAIN_SECONDS
        return max(0.001, (due_ms - self._catalog.now_ms()) / 1000)

    def _has_news(self) -> bool:
        return self._closed or (not self._claimer.exclusive and self._claimer.window.has_news())

    # --- settling -----------------------------------------------------------------------------

    def commit(self, messages: Iterable[Message]) -> None:
        """Ack messages, durably when it returns. Cost: one synced transaction for all of them.

        Raises ClaimLostError when some were not ours any more; the others are committed.
        """
        self._life.check()
        with self._lock:
            self._check_open()
            lost: ClaimLostError | None = None
            touched = by_holding(messages, self)
            for holding, seqs in touched:
                try:
                    self._settler.note(holding, seqs, self._catalog.now_ms())
                except ClaimLostError as exc:
                    lost = exc
            self._flush()
            if lost is not None or any(holding.lost for holding, _ in touched):
                raise lost or ClaimLostError()

    def flush(self) -> None:
        """Write the acks collected so far, durably."""
        self._life.check()
        with self._lock:
            self._check_open()
            self._flush()

    def rollback(self, messages: Iterable[Message], delay: float | None = None) -> None:
        """Give messages back to be delivered again after `delay` seconds; durable on return.

        The delivery counts towards `max_deliveries`. Raises ClaimLostError as `commit` does.
        """
        self._give_back(messages, milliseconds("delay", delay), counted=True)

    def release(self, messages: Iterable[Message]) -> None:
        """Give messages back untried: this delivery does not count. Durable on return.

        Raises ClaimLostError as `commit` does.
        """
        self._give_back(messages, 0, counted=False)

    def _give_back(self, messages: Iterable[Message], delay_ms: int, *, counted: bool) -> None:
        self._life.check()
        with self._lock:
            self._check_open()
            lost: ClaimLostError | None = None
            for holding, seqs in by_holding(messages, self):
                try:
                    self._give(holding, seqs, delay_ms, None, counted=counted)
                except ClaimLostError as exc:
                    lost = exc
            if lost is not None:
                raise lost

    def _roll_back_open(self, messages: Iterable[Message], error: str) -> None:
        """Give back what is still open, on the way out of a block that failed: what was lost
        meanwhile is delivered again anyway, and must not hide why the block failed."""
        with self._lock:
            if self._closed:
                return
            for holding, seqs in by_holding(messages, self):
                wanted = seqs & holding.open_seqs()
                if wanted and not holding.lost:
                    try:
                        self._give(holding, wanted, 0, error, counted=True)
                    except ClaimLostError:
                        continue

    def _flush(self) -> None:
        if self._settler.dirty:
            self._settler.flush()

    def _flush_old(self) -> None:
        if self._settler.dirty:
            age_ms = self._catalog.now_ms() - self._settler.dirty_ms
            if age_ms >= ACK_INTERVAL_MS:
                self._settler.flush()

    def _give(
        self, holding: Holding, seqs: RangeSet, delay_ms: int, error: str | None, *, counted: bool
    ) -> None:
        if self._claimer.exclusive:
            self._buffer = deque(m for m in self._buffer if holding_of(m) is not holding)
        free = self._settler.give(holding, seqs, delay_ms, error, counted=counted)
        self._claimer.given_back()
        if counted and not self._claimer.exclusive:
            for row in free:
                if claims.is_spent(row, self._claimer.max_deliveries):
                    bury_or_leave(self._bury, self._queue(), self._group(), row)
        self._doorbell.ring()

    # --- a message's verbs ----------------------------------------------------------------------

    def ack_held(self, holding: Holding, seqs: range) -> None:
        self._life.check()
        with self._lock:
            self._check_open()
            now_ms = self._catalog.now_ms()
            if not self._settler.dirty:
                self._hurry(ACK_INTERVAL_MS / 1000)
            self._settler.note(holding, RangeSet([(seqs.start, seqs.stop)]), now_ms)
            if holding.epoch is not None or now_ms >= holding.due_ms:
                self._flush()
                if holding.lost:
                    raise ClaimLostError(pipe_id=holding.pipe_id)

    def nack_held(
        self, holding: Holding, seqs: range, delay: float | None, error: str | None
    ) -> None:
        delay_ms = milliseconds("delay", delay)
        self._life.check()
        with self._lock:
            self._check_open()
            wanted = RangeSet([(seqs.start, seqs.stop)])
            self._give(holding, wanted, delay_ms, error, counted=True)

    def release_held(self, holding: Holding, seqs: range) -> None:
        self._life.check()
        with self._lock:
            self._check_open()
            self._give(holding, RangeSet([(seqs.start, seqs.stop)]), 0, None, counted=False)

    def extend_held(self, holding: Holding, seconds: float) -> None:
        check_seconds("seconds", seconds, EXTEND_MAX_SECONDS)
        self._life.check()
        with self._lock:
            self._check_open()
            self._settler.extend(holding, round(seconds * 1000))

    # --- life ---------------------------------------------------------------------------------

    def tend(self) -> float:
        """Write acks that are old enough, keep claims alive; seconds until the next time."""
        with self._lock:
            if self._closed:
                return _NEVER
            self._flush_old()
            again = ACK_INTERVAL_MS / 1000 if self._settler.dirty else _NEVER
            if self._keep_alive_ms is not None and self._settler.holdings:
                self._settler.keep_alive(self._keep_alive_ms, self._claimer.timeout_ms)
                again = min(again, self._claimer.timeout_ms / 3000)
            return again

    def close(self) -> None:
        """Write what was acked; give back what is out, at once, for others to have.

        What was claimed ahead and never handed out does not count as delivered.
        """
        if self._life.forked:
            return  # it is the parent's
        with self._lock:
            if self._closed:
                return
            try:
                self._flush()
                for holding in list(self._settler.holdings):
                    self._give_up(holding)
            except (QueueNotFoundError, GroupNotFoundError):
                return  # deleted meanwhile: there is nothing to give back to
            finally:
                self._closed = True
                self._claimer.close()
                self._waiter.close()

    def _give_up(self, holding: Holding) -> None:
        ahead = RangeSet.of(m.seq for m in self._buffer if holding_of(m) is holding)
        try:
            for seqs, counted in ((holding.open_seqs() - ahead, True), (ahead, False)):
                if seqs - holding.given:
                    self._give(holding, seqs, 0, None, counted=counted)
        except ClaimLostError:
            return  # others have them already

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Popper:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check_open(self) -> None:
        self._life.check()
        if self._closed:
            raise ClosedError("this popper is closed; what it had out was given back")
