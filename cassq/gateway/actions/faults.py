"""The errors of SQS that actions raise, with the codes of both encodings."""

from __future__ import annotations

from cassq.gateway.errors import ActionError
from cassq.gateway.wire.sqs import ERRORS


def fault(code: str, message: str) -> ActionError:
    """The error of SQS with this code: the request was wrong."""
    legacy, _ = ERRORS.get(code, (code, 400))
    return ActionError(code, message, legacy=legacy)


def wrong_value(name: str, value: object, reason: str) -> ActionError:
    """A parameter's value is out of range, or of the wrong form."""
    return fault(
        "InvalidParameterValue",
        f"Value {value!r:.200} for parameter {name} is invalid. Reason: {reason}.",
    )


def missing(name: str) -> ActionError:
    """A required parameter is missing."""
    return fault("MissingParameter", f"The request must contain the parameter {name}.")


def no_queue(name: str) -> ActionError:
    """There is no queue with this name."""
    return fault("QueueDoesNotExist", f"The specified queue does not exist: {name!r:.200}.")
