"""Poppers: claim messages for a group, hand them out, and record how they are settled.

A popper is thread-safe. Acks are collected and written in groups: at the next `commit`, and after
`Pace.ack_wait_ms`: 50 ms, or up to a second where writes are slow and the popper does not wait.

Invariants:
1. A message is handed out only after its claim, with the delivery counted, is written.
2. When `commit` returns, its acks are durable; an ack not yet written can only cause a redelivery.
3. On exclusive groups nothing is handed out while anything is unacked, and acks are written at
   once, on the condition that the pipe is still ours.
4. A thread inside one call never enters another, as a signal handler would (see
   `cassq.lifecycle.ports.Lifecycle`): `stop` takes no lock, `close` waits for the interrupted call.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

from cassq.base.arguments import (
    check_count,
    check_seconds,
    error_text,
    milliseconds,
    refuse_pickling,
)
from cassq.base.counters import Tally
from cassq.base.housekeeper import Maintain
from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.delivery import (
    TURN_MS,
    Acknowledger,
    DeliveredRun,
    Delivery,
    Error,
    Message,
    Messages,
    NackOptions,
    Prefetched,
    by_delivery,
)
from cassq.consumer.keyed.keys import PopperCallbacks
from cassq.consumer.keyed.lanes import Lanes
from cassq.consumer.limits import Limits
from cassq.consumer.settling import Settler
from cassq.doorbell import LOOK_AGAIN_SECONDS, Doorbell
from cassq.errors import ClaimLostError, ClosedError, GroupNotFoundError, QueueNotFoundError
from cassq.lifecycle.ports import Ports, operation
from cassq.lifecycle.retries import DeadLetterFn
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.rows import GroupRow, QueueRow

logger = logging.getLogger("cassq")

POP_MAX = 1_000_000
EXTEND_MAX_SECONDS = 7 * 86400.0
WAIT_MAX_SECONDS = 365 * 86400.0
MAINTENANCE_SECONDS = 10.0  # how long an idle popper may hold the files of retired pipes
UNUSED_MS = 500  # prefetched messages are given back if none was taken for this long ...
UNUSED_WANTED_MS = 100  # ... or for this long while another popper waits for its turn
KEEP_ALIVE_SECONDS = 3600.0
_NEVER = 3600.0


class Popper:
    """Pops messages for one group of a queue; get one from `Queue.popper`."""

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        *,
        dead_letter: DeadLetterFn,
        doorbell: Doorbell,
        run_within: Callable[[Maintain, float], None],
        soon: Callable[[], None],
        keep_alive: float | None = KEEP_ALIVE_SECONDS,
        shared: bool = False,
    ) -> None:
        if keep_alive is not None:
            check_seconds("keep_alive", keep_alive, WAIT_MAX_SECONDS)
        self._catalog, self._clock, self._life = ports.catalog, ports.clock, ports.life
        self._queue, self._group = queue, group
        self._claimer = Claimer(ports, queue, group, dead_letter, extends=bool(keep_alive))
        self.name: str = self._claimer.name
        self._settler = Settler(ports, self._claimer, self._finished, group().name)
        self._acknowledger = Acknowledger(self.ack_held, self.give_held, self.extend_held)
        self._claimer.has_prime_suspect = self._settler.has_prime_suspect if shared else None
        self.tally: Tally = self._settler.tally
        self._doorbell, self._waiter = doorbell, doorbell.listen()
        self._run_within, self._soon = run_within, soon
        self._keep_alive_ms = (keep_alive or 0) * 1000
        self._keep_at_ms, self._lock = math.inf, threading.Lock()  # when to extend claims
        self._lanes: Lanes | None = None
        if group().policy.keyed:
            callbacks = PopperCallbacks(self._flush, self._waiter.wake, doorbell.ring)
            parts = self._claimer, self._settler, self._acknowledger
            own = partial(Claimer, ports, queue, group, dead_letter), self._keep_alive_ms
            self._lanes = Lanes(ports, queue, group, parts, callbacks, *own)
        self._limits = Limits(ports, group().id, self.name, self.tally, self._in_hand, self._return)
        self._buffer: Prefetched = Prefetched()
        self._ahead: threading.Thread | None = None  # the thread that prefetched last
        self._taken_ms = 0  # when a message was last taken from the buffer
        self._consumer: threading.Thread | None = None  # the thread that called `pop` last
        self._shared = shared  # several threads call `pop`, or will: nothing is prefetched
        self._pace = self._settler.pace
        self._closed = self._stopping = self._hurried = False  # hurried: a `pop` must not wait
        self._stopped_threads: set[int] = set()  # their pop returned nothing because of `stop`

    @property
    def lost(self) -> int:
        """How many messages lost their claims before they were settled."""
        return self.tally.lost

    @property
    def lanes(self) -> Lanes | None:
        """How it works for a keyed group; None for any other."""
        return self._lanes

    @property
    def broken(self) -> dict[str, Exception]:
        """The error that `pop` raised once for each pipe that cannot be read, by pipe."""
        return dict((self._lanes or self._claimer.window).broken)

    # --- taking -------------------------------------------------------------------------------

    def pop(self, max_messages: int = 1, wait: float = 0.0) -> Messages:
        """At most `max_messages` messages; empty if none arrive within `wait` seconds.

        If many messages are waiting, it prefetches for the next calls, as an iteration does; but
        not if several threads call this, nor in keyed or limited groups. Cost: none for what was
        prefetched; otherwise one unsynced catalog transaction and one read of the pipe, for any
        number of messages; each limit adds a read and a transaction.
        Raises CorruptionError or ExtentMissingError once for a pipe that cannot be read.
        """
        if type(max_messages) is not int or not 1 <= max_messages <= POP_MAX:
            check_count("max_messages", max_messages, POP_MAX)
        if wait != 0.0:
            check_seconds("wait", wait, WAIT_MAX_SECONDS)
        if self._stopping and threading.get_ident() in self._stopped_threads:
            self._check_open()
            raise ClosedError(
                "this popper was stopped: it delivers no more messages",
                hint="look at popper.stopped",
            )
        messages = self._pop(max_messages, wait)
        if self._stopping and not messages:
            self._stopped_threads.add(threading.get_ident())
        return messages

    def _pop(self, max_messages: int, wait: float) -> Messages:
        life = self._life
        try:
            messages = self._pop_within(max_messages, wait)
        finally:
            if life.later:
                life.run_deferred()
        # A signal handler may have closed the popper meanwhile, which gave them back.
        return Messages() if self._closed else messages

    def _pop_within(self, max_messages: int, wait: float) -> Messages:
        life, clock = self._life, self._clock
        began_ms = clock.boot_ms() if wait else 0
        while True:
            with self._entered(), self._lock:
                messages = self._pop_now(max_messages)
                left = wait - (clock.boot_ms() - began_ms) / 1000 if wait else 0.0
                if messages or self._stopping or self._hurried or left <= 0:
                    self._hurried = False
                    return messages
                if wait_ms := self._settler.begin_wait():
                    self._run_within(self.maintain, wait_ms / 1000)
                else:
                    self._flush()
                self._claimer.health.record_success()
                left = min(left, (self._lanes or self._claimer).until_due(LOOK_AGAIN_SECONDS))
                if self._claimer.rules.limited:
                    left = self._limits.until(left)
            with life.wait():
                self._waiter.wait(left, self._has_news)

    def _pop_now(self, max_messages: int) -> Messages:
        """The lock is held."""
        if self._stopping or not self._may_hand_out():
            return Messages()
        thread = threading.current_thread()
        if self._consumer is not thread:
            self._is_shared_with(thread)
        if self._buffer.parts:
            ahead = self._buffer.take(max_messages)
            self.tally.popped += len(ahead)
            for run in ahead.runs:
                run.delivery.taken_by(thread)
            return ahead
        prefetch_limit = 0 if self._shared else self._prefetch_limit()
        found = self._claim(max_messages, prefetch_limit)
        if not found and self._settler.giving:
            self._flush()  # this popper may have given some back itself
            found = self._claim(max_messages, prefetch_limit)
        if self._stopping:
            self._buffer.add(found)  # never handed out: it is given back, uncounted
            return Messages()
        if len(found) > max_messages:
            self._keep(found[max_messages:])
            found = found[:max_messages]
        self.tally.popped += len(found)
        return found

    def _in_hand(self) -> tuple[int, int]:
        """How many messages consumers have, and until when the last of them is claimed."""
        lanes = self._lanes
        return (lanes.in_hand(), 0) if lanes else self._settler.in_hand(len(self._buffer))

    def _prefetch_limit(self) -> int:
        """How many to claim if plenty wait; 0 in groups that count messages when handed out."""
        if self._lanes is not None or self._claimer.rules.limited:
            return 0
        if self._claimer.exclusive:
            return self._pace.ahead()
        return self._pace.prefetch_limit(self._catalog.now_ms())

    def _is_shared_with(self, thread: threading.Thread) -> None:
        """Note that another thread calls `pop`. Threads do not prefetch for each other: a claim is
        kept alive as a whole, so a thread that ended would keep its message while another lives."""
        if self._consumer is not None and self._consumer.is_alive():
            self._shared = True
            self._give_back_ahead()
        self._consumer = thread

    def _entered(self) -> threading.Lock:
        """`Lifecycle.enter`, called only if it would refuse or count, as this is called most."""
        life, calling = self._life, self._life.mine.calling
        needed = life.timed or life.forked or life.closed or calling.locked()
        return life.enter() if needed else calling

    def _may_hand_out(self) -> bool:
        """Do what is due before messages are handed out; return whether they may be."""
        if self._closed:
            self._check_open()
        claimer = self._claimer
        claimer.look()
        self._flush_old()
        if claimer.paused:
            return False
        if claimer.exclusive:
            if self._settler.open_count > len(self._buffer):
                return False
            if self._buffer.parts and claimer.overstays():
                self._give_back_ahead()
        if self._buffer.parts:
            self._taken_ms = self._catalog.now_ms()
            priority = self._buffer.forget_stale(self._taken_ms)
            if claimer.window.top > priority and claimer.outranks(priority):
                self._buffer.add_first(self._claim(self._pace.ahead(), above=priority))
        return True

    def _claim(
        self, most: int, prefetch_limit: int = 0, above: int = -1, *, allowed: bool = False
    ) -> Messages:
        """above: claim only what has a greater priority. allowed: by the group's limits."""
        rules, pace = self._claimer.rules, self._pace
        if most > 1:
            most = pace.allowed(most, rules.claim_timeout_ms)
        if prefetch_limit > 1:
            prefetch_limit = pace.allowed(prefetch_limit, rules.claim_timeout_ms)
        if rules.limited and not allowed:
            self._run_within(self.maintain, self._limits.maintain_within(rules))
            claim = partial(self._claim, above=above, allowed=True)
            return self._limits.claim(most, pace.ahead(), rules, claim)
        began_ms, took_ms = self._clock.boot_ms(), 0
        try:
            if self._lanes is not None:
                self._run_within(self.maintain, self._lanes.maintain_within())
                return self._lanes.take(most)
            found = self._claimer.claim(self._acknowledger, most, prefetch_limit, began_ms, above)
        except Exception as exc:
            self.tally.failed("pop", exc)
            raise
        if found:
            took_ms = self._clock.boot_ms() - began_ms
            pace.claimed.append(took_ms)
        if not found and self._claimer.window.unreported:
            raise self._claimer.window.unreported.pop(0)
        for delivery, pieces in found:
            self._settler.take(delivery, pieces, delivery.claimed_ms + took_ms)
            delivery.taken_by(threading.current_thread())
        if found and (self._keep_alive_ms or found[0][0].reserved):
            look_ms = TURN_MS if found[0][0].reserved else rules.claim_timeout_ms / 3
            keep_at_ms = found[0][0].claimed_ms + look_ms
            if keep_at_ms < self._keep_at_ms:
                self._keep_at_ms = keep_at_ms
                self._run_within(self.maintain, look_ms / 1000)
        within = self._claimer.maintain_within() if found and self._claimer.maintained else None
        if within is not None:
            self._run_within(self.maintain, within)
        return Messages(
            [DeliveredRun(delivery, *piece) for delivery, pieces in found for piece in pieces]
        )

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, without end: waits when there are none, and ends when the popper is
        stopped or closed. Prefetches as much as the popper finishes in a tenth of a second; more
        where claims are slow (see `cassq.consumer.pace`)."""
        thread = threading.current_thread()
        while not (self._stopping or self._closed):
            try:
                message = self._next(thread)
                messages = self._pop(1, _NEVER) if message is None else (message,)
            except ClosedError:
                return
            if self._closed:
                return  # a signal handler closed it just now: the message was given back
            yield from messages

    # This, `pop`, `ack_held` and `give_held` are `operation`s written inline: the hottest calls.
    def _next(self, thread: threading.Thread) -> Message | None:
        """The next message of the iteration that `thread` began, if there is one."""
        life = self._life
        try:
            with self._entered(), self._lock:
                if self._stopping or not self._may_hand_out():
                    return None
                if not self._buffer.parts:
                    limit = self._prefetch_limit()
                    self._keep(self._claim(self._pace.ahead() if limit else 1, limit))
                if self._stopping or not self._buffer.parts:
                    return None
                self.tally.popped += 1
                if self._ahead is not thread:
                    self._buffer.first.taken_by(thread)
                return self._buffer.next()
        finally:
            if life.later:
                life.run_deferred()

    def _keep(self, found: Messages) -> None:
        """Keep what was prefetched for the next calls; it goes back if none come."""
        self._buffer.add(found)
        self._ahead, self._taken_ms = threading.current_thread(), self._catalog.now_ms()
        if self._buffer.parts:
            self._run_within(self.maintain, UNUSED_MS / 1000)

    @contextmanager
    def transaction(self, max_messages: int = 1, wait: float = 0.0) -> Iterator[Messages]:
        """Pop for a `with` block: commits at its end, rolls back if it raises, both without the
        messages that were acked or given back inside."""
        messages = self.pop(max_messages, wait)
        try:
            yield messages
        except BaseException as exc:
            self._roll_back_open(messages, error_text("error", exc))
            raise
        self._settle(messages, self._ack_left)

    def _finished(self) -> None:
        """A delivery is settled: other poppers may continue."""
        if self._claimer.exclusive:
            self._doorbell.ring()

    def _has_news(self) -> bool:
        if self._closed or self._stopping or self._hurried:
            return True
        with self._life.enter():
            return (self._lanes or self._claimer).has_news()

    # --- settling -----------------------------------------------------------------------------

    def commit(self, messages: Iterable[Message]) -> None:
        """Ack messages, durably on return. Raises ClaimLostError if another popper has some, or may
        have; the others are committed. Cost: one synced transaction for all of them."""
        self._settle(messages, self._ack)

    def _ack(self, delivery: Delivery, seqs: RangeSet) -> None:
        self._settler.note(delivery, seqs, self._catalog.now_ms())

    def _ack_left(self, delivery: Delivery, seqs: RangeSet) -> None:
        self._ack(delivery, seqs - delivery.given_seqs())

    @operation
    def flush(self) -> None:
        """Write the acks collected so far, durably."""
        with self._lock:
            self._check_open()
            self._flush()

    def rollback(
        self, messages: Iterable[Message], delay: float | None = None, error: Error = None
    ) -> None:
        """Give messages back, to be delivered again after `delay` seconds (None: by the group's
        retry schedule). Durable on return. The delivery counts towards `max_deliveries`. error: as
        for `Message.nack`. Raises ClaimLostError as `commit` does."""
        delay_ms = None if delay is None else milliseconds("delay", delay)
        self._give_back(messages, NackOptions(delay_ms, error_text("error", error)))

    def release(self, messages: Iterable[Message]) -> None:
        """Give messages back untried: this delivery does not count. Durable on return. Prefetched
        messages, which come after them in order, are given back too. Raises ClaimLostError as
        `commit` does."""
        try:
            self._give_back(messages, NackOptions(counted=False))
        finally:
            self._give_back_behind()

    @operation
    def _give_back_behind(self) -> None:
        with self._lock:
            if not self._closed:
                self._give_back_ahead()

    def dead(self, messages: Iterable[Message], reason: Error = "") -> None:
        """Reject messages: they become dead letters of the group, with `reason`, a text or an
        exception, as their error. Durable on return. Raises ClaimLostError as `commit` does."""
        self._give_back(messages, NackOptions(0, error_text("reason", reason), doomed=True))

    def _give_back(self, messages: Iterable[Message], back: NackOptions) -> None:
        self._settle(messages, lambda delivery, seqs: self._give(delivery, seqs, back))

    @operation
    def _settle(
        self, messages: Iterable[Message], say: Callable[[Delivery, RangeSet], None]
    ) -> None:
        """Note how messages are settled, and write it."""
        with self._lock:
            self._check_open()
            lost: ClaimLostError | None = None
            for delivery, seqs in (touched := by_delivery(messages, self._acknowledger)):
                try:
                    say(delivery, seqs)
                except ClaimLostError as exc:
                    lost = exc
            self._flush()
            if lost is not None or any(d.lost or (d.missed and d.missed & s) for d, s in touched):
                raise lost or ClaimLostError()

    @operation
    def _roll_back_open(self, messages: Iterable[Message], error: str) -> None:
        with self._lock:
            if not self._closed:
                self._return(messages, NackOptions(error=error))

    def _return(self, messages: Iterable[Message], back: NackOptions) -> None:
        """Give back what is open of these messages. Lost ones come again anyway."""
        for delivery, seqs in by_delivery(messages, self._acknowledger):
            wanted = seqs & delivery.open_seqs()
            if wanted and not delivery.lost:
                with suppress(ClaimLostError):
                    self._give(delivery, wanted, back)
        self._flush()

    def _flush(self) -> None:
        settler, lanes = self._settler, self._lanes
        if not settler.unwritten:
            return
        free = settler.flush()
        follows = free if lanes is None else []
        self._claimer.follow_up(follows, settler.flushed_ms, succeeded=settler.acks_written)
        if lanes is not None and settler.failure is None:
            lanes.flushed(free)
        if free:
            self._doorbell.ring()
        if settler.failure is not None:
            raise settler.failure

    def _flush_old(self) -> None:
        if self._settler.unwritten and self._settler.overdue:
            self._flush()

    def _give(self, delivery: Delivery, seqs: RangeSet, back: NackOptions) -> None:
        if self._claimer.exclusive:
            self._buffer.forget((delivery,))
        self._settler.give(delivery, seqs, back)

    # --- a message's verbs ----------------------------------------------------------------------

    # Written with the next batch of acks; at once on exclusive groups, and past the deadline.
    def ack_held(self, delivery: Delivery, seqs: range) -> None:
        life = self._life
        try:
            with self._entered(), self._lock:
                now_ms = self._begin_settling()
                self._settler.note(delivery, RangeSet.run(seqs.start, seqs.stop), now_ms)
                if delivery.is_written_at_once(now_ms):
                    self._write_at_once(delivery, seqs)
        finally:
            if life.later:
                life.run_deferred()

    def give_held(self, delivery: Delivery, seqs: range, back: NackOptions) -> None:
        life = self._life
        try:
            with self._entered(), self._lock:
                now_ms = self._begin_settling()
                if delivery.epoch is not None:
                    self._give(delivery, RangeSet.run(seqs.start, seqs.stop), back)
                else:
                    self._settler.give_one(delivery, seqs.start, back, now_ms)
                if not back.counted:
                    self._give_back_ahead()
                if delivery.is_written_at_once(now_ms):
                    self._write_at_once(delivery, seqs)
        finally:
            if life.later:
                life.run_deferred()

    def _begin_settling(self) -> int:
        if self._closed:
            self._check_open()
        now_ms = self._catalog.now_ms()
        if self._limits.short or self._claimer.passed_suspects:
            self._waiter.wake()  # there is room for another one
        if not self._settler.unwritten and (wait_ms := self._settler.begin(now_ms)):
            self._run_within(self.maintain, wait_ms / 1000)
        return now_ms

    def _write_at_once(self, delivery: Delivery, seqs: range) -> None:
        self._flush()
        if delivery.lost or delivery.missed.within(seqs.start, seqs.stop):
            raise ClaimLostError(pipe_id=delivery.pipe_id)

    @operation
    def extend_held(self, delivery: Delivery, seconds: float, seq: int) -> None:
        check_seconds("seconds", seconds, EXTEND_MAX_SECONDS)
        with self._lock:
            self._check_open()
            if self._lanes is not None:
                self._lanes.extend(delivery, seq, round(seconds * 1000))
            else:
                self._settler.extend(delivery, round(seconds * 1000))

    # --- life ---------------------------------------------------------------------------------

    def maintain(self) -> float:
        """Write acks that are old enough, keep claims alive, close the files of retired pipes.
        Returns the seconds until the next time."""
        # Without the lock, as a consumer must not wait for this.
        turns = self._claimer.maintain_turns(leave=self._stopping or self._closed)
        with self._lock:
            if self._closed:
                return _NEVER
            if self._stopping:
                self._give_back_ahead()
                self._limits.give_back()
            self._flush_old()
            self._claimer.close_dropped()
            left_ms = self._settler.until_flush_ms(self._catalog.now_ms())
            again = left_ms / 1000 if self._settler.unwritten else MAINTENANCE_SECONDS
            again = min(again, turns, self._give_back_unused(), self._keep_claims_alive())
            more = (self._lanes or self._claimer.reserving).maintain(leave=self._stopping)
            return min(again, more, self._limits.maintain(self._claimer.rules))

    def _give_back_unused(self) -> float:
        """Give back prefetched messages if none were taken; seconds until the next check."""
        if not self._buffer.parts:
            return _NEVER
        unused_ms = UNUSED_WANTED_MS if self._claimer.overstays() else UNUSED_MS
        left_ms = self._taken_ms + unused_ms - self._catalog.now_ms()
        if left_ms > 0:
            return left_ms / 1000
        if self._claimer.exclusive and self._settler.open_count > len(self._buffer):
            return UNUSED_MS / 1000  # other poppers may not have them before those are settled
        self._give_back_ahead()
        return _NEVER

    def _keep_claims_alive(self) -> float:
        """Extend claims close to their deadlines; seconds until the next check."""
        if not self._settler.deliveries:
            self._keep_at_ms = math.inf
        self._claimer.look()
        now_ms, timeout_ms = self._catalog.now_ms(), self._claimer.rules.claim_timeout_ms
        if now_ms >= self._keep_at_ms:
            wanted = self._settler.near_deadline(self._keep_alive_ms, timeout_ms)
            if wanted and self._buffer.parts and not self._claimer.exclusive:
                # The consumer is busy with a long task: other poppers may have time for the rest.
                self._give_back_ahead(now_ms - 2 * timeout_ms / 3)
            self._settler.keep_alive(wanted)
            self._keep_at_ms = now_ms + self._settler.look_ms(timeout_ms)
        return min(_NEVER, max(0.0, (self._keep_at_ms - now_ms) / 1000))

    def stop(self) -> None:
        """Deliver no more messages. Safe in a signal handler and from any thread: takes no lock,
        and returns at once.

        An iteration ends after the current message, whose ack still counts. A `pop` returns nothing
        once in each thread, so that a loop can check `stopped`, then raises ClosedError. Prefetched
        messages are given back, uncounted.
        """
        if self._life.forked:
            return  # it belongs to the parent
        self._stopping = True
        self._waiter.wake()
        self._soon()

    def interrupt(self) -> None:
        """End the wait of a `pop` in another thread; if none is waiting, the next will not wait."""
        self._hurried = True
        self._waiter.wake()

    @property
    def claims_ahead(self) -> bool:
        """Whether a consumer may take more than it needs: not in groups with order or limits."""
        claimer = self._claimer
        return not (self._lanes or claimer.rules.limited or claimer.exclusive)

    @property
    def stopped(self) -> bool:
        """Whether the popper was stopped or closed, and hands out nothing more."""
        return self._stopping or self._closed

    def close(self) -> None:
        """Write the acks, and give all other messages back at once, for other poppers; prefetched
        ones that were not returned yet do not count as delivered. If a signal handler calls it in
        the middle of another call of this thread, it stops the popper, and closes it when that call
        ends; a `pop` interrupted like this returns nothing."""
        self._life.end(self.close_inside, meanwhile=self.stop)

    def close_inside(self) -> None:
        """`close`, inside a call of the client."""
        with self._lock:
            if self._closed:
                return
            try:
                self._flush()
                if self._lanes is not None:
                    self._lanes.leave(self._buffer.seqs())
                for delivery in list(self._settler.deliveries):
                    self._give_up(delivery)
                self._flush()
                self._limits.close()
                self._claimer.put_away_owed()
                self._claimer.health.record_success(at_once=True)
            except (QueueNotFoundError, GroupNotFoundError):
                self._end()  # deleted meanwhile: there is nothing left to give back to
            except Exception:
                self._end()
                raise
            else:
                self._end()
            # An exception from a signal handler leaves it open: `close` can be called again.

    def _end(self) -> None:
        self._closed = self.tally.over = True
        (self._lanes or self._claimer).close()
        self._waiter.close()

    def _give_back_ahead(self, claimed_by_ms: float = math.inf) -> None:
        """Give back, uncounted, messages prefetched by that time. The lock is held."""
        ahead = self._buffer.seqs(claimed_by_ms)
        if not ahead:
            return
        self._buffer.forget(ahead)
        if self._lanes is not None:
            self._lanes.put_back_ahead(ahead)
            return
        for delivery, seqs in ahead.items():
            try:
                self._settler.give(
                    delivery, seqs - delivery.given_seqs(), NackOptions(0, counted=False)
                )
            except ClaimLostError as exc:
                logger.info("no claim to give back in pipe %s: %s", delivery.pipe_id, exc)
        self._flush()

    def _give_up(self, delivery: Delivery) -> None:
        ahead = self._buffer.seqs().get(delivery, EMPTY)
        try:
            for seqs, counted in ((delivery.open_seqs() - ahead, True), (ahead, False)):
                if seqs - delivery.given_seqs():
                    self._give(delivery, seqs, NackOptions(0, counted=counted))
        except ClaimLostError:
            return  # others have them already

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Popper:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            "popper, or a message of one,",
            "pass payloads, or call cassq.connect(url).queue(name).popper() there",
        )

    def _check_open(self) -> None:
        if self._closed:
            self._life.check()
            raise ClosedError(
                "this popper is closed; its messages were given back",
                hint="use stop() to end an iteration: it leaves time for the current message",
            )
