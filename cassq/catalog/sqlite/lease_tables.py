"""Leases in SQLite: one row each, which is kept after a release so that epochs only grow. Only the
rows of turns and lanes are deleted."""

from __future__ import annotations

from cassq.catalog.port import Leases
from cassq.catalog.sqlite.database import Database

# The lock of a pipe that is gone.
FORGET_LOCK = """
DELETE FROM leases WHERE name = ?1
AND NOT EXISTS (SELECT 1 FROM pipes WHERE id = ?2 AND state < 3)"""
# A text that poppers share. A reboot empties all texts.
ADD_SHARED = (
    "INSERT INTO leases (name, owner, epoch, due_ms) VALUES (?1, ?2, 0, 0)"
    " ON CONFLICT (name) DO UPDATE SET owner = ?2 WHERE owner = ''"
)
SWAP = "UPDATE leases SET owner = ? WHERE name = ? AND owner = ?"


class SqliteLeases(Leases):
    """Leases by name."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def take(self, name: str, owner: str, ttl_ms: int) -> int | None:
        now_ms = self._db.now_ms()
        with self._db.lock, self._db.write(synced=False) as tx:
            row = tx.execute(
                "SELECT owner, epoch, due_ms FROM leases WHERE name = ?", (name,)
            ).fetchone()
            if row is None:
                epoch = 1
            elif row[0] == owner and row[2] > now_ms:
                epoch = row[1]
            elif row[2] <= now_ms:
                epoch = row[1] + 1
            else:
                return None
            tx.execute(
                "INSERT INTO leases (name, owner, epoch, due_ms) VALUES (?1, ?2, ?3, ?4)"
                " ON CONFLICT (name) DO UPDATE SET owner = ?2, epoch = ?3, due_ms = ?4",
                (name, owner, epoch, now_ms + ttl_ms),
            )
            return int(epoch)

    def drop(self, name: str, owner: str) -> None:
        # The row is kept, so that the next holder's epoch is higher.
        with self._db.lock, self._db.write(synced=False) as tx:
            tx.execute(
                "UPDATE leases SET due_ms = 0, owner = '' WHERE name = ? AND owner = ?",
                (name, owner),
            )
            if name.startswith("pop:"):
                # Taken while its pipe was being retired: it will never be needed again.
                tx.execute(FORGET_LOCK, (name, name.rpartition(":")[2]))
            elif name.startswith(("turn:", "lane:")):
                tx.execute("DELETE FROM leases WHERE name = ? AND owner = ''", (name,))

    def shared(self, name: str) -> str:
        rows = self._db.read("SELECT owner FROM leases WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else ""

    def swap(self, name: str, old: str, new: str) -> bool:
        with self._db.lock, self._db.write(synced=False) as tx:
            if not old:
                done = tx.execute(ADD_SHARED, (name, new))
            elif not new:
                done = tx.execute("DELETE FROM leases WHERE name = ? AND owner = ?", (name, old))
            else:
                done = tx.execute(SWAP, (new, name, old))
            return done.rowcount == 1

    def owner(self, name: str) -> str | None:
        rows = self._db.read("SELECT owner, due_ms FROM leases WHERE name = ?", (name,))
        return rows[0][0] if rows and rows[0][1] > self._db.now_ms() else None
