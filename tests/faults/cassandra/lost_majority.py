"""All of a client's work on three Cassandra nodes, of which one is away, then two, then one.

Not part of a plain run, as it takes minutes where processors are few: `./dev data-centres`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import cassq
from cassq.cassandra.session import Cql
from cassq.errors import BackendError, is_outage
from tests.contract.keyspaces import opened_keyspace
from tests.integration.deadlines import eventually
from tests.servers.kinds.cassandra import CassandraCluster

PATIENCE = 120.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def cql(cassandra3_for_the_session: CassandraCluster) -> Iterator[Cql]:
    yield from opened_keyspace(cassandra3_for_the_session, "faults")


def answer(act: Callable[[], T]) -> T | None:
    """What it returns; None for an outage that is over soon."""
    try:
        return act()
    except BackendError as exc:
        assert is_outage(exc) or exc.outcome_unknown, exc
        return None


def succeeds(act: Callable[[], object]) -> bool:
    """Whether it is done; False for an outage that is over soon."""
    return answer(lambda: (act(),)) is not None


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(BackendError) as caught:
        act()
    assert is_outage(caught.value)


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_one_node_of_three_is_not_missed_and_without_two_nothing_is_lost(
    cassandra3: CassandraCluster, cql: Cql, consistency: str, tmp_path: Path
) -> None:
    url = cassandra3.url(cql.contact.keyspace)
    with cassq.connect(url, spill=str(tmp_path)) as client:
        queue = client.create_queue(
            f"quorum.{consistency}", consistency=consistency, claim_timeout=600
        )
        pusher, popper = queue.pusher(), queue.popper()
        some = partial(popper.pop, 10)
        ids = [*pusher.push_many([b"%d" % n for n in range(20)])]
        cassandra3.node(2).kill()
        for number in range(20, 30):  # they may have to wait until it is known to be down
            eventually(
                "it is pushed",
                lambda n=number: succeeds(lambda: ids.append(pusher.push(b"%d" % n))),
                seconds=PATIENCE,
            )
        done = eventually("some are popped", lambda: answer(some), seconds=PATIENCE)
        eventually(
            "they are committed", lambda: succeeds(lambda: popper.commit(done)), seconds=PATIENCE
        )
        eventually("its statistics are told", lambda: succeeds(queue.stats), seconds=PATIENCE)
        held = eventually("some are popped", lambda: answer(some), seconds=PATIENCE)
        cassandra3.node(3).pause()
        if consistency == "ap":
            ids.append(pusher.push(b"31"))
            assert ids[-1].spilled
        else:
            refused(lambda: pusher.push(b"31"))
        refused(lambda: popper.commit(held))
        refused(queue.stats)
        cassandra3.node(3).resume()
        eventually(
            "they are committed", lambda: succeeds(lambda: popper.commit(held)), seconds=PATIENCE
        )
        assert client.spool is not None
        spool = client.spool
        eventually(
            "all is forwarded",
            lambda: not spool.overflow.down and not any(each.waiting for each in spool.contents()),
            seconds=PATIENCE,
        )
        found = {message.id for message in (*done, *held)}

        def drain() -> bool:
            messages = popper.pop(100)
            found.update(message.id for message in messages)
            popper.commit(messages)
            return not messages

        eventually("all is popped", lambda: answer(drain), seconds=PATIENCE)
        # Of a push that was refused nobody was told that it does not count.
        assert found >= {i for i in ids if not getattr(i, "spilled", False)}
        assert len(ids) <= len(found) <= len(ids) + 1
        popper.close()
        pusher.close()
        eventually(
            "the ledger balances", lambda: answer(lambda: queue.audit().balanced), seconds=PATIENCE
        )
