"""Replication: what the servers can keep, which changes are safe, and what an operator is told."""

from __future__ import annotations

import re

import pytest

from cassq.cassandra.nodes import Node
from cassq.catalog.cassandra.replication import obstacle, refuse_impossible, refuse_large_step
from cassq.catalog.cassandra.schema_status import Status, advice
from cassq.errors import BackendUnavailableError, ConfigError, UsageError


def nodes(up: int, down: int = 0, data_centre: str = "dc1", **settings: str) -> list[Node]:
    """Nodes of a data centre."""
    return [
        Node(f"10.0.0.{number}", data_centre, number < up, settings) for number in range(up + down)
    ]


def status(servers: list[Node], **fields: object) -> Status:
    """A keyspace that is as it should be, but for these fields."""
    good = Status("mail", True, 2, 2, {"dc1": 3}, True, servers)
    return good._replace(**fields)


# --- what the servers can keep ------------------------------------------------------------------


@pytest.mark.parametrize(("count", "up", "down"), [(1, 1, 0), (3, 3, 0), (3, 2, 1), (5, 3, 2)])
def test_a_majority_that_answers_is_enough(count: int, up: int, down: int) -> None:
    assert obstacle({"dc1": count}, nodes(up, down)) is None


def test_too_few_servers_are_an_error_of_the_settings() -> None:
    found = obstacle({"": 3}, nodes(1))
    assert isinstance(found, ConfigError)
    assert "1 server, but 3 replicas need 2" in str(found)


def test_servers_that_are_down_are_an_outage() -> None:
    found = obstacle({"dc1": 3}, nodes(1, 2))
    assert isinstance(found, BackendUnavailableError)
    assert "only 1 of 3 servers in data centre dc1 answer" in str(found)


def test_each_data_centre_is_judged() -> None:
    both = [*nodes(3), *nodes(1, data_centre="dc2")]
    assert obstacle({"dc1": 3}, both) is None
    with pytest.raises(ConfigError, match="dc2 has 1 server: it cannot keep 3 replicas"):
        refuse_impossible({"": 3}, both)
    with pytest.raises(ConfigError, match="no data centre 'dc3'.*dc1, dc2"):
        refuse_impossible({"dc3": 1}, both)


# --- which changes are safe ---------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 3), (3, 2), (3, 3), (9, 3), (9, 4), (3, 9)])
def test_one_replica_may_come_or_go(old: int, new: int) -> None:
    """Three servers and one more; nine replicas are as many as there are servers."""
    refuse_large_step({"dc1": old}, {"dc1": new}, nodes(4 if 4 in (old, new) else 3))


@pytest.mark.parametrize(("old", "new", "first"), [(1, 3, "dc1=2"), (3, 1, "dc1=2")])
def test_more_at_once_could_outvote_those_that_have_the_messages(
    old: int, new: int, first: str
) -> None:
    with pytest.raises(UsageError, match=f"one step.*outvote.*begin with --replication {first}"):
        refuse_large_step({"dc1": old}, {"dc1": new}, nodes(3))


def test_data_centres_count_together() -> None:
    both = [*nodes(3), *nodes(3, data_centre="dc2")]
    refuse_large_step({"dc1": 3}, {"dc1": 3, "dc2": 1}, both)
    with pytest.raises(UsageError, match="begin with --replication dc1=3,dc2=1"):
        refuse_large_step({"dc1": 3}, {"dc1": 3, "dc2": 3}, both)


# --- what an operator is told -------------------------------------------------------------------

GOOD = {"commitlog_sync": "batch", "paxos_variant": "v2"}


def test_nothing_is_reported_about_a_good_keyspace() -> None:
    assert advice(status(nodes(3, **GOOD))) == []


@pytest.mark.parametrize(
    ("servers", "fields", "says"),
    [
        (nodes(3, **GOOD), {"agreed": False}, "do not agree on the tables"),
        (nodes(3, **GOOD), {"repair_due": "dc1=3"}, "a repair is due since .* dc1=3.*--repaired"),
        (nodes(2, **GOOD), {}, "dc1 has 2 servers for 3 replicas"),
        (nodes(3, **GOOD), {"replicas": {"dc1": 2}}, "fewer than 3 replicas"),
        (nodes(3, **GOOD), {"trouble": "it rains"}, "cannot be used now: it rains"),
        (nodes(3, commitlog_sync="periodic"), {}, "periodic on 10.0.0.0, 10.0.0.1, 10.0.0.2"),
        (nodes(3, paxos_variant="v1"), {}, "paxos_variant is v1 on .*set it to v2"),
        (
            nodes(3, paxos_variant="v2_without_linearizable_reads"),
            {},
            "acknowledged work may be lost; set it to v2",
        ),
    ],
)
def test_what_should_change_is_reported(
    servers: list[Node], fields: dict[str, object], says: str
) -> None:
    (line,) = advice(status(servers, **fields))
    assert re.search(says, line)


def test_a_keyspace_that_cannot_be_read_is_not_usable() -> None:
    assert status(nodes(3)).usable
    assert not status(nodes(3), trouble="no quorum").usable
    assert not status(nodes(3), version=1).usable
