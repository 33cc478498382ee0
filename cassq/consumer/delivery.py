"""Deliveries: the messages one popper holds, how they are settled so far, and `Message` itself.

A delivery is the popper's side of a claim: which of its messages are acked, given back or still
open, and the claim rows as last written. It does no I/O: the popper writes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, repeat
from threading import Thread
from typing import ClassVar, NamedTuple, NoReturn, overload

from cassq.base.arguments import error_text, milliseconds, refuse_pickling
from cassq.consumer.hold import Hold
from cassq.errors import ClaimLostError, UsageError
from cassq.locks.port import Lock
from cassq.message.bundles import Bundle, BundleSlice
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.claims import first_received_ms
from cassq.model.priorities import PRIORITY_MAX
from cassq.model.receipts import Receipt
from cassq.model.rows import Claim, ClaimState, Cursor

# A popper that reserves comes back for more within this time; a message held longer gets a row.
TURN_MS = 250
RECEIPT_SECONDS = 10.0  # the new deadline of a reserved message whose receipt is asked for

# Why a message failed: a text, or the exception itself.
Error = str | BaseException | None


class NackOptions(NamedTuple):
    """How messages are given back. delay_ms: when they are delivered again; None: by the group's
    schedule. error: why they failed, as `error_text` returned it. counted: whether the delivery
    counts. doomed: they become dead letters at once. together: they failed as a batch, and it is
    not known which of them is at fault. reason: see `claims.failure_record`.
    """

    delay_ms: int | None = None
    error: str = ""
    counted: bool = True
    doomed: bool = False
    together: bool = True
    reason: str = "rejected"


class Reserved(NamedTuple):
    """A delivery whose claim is still a reservation, without a row (`claims.reservation`).

    cursor: as stored, without its owner. chain: where the chain ends once there is a row.
    """

    cursor: Cursor
    chain: Place


class Acknowledger(NamedTuple):
    """The callbacks by which the messages of a popper are acked, given back or extended. Each
    popper has one, so it also shows which popper a delivery belongs to."""

    ack: Callable[[Delivery, range], None]
    give: Callable[[Delivery, range, NackOptions], None]
    extend: Callable[[Delivery, float, int], None]


class Delivery:
    """Messages of one pipe that a popper claimed together and holds.

    rows: the claim rows that are still ours, disjoint, all with the same number of deliveries.
    taken_ms: when work on them could begin. settled: seqs acked, written or not. pending: seqs
    acked but not yet written. pending_returns: seqs given back but not yet written, by their
    options. given and given_singly: all seqs given back. missed: seqs that a receipt took from us.
    last_nack: the arguments of the last `nack`, and their options. pieces: its messages, as handed
    out. consumers: the threads that received some of them. keyed: whether its group is keyed. hold:
    in a keyed group, what of it consumers have, until the popper leaves the lane. reserved: set
    while its claim is a reservation.
    """

    __slots__ = (
        "acknowledger",
        "claimed_ms",
        "consumers",
        "count",
        "deliveries",
        "due_ms",
        "epoch",
        "given",
        "given_singly",
        "group_id",
        "hold",
        "holder",
        "keyed",
        "last_nack",
        "left",
        "lock",
        "lost",
        "missed",
        "pending",
        "pending_returns",
        "pieces",
        "pipe_id",
        "priority",
        "reserved",
        "rows",
        "settled",
        "taken_ms",
    )

    def __init__(
        self,
        acknowledger: Acknowledger,
        rows: Sequence[Claim],
        claimed_ms: int,
        lock: Lock | None,
        epoch: int | None,
    ) -> None:
        self.acknowledger: Acknowledger = acknowledger
        self.pipe_id: str = rows[0].pipe_id
        self.group_id: str = rows[0].group_id
        self.holder: str = rows[0].holder
        self.deliveries: int = rows[0].deliveries
        self.priority: int = rows[0].priority
        self.rows: list[Claim] = list(rows)
        self.due_ms: int = rows[0].due_ms
        self.settled: RangeSet = EMPTY
        self.count: int = 0
        for row in rows:
            self.count += row.end - row.start
            if row.acked:
                self.settled = self.settled | row.acked
                self.count -= len(row.acked)
        self.left: int = self.count
        self.claimed_ms: int = claimed_ms
        self.taken_ms: int = claimed_ms
        self.lock: Lock | None = lock
        self.epoch: int | None = epoch
        self.pending: RangeSet = EMPTY
        self.pending_returns: dict[NackOptions, list[tuple[int, int]]] = {}
        self.given: RangeSet = EMPTY
        self.given_singly: set[int] = set()
        self.lost: bool = False
        self.missed: RangeSet = EMPTY
        self.last_nack: tuple[float | None, Error, NackOptions] | None = None
        self.pieces: Sequence[BundleSlice] = ()
        self.consumers: tuple[Thread, ...] = ()
        self.keyed: bool = False
        self.hold: Hold | None = None
        self.reserved: Reserved | None = None

    def taken_by(self, thread: Thread) -> None:
        """Note that a thread received some of its messages."""
        if thread not in self.consumers:
            self.consumers += (thread,)

    @property
    def is_attended(self) -> bool:
        """Whether a thread that received some of its messages still runs."""
        return any(thread.is_alive() for thread in self.consumers)

    def __reduce__(self) -> NoReturn:
        refuse_pickling("message", "pass its payload and id, and handle it there")

    def settle(self, seqs: RangeSet, *, ours: bool = False) -> None:
        """Note acks. Raises ClaimLostError for messages that are no longer ours. ours: skip that
        check: the caller knows that none of them was given back."""
        if self.lost or (not ours and self.has_returns):
            self.check(seqs)
        new = seqs - self.settled if self.settled is not EMPTY else seqs
        self.settled = self.settled | new
        self.pending = self.pending | new
        self.left -= len(new)

    def give(self, seqs: RangeSet, back: NackOptions) -> None:
        """Note messages given back. The caller has checked that they are ours and not settled."""
        self.pending_returns.setdefault(back, []).extend(seqs.ranges)
        if seqs.single is not None:
            self.given_singly.add(seqs.single)
        else:
            self.given = self.given | seqs
        self.left -= len(seqs)

    def give_one(self, seq: int, back: NackOptions) -> None:
        """`give` for one message."""
        spans = self.pending_returns.get(back)
        if spans is None:
            spans = self.pending_returns[back] = []
        spans.append((seq, seq + 1))
        self.given_singly.add(seq)
        self.left -= 1

    def is_written_at_once(self, now_ms: int) -> bool:
        """Whether an ack or nack is written before it returns."""
        return (self.epoch is not None and self.hold is None) or now_ms >= self.due_ms

    @property
    def has_returns(self) -> bool:
        """Whether anything was given back."""
        return bool(self.given_singly) or self.given is not EMPTY

    @property
    def is_acked(self) -> bool:
        """Whether it is over because all of its messages are acked."""
        return not (self.left or self.lost or self.has_returns)

    def given_seqs(self) -> RangeSet:
        """All seqs given back."""
        if self.given_singly:
            self.given = self.given | RangeSet.of(sorted(self.given_singly))
            self.given_singly = set()
        return self.given

    def check(self, seqs: RangeSet) -> None:
        """Raise ClaimLostError if the claim, or one of these messages, is no longer ours."""
        if self.lost:
            raise ClaimLostError(pipe_id=self.pipe_id)
        if self._has_given(seqs):
            raise ClaimLostError(
                "the message was already given back, or settled by its receipt",
                hint="unless it was acked, it is, or will be, delivered again",
            )

    def has_settled(self, seq: int) -> bool:
        """Whether a message was acked or given back. Safe beside a thread that settles others."""
        return seq in self.settled or self.has_given(seq)

    def has_given(self, seq: int) -> bool:
        """Whether a message was given back."""
        return seq in self.given_singly or (bool(self.given) and seq in self.given)

    def _has_given(self, seqs: RangeSet) -> bool:
        if not self.has_returns:
            return False
        if seqs.single is not None:
            return self.has_given(seqs.single)
        given = self.given_seqs()
        return any(given.within(start, end) for start, end in seqs.ranges)

    def open_seqs(self) -> RangeSet:
        """The seqs neither acked nor given back."""
        held = RangeSet((row.start, row.end) for row in self.rows)
        return held - self.settled - self.given_seqs()

    def replace(self, old: Claim, new: list[Claim]) -> None:
        """Note that a row was rewritten: keep those of the new rows that are ours."""
        self.rows.remove(old)
        self.rows += [row for row in new if self._is_ours(row)]

    def split_off(self, old: Claim, new: list[Claim]) -> None:
        """Note that a row was rewritten because some of its messages got deadlines of their own:
        these are no longer ours."""
        self.replace(old, new)
        self.left -= old.left_count - sum(row.left_count for row in new if self._is_ours(row))

    def find_again(self, old: Claim, rows: Sequence[Claim]) -> bool:
        """A row is not as we last wrote it: keep those of the present rows that are ours. False if
        the claim was lost: none is ours, or, in a keyed group, where only receipts can have changed
        the row while the epoch is ours, receipts cannot have caused what is there.

        Messages that are no longer ours were settled by a receipt, or have a deadline of their own.
        They are missed, except those that were acked: for these our own ack changes nothing.
        """
        ours = [row for row in rows if self._is_ours(row)]
        if not (ours or self.keyed):
            return False
        gone = old.left - RangeSet.joined([EMPTY, *(row.left for row in ours)])
        acked = gone & RangeSet.joined([EMPTY, *(row.acked for row in ours)])
        if self.hold is not None and not self.hold.gone(gone, acked, rows):
            return False
        self.rows.remove(old)
        self.rows += ours
        self.missed |= gone - acked
        self.pending -= gone
        self.left -= len(gone - self.settled - self.given_seqs())
        self.settled |= acked
        self.given = self.given_seqs() | (gone - self.settled)
        return True

    def _is_ours(self, row: Claim) -> bool:
        return row.state is ClaimState.HELD and row.holder == self.holder

    # --- a message's verbs ----------------------------------------------------------------------

    def ack(self, seqs: range) -> None:
        self.acknowledger.ack(self, seqs)

    def nack(self, seqs: range, delay: float | None, error: Error) -> None:
        last = self.last_nack
        if last is not None and error is last[1] and delay is last[0]:
            self.acknowledger.give(self, seqs, last[2])
            return
        delay_ms = None if delay is None else milliseconds("delay", delay)
        text = "" if error is None else error_text("error", error)
        back = NackOptions(delay_ms, text, True, False, False)
        if error is None or type(error) is str:  # an exception's text may change
            self.last_nack = delay, error, back
        self.acknowledger.give(self, seqs, back)

    def dead(self, seqs: range, reason: Error) -> None:
        text = error_text("reason", reason)
        self.acknowledger.give(self, seqs, NackOptions(0, text, doomed=True))

    def release(self, seqs: range) -> None:
        self.acknowledger.give(self, seqs, NackOptions(counted=False))

    def extend(self, seconds: float, seq: int) -> None:
        self.acknowledger.extend(self, seconds, seq)


# --- messages -----------------------------------------------------------------------------------


class Message:
    """One delivery of one message. Its methods are thread-safe.

    payload: the pushed bytes. seq: its number in its pipe.
    """

    __slots__ = ("_bundle", "_delivery", "payload", "seq")

    def __init__(self, payload: bytes, seq: int, bundle: Bundle, delivery: Delivery) -> None:
        self.payload: bytes = payload
        self.seq: int = seq
        self._bundle = bundle
        self._delivery = delivery

    @property
    def id(self) -> str:
        """`pipe:seq` of the place where it was first stored; it stays the same in every delivery
        and move."""
        bundle = self._bundle
        if not bundle.ids:  # the common case
            return f"{self._delivery.pipe_id}:{self.seq}"
        return bundle.id_at(self.seq - bundle.base_seq, self._delivery.pipe_id).decode()

    @property
    def pipe_id(self) -> str:
        """The pipe it was delivered from."""
        return self._delivery.pipe_id

    @property
    def group_id(self) -> str:
        """The group it was delivered to, by its id in the catalog."""
        return self._delivery.group_id

    @property
    def attempts(self) -> int:
        """How often it was delivered to its group, including this time; 1 the first time."""
        return self._delivery.deliveries

    @property
    def first_received_ms(self) -> int | None:
        """When it was first delivered singly, in catalog time; None if that is not known."""
        rows = self._delivery.rows
        return next((first_received_ms(r) for r in rows if r.start <= self.seq < r.end), None)

    @property
    def priority(self) -> int:
        """How urgent it is, as it was pushed: from 0, the default, to 9, the most urgent."""
        return self._delivery.priority

    @property
    def headers(self) -> dict[str, str]:
        bundle = self._bundle
        return bundle.headers_at(self.seq - bundle.base_seq) if bundle.headers else {}

    @property
    def key(self) -> bytes | None:
        bundle = self._bundle
        return bundle.key_at(self.seq - bundle.base_seq)

    @property
    def pushed_at(self) -> datetime:
        """When it was pushed, by the pusher's wall clock, in UTC."""
        return datetime.fromtimestamp(self.pushed_ms / 1000, UTC)

    @property
    def pushed_ms(self) -> int:
        """`pushed_at` in milliseconds since 1970."""
        return self._bundle.time_ms(self.seq - self._bundle.base_seq)

    def ack(self) -> None:
        """Mark the message as done. The ack becomes durable, together with others, within 50 ms, or
        a second where writes are slow; at once in an exclusive group or past the claim's deadline.
        `Popper.commit` waits for it. A second ack has no effect. Raises ClaimLostError if the claim
        is known to be lost, or the message was given back."""
        self._delivery.ack(range(self.seq, self.seq + 1))

    @property
    def settled(self) -> bool:
        """Whether it was acked, or given back in any way, through its popper. If it was settled by
        its receipt, this turns true only when the popper writes next."""
        return self._delivery.has_settled(self.seq)

    def is_written_at_once(self, now_ms: int) -> bool:
        """Whether an ack or nack is written before it returns. now_ms: catalog time."""
        return self._delivery.is_written_at_once(now_ms)

    @property
    def receipt(self) -> str:
        """A string that names this delivery. Any process that has it can settle the message, or
        give it a deadline of its own, with `Queue.settle`.

        It is valid until the message is settled or delivered again. Raises UsageError in an
        exclusive group, whose messages only their popper can settle; ClaimLostError if the claim is
        lost, and in a keyed group if the message is settled or its receipt was used.
        """
        delivery = self._delivery
        if delivery.keyed:
            if delivery.hold is None:
                raise ClaimLostError(pipe_id=delivery.pipe_id)
            delivery.hold.give_receipt(self.seq)
            return Receipt(delivery.group_id, delivery.pipe_id, self.seq, delivery.holder).text
        if delivery.epoch is not None:
            raise UsageError(
                "messages of exclusive groups have no receipts",
                hint="settle them through the popper that delivered them, or use a group with"
                " order='key', and a key for each message",
            )
        if delivery.reserved is not None:
            delivery.extend(RECEIPT_SECONDS, self.seq)  # which makes it a row that others can see
        if delivery.lost:
            raise ClaimLostError(pipe_id=delivery.pipe_id)
        return Receipt(delivery.group_id, delivery.pipe_id, self.seq, delivery.holder).text

    def nack(self, delay: float | None = None, error: Error = None) -> None:
        """Mark the message as failed: it is delivered again after `delay` seconds, or by the
        group's retry schedule; without one at once, behind waiting messages. Written as `ack` is.

        error: a text, or an exception, whose type and text are recorded; the first 4,096 characters
        are kept, newlines included. After `max_deliveries` the message goes to the group's dead
        letters, with `error`, but not while nothing in the group succeeds: see `sick_check` and
        `sick_hold` in `QueuePolicy`. If the error has another type, raises UsageError and leaves
        the message unsettled.
        """
        self._delivery.nack(range(self.seq, self.seq + 1), delay, error)

    def dead(self, reason: Error = "") -> None:
        """Reject the message: it goes to the group's dead letters, with `reason`, a text or an
        exception, as its error. Written as `ack` is; raises UsageError as `nack` does."""
        self._delivery.dead(range(self.seq, self.seq + 1), reason)

    def release(self) -> None:
        """Give the message back untried: this delivery does not count. Written as `ack` is."""
        self._delivery.release(range(self.seq, self.seq + 1))

    def extend(self, seconds: float) -> None:
        """Move the deadline of this message's claim, which other messages may share, to `seconds`
        from now; at most 7 days. Raises ClaimLostError."""
        self._delivery.extend(seconds, self.seq)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same delivery of the same message."""
        if not isinstance(other, Message):
            return NotImplemented
        return self._delivery is other._delivery and self.seq == other.seq

    def __hash__(self) -> int:
        return hash((id(self._delivery), self.seq))

    def __repr__(self) -> str:
        return f"<Message {self.id} attempts={self.attempts} {len(self.payload)} bytes>"


class DeliveredRun(NamedTuple):
    """Messages of one claim that lie in one bundle."""

    delivery: Delivery
    bundle: Bundle
    seqs: RangeSet

    def messages(self) -> Iterator[Message]:
        delivery, bundle, seqs = self
        return map(Message, bundle.each_payload_of(seqs), seqs, repeat(bundle), repeat(delivery))


class Messages(Sequence[Message]):
    """The messages of one pop, in order; each `Message` object is created when accessed.

    Immutable. runs: the same messages, as runs, each in one bundle.
    """

    __slots__ = ("_count", "runs")

    def __init__(self, runs: Sequence[DeliveredRun] = ()) -> None:
        self.runs: Sequence[DeliveredRun] = runs
        self._count = sum(len(run.seqs) for run in runs)

    @property
    def payloads(self) -> list[bytes]:
        """The payloads in order, without a `Message` for each: the fastest way to read a batch."""
        payloads: list[bytes] = []
        for _, bundle, seqs in self.runs:
            payloads += bundle.payloads_of(seqs)
        return payloads

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(map(DeliveredRun.messages, self.runs))

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Messages: ...
    def __getitem__(self, index: int | slice) -> Message | Messages:
        if not isinstance(index, slice):
            at = range(self._count)[index]
            (message,) = self._part(at, at + 1)
            return message
        places = range(self._count)[index]
        if places.step == 1:
            return self._part(places.start, places.stop)
        return Messages([run for at in places for run in self._part(at, at + 1).runs])

    def _part(self, start: int, stop: int) -> Messages:
        if start == 0 and stop == self._count:
            return self
        runs: list[DeliveredRun] = []
        before = 0
        for run in self.runs:
            count = len(run.seqs)
            first, last = max(0, start - before), min(count, stop - before)
            if first < last:
                runs.append(run._replace(seqs=run.seqs.part(first, last)))
            before += count
        return Messages(runs)

    def __add__(self, other: Messages) -> Messages:
        if not isinstance(other, Messages):
            return NotImplemented
        return Messages([*self.runs, *other.runs])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Messages, list)) and list(self) == list(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Messages({list(self)})"


class Prefetched:
    """What a popper claimed ahead, in order, until its next calls take it.

    It is kept as runs, and a `pop` takes as much of them as it needs. An iteration takes one
    message after another, so its current run is opened: replaced by an object for each message.

    Not thread-safe: `cassq.popper` holds its lock around every call. A signal handler's
    exception may come between any two steps: messages being taken are then not taken again.

    parts: non-empty runs, opened or not, each with the number of all messages ever added up to its
    end, so that nothing has to be counted.
    """

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: deque[tuple[int, DeliveredRun | deque[Message]]] = deque()

    def __len__(self) -> int:
        if not self.parts:
            return 0
        end, first = self.parts[0]
        count = len(first.seqs) if isinstance(first, DeliveredRun) else len(first)
        return self.parts[-1][0] - end + count

    def add(self, found: Messages) -> None:
        end = self.parts[-1][0] if self.parts else 0
        for run in found.runs:
            end += len(run.seqs)
            self.parts.append((end, run))

    def add_first(self, found: Messages) -> None:
        """Add what goes before everything else."""
        if not self.parts:
            self.add(found)
            return
        end, first = self.parts[0]
        end -= len(first.seqs) if isinstance(first, DeliveredRun) else len(first)
        for run in reversed(found.runs):
            self.parts.appendleft((end, run))
            end -= len(run.seqs)

    @property
    def first(self) -> Delivery:
        """The delivery of the first message; there is one."""
        part = self.parts[0][1]
        return part.delivery if isinstance(part, DeliveredRun) else part[0]._delivery

    def next(self) -> Message:
        """Take the first message; there is one."""
        end, part = self.parts[0]
        if isinstance(part, DeliveredRun):
            part = deque(part.messages())
            self.parts[0] = end, part
        if len(part) == 1:
            self.parts.popleft()
        return part.popleft()

    def take(self, limit: int) -> Messages:
        """Take the first messages, `limit` at most."""
        taken: list[DeliveredRun] = []
        while limit > 0 and self.parts:
            end, part = self.parts.popleft()
            if isinstance(part, DeliveredRun):
                delivery, bundle, seqs = part
                start, stop = seqs.ranges[0]
                if len(seqs.ranges) == 1 and stop - start > limit:
                    rest = DeliveredRun(delivery, bundle, RangeSet.run(start + limit, stop))
                    self.parts.appendleft((end, rest))
                    taken.append(DeliveredRun(delivery, bundle, RangeSet.run(start, start + limit)))
                    break
                count = len(seqs)
                if count <= limit:
                    taken.append(part)
                    limit -= count
                    continue
                part = deque(part.messages())  # nothing can be cut off many ranges cheaply
            opened = [part.popleft() for _ in range(min(limit, len(part)))]
            if part:
                self.parts.appendleft((end, part))
            taken.append(as_run(opened))
            limit -= len(opened)
        return Messages(taken)

    def forget_stale(self, now_ms: int) -> int:
        """Drop messages at the front that another popper has, or may have, by now. Returns the
        priority of the first one left, or the greatest priority if none is left."""
        while self.parts:
            delivery = self.first
            if not delivery.lost and delivery.due_ms > now_ms:
                return delivery.priority
            self.parts.popleft()
        return PRIORITY_MAX

    def forget(self, deliveries: Container[Delivery]) -> None:
        """Drop all messages of these deliveries."""
        kept = Prefetched()
        for _, part in self.parts:
            run = part if isinstance(part, DeliveredRun) else as_run(part)
            if run.delivery not in deliveries:
                kept.add(Messages([run]))
        self.parts = kept.parts

    def seqs(self, claimed_by_ms: float = math.inf) -> dict[Delivery, RangeSet]:
        """The prefetched seqs of each delivery that was claimed at or before this time."""
        found: dict[Delivery, list[RangeSet]] = {}
        for _, part in self.parts:
            run = part if isinstance(part, DeliveredRun) else as_run(part)
            if run.delivery.claimed_ms <= claimed_by_ms:
                found.setdefault(run.delivery, []).append(run.seqs)
        return {delivery: RangeSet.joined(sets) for delivery, sets in found.items()}


def by_delivery(
    messages: Iterable[Message], acknowledger: Acknowledger
) -> list[tuple[Delivery, RangeSet]]:
    """Messages as seqs of their deliveries. For whole pops the cost does not grow with their
    number."""
    if isinstance(messages, Messages):
        pieces: dict[Delivery, list[RangeSet]] = {}
        for delivery, _, found in messages.runs:
            pieces.setdefault(delivery, []).append(found)
        return [(_of(acknowledger, each), RangeSet.joined(found)) for each, found in pieces.items()]
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        one = isinstance(messages, Message)
        raise UsageError(
            f"this takes many messages, not {'one' if one else type(messages).__name__}",
            hint="put it in a list: popper.commit([message]); or call message.ack()"
            if one
            else "pass the result of pop(), or a list of its messages",
        )
    seqs: dict[Delivery, list[int]] = {}
    for message in messages:
        if not isinstance(message, Message):
            raise UsageError(
                f"only messages that pop() returned can be settled, not {message!r:.100}"
            )
        seqs.setdefault(message._delivery, []).append(message.seq)
    return [(_of(acknowledger, each), RangeSet.of(sorted(found))) for each, found in seqs.items()]


def _of(acknowledger: Acknowledger, delivery: Delivery) -> Delivery:
    if delivery.acknowledger is not acknowledger:
        raise UsageError("a message can be settled only through the popper it came from")
    return delivery


def as_run(messages: Sequence[Message]) -> DeliveredRun:
    """At least one message of one delivery and one bundle, in order, as a run."""
    first = messages[0]
    seqs = RangeSet.of(message.seq for message in messages)
    return DeliveredRun(first._delivery, first._bundle, seqs)
