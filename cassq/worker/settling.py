"""How the message of a task is settled: by how the task ended, and by its terms."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from cassq.errors import CassqError, ClaimLostError
from cassq.worker.handler import Reject, Retry
from cassq.worker.journal import HandlerCall, Outcome, Terms

# The task that runs here, and the callback by which its worker sets other terms for it.
_running: ContextVar[tuple[HandlerCall, Callable[[HandlerCall, Terms], object]]] = ContextVar(
    "cassq_running"
)


def set_running(task: HandlerCall, adopt: Callable[[HandlerCall, Terms], object]) -> None:
    """Note that this thread, or this task of an event loop, runs a task. adopt: sets other terms
    for it."""
    _running.set((task, adopt))


def set_terms(terms: Terms) -> None:
    """Set the terms of the task that runs here. Does nothing if no worker runs it."""
    task, adopt = _running.get((None, None))
    if task is not None and adopt is not None:
        adopt(task, terms)


def note_end(ended: str) -> None:
    """Set what the log says of the task that runs here, instead of "done"."""
    task, _ = _running.get((None, None))
    if task is not None:
        task.terms = task.terms._replace(ended=ended)


def settle(
    task: HandlerCall, failure: BaseException | None
) -> tuple[Outcome, BaseException | None]:
    """Ack the message of a task that ended, or give it back with what the task raised; leave it as
    it is if the task settled it. Returns the outcome, and the error of the task or the settling."""
    message = task.message
    try:
        if message.settled:
            return Outcome.SETTLED, failure
        if failure is None:
            message.ack()
            return Outcome.DONE, None
        return _give_back(task, failure), failure
    except CassqError as exc:
        return _refused(exc), failure or exc


def give_up(task: HandlerCall, outcome: Outcome, error: str) -> tuple[Outcome, CassqError | None]:
    """Give back the message of a task that is still running. Returns the outcome, and the error if
    that failed."""
    message = task.message
    try:
        if not message.settled:
            if outcome is Outcome.TIME_LIMIT:
                _give_back(task, error)
            else:
                message.nack(error=error)
    except CassqError as exc:
        return _refused(exc), exc
    return outcome, None


def _give_back(task: HandlerCall, failure: BaseException | str) -> Outcome:
    message, terms = task.message, task.terms
    if isinstance(failure, Reject) or terms.last:
        message.dead(failure)
        return Outcome.REJECTED
    delay = failure.delay if isinstance(failure, Retry) else None
    message.nack(delay=terms.delay if delay is None else delay, error=failure)
    return Outcome.FAILED


def _refused(exc: CassqError) -> Outcome:
    return Outcome.LOST if isinstance(exc, ClaimLostError) else Outcome.UNWRITTEN
