"""Stores that fail for a while: clients get 503, SDKs ask again, and the log has the hint."""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from cassq.aio import Connecting
from cassq.base.clock import SystemClock
from cassq.gateway.actions.service import service_of
from cassq.gateway.wire.answering import Answering
from cassq.gateway.wire.listening import Listener, listening_sockets
from tests.faults.extents.disks import SickDisk
from tests.integration.aio.loops import until
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.integration.stage import client_on
from tests.unit.gateway.wired import counts, json_request

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
        yield Answering(service, counts(), SystemClock())


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
