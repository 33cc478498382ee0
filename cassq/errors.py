"""Every error cassq raises, sorted by what the caller should do about it.

The tree::

    CassqError
    ├─ UsageError        fix the call (the command exits with 2)
    ├─ OwnershipError    someone else owns it now
    ├─ BackendError      back off and retry (the command exits with 75)
    ├─ AbandonedTasksError   end the process
    ├─ TaskFailedError   wait no longer: the task ended without a result
    ├─ StepMismatchError   correct the task's function
    ├─ CorruptionError   stop reading this pipe and tell someone
    └─ BrokenInvariantError   a bug in cassq

The first line of an error's docstring is its default message; ``hint`` says what to do next.
"""

from __future__ import annotations

from typing import Any, ClassVar


class CassqError(Exception):
    """Something went wrong in cassq."""

    exit_code: int = 1
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str = "", *, hint: str = "", **fields: Any) -> None:
        doc = (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        self.message: str = message or doc
        self.hint: str = hint or self.default_hint
        self.fields: dict[str, Any] = fields
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


# --- fix the call ---------------------------------------------------------------------------


class UsageError(CassqError):
    """The call is wrong; it changed nothing."""

    exit_code: int = 2


class ConfigError(UsageError):
    """A setting, URL or directory cannot be used."""


class InvalidNameError(UsageError):
    """A queue, group or schedule has a name that is not allowed."""

    default_hint = (
        "use letters, digits, '.', '_' and '-' (at most 200), plain or as a path like /team/name"
    )


class InvalidPayloadError(UsageError):
    """A payload, key or header has a type that cannot be stored."""

    default_hint = "payloads and keys are bytes; headers are a dict of str to str"


class MessageTooLargeError(UsageError):
    """A message is larger than a frame may be."""

    default_hint = "keep large blobs elsewhere and push a reference to them"


class MissingExtraError(UsageError):
    """An optional package is needed for this."""


class QueueNotFoundError(UsageError):
    """There is no such queue."""

    default_hint = "create it with client.create_queue(name) or `cassq queue create NAME`"


class QueueExistsError(UsageError):
    """The queue exists with another policy."""

    default_hint = "use queue.update(...) or `cassq queue update NAME` to change a queue's policy"


class GroupNotFoundError(UsageError):
    """There is no such consumer group."""

    default_hint = "create it with queue.create_group(name) or `cassq group create QUEUE NAME`"


class GroupExistsError(UsageError):
    """The consumer group exists already with another policy."""

    default_hint = (
        "use queue.update_group(...) or `cassq group update QUEUE NAME` to change a group's policy"
    )


class ScheduleNotFoundError(UsageError):
    """There is no such schedule."""

    default_hint = (
        "create it with client.create_schedule(...) or `cassq schedule create NAME`;"
        " `cassq schedule list` lists all"
    )


class ScheduleExistsError(UsageError):
    """The schedule exists with other settings."""

    default_hint = "change it with `cassq schedule update NAME`, or choose another name"


class MessageNotFoundError(UsageError):
    """There is no such message, and no record of one."""

    default_hint = "pass an id that a push returned; ids of deleted queues are forgotten"


class ClosedError(UsageError):
    """This client, pusher or popper is closed."""

    default_hint = "open a new one"


class ForkedClientError(UsageError):
    """This client was opened before a fork; its files and locks belong to the parent."""

    default_hint = "call cassq.connect() in the child process, after the fork"


class InterruptedCallError(UsageError):
    """This thread is in the middle of another call of the same client; nothing was done."""

    default_hint = (
        "a signal handler made this call: in a handler, call only popper.stop() or client.close(), "
        "which finish when the interrupted call ends, or set a flag and act on it outside"
    )


# --- someone else owns it -------------------------------------------------------------------


class OwnershipError(CassqError):
    """Someone else owns this now."""


class ClaimLostError(OwnershipError):
    """The claim on these messages was lost; others get them unless the queue was deleted."""

    default_hint = "drop the result, or make the work idempotent; raise claim_timeout or extend()"


class ReceiptError(ClaimLostError):
    """This receipt does not belong to a message's latest delivery, or the message is settled."""

    default_hint = "nothing was changed; pop again to get a receipt for the next delivery"

    @property
    def receipts(self) -> tuple[str, ...]:
        """The receipts passed that are not valid."""
        return tuple(self.fields.get("receipts", ()))


class LeaseLostError(OwnershipError):
    """A lease ended before it was renewed."""


class FencedError(OwnershipError):
    """A newer owner has taken over; this one's writes have no effect."""


class PipeSealedError(OwnershipError):
    """The pipe is sealed: no more frames can be appended."""


# --- back off and retry ---------------------------------------------------------------------


class BackendError(CassqError):
    """The storage or the lock service failed.

    retryable: whether the same call may succeed later; if not, the command exits with 1, not 75.
    outcome_unknown: whether a write may have taken effect all the same.
    """

    exit_code: int = 75

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        retryable: bool = True,
        outcome_unknown: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__(message, hint=hint, **fields)
        self.retryable = retryable
        self.outcome_unknown = outcome_unknown
        if not retryable:
            self.exit_code = CassqError.exit_code


class BackendUnavailableError(BackendError):
    """The storage is unavailable at the moment."""


class BackendTimeoutError(BackendError):
    """The storage did not answer in time."""

    default_hint = "try again later"


def is_outage(exc: BaseException) -> bool:
    """Whether an error means that the storage does not answer at the moment."""
    outage = isinstance(exc, (BackendUnavailableError, BackendTimeoutError))
    return outage and isinstance(exc, BackendError) and exc.retryable


class StorageFullError(BackendError):
    """The disk is full: everything acknowledged is safe, but nothing new can be stored."""

    default_hint = "free some space; consumed pipes are removed by `cassq reap`"


class QueueFullError(BackendError):
    """The queue has reached its maximum length: nothing was pushed."""

    default_hint = "try again when consumers have caught up, or raise max_length"


class QueuePausedError(BackendError):
    """Pushing to this queue is paused: nothing was pushed."""

    default_hint = "try again later; queue.resume() or `cassq queue resume QUEUE` ends the pause"


# --- end the process -------------------------------------------------------------------------


class AbandonedTasksError(CassqError):
    """Tasks of a worker are still running, although their messages were given back."""

    default_hint = "end this process: a running thread cannot be stopped"


# --- look at the task -----------------------------------------------------------------------


class TaskFailedError(CassqError):
    """A task has ended without a result."""


class StepMismatchError(CassqError):
    """The steps of a task differ from those that it recorded."""


# --- stop and tell someone ------------------------------------------------------------------


class CorruptionError(CassqError):
    """Stored data is damaged."""

    default_hint = "keep a copy of the directory and run `cassq audit` to see what is affected"


class BrokenInvariantError(CassqError):
    """A bug in cassq: something that can never happen has happened."""

    default_hint = "please report it with the traceback"
