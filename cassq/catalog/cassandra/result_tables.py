"""Results of tasks in Cassandra: a row each, which expires by its TTL."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.result_port import Results

PUT = "INSERT INTO results (key, value) VALUES (?, ?) USING TTL ?"
# Its keys are written by no other statement, as plain and conditional writes do not mix.
PUT_NEW = "INSERT INTO results (key, value) VALUES (?, ?) IF NOT EXISTS USING TTL ?"
FIND = "SELECT key, value FROM results WHERE key = ?"
DROP = "DELETE FROM results WHERE key = ?"


class CassandraResults(Results):
    """Results in a keyspace."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._cql = keyspace.cql

    def put(self, key: str, value: bytes, kept_seconds: float) -> None:
        self._cql.write(PUT, (key, value, max(1, math.ceil(kept_seconds))))

    def put_new(self, key: str, value: bytes, kept_seconds: float) -> bytes:
        found: bytes | None = None

        def is_there() -> bool:
            nonlocal found
            rows = self._cql.read(FIND, (key,), serial=True)
            found = bytes(rows[0][1]) if rows else None
            return found is not None

        values = (key, value, max(1, math.ceil(kept_seconds)))
        self._cql.apply_until(PUT_NEW, values, is_there, "a value is there")
        return value if found is None else found

    def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        found = self._cql.read_many([(FIND, (key,)) for key in keys])
        return {key: bytes(value) for rows in found for key, value in rows}

    def drop(self, keys: Sequence[str]) -> None:
        self._cql.write_many([(DROP, (key,)) for key in keys])
