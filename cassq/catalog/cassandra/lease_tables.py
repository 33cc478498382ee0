"""Leases in Cassandra: one row each, which is kept after a release so that epochs only grow. Only
the rows of requests for turns are deleted."""

from __future__ import annotations

from collections.abc import Collection

from cassq.base.clock import contended
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.port import Leases

LEASE = "SELECT owner, epoch, due_ms FROM leases WHERE name = ?"
FIRST_LEASE = "INSERT INTO leases (name, owner, epoch, due_ms) VALUES (?, ?, ?, ?) IF NOT EXISTS"
NEXT_LEASE = (
    "UPDATE leases SET owner = ?, epoch = ?, due_ms = ? WHERE name = ?"
    " IF owner = ? AND epoch = ? AND due_ms = ?"
)
SWAP = "UPDATE leases SET owner = ? WHERE name = ? IF owner = ?"
DROP_LEASE = "UPDATE leases SET owner = '', due_ms = 0 WHERE name = ? IF owner = ?"
FORGET_LEASE = "DELETE FROM leases WHERE name = ? IF EXISTS"
FORGET_FREE_LEASE = "DELETE FROM leases WHERE name = ? IF owner = ''"
# A request for the next turn. Its row is deleted, not kept: only groups with a request have one.
DROP_REQUEST = "DELETE FROM leases WHERE name = ? IF owner = ?"

FREE_KEPT = 1_000  # cached leases


class CassandraLeases(Leases):
    """Leases by name."""

    def __init__(self, rows: CatalogRows) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        # What leases were like when we last wrote them, ours or free: owner, epoch, due_ms.
        self._leases: dict[str, tuple[str, int, int]] = {}

    def take(self, name: str, owner: str, ttl_ms: int) -> int | None:
        """Cost: one conditional write for our own lease, or one last dropped here, otherwise a read
        before it; only a read if another owner holds it."""
        known = self._leases.get(name)
        for _ in self._cql.attempts():
            if known is None or known[0] not in (owner, ""):
                rows = self._cql.read(LEASE, (name,))
                known = (rows[0][0], rows[0][1], rows[0][2]) if rows else None
            now_ms = self._rows.keyspace.now_ms()
            if known is None:
                mine = (owner, 1, now_ms + ttl_ms)
            elif known[0] == owner and known[2] > now_ms:
                mine = (owner, known[1], now_ms + ttl_ms)
            elif known[2] <= now_ms:
                mine = (owner, known[1] + 1, now_ms + ttl_ms)
            else:
                return None
            if self._put_lease(name, known, mine):
                self._leases[name] = mine
                return mine[1]
            self._leases.pop(name, None)
            known = None
        raise contended(f"the lease {name!r}")

    def _put_lease(
        self, name: str, old: tuple[str, int, int] | None, new: tuple[str, int, int]
    ) -> bool:
        def is_ours() -> bool:
            return self._cql.read(LEASE, (name,), serial=True) == [new]

        if old is None:
            return self._cql.apply_settled(FIRST_LEASE, (name, *new), is_ours)
        return self._cql.apply_settled(NEXT_LEASE, (*new, name, *old), is_ours)

    def drop(self, name: str, owner: str) -> None:
        """Cost: one conditional write; for a pipe's lock also a read."""
        known = self._leases.pop(name, None)
        if name.startswith("turn:"):
            self._cql.apply(DROP_REQUEST, (name, owner))
            return

        def is_dropped() -> bool:
            rows = self._cql.read(LEASE, (name,), serial=True)
            return not rows or rows[0][0] != owner

        dropped = self._cql.apply_settled(DROP_LEASE, (name, owner), is_dropped)
        if dropped and known and known[0] == owner and len(self._leases) < FREE_KEPT:
            self._leases[name] = ("", known[1], 0)
        # Taken while its pipe was being retired: no client will ask for it again.
        if name.startswith("pop:") and self._rows.pipes.by_id(name.rpartition(":")[2]) is None:
            self._cql.apply(FORGET_FREE_LEASE, (name,))

    def owner(self, name: str) -> str | None:
        """Cost: one read."""
        rows = self._cql.read(LEASE, (name,))
        return rows[0][0] or None if rows and rows[0][2] > self._rows.keyspace.now_ms() else None

    # --- what the poppers of a group share ------------------------------------------------------

    def shared(self, name: str) -> str:
        rows = self._cql.read(LEASE, (name,))
        return str(rows[0][0]) if rows else ""

    def swap(self, name: str, old: str, new: str) -> bool:
        values: tuple[str | int, ...] = (new, name, old)
        statement = SWAP
        if not old:
            statement, values = FIRST_LEASE, (name, new, 0, 0)
        elif not new:
            statement, values = DROP_REQUEST, (name, old)

        def is_done() -> bool:
            rows = self._cql.read(LEASE, (name,), serial=True)
            return (str(rows[0][0]) if rows else "") == new

        return self._cql.apply_settled(statement, values, is_done)

    def forget(self, names: Collection[str]) -> None:
        """Remove the leases of pipes that are gone. Cost: a conditional write each."""
        self._cql.apply_many([(FORGET_LEASE, (name,)) for name in names])
