"""What all clients of a keyspace share, in `meta`: the first of them notes it."""

from __future__ import annotations

from cassq.cassandra.session import Cql

NOTED = "SELECT value FROM meta WHERE key = ?"
NOTE = "INSERT INTO meta (key, value) VALUES (?, ?) IF NOT EXISTS"


class Notes:
    """The notes of a session's keyspace."""

    def __init__(self, cql: Cql) -> None:
        self._cql = cql

    def find(self, key: str, *, serial: bool = False) -> str | None:
        """What is noted; None for nothing yet. Cost: one read."""
        rows = self._cql.read(NOTED, (key,), serial=serial)
        return str(rows[0][0]) if rows else None

    def note(self, key: str, value: str) -> str:
        """What is noted, which is `value` where nothing was. Cost: one read; the first time a
        conditional write, and a read where another was faster, or nobody answered."""
        noted = self.find(key)

        def is_noted() -> bool:
            nonlocal noted
            noted = self.find(key, serial=True)
            return noted is not None

        if noted is None:
            self._cql.apply_until(NOTE, (key, value), is_noted, f"{key!r} is noted")
        return value if noted is None else noted
