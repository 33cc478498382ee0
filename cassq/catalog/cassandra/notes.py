"""Values shared by all clients of a keyspace, in `meta`; the first client sets them."""

from __future__ import annotations

from cassq.cassandra.session import Cql

NOTED = "SELECT value FROM meta WHERE key = ?"
ALL_NOTED = "SELECT key, value FROM meta"
RENOTE = "UPDATE meta SET value = ? WHERE key = ? IF value = ?"
NOTE = "INSERT INTO meta (key, value) VALUES (?, ?) IF NOT EXISTS"


class Notes:
    """The notes of a session's keyspace."""

    def __init__(self, cql: Cql) -> None:
        self._cql = cql

    def find(self, key: str, *, serial: bool = False) -> str | None:
        """The value of a note, if it is set. Cost: one read."""
        rows = self._cql.read(NOTED, (key,), serial=serial)
        return str(rows[0][0]) if rows else None

    def all(self) -> dict[str, str]:
        """All notes, with the schema's version. Cost: one read of some rows."""
        return dict(self._cql.read(ALL_NOTED))

    def note(self, key: str, value: str) -> str:
        """Set a note to `value` unless it is set; return its value. Cost: one read; the first time
        a conditional write, and a read if another client was faster or there was no answer."""
        noted = self.find(key)

        def is_noted() -> bool:
            nonlocal noted
            noted = self.find(key, serial=True)
            return noted is not None

        if noted is None:
            self._cql.apply_until(NOTE, (key, value), is_noted, f"{key!r} is noted")
        return value if noted is None else noted

    def change(self, key: str, old: str, new: str) -> bool:
        """Change a note; False if it is no longer `old`. Cost: one conditional write."""
        return self._cql.apply_settled(
            RENOTE, (new, key, old), lambda: self.find(key, serial=True) == new
        )
