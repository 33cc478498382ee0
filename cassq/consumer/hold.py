"""Holds: how what a keyed group claimed of one row is followed by those who settle it."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim


class Hold(abc.ABC):
    """How a keyed group keeps what one claim row holds: only some of it is in a consumer's hands,
    and what is settled makes room for more of its key.

    base: the first seq of the row, for bit sets."""

    base: int

    @abc.abstractmethod
    def check(self, seqs: RangeSet) -> None:
        """Raise ClaimLostError unless these messages are in a consumer's hands, or acked."""

    @abc.abstractmethod
    def acked(self, seqs: RangeSet) -> None:
        """Messages were acked, which is not written yet."""

    @abc.abstractmethod
    def released(self, seqs: RangeSet) -> RangeSet:
        """Messages were given back untried: they can be handed out again, in their old place.
        Returns those that cannot, as they have receipts, which may not be valid then: they must be
        given back in rows of their own."""

    @abc.abstractmethod
    def failed(self, seqs: RangeSet) -> None:
        """Messages were given back, which is not written yet."""

    @abc.abstractmethod
    def tried(self, row: Claim) -> RangeSet | None:
        """Which of a row's messages are handed out, if that is not what the row says. It must say
        so before they are, and as soon as they are not any more."""

    @abc.abstractmethod
    def due_ms(self, row: Claim) -> int:
        """Until when a row must be held if some of it is handed out now."""

    @abc.abstractmethod
    def written(self, free: Sequence[Claim]) -> None:
        """Some of what was noted is written. free: the rows of what was given back."""

    @abc.abstractmethod
    def over(self) -> None:
        """All messages are settled or given back, and that is written; or the claim is lost."""

    @abc.abstractmethod
    def give_receipt(self, seq: int) -> None:
        """Note that a message has a receipt, so that others may settle it. Raises ClaimLostError if
        no consumer has it. Safe beside a thread that settles others."""

    @abc.abstractmethod
    def gone(self, seqs: RangeSet, acked: RangeSet, rows: Sequence[Claim]) -> bool:
        """Messages are in none of the claim's rows any more, as their receipts were used; False if
        some have none, so that the claim is lost. acked: those that were acked. rows: what is there
        of the pipe now, where they were."""
