"""The audit of what a client left on Cassandra that was killed before it told what it appended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.cassandra.session import Cql
from cassq.catalog.sqlite import SqliteCatalog
from cassq.extents.cassandra import CassandraStore
from tests.contract.audits import client_on, published_ends, worked
from tests.contract.backends import CassandraExtents
from tests.contract.shaky_cql import ShakyCql

pytestmark = pytest.mark.servers


@pytest.fixture
def clients(
    keyspace: Cql, tmp_path: Path, clock: ManualClock
) -> Iterator[tuple[cassq.Client, cassq.Client]]:
    """One whose pipes nobody hears of in passing, and another process."""
    CassandraExtents(keyspace, strict=False)  # empties it
    session = ShakyCql(keyspace.contact, ManualClock(), keyspace.contact.keyspace)
    session.mute = True

    def client(cql: Cql) -> cassq.Client:
        catalog = SqliteCatalog(tmp_path / "catalog.sqlite", clock, durable=False)
        return client_on(catalog, CassandraStore(cql, clock), clock)

    try:
        with client(session) as killed, client(keyspace) as auditor:
            yield killed, auditor
    finally:
        session.close()


def test_claimed_and_moved_messages_count_although_their_end_was_not_published(
    clients: tuple[cassq.Client, cassq.Client],
) -> None:
    killed, auditor = clients
    pipes = worked(killed)
    assert published_ends(auditor, *pipes) == [0, 0]
    audit = auditor.queue("q").audit()
    assert audit.findings == []
    mine = audit.groups["default"]
    assert (audit.pushed, mine.committed, mine.dead, mine.waiting) == (2, 1, 1, 0)


def test_what_was_claimed_and_moved_and_cannot_be_read_is_reported(
    clients: tuple[cassq.Client, cassq.Client], keyspace: Cql
) -> None:
    killed, auditor = clients
    pipe, letters = worked(killed)
    erase = "DELETE FROM frames WHERE extent = ? AND bucket = 0 AND base_seq = 0"

    def lose(pipe_id: str) -> None:
        ((extent,),) = keyspace.read("SELECT extent FROM extents WHERE pipe_id = ?", (pipe_id,))
        keyspace.write(erase, (extent,))

    lose(pipe)
    lose(letters)
    findings = auditor.queue("q").audit().findings
    astray = f"message {pipe}:1 is not in the dead letters, where it should be {letters}:0"
    assert astray in findings
    assert f"group default has claimed 2 messages of pipe {pipe}, which holds 0" in findings
