"""Settlement: acks, nacks, releases, rejects or extends messages by their receipts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cassq.base.arguments import check_seconds, error_text, milliseconds
from cassq.consumer.delivery import Error, NackOptions
from cassq.consumer.receipts import ReceiptSettler
from cassq.errors import ReceiptError
from cassq.model.receipts import Receipt

DEADLINE_MAX_SECONDS = 12 * 3600.0
Act = Callable[[ReceiptSettler, Sequence[Receipt]], list[Receipt]]


class Settlement:
    """Settles messages by the receipts of their deliveries; get one from `Queue.settle`.

    Each method is durable on return. A receipt is valid until its message is settled or delivered
    again. If some receipts are not valid, a method acts on the others, and then raises ReceiptError
    with the invalid ones in `receipts`. After an error with `outcome_unknown` the method may or may
    not have had its effect.
    """

    def __init__(self, run: Callable[[Act], list[Receipt]]) -> None:
        self._run = run

    def ack(self, *, overdue: bool = True) -> None:
        """Mark the messages as done. overdue: False also refuses receipts of messages whose
        deadline has passed but that were not delivered again."""
        self._settle(None, overdue=overdue)

    def nack(self, delay: float | None = None, error: Error = None) -> None:
        """Mark the messages as failed, as `Message.nack` does: they are delivered again after
        `delay` seconds, or by the group's retry schedule."""
        delay_ms = None if delay is None else milliseconds("delay", delay)
        self._settle(NackOptions(delay_ms, error_text("error", error), together=False))

    def release(self, delay: float = 0.0) -> None:
        """Give the messages back untried: the delivery does not count. They are delivered again in
        `delay` seconds."""
        self._settle(NackOptions(milliseconds("delay", delay), counted=False))

    def dead(self, reason: Error = "") -> None:
        """Reject the messages: they become dead letters of the group."""
        self._settle(NackOptions(0, error_text("reason", reason), doomed=True))

    def extend(self, seconds: float, *, overdue: bool = True) -> None:
        """Give the messages a deadline of their own, `seconds` from now: from 0 to 12 hours.

        Until then they are not delivered to anyone else, whatever happens to the popper that
        delivered them: it no longer extends their claim or gives them back. After the deadline they
        are delivered again, and that delivery counts. overdue: False also refuses receipts of
        messages whose deadline has passed but that were not delivered again. Cost: a catalog row
        for each message, and one for each gap between them.
        """
        check_seconds("seconds", seconds, DEADLINE_MAX_SECONDS)
        ms = round(seconds * 1000)

        def act(settler: ReceiptSettler, receipts: Sequence[Receipt]) -> list[Receipt]:
            return settler.extend(receipts, ms, overdue=overdue)

        self._raise(self._run(act))

    def _settle(self, back: NackOptions | None, *, overdue: bool = True) -> None:
        def act(settler: ReceiptSettler, receipts: Sequence[Receipt]) -> list[Receipt]:
            return settler.settle(receipts, back, overdue=overdue)

        self._raise(self._run(act))

    def _raise(self, invalid: Sequence[Receipt]) -> None:
        if invalid:
            message = f"{len(invalid)} receipts are not valid" if len(invalid) > 1 else ""
            raise ReceiptError(message, receipts=[receipt.text for receipt in invalid])
