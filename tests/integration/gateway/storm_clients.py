"""Clients of a storm: they send, receive, hide and delete at any of some gateways, go away now and
then as answers come, and say what they do, and what they were answered, before they go on.

As a program (`python -m tests.integration.gateway.storm_clients QUEUE NAME PORT…`) it says so on
standard output: what it said holds when it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tests.integration.gateway.listened import Client, call

BATCH = 10
# For how long a message is hidden that is to be deleted, and how soon that must be done.
HOLD_SECONDS, DELETE_SECONDS = 20, 10
WAIT_SECONDS = 1
CUT = 0.05  # how many requests end with a cut
ANSWER_SECONDS = 90.0
URL = "http://localhost/000000000000/"
PROGRAM_SENDERS, PROGRAM_RECEIVERS = 2, 2
# What clients say of a message: it is about to be sent, it was; it came; it is about to be shown to
# others, or to be deleted; it was deleted. And of requests: they had no answer; the answer was an
# error; it was one that must not be.
ASKED, SENT, SEEN, HIDDEN, ENDED, DELETED = "asked", "sent", "seen", "hidden", "ended", "deleted"
CUT_OFF, REFUSED, WRONG = "cut", "refused", "wrong"


class CutError(Exception):
    """The client itself went away, or the gateway did."""


class Said(NamedTuple):
    """What a client says, as soon as it knows. at: when, by the clock of all processes. body: the
    message's. since: when it asked for what came."""

    at: float
    what: str
    body: str
    since: float = 0.0


async def ask(port: int, request: bytes, *, cut: float | None = None) -> tuple[int, dict[str, Any]]:
    """The status and the body of an answer. cut: go away after so many seconds, answered or not.
    Raises CutError."""
    client: Client | None = None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            client.send(request)
            if cut is not None:
                await asyncio.sleep(cut)
                client.writer.transport.abort()
                raise CutError
            response = await client.read()
    except (OSError, EOFError) as exc:
        raise CutError from exc
    finally:
        if client is not None:
            client.close()
    body = response.body
    return response.status, json.loads(body) if body[:1] == b"{" else {}


class StormClients:
    """Clients in one process, of the gateways at some ports. say: gets what they say."""

    def __init__(
        self, queue: str, ports: Sequence[int], chance: random.Random, say: Callable[[Said], object]
    ) -> None:
        self.over: bool = False
        self._url = URL + queue
        self._fifo = queue.endswith(".fifo")
        self._ports = ports
        self._chance = chance
        self._say = say
        self._numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)  # by sender

    async def repeated(self, act: Any, *given: Any) -> None:
        """Do something again and again, until it is over."""
        while not self.over:
            with suppress(CutError):
                await act(*given)

    def _note(self, what: str, *bodies: str, since: float = 0.0) -> None:
        now = asyncio.get_running_loop().time()
        for body in bodies:
            self._say(Said(now, what, body, since))

    async def _ask(
        self,
        action: str,
        *,
        may_cut: bool = True,
        sure_until: float = float("inf"),
        **parameters: Any,
    ) -> dict[str, Any]:
        """The members of an answer. sure_until: an answer that comes later may be a refusal. Raises
        CutError, also for one that is not 200."""
        port = self._chance.choice(self._ports)
        cut = self._chance.uniform(0, 0.05) if may_cut and self._chance.random() < CUT else None
        try:
            status, found = await ask(
                port, call(action, {"QueueUrl": self._url, **parameters}), cut=cut
            )
        except CutError:
            self._note(CUT_OFF, action)
            await asyncio.sleep(0.02)
            raise
        if status == 200:
            return found
        self._note(REFUSED, action)
        if status != 503 and asyncio.get_running_loop().time() < sure_until:
            self._note(WRONG, f"{action} {parameters}: {status} {found}")
        raise CutError

    async def send(self, sender: str) -> None:
        """Send some messages; in a FIFO queue, the group of each is its sender."""
        count = self._chance.randint(1, BATCH)
        bodies = [f"{sender}-{number}" for number in itertools.islice(self._numbers[sender], count)]
        self._note(ASKED, *bodies)
        entries = [{"MessageBody": body, **self._grouped(sender, body)} for body in bodies]
        if len(bodies) == 1:
            await self._ask("SendMessage", **entries[0])
            self._note(SENT, *bodies)
        else:
            numbered = [{"Id": str(at), **entry} for at, entry in enumerate(entries)]
            found = await self._ask("SendMessageBatch", Entries=numbered)
            done = sorted(int(each["Id"]) for each in found.get("Successful", ()))
            self._note(SENT, *[bodies[at] for at in done])
        await asyncio.sleep(0.01)

    def _grouped(self, sender: str, body: str) -> dict[str, str]:
        """More parameters of a message."""
        if not self._fifo:
            return {}
        return {"MessageGroupId": sender, "MessageDeduplicationId": body}

    async def receive(self, *, may_cut: bool = True) -> int:
        """Receive, and delete most of it; how many came."""
        began = asyncio.get_running_loop().time()
        found = await self._ask(
            "ReceiveMessage",
            may_cut=may_cut,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=WAIT_SECONDS,
            VisibilityTimeout=HOLD_SECONDS,
        )
        messages = found.get("Messages", [])
        self._note(SEEN, *[message["Body"] for message in messages], since=began)
        deleting = []
        for message in messages:
            if may_cut and self._chance.random() < 0.1:
                with suppress(CutError):
                    await self._hide(message, self._chance.choice((0, 0, 1)), began)
            else:
                deleting.append(message)
        if deleting:
            await self._delete(deleting, began)
        return len(messages)

    async def _hide(self, message: dict[str, Any], seconds: int, began: float) -> None:
        self._note(HIDDEN, message["Body"])
        await self._ask(
            "ChangeMessageVisibility",
            sure_until=began + DELETE_SECONDS,  # others may have it then
            ReceiptHandle=message["ReceiptHandle"],
            VisibilityTimeout=seconds,
        )

    async def _delete(self, messages: list[dict[str, Any]], began: float) -> None:
        self._note(ENDED, *[message["Body"] for message in messages])
        entries = [
            {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]}
            for at, message in enumerate(messages)
        ]
        found = await self._ask("DeleteMessageBatch", Entries=entries)
        if asyncio.get_running_loop().time() - began > DELETE_SECONDS:
            return  # others may have them by now, whose handles count
        done = [messages[int(each["Id"])]["Body"] for each in found.get("Successful", ())]
        self._note(DELETED, *done)


async def main(queue: str, name: str, *ports: str) -> None:
    """Send and receive until this is killed. name: what senders have names after."""

    def say(said: Said) -> None:
        os.write(1, json.dumps(said).encode() + b"\n")

    clients = StormClients(queue, [int(port) for port in ports], random.Random(name), say)
    async with asyncio.TaskGroup() as group:
        for number in range(PROGRAM_SENDERS):
            group.create_task(clients.repeated(clients.send, f"{name}.{number}"))
        for _ in range(PROGRAM_RECEIVERS):
            group.create_task(clients.repeated(clients.receive))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
