"""Holds: what a keyed group's lane wants to know of the messages of one of its claim rows."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim


class Hold(abc.ABC):
    """The part of one claim row that consumers of a keyed group have. Only some of the row is in
    their hands; a message that is settled makes room for the next one of its key.

    base: the first seq of the row, for bit sets."""

    base: int

    @abc.abstractmethod
    def check(self, seqs: RangeSet) -> None:
        """Raise ClaimLostError unless these messages are in a consumer's hands, or acked."""

    @abc.abstractmethod
    def acked(self, seqs: RangeSet) -> None:
        """Messages were acked, but that is not written yet."""

    @abc.abstractmethod
    def released(self, seqs: RangeSet) -> RangeSet:
        """Messages were given back untried: they can be handed out again, in their old place.
        Returns those that cannot, as they have receipts that must become invalid: they must be
        given back in rows of their own."""

    @abc.abstractmethod
    def failed(self, seqs: RangeSet) -> None:
        """Messages were given back, but that is not written yet."""

    @abc.abstractmethod
    def tried(self, row: Claim) -> RangeSet | None:
        """Which of a row's messages are handed out; None if the row says the same. It must say so
        before they are handed out, and soon after they are released."""

    @abc.abstractmethod
    def due_ms(self, row: Claim) -> int:
        """Until when a row must be held if messages of it are handed out now."""

    @abc.abstractmethod
    def written(self, free: Sequence[Claim]) -> None:
        """Some of what was noted is written. free: the rows of messages that were given back."""

    @abc.abstractmethod
    def over(self) -> None:
        """All messages are settled or given back, and that is written; or the claim is lost."""

    @abc.abstractmethod
    def give_receipt(self, seq: int) -> None:
        """Note that a message has a receipt, so that any process may settle it. Raises
        ClaimLostError if no consumer has it. Safe while another thread settles other messages."""

    @abc.abstractmethod
    def gone(self, seqs: RangeSet, acked: RangeSet, rows: Sequence[Claim]) -> bool:
        """Messages are no longer in the claim's rows, because their receipts were used. False if
        some have no receipt: then the claim is lost. acked: those that were acked. rows: the
        present rows of that part of the pipe."""
