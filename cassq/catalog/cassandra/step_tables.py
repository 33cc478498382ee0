"""Steps of tasks in Cassandra: a partition for each task, whose rows expire by their TTL."""

from __future__ import annotations

import math

from cassq.base.clock import contended
from cassq.cassandra.session import Statement
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.step_port import Steps

# The records of one task: a partition.
FIND = "SELECT key, value FROM steps WHERE task_id = ?"
# Conditional writes of one record, by key.
# An update, because an insert would leave a row marker behind after the value has expired.
ADD = "UPDATE steps USING TTL ? SET value = ? WHERE task_id = ? AND key = ? IF value = null"
CHANGE = "UPDATE steps USING TTL ? SET value = ? WHERE task_id = ? AND key = ? IF value = ?"


class CassandraSteps(Steps):
    """Steps in a keyspace."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._cql = keyspace.cql

    def find(self, task_id: str) -> dict[str, bytes]:
        rows = self._cql.read(FIND, (task_id,), serial=True)
        return {key: bytes(value) for key, value in rows}

    def add(self, task_id: str, key: str, value: bytes, kept_seconds: float) -> bytes:
        there: bytes | None = None

        def is_there() -> bool:
            nonlocal there
            there = self.find(task_id).get(key)
            return there is not None

        values = (_ttl(kept_seconds), value, task_id, key)
        self._cql.apply_until(ADD, values, is_there, f"step {key!r} of task {task_id}")
        return value if there is None else there

    def change(self, task_id: str, key: str, old: bytes, new: bytes, kept_seconds: float) -> bool:
        values = (_ttl(kept_seconds), new, task_id, key, old)
        return self._cql.apply_settled(CHANGE, values, lambda: self.find(task_id).get(key) == new)

    def keep(self, task_id: str, kept_seconds: float) -> None:
        """Writes each record again, with its value; starts over if one has changed meanwhile."""
        ttl = _ttl(kept_seconds)
        for _ in self._cql.attempts():
            batch: list[Statement] = [
                (CHANGE, (ttl, value, task_id, key, value))
                for key, value in self.find(task_id).items()
            ]
            if not batch or self._cql.apply_batch(batch):
                return
        raise contended(f"the records of task {task_id}")


def _ttl(kept_seconds: float) -> int:
    return max(1, math.ceil(kept_seconds))
