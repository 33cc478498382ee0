"""How the message of a task is settled, by how the task ended."""

from __future__ import annotations

from cassq.consumer.delivery import Message
from cassq.errors import CassqError, ClaimLostError
from cassq.worker.journal import Outcome


def settle(message: Message, failure: BaseException | None) -> tuple[Outcome, BaseException | None]:
    """Ack the message of a task that ended, or nack it with what the task raised; leave it alone if
    the task settled it. Returns how that went, and what failed."""
    try:
        if message.settled:
            return Outcome.SETTLED, failure
        if failure is None:
            message.ack()
            return Outcome.DONE, None
        message.nack(error=failure)
    except CassqError as exc:
        return _refused(exc), failure or exc
    return Outcome.FAILED, failure


def give_up(message: Message, outcome: Outcome, error: str) -> tuple[Outcome, CassqError | None]:
    """Nack the message of a task that still runs. Returns how that went."""
    try:
        if not message.settled:
            message.nack(error=error)
    except CassqError as exc:
        return _refused(exc), exc
    return outcome, None


def _refused(exc: CassqError) -> Outcome:
    return Outcome.LOST if isinstance(exc, ClaimLostError) else Outcome.UNWRITTEN
