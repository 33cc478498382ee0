"""A client that spills, and a Cassandra node that stands still and goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.cassandra.session import Contact, Cql
from cassq.catalog.cassandra import schema
from cassq.errors import BackendError, is_outage
from tests.integration.deadlines import eventually
from tests.servers.kinds.cassandra import CassandraCluster

KEYSPACE = "spilling"
PATIENCE = 120.0


@pytest.fixture
def url(cassandra1: CassandraCluster) -> str:
    contact = Contact(tuple(cassandra1.contact_points), KEYSPACE, cassandra1.port)
    cql = Cql(contact, SystemClock())
    try:
        schema.apply(cql, SystemClock(), {"": 1})
    finally:
        cql.close()
    return cassandra1.url(KEYSPACE)


@pytest.mark.long(reason="Cassandra paused until clients give up")
@pytest.mark.waits(reason="a node that stands still is noticed by time-outs")
def test_an_ap_queue_takes_pushes_while_cassandra_is_paused_and_a_cp_queue_refuses_them(
    cassandra1: CassandraCluster, url: str, tmp_path: Path
) -> None:
    with cassq.connect(url, spill=str(tmp_path)) as client:
        spool = client.spool
        assert spool is not None
        jobs = client.create_queue("jobs")
        orders = client.create_queue("orders", consistency="cp")
        pusher, strict = jobs.pusher(), orders.pusher()
        ids = [*pusher.push_many([b"%d" % n for n in range(100)])]
        strict.push(b"order")
        cassandra1.node(1).pause()
        during = pusher.push_many([b"%d" % n for n in range(100, 200)])
        assert during.spilled == 100
        for number in range(200, 250):
            message_id = pusher.push(b"%d" % number)
            assert message_id.spilled
            ids.append(message_id)
        with pytest.raises(BackendError) as caught:
            strict.push(b"not while it stands still")
        assert is_outage(caught.value)
        cassandra1.node(1).resume()
        eventually(
            "everything is forwarded",
            lambda: not spool.overflow.down and not any(each.waiting for each in spool.contents()),
            seconds=PATIENCE,
        )
        # What the first push of the outage wrote, before it was given up, was found.
        assert spool.found in (0, 100)
        ids += pusher.push_many([b"%d" % n for n in range(250, 300)])
        found = []
        with jobs.popper() as popper:
            while messages := popper.pop(1000):
                found += messages
                popper.commit(messages)
    assert Counter(int(message.payload) for message in found) == Counter(range(300))
    assert set(ids) <= {message.id for message in found}
