"""Results of tasks in Cassandra: a row each, which ends by its time to live."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.result_port import Results

PUT = "INSERT INTO results (key, value) VALUES (?, ?) USING TTL ?"
FIND = "SELECT key, value FROM results WHERE key = ?"
DROP = "DELETE FROM results WHERE key = ?"


class CassandraResults(Results):
    """Results in a keyspace."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._cql = keyspace.cql

    def put(self, key: str, value: bytes, kept_seconds: float) -> None:
        self._cql.write(PUT, (key, value, max(1, math.ceil(kept_seconds))))

    def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        found = self._cql.read_many([(FIND, (key,)) for key in keys])
        return {key: bytes(value) for rows in found for key, value in rows}

    def drop(self, keys: Sequence[str]) -> None:
        self._cql.write_many([(DROP, (key,)) for key in keys])
