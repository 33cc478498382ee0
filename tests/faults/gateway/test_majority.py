"""Most servers are gone: sends are 503 with the hint in the log, nothing that was answered is
lost, and the gateway goes on by itself when they are back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import cassq.aio
from cassq.base.clock import SystemClock
from cassq.cassandra.session import Cql
from cassq.gateway.actions.service import service_of
from cassq.gateway.wire.answering import Answering
from tests.contract.keyspaces import opened_keyspace
from tests.faults.gateway.test_stores import ask, sent
from tests.integration.reaper.sidecar_processes import SidecarProcesses
from tests.servers.kinds.cassandra import CassandraCluster
from tests.unit.gateway.wired import counts

PATIENCE = 300.0


@pytest.fixture
def sidecars(tmp_path: Path) -> Iterator[SidecarProcesses]:
    found = SidecarProcesses(tmp_path, 3)
    yield found
    found.close()


@pytest.fixture(scope="module")
def cql(cassandra3_for_the_session: CassandraCluster) -> Iterator[Cql]:
    yield from opened_keyspace(cassandra3_for_the_session, "gateway_majority")


def survived(url: str, lose: Callable[[], object], give_back: Callable[[], object]) -> list[str]:
    """What was answered with 200, and what came, before, while and after most servers are gone."""
    answered: list[str] = []
    came: list[str] = []

    async def send(front: Answering, body: str) -> int:
        status = await sent(front, body)
        if status == 200:
            answered.append(body)
        return status

    async def again(act: Callable[[], Awaitable[bool]]) -> None:
        while not await act():
            await asyncio.sleep(0.1)

    async def main() -> None:
        opening = service_of(cassq.aio.connect(url))
        async with asyncio.timeout(PATIENCE), opening as service:
            await service.host.client.create_queue("jobs", claim_timeout=600.0)
            front = Answering(service, counts(), SystemClock())
            for number in range(20):
                assert await send(front, f"before-{number}") == 200
            await asyncio.to_thread(lose)
            statuses = {await send(front, f"while-{number}") for number in range(3)}
            assert statuses == {503}
            await asyncio.to_thread(give_back)

            async def is_sent() -> bool:
                return await send(front, f"after-{len(came)}") == 200

            async def is_drained() -> bool:
                status, found = await ask(front, "ReceiveMessage", MaxNumberOfMessages=10)
                for message in found.get("Messages", ()):
                    handle = message["ReceiptHandle"]
                    if (await ask(front, "DeleteMessage", ReceiptHandle=handle))[0] == 200:
                        came.append(message["Body"])
                return status == 200 and {*answered} <= {*came}

            await again(is_sent)
            await again(is_drained)

    asyncio.run(main())
    assert len(came) == len({*came})
    return came


@pytest.mark.needs("module:rocksdict")
def test_without_most_sidecars_sends_are_503_and_nothing_answered_is_lost(
    sidecars: SidecarProcesses, caplog: pytest.LogCaptureFixture
) -> None:
    def lose() -> None:
        for name in "bc":
            sidecars[name].kill()

    def give_back() -> None:
        for name in "bc":
            sidecars[name].start()

    came = survived(sidecars.url, lose, give_back)
    assert {f"before-{number}" for number in range(20)} <= {*came}
    assert "SendMessage failed" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.long(reason="three Cassandra nodes that are killed and stopped")
def test_without_a_quorum_sends_are_503_and_nothing_answered_is_lost(
    cassandra3: CassandraCluster, cql: Cql, caplog: pytest.LogCaptureFixture
) -> None:
    def lose() -> None:
        cassandra3.node(2).kill()
        cassandra3.node(3).pause()

    def give_back() -> None:
        cassandra3.node(3).resume()
        cassandra3.node(2).start()

    came = survived(cassandra3.url(cql.contact.keyspace), lose, give_back)
    assert {f"before-{number}" for number in range(20)} <= {*came}
    assert "SendMessage failed" in caplog.text
    assert "Traceback" not in caplog.text
