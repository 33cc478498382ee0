"""A keyspace of a test's own on a real node, with the tables of this source tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from cassq.catalog.cassandra import schema
from cassq.clock import SystemClock
from cassq.cql import Contact, Cql
from tests.servers.cassandra import CassandraCluster


def on_servers(names: Iterable[str]) -> list[Any]:
    """The same as parameters of a fixture that uses real servers."""
    return [pytest.param(name, marks=pytest.mark.servers) for name in names]


def opened_keyspace(cluster: CassandraCluster, name: str) -> Iterator[Cql]:
    """A session with a new keyspace; DDL is slow, so one for many tests."""
    contact = Contact(tuple(cluster.contact_points), name, cluster.port)
    replicas = min(3, len(cluster.contact_points))
    clock = SystemClock()
    session = Cql(contact, clock)
    try:
        schema.apply(session, clock, {"dc1": replicas})
        yield session
    finally:
        session.close()
