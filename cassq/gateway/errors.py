"""The errors that clients of the gateway get, with the names and codes of SQS."""

from __future__ import annotations


class ActionError(Exception):
    """A request that is refused, or cannot be carried out now.

    code: the error's name in JSON answers, such as "QueueDoesNotExist". legacy: its code in XML
    answers and in the header `x-amzn-query-error`, such as
    "AWS.SimpleQueueService.NonExistentQueue"; empty: the same as `code`. status: of HTTP. sender:
    whether the request was wrong, rather than the service.
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
