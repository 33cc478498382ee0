"""Asking the gateway's service without a socket, as the wire does once it has read a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import cassq.aio
from cassq.gateway.actions.service import ActionService, service_of
from cassq.gateway.errors import ActionError
from cassq.gateway.request import Answer, Caller, Request
from tests.integration.deadlines import DEADLINE_SECONDS

BASE_URL = "http://localhost:9324"
ACCOUNT_URL = f"{BASE_URL}/000000000000"
ARN = "arn:aws:sqs:us-east-1:000000000000"


class Asker:
    """Asks one service. may: which actions its credentials allow on which queue."""

    def __init__(self, service: ActionService) -> None:
        self.service: ActionService = service
        self.may: Callable[[str, str], bool] = lambda action, queue: True

    async def answer(self, action: str, queue: str | None = None, **parameters: Any) -> Answer:
        """The whole answer. queue: its name, for the parameter QueueUrl."""
        if queue is not None:
            parameters["QueueUrl"] = f"{ACCOUNT_URL}/{queue}"
        request = Request(action, parameters, Caller("key", self.may), BASE_URL, "id")
        return await self.service.answer(request)

    async def ask(self, action: str, queue: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The members of the answer."""
        return (await self.answer(action, queue, **parameters)).members

    async def refused(
        self, code: str, action: str, queue: str | None = None, **parameters: Any
    ) -> str:
        """Ask what is refused with this code; the message of the error."""
        with pytest.raises(ActionError) as caught:
            await self.answer(action, queue, **parameters)
        assert caught.value.code == code, caught.value.message
        assert caught.value.sender
        return caught.value.message

    async def outcome(self, action: str, queue: str | None = None, **parameters: Any) -> str:
        """The code of the error of a request, or of the first entry of a batch that failed; "" if
        it is done."""
        try:
            found = await self.ask(action, queue, **parameters)
        except ActionError as exc:
            return exc.code
        failed: list[dict[str, str]] = found.get("Failed", [])
        return failed[0]["Code"].rpartition(".")[2] if failed else ""

    async def create(self, name: str, **attributes: str) -> None:
        await self.ask("CreateQueue", QueueName=name, Attributes=attributes)

    async def send(self, queue: str, body: str, **parameters: Any) -> str:
        """Send a message; its id."""
        answer = await self.ask("SendMessage", queue, MessageBody=body, **parameters)
        message_id: str = answer["MessageId"]
        return message_id

    async def receive(self, queue: str, most: int = 1, **parameters: Any) -> list[dict[str, Any]]:
        """Receive messages, with all that is known of them."""
        answer = await self.ask(
            "ReceiveMessage",
            queue,
            MaxNumberOfMessages=most,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
            **parameters,
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    async def delete(self, queue: str, *messages: dict[str, Any]) -> None:
        for message in messages:
            await self.ask("DeleteMessage", queue, ReceiptHandle=message["ReceiptHandle"])

    async def attributes(self, queue: str) -> dict[str, str]:
        """All attributes of a queue; its counts may be a second old."""
        answer = await self.ask("GetQueueAttributes", queue, AttributeNames=["All"])
        found: dict[str, str] = answer["Attributes"]
        return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def served(url: str, main: Callable[[Asker], Awaitable[None]], *, groups: bool = False) -> None:
    """Run `main` with a service for the queues at `url`; it fails when it takes for ever."""
    run(lambda: cassq.aio.connect(url), main, groups=groups)


def run(
    connecting: Callable[[], cassq.aio.Connecting],
    main: Callable[[Asker], Awaitable[None]],
    *,
    groups: bool = False,
) -> None:
    """`served`, with a client opened in another way."""

    async def whole() -> None:
        opening = service_of(connecting(), groups=groups)
        async with asyncio.timeout(DEADLINE_SECONDS), opening as service:
            await main(Asker(service))

    asyncio.run(whole())
