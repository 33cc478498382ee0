"""Thousands of sends that are 503, as the place of the queues cannot be used: the gateway needs no
more memory for them, the log has the hint in a few lines, and sends work again when the place
does."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import cassq
from cassq.cassandra.session import Cql
from tests.faults.gateway.test_majority import cql, sidecars
from tests.faults.gateway.test_memory import held_bytes
from tests.faults.gateway.test_stores import LOCK_SECONDS, busy
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.integration.gateway.listened import Client, call
from tests.integration.gateway.test_command import endpoint, gateway
from tests.integration.reaper.sidecar_processes import SidecarProcesses
from tests.integration.worker.processes import Home, WorkerProcess, home
from tests.servers.kinds.cassandra import CassandraCluster

__all__ = ["cql", "home", "sidecars"]

CLIENTS = 100
EACH = 10  # sends of a client, one after the other
WAVES = 4
URL = "http://localhost/000000000000/mail"
SEND = call("SendMessage", {"QueueUrl": URL, "MessageBody": "x" * 50_000})
# Some times of what the requests take that are in hand, and a tenth of what all of them would.
SLACK_BYTES = 20 << 20
# With this, a gateway waits less long for the catalog.
IMPATIENT = f"""
from cassq.catalog.sqlite import SqliteCatalog
SqliteCatalog.__init__.__kwdefaults__["lock_wait"] = {LOCK_SECONDS}
"""

Fault = Callable[[], AbstractContextManager[None]]


def sends(process: WorkerProcess, each: int) -> Counter[int]:
    """The statuses of the sends of all clients."""
    host, _, port = endpoint(process).removeprefix("http://").rpartition(":")
    statuses: Counter[int] = Counter()

    async def send() -> None:
        sender = Client(*await asyncio.open_connection(host, int(port)))
        for _ in range(each):
            sender.send(SEND)
            statuses[(await sender.read()).status] += 1
        sender.writer.transport.abort()

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(send())

    asyncio.run(main())
    return statuses


def check_refusals(process: WorkerProcess, fault: Fault, *hints: str) -> None:
    """Check what comes of sends while a fault lasts, and after it. hints: the log has one."""
    (pid,) = process.children()
    statuses: Counter[int] = Counter()
    with fault():
        while not statuses[503]:  # a file that is open may have room for a few more
            statuses += sends(process, 1)
        held = [held_bytes(pid)]
        for _ in range(WAVES):
            statuses += sends(process, EACH)
            held.append(held_bytes(pid))
    print(statuses, [f"{each / 1e6:.0f} MB" for each in held])
    assert {*statuses} <= {200, 503}
    assert statuses[503] >= CLIENTS * EACH * WAVES * 0.9
    assert max(held) <= held[0] + SLACK_BYTES
    eventually("sends work again", lambda: {*sends(process, 1)} == {200})
    eventually("the log says how many", lambda: "more like these" in process.errors)
    said = [line for line in process.errors.splitlines() if "SendMessage failed" in line]
    assert any(hint in line for line in said for hint in hints), said
    assert len(said) < statuses[503] / 20
    assert "Traceback" not in process.errors
    assert process.terminate() == 0


def created(url: str) -> None:
    """Create the queue, with a client that is gone afterwards."""
    with cassq.connect(url) as client:
        client.create_queue("mail")


@pytest.mark.linux_only
@pytest.mark.long(reason="thousands of sends")
@pytest.mark.embedded_only(reason="limits the files of a directory")
def test_memory_is_flat_while_the_disk_is_full(home: Home) -> None:
    created(home.url)
    with gateway(home) as process:
        sends(process, 1)
        (pid,) = process.children()

        @contextmanager
        def full() -> Iterator[None]:
            """Files may not grow any more, which is told as of a full disk."""
            limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
            yield
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)

        check_refusals(process, full, "free some space")


@pytest.mark.linux_only
@pytest.mark.long(reason="thousands of sends")
@pytest.mark.embedded_only(reason="holds the catalog of a directory")
def test_memory_is_flat_while_the_catalog_is_busy(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(home.url)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    with gateway(home) as process:
        endpoint(process)
        directory = Path(home.url.removeprefix("file://"))
        # Nothing was sent yet: the first pipe needs the catalog.
        check_refusals(process, lambda: busy(directory), "holding the catalog")


@pytest.mark.linux_only
@pytest.mark.long(reason="thousands of sends")
@pytest.mark.needs("module:rocksdict")
def test_memory_is_flat_without_most_sidecars(home: Home, sidecars: SidecarProcesses) -> None:
    home.url = sidecars.url
    created(home.url)
    with gateway(home) as process:
        sends(process, 1)

        @contextmanager
        def lost() -> Iterator[None]:
            for name in "bc":
                sidecars[name].kill()
            yield
            for name in "bc":
                sidecars[name].start()

        check_refusals(process, lost, "is it running?", "cassq sidecar list")


@pytest.mark.linux_only
@pytest.mark.long(reason="three Cassandra nodes that are killed and stopped")
def test_memory_is_flat_without_a_quorum(
    home: Home, cassandra3: CassandraCluster, cql: Cql
) -> None:
    home.url = cassandra3.url(cql.contact.keyspace)
    created(home.url)
    with gateway(home) as process:
        sends(process, 1)

        @contextmanager
        def lost() -> Iterator[None]:
            cassandra3.node(2).kill()
            cassandra3.node(3).pause()
            yield
            cassandra3.node(3).resume()
            cassandra3.node(2).start()

        check_refusals(process, lost, "try again")
