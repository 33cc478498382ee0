"""The catalog in one SQLite file: for any number of threads and processes on one machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cassq.base.clock import Clock
from cassq.catalog.port import Catalog
from cassq.catalog.sqlite.claim_tables import SqliteClaims
from cassq.catalog.sqlite.database import LOCK_WAIT_SECONDS, Database, open_file
from cassq.catalog.sqlite.lease_tables import SqliteLeases
from cassq.catalog.sqlite.log import Log
from cassq.catalog.sqlite.pipe_tables import SqlitePipes
from cassq.catalog.sqlite.queue_tables import SqliteQueues
from cassq.catalog.sqlite.record_tables import SqliteRecords
from cassq.catalog.sqlite.result_tables import SqliteResults
from cassq.catalog.sqlite.step_tables import SqliteSteps
from cassq.catalog.sqlite.write_tables import SqliteWrites

if TYPE_CHECKING:
    from cassq.catalog.sqlite.sidecar_tables import SqliteSidecars

RESULTS = "results.sqlite"
STEPS = "steps.sqlite"
# The latest catalog time on record: reapers renew a lease every second or so. A boot that was cut
# short may have left only its start time.
REACHED = """
SELECT max(coalesce((SELECT max(created_ms) FROM pipes), 0),
           coalesce((SELECT max(due_ms) FROM leases WHERE name LIKE 'reaper:%'), 0),
           coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'booted_ms'), 0))"""


class SqliteCatalog(Catalog):
    """The Catalog port on SQLite.

    durable: False leaves syncing to the operating system, even for acks. connect, log: let the
    simulation replace the files. committed: see `Database`.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        durable: bool = True,
        lock_wait: float = LOCK_WAIT_SECONDS,
        connect: Callable[[], sqlite3.Connection] | None = None,
        committed: Callable[[bool], None] | None = None,
        log: Callable[[], Log | None] | None = None,
    ) -> None:
        self._clock = clock
        self._db = Database(
            connect or (lambda: open_file(path)),
            clock,
            name=str(path),
            lasting=connect is None,
            durable=durable,
            lock_wait=lock_wait,
            committed=committed,
            log=log or (lambda: Log.of(path) if connect is None else None),
        )
        try:
            self._db.offset_ms = self._anchor()
        except BaseException:
            self._db.close()
            raise
        self.queues = SqliteQueues(self._db)
        self.pipes = SqlitePipes(self._db)
        self.claims = SqliteClaims(self._db)
        self.leases = SqliteLeases(self._db)
        self.writes = SqliteWrites(self._db)
        self.records = SqliteRecords(self._db)
        self.results: SqliteResults = SqliteResults(path.with_name(RESULTS), clock)
        self.steps: SqliteSteps = SqliteSteps(path.with_name(STEPS), clock, durable=durable)

    @cached_property
    def sidecars(self) -> SqliteSidecars:  # type: ignore[override]  # it is made when it is used
        from cassq.catalog.sqlite.sidecar_tables import SqliteSidecars

        return SqliteSidecars(self._db)

    def now_ms(self) -> int:
        return self._clock.boot_ms() + self._db.offset_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def entered(self) -> bool:
        """Whether this thread is in the middle of a transaction or a read."""
        return self._db.entered()

    def settle(self) -> None:
        """Ensure that commits of dead processes that cannot be read now never appear later.

        A process killed during a commit may leave all of it in the log and not yet in the log's
        index. Then no process sees it, until the last one closes the file and the next one reads
        the log again. The next commit overwrites it, so this commits something. Cost: a synced
        commit.
        """
        with self._db.lock, self._db.write(synced=True) as tx:
            tx.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('settled_ms', ?)",
                (str(self.now_ms()),),
            )

    def close(self) -> None:
        self.results.file.close()
        self.steps.file.close()
        self._db.close()

    def abandon(self) -> object:
        """Return what a forked child must keep, untouched, for as long as it runs."""
        return self._db.abandon(), self.results.file.abandon(), self.steps.file.abandon()

    def _anchor(self) -> int:
        """Catalog time minus boot time: fixed once per boot by the first client that opens the
        catalog, and never behind the time that an earlier boot had reached."""
        key = f"anchor:{self._clock.boot_id()}"
        rows = self._db.read("SELECT value FROM meta WHERE key = ?", (key,))
        if rows:
            return int(rows[0][0])
        with self._db.lock, self._db.write(synced=True) as tx:
            rows = tx.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchall()
            if rows:
                return int(rows[0][0])
            reached = tx.execute(REACHED).fetchone()[0]
            offset_ms = max(self._clock.wall_ms(), reached) - self._clock.boot_ms()
            now_ms = offset_ms + self._clock.boot_ms()
            # No process of an earlier boot lives: everything they held is free now.
            tx.execute("UPDATE leases SET due_ms = 0, owner = ''")
            tx.execute("UPDATE claims SET due_ms = min(due_ms, ?) WHERE state = 0", (now_ms,))
            tx.execute("DELETE FROM meta WHERE key LIKE 'anchor:%'")
            tx.execute("INSERT INTO meta (key, value) VALUES (?, ?)", (key, str(offset_ms)))
            tx.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('booted_ms', ?)", (str(now_ms),)
            )
            return int(offset_ms)
