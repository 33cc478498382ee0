"""Requests, in either encoding, and answers, as the wire and the actions exchange them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. may(action, queue): whether its credentials allow an action on a
    queue, by name; "" stands for actions that name no queue."""

    access_key: str
    may: Callable[[str, str], bool] = field(default=lambda action, queue: True)


@dataclass(slots=True)
class Request:
    """One call of an action.

    parameters: the members of the action's input shape, by their names in the service model, of
    the types that it gives them (str, int, bool, bytes, list, dict). They were checked against the
    model: required members are there, unknown ones are not. base_url: scheme, host and port by
    which the client reached the gateway, for the URLs of queues in answers. id: the request's id in
    the answer.
    """

    action: str
    parameters: dict[str, Any]
    caller: Caller
    base_url: str
    id: str


@dataclass(slots=True)
class Answer:
    """members: those of the action's output shape, without empty ones. undelivered: called if the
    client went away before the answer was written to its connection; None: nothing to do."""

    members: dict[str, Any]
    undelivered: Callable[[], Awaitable[None]] | None = None


class Service(Protocol):
    """Answers requests. Runs in the event loop and never blocks it."""

    async def answer(self, request: Request) -> Answer:
        """Carry out a request. Raises `ActionError` for errors of the client; any other exception
        is a defect or a failed store, which the wire turns into 500 or 503. It is cancelled if the
        client goes away, and then gives back, uncounted, messages that it had taken for it."""
        ...
