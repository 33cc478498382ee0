"""The simulated catalog file: one SQLite database in memory, that forgets at a power cut.

The real `SqliteCatalog` of every process runs its statements over it. A power cut takes it back
to a state between the last synced commit and the newest: SQLite's log keeps prefixes.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.worlds.scheduler import Process

HOLDER = re.compile(r"[0-9a-f]+\.\d+/\d+")
PIPE = re.compile(r"[0-9a-f]{24}")


class Commits:
    """The database, and its states that a power cut may bring back.

    count: commits so far. states: (count, content) of each unsynced one, and of the last synced
    one before them. keeping: whether a power cut can still come. committer: whose the last commit
    was. recorded: whether moves or removals were written since `watch` looked at them. claims:
    holder of a claim → the tick, boot milliseconds and number of the commit that wrote it first.
    written: the same of the last one by each process in each pipe.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.connection = _in_memory()
        self.count = 0
        self.keeping = False
        self.recorded = False
        self.committer: Process | None = None
        self.claims: dict[str, tuple[int, int, int]] = {}
        self.written: dict[tuple[str, Process], tuple[int, int, int]] = {}
        self.states: list[tuple[int, bytes]] = []
        self.tick: Callable[[], int] = lambda: 0
        self.watch: Callable[[], None] = lambda: None  # called after each commit

    def begin(self) -> None:
        """Before a transaction: what the states so far are a prefix of."""
        if self.keeping and not self.states:
            self.states = [(self.count, self._content())]

    def committed(self, *, synced: bool) -> None:
        self.count += 1
        if synced or not self.keeping:
            self.states = []
        else:
            self.states.append((self.count, self._content()))

    def synced(self) -> None:
        """What was committed so far cannot be lost any more."""
        self.states = []

    def _content(self) -> bytes:
        empty = not self.connection.execute("PRAGMA page_count").fetchone()[0]
        return b"" if empty else self.connection.serialize()

    def cut_power(self) -> int:
        """Go back to a state; which one, as a count of commits."""
        if not self.states:
            return self.count
        fate = self._rng.random()
        last = len(self.states) - 1
        at = 0 if fate < 0.4 else last if fate < 0.6 else self._rng.randint(0, last)
        self.count, content = self.states[at]
        self.connection.close()
        self.connection = _in_memory()
        if content:
            self.connection.deserialize(content)
        self.states = []
        return self.count

    def lose(self) -> None:
        """The file is gone: a new one starts empty."""
        self.connection.close()
        self.connection = _in_memory()


def _in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA page_size=1024")
    return connection


class SimConnection:
    """A process's connection: transactions begin and end at points, and may fail there."""

    def __init__(self, process: Process, commits: Commits) -> None:
        self._process = process
        self._commits = commits
        self._synced = True
        self._holders: list[str] = []  # of claims that the transaction writes ...
        self._pipes: set[str] = set()  # ... and their pipes

    @property
    def in_transaction(self) -> bool:
        return self._process.alive and self._commits.connection.in_transaction

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        connection = self._commits.connection
        if connection.in_transaction:
            if statement == "COMMIT":
                return self._commit()
            if " moves " in statement:
                self._commits.recorded = True
            if " claims " in statement:
                self._note_holders(parameters)
            return connection.execute(statement, parameters)
        if statement.startswith("PRAGMA"):
            self._process.point(1)
            name, _, value = statement.removeprefix("PRAGMA ").partition("=")
            if name == "synchronous":
                self._synced = value == "FULL"
            return connection.execute(statement)
        self._process.point()
        if self._process.fault(f"before {statement.split(maxsplit=1)[0]}"):
            raise _failure()
        if statement == "BEGIN IMMEDIATE":
            self._holders.clear()
            self._pipes.clear()
            self._commits.begin()
        return connection.execute(statement, parameters)

    def _commit(self) -> sqlite3.Cursor:
        connection = self._commits.connection
        if self._process.fault("COMMIT, no effect"):
            connection.execute("ROLLBACK")
            raise _failure()
        cursor = connection.execute("COMMIT")
        commits, process = self._commits, self._process
        commits.committed(synced=self._synced)
        commits.committer = process
        thread = process._running()
        thread.committed_tick, thread.committed_count = commits.tick(), commits.count
        thread.committed_ms = process.scheduler.clock.boot_ms()
        written = thread.committed_tick, thread.committed_ms, thread.committed_count
        for holder in self._holders:
            commits.claims.setdefault(holder, written)
        for pipe_id in self._pipes:
            commits.written[pipe_id, process] = written
        commits.watch()
        process.point()
        if self._process.fault("COMMIT, after its effect"):
            raise _failure()
        return cursor

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        rows = list(rows)
        if rows and (" moves " in statement or " removed " in statement):
            self._commits.recorded = True
        if " claims " in statement:
            for row in rows:
                self._note_holders(row)
        return self._commits.connection.executemany(statement, rows)

    def _note_holders(self, parameters: Sequence[Any]) -> None:
        texts = [each for each in parameters if isinstance(each, str)]
        self._holders += filter(HOLDER.fullmatch, texts)
        self._pipes.update(filter(PIPE.fullmatch, texts))

    def close(self) -> None:
        """The database is everybody's."""


class SimLog:
    """A process's view of the log: others go on between a commit and its sync."""

    def __init__(self, process: Process, commits: Commits) -> None:
        self._process = process
        self._commits = commits

    def sync(self) -> None:
        self._process.point()
        self._commits.synced()
        self._process.point()

    def close(self) -> None:
        """The log is everybody's."""


def _failure() -> sqlite3.OperationalError:
    exc = sqlite3.OperationalError("disk I/O error")
    exc.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return exc
