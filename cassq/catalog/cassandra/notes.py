"""Values shared by all clients of a keyspace, in `meta`; the first client sets them."""

from __future__ import annotations

from cassq.cassandra.session import Cql
from cassq.errors import BackendError, BackendTimeoutError

UNSURE_MAX = 8  # attempts without an answer

NOTED = "SELECT value FROM meta WHERE key = ?"
NOTE = "INSERT INTO meta (key, value) VALUES (?, ?) IF NOT EXISTS"


class Notes:
    """The notes of a session's keyspace."""

    def __init__(self, cql: Cql) -> None:
        self._cql = cql

    def find(self, key: str, *, serial: bool = False) -> str | None:
        """The value of a note, if it is set. Cost: one read."""
        rows = self._cql.read(NOTED, (key,), serial=serial)
        return str(rows[0][0]) if rows else None

    def note(self, key: str, value: str) -> str:
        """Set a note to `value` unless it is set; return its value. Cost: one read; the first time
        a conditional write, and a read if another client was faster or there was no answer."""
        noted = self.find(key)
        for _ in range(UNSURE_MAX):
            if noted is not None:
                return noted
            try:
                if self._cql.apply(NOTE, (key, value))[0]:
                    return value
            except BackendError as exc:
                if not exc.outcome_unknown:
                    raise
            noted = self.find(key, serial=True)
        raise BackendTimeoutError(f"the note {key!r} could not be written", outcome_unknown=True)
