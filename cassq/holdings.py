"""Holdings: what one popper has been handed, and what it has said of it so far.

A holding is the popper's side of a claim: which of its messages are acked, given back or still
open, and the claim rows as they were last written. It does no I/O: the popper writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cassq.catalog.port import Claim, ClaimState
from cassq.errors import ClaimLostError, UsageError
from cassq.extents.port import Slice
from cassq.locks.port import Lock
from cassq.messages import Keeper, Message, Messages, Run
from cassq.ranges import EMPTY, RangeSet


class Holder(Protocol):
    """The popper, as a holding calls it."""

    def ack_held(self, holding: Holding, seqs: range) -> None: ...
    def nack_held(
        self, holding: Holding, seqs: range, delay: float | None, error: str | None
    ) -> None: ...
    def release_held(self, holding: Holding, seqs: range) -> None: ...
    def extend_held(self, holding: Holding, seconds: float) -> None: ...


class Holding:
    """The messages of one claim in a popper's hands.

    rows: the claim rows that are still ours, disjoint. settled: seqs acked, whether written or
    not. pending: those acked and not yet written. given: those given back.
    """

    __slots__ = (
        "claimed_ms",
        "count",
        "deliveries",
        "due_ms",
        "epoch",
        "given",
        "holder",
        "left",
        "lock",
        "lost",
        "pending",
        "pipe_id",
        "rows",
        "settled",
    )

    def __init__(
        self, holder: Holder, claim: Claim, claimed_ms: int, lock: Lock | None, epoch: int | None
    ) -> None:
        self.holder = holder
        self.pipe_id = claim.pipe_id
        self.deliveries = claim.deliveries
        self.rows = [claim]
        self.due_ms = claim.due_ms
        self.count = self.left = claim.count
        self.claimed_ms = claimed_ms
        self.lock = lock
        self.epoch = epoch
        self.settled = EMPTY
        self.pending = EMPTY
        self.given = EMPTY
        self.lost = False

    def messages(self, slices: list[Slice]) -> Messages:
        """The messages of the claim. Cost: nothing for each until it is looked at."""
        return Messages([Run(self, *piece) for piece in slices])

    def settle(self, seqs: RangeSet) -> None:
        """Note acks. Raises ClaimLostError for messages that are not ours any more."""
        self.check(seqs)
        new = seqs - self.settled if self.settled else seqs
        self.settled = self.settled | new
        self.pending = self.pending | new
        self.left -= len(new)

    def check(self, seqs: RangeSet) -> None:
        """Raise ClaimLostError when the claim, or these of its messages, are not ours."""
        if self.lost:
            raise ClaimLostError(pipe_id=self.pipe_id)
        if self.given and (self.given & seqs):
            raise ClaimLostError(
                "the message was given back already", hint="it is, or will be, delivered again"
            )

    def open_seqs(self) -> RangeSet:
        """What is neither acked nor given back."""
        held = RangeSet((row.start, row.end) for row in self.rows)
        return held - self.settled - self.given

    def replace(self, old: Claim, new: list[Claim]) -> None:
        """A row was rewritten: keep those of its successors that are ours."""
        self.rows.remove(old)
        self.rows += [row for row in new if row.state is ClaimState.HELD]

    # --- a message's verbs ----------------------------------------------------------------------

    def ack(self, seqs: range) -> None:
        self.holder.ack_held(self, seqs)

    def nack(self, seqs: range, delay: float | None, error: str | None) -> None:
        self.holder.nack_held(self, seqs, delay, error)

    def release(self, seqs: range) -> None:
        self.holder.release_held(self, seqs)

    def extend(self, seconds: float) -> None:
        self.holder.extend_held(self, seconds)


def by_holding(messages: Iterable[Message], holder: Holder) -> list[tuple[Holding, RangeSet]]:
    """Messages as seqs of the holdings they belong to. Cost: none a message for whole pops."""
    if isinstance(messages, Messages):
        spans: dict[Keeper, list[tuple[int, int]]] = {}
        for keeper, frame, first, last in messages.runs:
            span = frame.base_seq + first, frame.base_seq + last
            spans.setdefault(keeper, []).append(span)
        return [(_holding(keeper, holder), RangeSet(found)) for keeper, found in spans.items()]
    seqs: dict[Keeper, list[int]] = {}
    for message in messages:
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
