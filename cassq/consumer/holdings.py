"""Holdings: what one popper has been handed, and what it has said of it so far.

A holding is the popper's side of a claim: which of its messages are acked, given back or still
open, and the claim rows as they were last written. It does no I/O: the popper writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Thread
from typing import NamedTuple, NoReturn, Protocol

from cassq.base.arguments import error_text, milliseconds, refuse_pickling
from cassq.errors import ClaimLostError, UsageError
from cassq.locks.port import Lock
from cassq.message.bundles import Piece
from cassq.message.messages import Error, Keeper, Message, Messages
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.rows import Claim, ClaimState


class Back(NamedTuple):
    """How messages are given back: after `delay_ms` (None: by the group's schedule), as a
    delivery that counts or not.

    error: what they failed of, as `error_text` made it. doomed: they are to become dead letters at
    once. together: they failed as one, and it is not known which of them is at fault.
    """

    delay_ms: int | None = None
    error: str = ""
    counted: bool = True
    doomed: bool = False
    together: bool = True


class Holder(Protocol):
    """The popper, as a holding calls it."""

    def ack_held(self, holding: Holding, seqs: range) -> None: ...
    def give_held(self, holding: Holding, seqs: range, back: Back) -> None: ...
    def extend_held(self, holding: Holding, seconds: float) -> None: ...


class Holding:
    """The messages of one pipe that were claimed together and are in a popper's hands.

    rows: the claim rows that are still ours, disjoint, all with the same number of deliveries.
    taken_ms: when they were there to be worked on. settled: seqs acked, whether written or not.
    pending: those acked and not yet written. backs: what is being given back and not yet written,
    by how. given, and given_singly: all that was given back. pieces: its messages, as they were
    handed out. consumers: the threads that were given some of them.
    """

    __slots__ = (
        "backs",
        "claimed_ms",
        "consumers",
        "count",
        "deliveries",
        "due_ms",
        "epoch",
        "given",
        "given_singly",
        "holder",
        "left",
        "lock",
        "lost",
        "pending",
        "pieces",
        "pipe_id",
        "rows",
        "settled",
        "taken_ms",
    )

    def __init__(
        self,
        holder: Holder,
        rows: Sequence[Claim],
        claimed_ms: int,
        lock: Lock | None,
        epoch: int | None,
    ) -> None:
        self.holder: Holder = holder
        self.pipe_id: str = rows[0].pipe_id
        self.deliveries: int = rows[0].deliveries
        self.rows: list[Claim] = list(rows)
        self.due_ms: int = rows[0].due_ms
        self.settled: RangeSet = EMPTY
        self.count: int = 0
        for row in rows:
            self.count += row.end - row.start
            if row.acked.ranges:
                self.settled = self.settled | row.acked
                self.count -= len(row.acked)
        self.left: int = self.count
        self.claimed_ms: int = claimed_ms
        self.taken_ms: int = claimed_ms
        self.lock: Lock | None = lock
        self.epoch: int | None = epoch
        self.pending: RangeSet = EMPTY
        self.backs: dict[Back, list[tuple[int, int]]] = {}
        self.given: RangeSet = EMPTY
        self.given_singly: set[int] = set()
        self.lost: bool = False
        self.pieces: Sequence[Piece] = ()
        self.consumers: tuple[Thread, ...] = ()

    def taken_by(self, thread: Thread) -> None:
        """A thread is given some of its messages."""
        if thread not in self.consumers:
            self.consumers += (thread,)

    @property
    def is_attended(self) -> bool:
        """Whether a thread that was given some of its messages still runs."""
        return any(thread.is_alive() for thread in self.consumers)

    def __reduce__(self) -> NoReturn:
        refuse_pickling("message", "pass its payload and id, and handle it there")

    def settle(self, seqs: RangeSet) -> None:
        """Note acks. Raises ClaimLostError for messages that are not ours any more."""
        if self.lost or self.gave:
            self.check(seqs)
        new = seqs - self.settled if self.settled is not EMPTY else seqs
        self.settled = self.settled | new
        self.pending = self.pending | new
        self.left -= len(new)

    def give(self, seqs: RangeSet, back: Back) -> None:
        """Note messages given back; they were checked, and are not settled."""
        self.backs.setdefault(back, []).extend(seqs.ranges)
        if seqs.single is not None:
            self.given_singly.add(seqs.single)
        else:
            self.given = self.given | seqs
        self.left -= len(seqs)

    def give_one(self, seq: int, back: Back) -> None:
        """`give` for one message."""
        spans = self.backs.get(back)
        if spans is None:
            spans = self.backs[back] = []
        spans.append((seq, seq + 1))
        self.given_singly.add(seq)
        self.left -= 1

    @property
    def gave(self) -> bool:
        """Whether anything was given back."""
        return bool(self.given_singly) or self.given is not EMPTY

    def given_seqs(self) -> RangeSet:
        """All that was given back."""
        if self.given_singly:
            self.given = self.given | RangeSet.of(sorted(self.given_singly))
            self.given_singly = set()
        return self.given

    def check(self, seqs: RangeSet) -> None:
        """Raise ClaimLostError when the claim, or these of its messages, are not ours."""
        if self.lost:
            raise ClaimLostError(pipe_id=self.pipe_id)
        if self._has_given(seqs):
            raise ClaimLostError(
                "the message was given back already", hint="it is, or will be, delivered again"
            )

    def has_given(self, seq: int) -> bool:
        """Whether that message was given back."""
        return seq in self.given_singly or (bool(self.given) and seq in self.given)

    def _has_given(self, seqs: RangeSet) -> bool:
        if not self.gave:
            return False
        if seqs.single is not None:
            return self.has_given(seqs.single)
        given = self.given_seqs()
        return any(given.within(start, end) for start, end in seqs.ranges)

    def open_seqs(self) -> RangeSet:
        """What is neither acked nor given back."""
        held = RangeSet((row.start, row.end) for row in self.rows)
        return held - self.settled - self.given_seqs()

    def replace(self, old: Claim, new: list[Claim]) -> None:
        """A row was rewritten: keep those of its successors that are ours."""
        self.rows.remove(old)
        self.rows += [row for row in new if row.state is ClaimState.HELD]

    # --- a message's verbs ----------------------------------------------------------------------

    def ack(self, seqs: range) -> None:
        self.holder.ack_held(self, seqs)

    def nack(self, seqs: range, delay: float | None, error: Error) -> None:
        delay_ms = None if delay is None else milliseconds("delay", delay)
        told = "" if error is None else error_text("error", error)
        self.holder.give_held(self, seqs, Back(delay_ms, told, True, False, False))

    def dead(self, seqs: range, reason: Error) -> None:
        told = error_text("reason", reason)
        self.holder.give_held(self, seqs, Back(0, told, doomed=True))

    def release(self, seqs: range) -> None:
        self.holder.give_held(self, seqs, Back(counted=False))

    def extend(self, seconds: float) -> None:
        self.holder.extend_held(self, seconds)


def by_holding(messages: Iterable[Message], holder: Holder) -> list[tuple[Holding, RangeSet]]:
    """Messages as seqs of the holdings they belong to. Cost: none a message for whole pops."""
    if isinstance(messages, Messages):
        pieces: dict[Keeper, list[RangeSet]] = {}
        for keeper, _, found in messages.runs:
            pieces.setdefault(keeper, []).append(found)
        return [
            (_holding(keeper, holder), RangeSet.joined(found)) for keeper, found in pieces.items()
        ]
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        one = isinstance(messages, Message)
        raise UsageError(
            f"this takes many messages, not {'one' if one else type(messages).__name__}",
            hint="put it in a list: popper.commit([message]); or say message.ack()"
            if one
            else "pass what pop() returned, or a list of its messages",
        )
    seqs: dict[Keeper, list[int]] = {}
    for message in messages:
        if not isinstance(message, Message):
            raise UsageError(
                f"what can be settled is a message that pop() returned, not {message!r:.100}"
            )
        seqs.setdefault(message._keeper, []).append(message.seq)
    return [
        (_holding(keeper, holder), RangeSet.of(sorted(found))) for keeper, found in seqs.items()
    ]


def _holding(keeper: Keeper, holder: Holder) -> Holding:
    if not isinstance(keeper, Holding) or keeper.holder is not holder:
        raise UsageError("a message can be settled only through the popper it came from")
    return keeper


def holding_of(message: Message) -> Holding:
    """Whose claim a message belongs to."""
    keeper = message._keeper
    assert isinstance(keeper, Holding)
    return keeper
