"""Keyspaces of tests on a real node: with the tables of this source tree, and emptied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from cassq.base.clock import SystemClock
from cassq.cassandra.session import SERVER_TIME, Contact, Cql
from cassq.catalog.cassandra import schema
from tests.integration.deadlines import eventually
from tests.servers.kinds.cassandra import CassandraCluster


def on_servers(names: Iterable[str], *marks: pytest.MarkDecorator) -> list[Any]:
    """The same as parameters of a fixture that uses a Cassandra node."""
    node = pytest.mark.servers("cassandra1_for_the_session")
    return [pytest.param(name, marks=[node, *marks]) for name in names]


def opened_keyspace(cluster: CassandraCluster, name: str) -> Iterator[Cql]:
    """A session with a new keyspace; DDL is slow, so one for many tests. Those that came before may
    have left nodes killed."""
    cluster.mend()
    contact = Contact(tuple(cluster.contact_points), name, cluster.port)
    replicas = min(3, len(cluster.contact_points))
    clock = SystemClock()
    session = Cql(contact, clock)
    try:
        schema.apply(session, clock, {"dc1": replicas})
        yield session
    finally:
        session.close()


_COLUMNS = (
    "SELECT table_name, kind, position, column_name FROM system_schema.columns"
    " WHERE keyspace_name = ?"
)


class Table(NamedTuple):
    """A table's columns, and those of its partition key, in order."""

    columns: list[str]
    key: list[str]


def tables_of(cql: Cql) -> dict[str, Table]:
    """The keyspace's tables by name."""
    tables: dict[str, Table] = {}
    for name, kind, _, column in sorted(cql.read(_COLUMNS, (cql.contact.keyspace,))):
        table = tables.setdefault(name, Table([], []))
        table.columns.append(column)
        if kind == "partition_key":
            table.key.append(column)
    return tables


def remove_all(cql: Cql, tables: Iterable[str]) -> None:
    """Remove every row of these tables. Cost: a read of each side by side, and where there is
    anything a write for each partition, and the reads again."""
    there = tables_of(cql)
    keys = {name: there[name].key for name in tables}
    eventually("every row is removed", lambda: _is_empty(cql, keys))


def _is_empty(cql: Cql, keys: Mapping[str, Sequence[str]]) -> bool:
    """Whether tables have no rows; what they have is removed. Conditional writes bear the servers'
    time and plain ones the client's, which is that to some milliseconds: a removal is younger than
    what either wrote before, and older than what either writes afterwards."""
    found = cql.read_many(
        [(f"SELECT DISTINCT {', '.join(key)} FROM {name}", ()) for name, key in keys.items()]
    )
    if not any(found):
        return True
    stamp = max(_servers_us(cql) + 999, cql.stamp())
    writes = []
    for (name, key), rows in zip(keys.items(), found, strict=True):
        named = " AND ".join(f"{column} = ?" for column in key)
        text = f"DELETE FROM {name} USING TIMESTAMP ? WHERE {named}"
        writes += [(text, (stamp, *row)) for row in rows]
    cql.write_many(writes)
    eventually(
        "all clocks are past the removal", lambda: min(_servers_us(cql), cql.stamp()) > stamp
    )
    return False


def _servers_us(cql: Cql) -> int:
    """Microseconds by the servers' clock."""
    now_us: int = cql.read(SERVER_TIME)[0][0]
    return 1000 * now_us
