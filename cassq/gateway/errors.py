"""The errors that clients of the gateway get, by the names and codes of SQS."""

from __future__ import annotations


class ActionError(Exception):
    """A request that is refused, or cannot be done now.

    code: the error's name in JSON answers, as "QueueDoesNotExist". legacy: its code in XML answers
    and in the header `x-amzn-query-error`, as "AWS.SimpleQueueService.NonExistentQueue"; if it is
    empty, the same as `code`. status: of HTTP. sender: whether the request was wrong, as opposed to
    the service.
    """

    def __init__(
        self, code: str, message: str, *, legacy: str = "", status: int = 400, sender: bool = True
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.legacy: str = legacy or code
        self.status = status
        self.sender = sender
