"""Stores that fail for a while: clients get 503, SDKs ask again, and the log has the hint."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from cassq.aio import Connecting
from cassq.base.clock import SystemClock
from cassq.gateway.actions.service import service_of
from cassq.gateway.plain.answering import PlainAnswering
from cassq.gateway.plain.service import PlainService
from cassq.gateway.request import Request
from cassq.gateway.wire.answering import Answering
from cassq.gateway.wire.http import HttpRequest
from cassq.gateway.wire.listening import Listener, listening_sockets
from cassq.producer.pusher import Push
from tests.faults.extents.disks import SickDisk
from tests.integration.aio.loops import until
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.integration.stage import client_on
from tests.unit.gateway.wired import counts, http_request, json_request, query_request

EVER = 1 << 30
URL = "http://localhost/000000000000/jobs"
LOCK_SECONDS = 0.2

Fault = Callable[[], AbstractContextManager[None]]


@asynccontextmanager
async def answered(directory: Path, disk: SickDisk) -> AsyncIterator[Answering]:
    """What answers requests, from a directory with the queue `jobs`."""
    connecting = Connecting(lambda: client_on(directory, disk, lock_wait=LOCK_SECONDS))
    async with asyncio.timeout(DEADLINE_SECONDS), service_of(connecting) as service:
        await service.host.client.create_queue("jobs", claim_timeout=600.0)
        plain = PlainAnswering(PlainService(service.host), counts(), SystemClock(), None)
        yield Answering(service, counts(), SystemClock(), plain=plain)


async def ask(front: Answering, action: str, **parameters: Any) -> tuple[int, dict[str, Any]]:
    reply = await front(json_request(action, json.dumps({"QueueUrl": URL, **parameters}).encode()))
    return reply.status, json.loads(reply.body)


async def sent(front: Answering, body: str) -> int:
    status, _ = await ask(front, "SendMessage", MessageBody=body)
    return status


@contextmanager
def full(disk: SickDisk) -> Any:
    """The disk is full."""
    for call in ("create", "pwritev"):
        disk.fall_ill(call, EVER, errno.ENOSPC)
    yield
    disk.recover()


@contextmanager
def busy(directory: Path) -> Any:
    """Another process stays in a transaction of the catalog."""
    with closing(sqlite3.connect(directory / "catalog.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_on_a_full_disk_sends_are_503_and_the_log_has_the_hint(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk = SickDisk()
        async with answered(directory, disk) as front:
            assert await sent(front, "before") == 200
            with full(disk):
                status, found = await ask(front, "SendMessage", MessageBody="lost")
                assert (status, found["__type"]) == (503, "com.amazonaws.sqs#ServiceUnavailable")
                entries = [{"Id": "a", "MessageBody": "lost"}]
                assert (await ask(front, "SendMessageBatch", Entries=entries))[0] == 503
            assert await sent(front, "after") == 200
            bodies: list[str] = []
            while messages := (await ask(front, "ReceiveMessage"))[1].get("Messages"):
                bodies += [each["Body"] for each in messages]
            assert bodies == ["before", "after"]

    asyncio.run(main())
    assert "free some space" in caplog.text
    assert "Traceback" not in caplog.text


def test_on_a_full_disk_the_log_has_the_hint_for_plain_http_too(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk = SickDisk()
        async with answered(directory, disk) as front:
            with full(disk):
                url = "http://localhost/v1/queues/jobs/messages"
                reply = await front(http_request("POST", url, {}, b'{"payload": "lost"}\n'))
            assert reply.status == 503

    asyncio.run(main())
    (line,) = [line for line in caplog.messages if "failed" in line]
    assert line.startswith("POST /v1/queues/jobs/messages failed: ")
    assert "free some space" in line


@pytest.mark.embedded_only(reason="holds the catalog of a directory")
def test_while_the_catalog_is_busy_receives_and_deletes_are_503(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with answered(directory, SickDisk()) as front:
            assert [await sent(front, body) for body in ("first", "second")] == [200, 200]
            _, found = await ask(front, "ReceiveMessage")
            (message,) = found["Messages"]
            handle = {"ReceiptHandle": message["ReceiptHandle"]}
            with busy(directory):
                assert (await ask(front, "ReceiveMessage"))[0] == 503
                assert (await ask(front, "DeleteMessage", **handle))[0] == 503
            assert (await ask(front, "DeleteMessage", **handle))[0] == 200
            _, found = await ask(front, "ReceiveMessage")
            assert [each["Body"] for each in found["Messages"]] == ["second"]

    asyncio.run(main())
    assert "DeleteMessage failed" in caplog.text
    assert "Traceback" not in caplog.text


def request_of(action: str, **parameters: Any) -> HttpRequest:
    return json_request(action, json.dumps({"QueueUrl": URL, **parameters}).encode())


def entries_of(*delays: int) -> dict[str, Any]:
    """A batch of messages, some of which are delayed."""
    return {
        "Entries": [
            {"Id": str(at), "MessageBody": "x", "DelaySeconds": delay}
            for at, delay in enumerate(delays)
        ]
    }


@contextmanager
def garbage_kept() -> Iterator[list[Any]]:
    """What the garbage collector would have had to find in a block; whole at its end."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    found: list[Any] = []
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_nothing_of_a_request_that_failed_is_left_for_the_garbage_collector(
    directory: Path,
) -> None:
    """It comes seldom in a gateway, and requests are large."""
    line = json.dumps({"payload": "x"}).encode() + b"\n"
    requests: list[Callable[[], HttpRequest]] = [
        lambda: request_of("SendMessage", MessageBody="x"),
        lambda: request_of("SendMessage", MessageBody="x", DelaySeconds=5),
        lambda: request_of("SendMessageBatch", **entries_of(0, 0, 0)),
        lambda: request_of("SendMessageBatch", **entries_of(0, 5, 901)),
        lambda: query_request({"Action": "SendMessage", "QueueUrl": URL, "MessageBody": "x"}),
        lambda: http_request("POST", "http://localhost/v1/queues/jobs/messages", {}, line * 3),
    ]

    async def main() -> list[Any]:
        disk = SickDisk()
        async with answered(directory, disk) as front:
            assert await sent(front, "before") == 200
            with full(disk), garbage_kept() as garbage:
                for request in requests:
                    replies = await asyncio.gather(*(front(request()) for _ in range(5)))
                    assert {reply.status for reply in replies} == {503}
            return garbage

    garbage = asyncio.run(main())
    assert [each for each in garbage if isinstance(each, (HttpRequest, Request, Push))] == []


def test_boto3_asks_again_until_the_disk_has_room(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def send(port: int) -> Any:
        sqs = boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(retries={"mode": "standard", "max_attempts": 8}),
        )
        return sqs.send_message(QueueUrl=URL, MessageBody="one")["MessageId"]

    async def main() -> None:
        disk = SickDisk()
        async with answered(directory, disk) as front:
            listener = Listener(front, SystemClock())
            [sockets] = listening_sockets("127.0.0.1", 0, 1)
            port = sockets[0].getsockname()[1]
            listener.open(sockets)
            with full(disk):
                sending = asyncio.ensure_future(asyncio.to_thread(send, port))
                await until("it was refused once", lambda: "SendMessage failed" in caplog.text)
            message_id = await sending
            _, found = await ask(front, "ReceiveMessage", MaxNumberOfMessages=10)
            assert [each["MessageId"] for each in found["Messages"]] == [message_id]
            await listener.stop(DEADLINE_SECONDS)

    asyncio.run(main())
