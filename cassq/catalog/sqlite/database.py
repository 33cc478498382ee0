"""The SQLite file below the catalog: connections, transactions, and translation of errors.

One connection per client, used by one thread at a time. Transactions are few and small. Those that
must survive a power cut are committed with `synchronous=FULL`, the others with `NORMAL`: they
survive the death of the process, and the next sync of the log makes them durable, in order.

A full commit syncs the log while no other process can write. Where others may see a commit before
it is durable, as an ack's, it is an unsynced one, followed by `sync`: the syncs of several threads
and processes then run side by side, and one makes durable what all of them committed before it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from cassq.base.clock import Clock, Stopwatch
from cassq.base.forking import take_at_forks
from cassq.catalog import schema_files
from cassq.catalog.sqlite.log import Log
from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    BrokenInvariantError,
    CassqError,
    ClosedError,
    ConfigError,
    CorruptionError,
    InterruptedCallError,
    StorageFullError,
)

LOCK_WAIT_SECONDS = 15.0
_SQLITE_MIN = (3, 35, 0)  # RETURNING
_APPLICATION_ID = 0x63617371  # "casq"
_RETRY_MIN, _RETRY_MAX = 0.0001, 0.004

Row = tuple[Any, ...]


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to the file, in autocommit mode: transactions are begun explicitly."""
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def stored_version(path: Path) -> int:
    """Read the schema version of a catalog's file.

    Raises ConfigError for another program's file, and as `Database` does.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database:
            (application_id,) = database.execute("PRAGMA application_id").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as exc:
        raise explained(exc, str(path)) from exc
    _check_own(str(path), application_id)
    return int(version)


def _check_own(name: str, application_id: int) -> None:
    if application_id != _APPLICATION_ID:
        raise ConfigError(
            f"{name} is another program's database",
            hint="give cassq a directory of its own",
        )


class Database:
    """Runs statements and transactions, waiting a bounded time for other processes.

    lasting: whether a new connection sees what was committed, as in a file; the connection is then
    closed while the process forks, and opened on next use: see `base/forking.py`. committed:
    called after each commit with whether it was synced, and after each `sync` with True (for
    tests). log: opens the file's log; without one, `sync` is impossible.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        clock: Clock,
        *,
        name: str,
        lasting: bool = False,
        durable: bool = True,
        lock_wait: float = LOCK_WAIT_SECONDS,
        committed: Callable[[bool], None] | None = None,
        log: Callable[[], Log | None] | None = None,
    ) -> None:
        if sqlite3.sqlite_version_info < _SQLITE_MIN:
            raise ConfigError(
                f"SQLite {sqlite3.sqlite_version} is too old",
                hint="use a Python built with SQLite 3.35 or newer",
            )
        self._connect = connect
        self._clock = clock
        self._name = name
        self._durable = durable
        self._lock_wait = lock_wait
        self._committed = committed
        self._lock: threading.RLock = threading.RLock()
        take_at_forks(self._lock)
        self._let_go_of = False  # the connection
        self._log_lock: threading.RLock = threading.RLock()
        self._open_log: Callable[[], Log | None] = log if durable and log else lambda: None
        self._log: Log | None = None
        self._commits = self._commits_synced = 0  # how many; how many of them a sync covers
        self._log_failed = False
        self._closed = False
        self.offset_ms = 0  # catalog time minus boot time
        with self._translated():
            self._connection = connect()
        try:
            self._prepare()
            self._log = self._open_log()
        except BaseException:
            self._connection.close()
            raise
        if lasting:
            take_at_forks(self._lock, self._let_go)

    @property
    def syncs_log(self) -> bool:
        """Whether `sync` is possible; otherwise a commit must be a synced one to be durable."""
        return self._log is not None

    @property
    def lock(self) -> threading.RLock:
        """The lock held by the thread that uses the connection, for a bounded time.

        Raises InterruptedCallError if this thread holds it already: a signal handler would find an
        unfinished transaction. It is an RLock because that knows its owner.
        """
        if self.entered():
            raise InterruptedCallError()
        return self._lock

    def now_ms(self) -> int:
        """Catalog time."""
        return self._clock.boot_ms() + self.offset_ms

    def entered(self) -> bool:
        """Whether this thread holds the lock, or is syncing the log."""
        locks: tuple[Any, Any] = (self._lock, self._log_lock)
        return bool(locks[0]._is_owned() or locks[1]._is_owned())

    def _prepare(self) -> None:
        """Apply settings, then create or migrate the schema; refuse a newer or foreign one."""
        with self._translated():
            # In this order: a concurrent creation of the tables sets the id with them.
            (tables,) = self._execute("SELECT count(*) FROM sqlite_master").fetchone()
            (application_id,) = self._execute("PRAGMA application_id").fetchone()
            self._check_own(tables, application_id)
            # Two processes that open a new file at once collide when switching to WAL.
            self._execute("PRAGMA journal_mode=WAL")
            self._set_up()
        wanted = schema_files.latest_version("sqlite")
        with self.lock, self.write(synced=True) as tx:
            (application_id,) = tx.execute("PRAGMA application_id").fetchone()
            (version,) = tx.execute("PRAGMA user_version").fetchone()
            (tables,) = tx.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self._check_own(tables, application_id)
            if version > wanted:
                raise ConfigError(
                    f"{self._name} has schema version {version}; this cassq supports {wanted}",
                    hint="use the newer cassq that wrote it",
                )
            if not tables:
                _run_script(tx, schema_files.read("sqlite.sql"))
            for step in schema_files.migrations("sqlite"):
                if tables and step.version > version:
                    _run_script(tx, schema_files.read(step.name))
            if version != wanted:
                tx.execute(f"PRAGMA application_id={_APPLICATION_ID}")
                tx.execute(f"PRAGMA user_version={wanted}")

    def _set_up(self) -> None:
        self._connection.execute("PRAGMA wal_autocheckpoint=2000")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        # These make a sync reach the disk on macOS; elsewhere they change nothing.
        self._connection.execute("PRAGMA fullfsync=1")
        self._connection.execute("PRAGMA checkpoint_fullfsync=1")

    def _let_go(self) -> None:
        """Close the connection before a fork, with the lock held. The log stays open: until there
        is a connection again, all that was committed here is in this log, or was moved from it."""
        if self._closed or self._let_go_of:
            return
        self._undo()
        self._let_go_of = True
        with self._translated():
            self._connection.close()

    def _take_again(self) -> None:
        """Connect again after a fork, with the lock held, and open the log that exists now."""
        with self._translated():
            connection = self._connect()
        try:
            # SQLite makes the log with the first statement.
            with self._translated():
                self._connection = connection
                self._execute("SELECT count(*) FROM sqlite_master").fetchone()
                self._set_up()
            log = self._open_log()
        except BaseException:
            connection.close()
            raise
        with self._log_lock:
            left, self._log = self._log, log
        self._let_go_of = False
        if left is not None:
            left.close()

    def _check_own(self, tables: int, application_id: int) -> None:
        if tables:
            _check_own(self._name, application_id)

    def close(self) -> None:
        with self.lock, self._log_lock:
            if not self._closed:
                self._closed = True
                try:
                    with self._translated():
                        self._connection.close()
                finally:
                    if self._log is not None:
                        self._log.close()

    def abandon(self) -> sqlite3.Connection:
        """Give up the connection without touching it: what a forked child must do."""
        self._closed = True
        return self._connection

    def read(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """The rows of one SELECT."""
        with self.lock:
            self._check()
            try:
                return self._execute(statement, parameters).fetchall()
            except sqlite3.Error as exc:
                raise explained(exc, self._name) from exc

    def write(self, *, synced: bool) -> Transaction:
        """One transaction, committed at the end of its block and rolled back on an exception.

        Use it as `with database.lock, database.write(...)`: an exception from a signal handler can
        interrupt `Transaction` between any two steps, but not the lock.
        """
        return Transaction(self, synced=synced and self._durable)

    def sync(self, *, anyway: bool = False) -> None:
        """Make durable what was committed so far, by any process. Returns at once if another
        thread's sync has done so, except with `anyway`, which is for commits of unknown outcome.

        After a failure the state of the log's end is unknown, and another sync would prove nothing,
        so this client stops reading and writing. Later commits of others must not lie behind a hole
        in the log, so the content of the log is moved to the main file.
        """
        commits = self._commits
        try:
            with self._log_lock:
                if self._log is None or (self._commits_synced >= commits and not anyway):
                    return
                if self._log_failed:
                    raise self._log_error()
                commits = self._commits
                try:
                    self._log.sync()
                except OSError:
                    self._log_failed = True
                    raise
                self._commits_synced = commits
        except OSError as exc:
            with self._lock, suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)")
            raise BackendError(f"{self._name}: {exc}", outcome_unknown=True) from exc
        if self._committed is not None:
            self._committed(True)

    def begin(self, *, synced: bool) -> sqlite3.Connection:
        """Begin a transaction, for `Transaction`."""
        self._check()
        try:
            self._begin(synced=synced)
        except sqlite3.Error as exc:
            raise explained(exc, self._name) from exc
        except BaseException:
            self._undo()
            raise
        return self._connection

    def _begin(self, *, synced: bool) -> None:
        """Begin once no other process is in a transaction, within the limit. Between attempts other
        threads may use the connection, since reads need not wait."""
        waits: _Waits | None = None
        while True:
            try:
                if synced:
                    self._connection.execute("PRAGMA synchronous=FULL")
                self._connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as exc:
                waits = waits or _Waits(self._lock_wait)
                pause = waits.after(exc)
            if synced:  # it is for this transaction alone
                self._connection.execute("PRAGMA synchronous=NORMAL")
            try:
                self._lock.release()
                self._clock.sleep(pause)
            finally:
                if not self._lock._is_owned():  # type: ignore[attr-defined]
                    self._lock.acquire()
            self._check()

    def end(self, failure: BaseException | None, *, synced: bool) -> None:
        """End a transaction, for `Transaction`."""
        try:
            if failure is None:
                self._connection.execute("COMMIT")
                self._commits += 1
        except BaseException as exc:
            failure = exc
        try:
            if failure is None:
                if self._committed is not None:
                    self._committed(synced)
            elif self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if synced:
                self._connection.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error as exc:
            raise explained(exc, self._name) from exc
        if isinstance(failure, sqlite3.Error):
            raise explained(failure, self._name) from failure
        if failure is not None:
            raise failure

    def _check(self) -> None:
        """Check that the connection is open, and roll back a transaction whose end was interrupted
        before it was committed. The lock is held."""
        if self._closed:
            raise ClosedError()
        if self._log_failed:
            raise self._log_error()
        if self._let_go_of:
            self._take_again()
        self._undo()

    def _log_error(self) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"{self._name}: a sync of its log failed",
            hint="close this client, and connect again",
            retryable=False,
        )

    def _undo(self) -> None:
        """Roll back any open transaction."""
        if self._connection.in_transaction:
            with self._translated():
                self._connection.execute("ROLLBACK")
                self._connection.execute("PRAGMA synchronous=NORMAL")

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run a statement; while other processes hold the file, try again until the limit.

        SQLite's own busy handler sleeps up to 100 ms at a time, which shows in latencies.
        """
        waits: _Waits | None = None
        while True:
            try:
                return self._connection.execute(statement, parameters)
            except sqlite3.OperationalError as exc:
                waits = waits or _Waits(self._lock_wait)
                pause = waits.after(exc)
            self._clock.sleep(pause)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise explained(exc, self._name) from exc


class Transaction:
    """A `with` block of one transaction: a class, which is several microseconds faster here than a
    generator."""

    __slots__ = ("_database", "_synced")

    def __init__(self, database: Database, *, synced: bool) -> None:
        self._database = database
        self._synced = synced

    def __enter__(self) -> sqlite3.Connection:
        return self._database.begin(synced=self._synced)

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, _trace: object
    ) -> None:
        self._database.end(failure, synced=self._synced)


def _run_script(tx: sqlite3.Connection, script: str) -> None:
    """Run statements one by one: `executescript` would commit the transaction first."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            tx.execute(statement)
            statement = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in statement.splitlines()):
        raise BrokenInvariantError("a schema file ends in the middle of a statement")


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class _Waits:
    """Ever longer waits for other processes that hold the file, until the limit."""

    def __init__(self, lock_wait: float) -> None:
        self._waited = Stopwatch()
        self._lock_wait = lock_wait
        self._pause = _RETRY_MIN

    def after(self, exc: sqlite3.OperationalError) -> float:
        """How long to wait now. Raises `exc` if it has another reason, or the limit is reached."""
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if code not in _BUSY or self._waited.seconds() > self._lock_wait:
            raise exc
        pause = self._pause
        self._pause = min(pause * 1.5, _RETRY_MAX)
        return pause


def explained(exc: sqlite3.Error, name: str) -> CassqError:
    """An error of SQLite as one of cassq. name: of the file."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY:
        return BackendTimeoutError(
            f"{name} is locked by another process",
            hint="another process is holding the catalog for a long time; try again",
        )
    if code == sqlite3.SQLITE_FULL:
        return StorageFullError(f"{name}: no space left")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptionError(
            f"{name} is damaged: {exc}",
            hint="restore it, or move it away: when the directory is opened next, it is rebuilt"
            " from the pipe files, and all their messages are delivered again",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return BackendUnavailableError(
            f"{name}: {exc}", hint="the directory must be writable by this user", retryable=False
        )
    if isinstance(exc, sqlite3.ProgrammingError):
        return ClosedError()
    return BackendError(f"{name}: {exc}", outcome_unknown=True)
