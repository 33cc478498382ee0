"""A bit flips in a table of a real sidecar, and a merge meets it: the sidecar goes on writing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cassq.catalog.sqlite import SqliteCatalog
from cassq.errors import BackendError
from cassq.extents.protocol.messages import Drop, Info, List, Open, Read
from cassq.extents.sidecar.net.sidecar_connection import SidecarConnection, ask
from tests.integration.deadlines import eventually
from tests.integration.served import Served, catalog
from tests.integration.sidecars import append
from tests.servers.kinds.sidecar import flip_bit

__all__ = ["catalog"]

pytestmark = pytest.mark.needs("module:rocksdict")

PATIENCE = 60.0
FRAME = 1_000_000
HURT, GOOD, GONE, NEW = "hurt", "good", "gone", "new"
FRAMES = {HURT: 3, GOOD: 3, GONE: 34}  # of GONE as much as starts a merge at once


@pytest.fixture
def place(tmp_path: Path, catalog: SqliteCatalog) -> Iterator[tuple[Path, list[Served]]]:
    started: list[Served] = []
    yield tmp_path, started
    for served in started:
        served.kill()


def payload(pipe_id: str, seq: int) -> bytes:
    return f"{pipe_id} {seq} ".encode().ljust(FRAME, b"x")


@pytest.mark.long(reason="a process, which waits before it opens its directory again")
def test_a_sidecar_that_merges_a_damaged_table_goes_on_and_only_that_extent_is_damaged(
    place: tuple[Path, list[Served]],
) -> None:
    tmp_path, started = place

    def start() -> Served:
        started.append(Served(tmp_path / "data", f"file:{tmp_path / 'queues'}"))
        return started[-1]

    served = start()
    with SidecarConnection(served.address) as connection:
        for pipe_id, frames in FRAMES.items():
            connection(Open(pipe_id, 1, "q", False))
            for seq in range(frames):
                connection(append(pipe_id, seq, [payload(pipe_id, seq)]))
    served.signal(signal.SIGTERM)
    assert served.ended()[0] == 0
    flip(tmp_path / "data" / "rocksdb", f"{HURT} 1 ".encode())

    served = start()
    with SidecarConnection(served.address) as connection:
        connection(Open(NEW, 1, "q", False))
        connection(Drop([GONE]))

        def refused() -> bool:
            try:
                connection(append(NEW, connection(Read(NEW, 0, 1, 1, 1, 0)).end, [b"new"]))
            except BackendError as error:
                return "no more writes are accepted" in str(error) or "checksum mismatch" in str(
                    error
                )
            return False

        eventually("a merge meets it", refused, seconds=PATIENCE)
    eventually("it goes on", lambda: served.health()[1]["reopened"] == 1, seconds=PATIENCE)
    eventually("it listens", lambda: listens(served), seconds=PATIENCE)
    status, facts = served.health()
    assert (status, facts["failure"], facts["starved"]) == (200, "", "")
    assert (facts["state"], facts["damaged"]) == ("up", 1)
    with SidecarConnection(served.address) as connection:
        listed = {each.pipe_id: each.damage for each in connection(List("", 100, "")).extents}
        assert set(listed) == {HURT, GOOD, NEW}
        assert "checksum mismatch" in listed.pop(HURT)
        assert not any(listed.values())
        end = connection(Read(NEW, 0, 1, 1, 1, 0)).end
        assert connection(append(NEW, end, [b"on"])).end == end + 1
        for seq in (0, 2):
            assert payload(HURT, seq) in connection(Read(HURT, seq, 3, 1, 1, 0)).frames
        for seq in range(3):
            assert payload(GOOD, seq) in connection(Read(GOOD, seq, 3, 1, 1, 0)).frames
    assert ".sst is damaged" in served.logged()


def flip(database: Path, pattern: bytes) -> None:
    """Turn a bit of the frame that begins so."""
    found = 0
    for table in database.glob("*.sst"):
        at = table.read_bytes().find(pattern)
        if at >= 0:
            flip_bit(table, at + 1000, 3)
            found += 1
    assert found == 1


def listens(served: Served) -> bool:
    try:
        return bool(ask(served.address, Info()))
    except BackendError:
        return False
