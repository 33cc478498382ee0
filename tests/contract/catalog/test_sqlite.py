"""What the SQLite catalog promises besides its port: upgrades, damage, threads, other programs."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock, SystemClock
from cassq.catalog import schema_files
from cassq.catalog.sqlite import SqliteCatalog
from cassq.catalog.sqlite.database import Database, open_file
from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    BrokenInvariantError,
    ConfigError,
    CorruptionError,
)
from cassq.model.queues import GroupPolicy
from cassq.model.sidecar_rows import SidecarState
from tests.contract.backends import SqlitePlace
from tests.contract.catalog.test_sidecars import placement, sidecar
from tests.contract.conftest import OpenCatalog
from tests.contract.rows import Consumer, group_row, make_queue, pipe_row, version
from tests.integration.deadlines import DEADLINE_SECONDS

OPEN = """
import sys
from pathlib import Path
from cassq.catalog.sqlite import SqliteCatalog
from cassq.base.clock import SystemClock
from cassq.errors import CassqError
try:
    catalog = SqliteCatalog(Path(sys.argv[1]), SystemClock())
except CassqError as exc:
    print(type(exc).__name__, exc)
else:
    print("opened", [queue.name for queue in catalog.queues.listed()])
    catalog.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def place(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path)


@pytest.fixture
def catalog_place(place: SqlitePlace) -> SqlitePlace:
    """For `open_catalog`."""
    return place


@pytest.fixture
def made(path: Path) -> Path:
    """A catalog of the present version with a queue in it."""
    catalog = SqliteCatalog(path, ManualClock())
    make_queue(catalog, "before")
    catalog.close()
    return path


def version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return found
    finally:
        connection.close()


def columns_of(path: Path, table: str) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    finally:
        connection.close()


# --- upgrades ---------------------------------------------------------------------------------


class NewerCassq:
    """A copy of the package with further migrations, as a later release has them."""

    def __init__(self, directory: Path) -> None:
        package = Path(schema_files.__file__).resolve().parents[1]
        shutil.copytree(
            package, directory / "cassq", ignore=shutil.ignore_patterns("__pycache__", "schema")
        )
        self._schema = directory / "cassq" / "schema"
        shutil.copytree(schema_files.find_directory(), self._schema)
        self._directory = directory
        self._version = schema_files.latest_version("sqlite")

    def adds(self, migration: str, *, new_schema: str = "") -> int:
        """One more version, by this migration; the version."""
        self._version += 1
        folder = self._schema / "sqlite"
        folder.mkdir(exist_ok=True)
        (folder / f"{self._version:04}_step.sql").write_text(migration)
        full = self._schema / "sqlite.sql"
        full.write_text(full.read_text() + (new_schema or migration))
        return self._version

    def open(self, path: Path) -> str:
        """Open a catalog in a process of its own; what it says."""
        child = subprocess.run(
            [sys.executable, "-c", OPEN, str(path)],
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
        )
        return child.stdout + child.stderr


@pytest.fixture
def newer(tmp_path: Path) -> NewerCassq:
    (tmp_path / "newer").mkdir()
    return NewerCassq(tmp_path / "newer")


def test_an_older_catalog_is_brought_up_to_date_and_keeps_what_it_holds(
    made: Path, newer: NewerCassq
) -> None:
    newer.adds("ALTER TABLE queues ADD COLUMN note TEXT NOT NULL DEFAULT '';\n")
    version = newer.adds("-- two statements\nCREATE TABLE notes (x);\nDROP INDEX moves_by_pipe;\n")
    assert newer.open(made) == "opened ['before']\n"
    assert version_of(made) == version
    assert columns_of(made, "queues")[-1] == "note"
    assert columns_of(made, "notes") == ["x"]
    assert newer.open(made) == "opened ['before']\n", "each step is taken once"
    with pytest.raises(ConfigError, match=f"schema version {version}"):
        SqliteCatalog(made, ManualClock())


def test_a_new_catalog_gets_the_whole_schema_and_no_step(path: Path, newer: NewerCassq) -> None:
    version = newer.adds("CREATE TABLE notes (x);\n")
    assert newer.open(path) == "opened []\n"
    assert version_of(path) == version


def test_an_upgrade_that_fails_changes_nothing(made: Path, newer: NewerCassq) -> None:
    version = version_of(made)
    newer.adds("CREATE TABLE notes (x);\n")
    newer.adds("CREATE TABLE notes (again);\n")
    assert "notes already exists" in newer.open(made)
    assert version_of(made) == version
    assert columns_of(made, "notes") == []
    catalog = SqliteCatalog(made, ManualClock())
    assert catalog.queues.named("before") is not None
    catalog.close()


def test_a_step_that_ends_in_the_middle_of_a_statement_is_not_taken_in_part(
    made: Path, newer: NewerCassq
) -> None:
    version = version_of(made)
    newer.adds("CREATE TABLE notes (x);\nCREATE TABLE more (y)\n", new_schema="-- all\n")
    assert BrokenInvariantError.__name__ in newer.open(made)
    assert version_of(made) == version


# --- damage and other programs ----------------------------------------------------------------


def test_a_file_that_is_not_a_database_is_damage(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(CorruptionError, match="damaged") as caught:
        SqliteCatalog(path, ManualClock())
    assert "move it away" in caught.value.hint
    assert path.read_bytes() == b"no database at all" * 100


def test_a_catalog_with_a_damaged_page_is_reported_by_the_call_that_meets_it(made: Path) -> None:
    """Every page but the first, which says that it is a database."""
    data = made.read_bytes()
    made.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))

    def look() -> None:
        catalog = SqliteCatalog(made, ManualClock())
        try:
            catalog.queues.listed()
        finally:
            catalog.close()

    with pytest.raises(CorruptionError):
        look()


def test_an_opening_that_fails_leaves_no_connection(made: Path) -> None:
    with closing(sqlite3.connect(made)) as other:
        other.execute("DROP TABLE meta")
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(open_file(made))
        return opened[-1]

    with pytest.raises(BackendError, match="meta"):
        SqliteCatalog(made, ManualClock(), connect=connect)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


def test_another_program_s_database_is_refused_and_not_touched(path: Path) -> None:
    SqlitePlace(path.parent).occupy()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        SqliteCatalog(path, ManualClock())
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_directory_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        SqliteCatalog(tmp_path / "absent" / "catalog.sqlite", ManualClock())
    assert not caught.value.retryable


# --- threads of one connection ----------------------------------------------------------------


def test_threads_wait_for_the_one_in_a_transaction(path: Path) -> None:
    database = Database(
        lambda: sqlite3.connect(path, isolation_level=None, check_same_thread=False),
        SystemClock(),
        name="it",
    )
    inside, go_on, order = threading.Event(), threading.Event(), list[str]()

    def hold() -> None:
        with database.lock, database.write(synced=False):
            inside.set()
            assert go_on.wait(DEADLINE_SECONDS)
            order.append("held")

    def read() -> None:
        assert database.read("SELECT 1") == [(1,)]
        order.append("read")

    def write() -> None:
        with database.lock, database.write(synced=True):
            order.append("wrote")

    threads = [threading.Thread(target=work, daemon=True) for work in (hold, read, write)]
    threads[0].start()
    assert inside.wait(DEADLINE_SECONDS)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert order[0] == "held"
    assert sorted(order[1:]) == ["read", "wrote"]
    database.close()


def test_an_exception_inside_a_transaction_undoes_it_and_comes_out_as_it_is(path: Path) -> None:
    class MishapError(Exception): ...

    database = Database(
        lambda: sqlite3.connect(path, isolation_level=None), ManualClock(), name="it"
    )

    def write(then: Callable[[], None]) -> None:
        with database.lock, database.write(synced=True) as tx:
            tx.execute("INSERT INTO meta (key, value) VALUES ('a', 'b')")
            then()

    def fail() -> None:
        raise MishapError

    with pytest.raises(MishapError):
        write(fail)
    assert database.read("SELECT * FROM meta WHERE key = 'a'") == []
    write(lambda: None)
    assert database.read("SELECT value FROM meta WHERE key = 'a'") == [("b",)]
    database.close()


def test_durable_commits_are_distinguished_from_the_others(path: Path) -> None:
    commits: list[bool] = []
    database = Database(
        lambda: sqlite3.connect(path, isolation_level=None),
        ManualClock(),
        name="it",
        committed=commits.append,
    )
    commits.clear()
    for synced in (True, False, False, True):
        with database.lock, database.write(synced=synced) as tx:
            mode = tx.execute("PRAGMA synchronous").fetchone()[0]
            assert (mode == 2) == synced, "FULL is 2, NORMAL is 1"
    database.close()
    assert commits == [True, False, False, True]


def test_what_is_durable_of_sidecars_is_synced_and_a_beat_is_not(path: Path) -> None:
    commits: list[bool] = []
    catalog = SqliteCatalog(path, ManualClock(), committed=commits.append)
    made = placement("p")
    verbs: list[tuple[Callable[[], object], bool]] = [
        (lambda: catalog.records.note("store", "sidecar"), True),
        (catalog.records.identity, True),
        (lambda: catalog.sidecars.beat(sidecar("a:1")), False),
        (lambda: catalog.sidecars.set_state("a:1", SidecarState.DRAINING), True),
        (lambda: catalog.sidecars.add_placement(made), True),
        (
            lambda: catalog.sidecars.change_placement(
                made, replace(made, end=1, version=version())
            ),
            True,
        ),
        (lambda: catalog.sidecars.forget_placements(["p"]), True),
        (lambda: catalog.sidecars.forget("a:1"), True),
    ]
    for verb, synced in verbs:
        commits.clear()
        assert verb() is not False
        assert commits == [synced]
    catalog.close()


def test_without_durability_no_commit_is_synced(path: Path) -> None:
    commits: list[bool] = []
    catalog = SqliteCatalog(path, ManualClock(), durable=False, committed=commits.append)
    make_queue(catalog)
    catalog.close()
    assert commits
    assert not any(commits)


def test_time_does_not_begin_behind_a_boot_that_left_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "catalog.sqlite"
    with closing(SqliteCatalog(path, clock)) as before:
        before.leases.take("reaper:seal", "somebody", 5000)
    reached = []
    for _ in range(2):
        clock.jump_wall(-3600)
        clock.reboot()
        catalog = SqliteCatalog(path, clock)
        reached.append(catalog.now_ms())
        catalog.close()
    assert reached[1] >= reached[0]


# --- waiting for others -----------------------------------------------------------------------


def test_a_wait_for_others_is_bounded_and_ends_in_a_clear_error(
    place: SqlitePlace, open_catalog: OpenCatalog
) -> None:
    make_queue(open_catalog())
    waiting = open_catalog(SystemClock(), lock_wait=0.02)
    with place.held_by_another():
        with pytest.raises(BackendTimeoutError) as caught:
            waiting.leases.take("l", "me", 1000)
        assert isinstance(caught.value, BackendError)
        assert caught.value.retryable
        assert not caught.value.outcome_unknown, "nothing was done"
        assert "another process" in caught.value.hint
        assert waiting.queues.named("q") is not None, "reading does not wait"
    assert waiting.leases.take("l", "me", 1000) == 1


def test_a_wait_that_is_short_enough_is_not_an_error(
    place: SqlitePlace, open_catalog: OpenCatalog
) -> None:
    """The other lets go once the wait has begun: the clock is asked to sleep."""
    make_queue(open_catalog())
    let_go, begun = threading.Event(), threading.Event()

    class WakingClock(SystemClock):
        def sleep(self, seconds: float) -> None:
            begun.set()
            super().sleep(seconds)

    waiting = open_catalog(WakingClock(), lock_wait=DEADLINE_SECONDS)

    def hold() -> None:
        with place.held_by_another():
            held.set()
            assert begun.wait(DEADLINE_SECONDS)
        let_go.set()

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(DEADLINE_SECONDS)
    assert waiting.leases.take("l", "me", 1000) == 1
    holder.join(DEADLINE_SECONDS)
    assert let_go.is_set()


def test_a_catalog_of_version_1_counts_what_is_lost_from_then_on(tmp_path: Path) -> None:
    """Totals of retired pipes got a column."""
    path = tmp_path / "catalog.sqlite"
    before = SqliteCatalog(path, ManualClock(), durable=False)
    make_queue(before)
    before.close()
    connection = sqlite3.connect(path)
    totals = (
        "pipe_id, group_id, queue_id, start, pushed, dead, expired, purged, merged, sheet, whole"
    )
    for table in ("retired", "retired_sheets_full"):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN lost")
    connection.execute("DROP INDEX groups_expiring")
    connection.execute("ALTER TABLE groups DROP COLUMN polled_ms")
    without_priorities(connection)
    values = ("p", "q/default", "id of q", 0, 9, 1, 1, 1, 1, 0, 1)
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO retired ({totals}) VALUES ({marks})", values)
    connection.execute("PRAGMA user_version=1")
    connection.commit()
    connection.close()
    after = SqliteCatalog(path, ManualClock(), durable=False)
    (row,) = after.pipes.retired("id of q")
    assert (row.pushed, row.merged, row.lost) == (9, 1, 0)
    sums = {each.group_id: (each.pushed, each.lost) for each in after.pipes.retired_sums("id of q")}
    assert sums == {"": (9, 0), "q/default": (9, 0)}
    after.close()


def test_a_group_of_version_2_can_expire_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    before = SqliteCatalog(path, ManualClock(), durable=False)
    queue = make_queue(before)
    before.close()
    connection = sqlite3.connect(path)
    connection.execute("DROP INDEX groups_expiring")
    connection.execute("ALTER TABLE groups DROP COLUMN polled_ms")
    without_priorities(connection)
    connection.execute("PRAGMA user_version=2")
    connection.commit()
    connection.close()
    after = SqliteCatalog(path, ManualClock(), durable=False)
    (group,) = after.queues.groups(queue.id)
    assert (group.polled_ms, after.queues.expiring()) == (0, [])
    assert after.queues.update_group(group.id, GroupPolicy(group_expires=60))
    assert [row.id for row in after.queues.expiring()] == [group.id]
    after.close()


def without_priorities(connection: sqlite3.Connection) -> None:
    """Take back what version 4 added."""
    for table, index in (("pipes", "pipes_urgent"), ("claims", "claims_urgent")):
        connection.execute(f"DROP INDEX {index}")
        connection.execute(f"ALTER TABLE {table} DROP COLUMN priority")


def test_what_a_catalog_of_version_3_holds_has_priority_0(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    before = SqliteCatalog(path, ManualClock(), durable=False)
    make_queue(before)
    assert before.pipes.add(pipe_row("p"))
    claim = Consumer(before).claim(3)
    before.close()
    connection = sqlite3.connect(path)
    without_priorities(connection)
    connection.execute("PRAGMA user_version=3")
    connection.commit()
    connection.close()
    after = SqliteCatalog(path, ManualClock(), durable=False)
    assert [row.priority for row in after.pipes.live("id of q")] == [0]
    assert Consumer(after).rows == [claim]
    assert after.pipes.add(pipe_row("urgent", priority=9))
    assert [row.id for row in after.pipes.unclaimed(group_row(), 10)] == ["urgent", "p"]
    after.close()
