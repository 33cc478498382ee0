"""The embedded directory: where it may be, what may be in it, what is found when it is opened."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.client.backends.embedded import (
    BELLS,
    CATALOG,
    PIPES,
    Embedded,
    check_contents,
    check_file_system,
    directory_of,
    mounts,
    open_directory,
    schema_of_directory,
)
from cassq.errors import ConfigError, CorruptionError
from cassq.extents.files.store import FilesStore
from cassq.extents.port import ExtentWriter
from cassq.message.frames import Extras, Place, encode, pipe_key

ROOT = Path(__file__).resolve().parents[3]

# --- URLs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "directory"),
    [
        ("cassq-data", "cassq-data"),
        ("a/b", "a/b"),
        ("./x", "x"),
        ("../x", "../x"),
        ("/var/lib/cassq", "/var/lib/cassq"),
        ("///var/lib/cassq", "/var/lib/cassq"),
        ("a b", "a b"),
    ],
)
def test_a_url_names_a_relative_or_an_absolute_directory(rest: str, directory: str) -> None:
    assert directory_of(rest) == Path(directory)


def test_a_url_may_begin_with_the_user_s_own_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere/me")
    assert directory_of("~/queues") == Path("/somewhere/me/queues")


@pytest.mark.parametrize("rest", ["", "//host/dir", "//"])
def test_a_url_with_a_host_or_without_a_directory_is_refused(rest: str) -> None:
    with pytest.raises(ConfigError, match="names no directory") as caught:
        directory_of(rest)
    assert "file:///var/lib/cassq" in caught.value.hint


# --- file systems -----------------------------------------------------------------------------

MOUNTED = {
    "/": "ext4",
    "/net": "nfs4",
    "/net/local": "xfs",
    "/shares": "cifs",
    "/near": "fuse.sshfs",
    "/tmp": "tmpfs",
}


@pytest.mark.parametrize(
    "directory", ["/var/lib/cassq", "/net/local/q", "/tmp/q", "/network/q", "/"]
)
def test_a_local_file_system_is_taken(directory: str) -> None:
    check_file_system(Path(directory), MOUNTED)


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/net", "nfs4"),
        ("/net/a/b/c", "nfs4"),
        ("/net/local/../q", "nfs4"),
        ("/shares/q", "cifs"),
        ("/near/q", "fuse.sshfs"),
    ],
)
def test_a_network_file_system_is_refused_by_name(directory: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"network file system \({kind}\)") as caught:
        check_file_system(Path(directory), MOUNTED)
    assert "local disk" in caught.value.hint


def test_a_link_to_a_network_file_system_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    with pytest.raises(ConfigError, match="nfs"):
        check_file_system(tmp_path / "link" / "q", {str(tmp_path / "far"): "nfs", "/": "ext4"})


def test_a_system_that_does_not_tell_its_mounts_is_trusted() -> None:
    check_file_system(Path("/net/q"), {})


def test_this_machine_lists_its_mounts() -> None:
    try:
        Path("/proc/self/mounts").read_text()
    except OSError:
        assert mounts() == {}
    else:
        assert "/" in mounts()


# --- contents ---------------------------------------------------------------------------------


def put(directory: Path, *names: str) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


@pytest.mark.parametrize(
    "names",
    [
        [],
        [".gitkeep"],
        [CATALOG],
        [CATALOG, f"{CATALOG}-wal", f"{CATALOG}-shm", f"{PIPES}/x", f"{BELLS}/y"],
        [CATALOG, "notes.txt"],
        [f"{PIPES}/x.pipe", f"{BELLS}/y"],
        [f"{PIPES}/x.pipe", f"{CATALOG}-wal"],
    ],
)
def test_an_empty_directory_or_one_of_cassq_is_taken(tmp_path: Path, names: list[str]) -> None:
    put(tmp_path, *names)
    check_contents(tmp_path)


def test_a_directory_that_is_not_there_is_taken(tmp_path: Path) -> None:
    check_contents(tmp_path / "not" / "there")


@pytest.mark.parametrize("names", [["photo.jpg"], [f"{PIPES}/x", "photo.jpg"], ["photo.jpg/x"]])
def test_a_directory_of_another_program_is_refused_and_what_is_in_it_named(
    tmp_path: Path, names: list[str]
) -> None:
    put(tmp_path, *names)
    with pytest.raises(ConfigError, match=r"holds 'photo\.jpg'") as caught:
        check_contents(tmp_path)
    assert "directory of its own" in caught.value.hint


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    put(tmp_path, "file")
    with pytest.raises(ConfigError, match="is a file"):
        check_contents(tmp_path / "file")


# --- opening ----------------------------------------------------------------------------------


@contextmanager
def opened(directory: Path, *, create: bool = True) -> Iterator[Embedded]:
    embedded = open_directory(directory, ManualClock(), "os", create=create)
    try:
        yield embedded
    finally:
        embedded.ports.catalog.close()


def test_a_new_directory_is_made_with_all_that_belongs_in_it(tmp_path: Path) -> None:
    with opened(tmp_path / "a" / "b"):
        names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert {CATALOG, PIPES, BELLS} <= names


def test_nothing_is_made_where_nothing_is_when_only_asked_to_open(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="no queue directory"),
        opened(tmp_path / "q", create=False),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_refused_directory_is_left_as_it_was(tmp_path: Path) -> None:
    put(tmp_path, "photo.jpg")
    with pytest.raises(ConfigError), opened(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="durability 'disc'"):
        open_directory(tmp_path, ManualClock(), "disc")


def test_a_catalog_that_is_not_a_database_is_damage_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / CATALOG).write_bytes(b"not a database " * 100)
    with pytest.raises(CorruptionError, match="damaged") as caught, opened(tmp_path):
        pass
    assert "from the pipe files" in caught.value.hint


OPEN_AS_A_USER = """
import os, sys
from pathlib import Path
from cassq.base.clock import SystemClock
from cassq.client.backends.embedded import open_directory
from cassq.errors import BackendUnavailableError
if os.geteuid() == 0:
    os.setuid(65534)  # root may write everywhere
try:
    open_directory(Path(sys.argv[1]), SystemClock(), "os")
except BackendUnavailableError as exc:
    print(exc.retryable, exc)
"""


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        child = subprocess.run(
            [sys.executable, "-c", OPEN_AS_A_USER, str(tmp_path / "q")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        tmp_path.chmod(0o700)
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith("False opening ")
    assert "must be writable by this user" in child.stdout


# --- files without a row ------------------------------------------------------------------------

Writing = Callable[[str, str, int], ExtentWriter]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Writing]:
    """Make a pipe file of so many messages behind the catalog's back; its writer, who lives."""
    writers: list[ExtentWriter] = []

    def make(pipe_id: str, queue_name: str, count: int) -> ExtentWriter:
        with opened(tmp_path / "q") as embedded:
            writer = embedded.ports.store.create(pipe_id, queue_name)
        writers.append(writer)
        if count:
            payloads = [b"m%d" % number for number in range(count)]
            frame = encode(0, payloads, Extras(0), pipe_key=pipe_key(pipe_id))
            writer.append([frame], count)
        return writer

    yield make
    for writer in writers:
        writer.close()


def pipe_id_of(number: int) -> str:
    return Ids().new(1_700_000_000_000 + number)


def names_in(directory: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in (directory / PIPES).iterdir()}


def test_a_pipe_without_a_row_whose_writer_is_gone_gets_one(tmp_path: Path, write: Writing) -> None:
    pipe_id = pipe_id_of(1)
    write(pipe_id, "orders", 3).close()
    with opened(tmp_path / "q") as embedded:
        catalog = embedded.ports.catalog
        queue = catalog.queues.named("orders")
        assert queue is not None
        (row,) = catalog.pipes.live(queue.id)
        assert (row.id, row.end and row.end.seq) == (pipe_id, 3)
        (group,) = catalog.queues.groups(queue.id)
        assert group.name == "default"
        assert [p.id for p in catalog.pipes.unclaimed(group, 10)] == [pipe_id]


def test_pipes_without_rows_come_back_in_the_order_they_were_made(
    tmp_path: Path, write: Writing
) -> None:
    made = [pipe_id_of(number) for number in range(4)]
    for pipe_id in reversed(made):
        write(pipe_id, "orders", 1).close()
        (tmp_path / "q" / CATALOG).unlink()
        for left in (tmp_path / "q").glob(f"{CATALOG}-*"):
            left.unlink()
    with opened(tmp_path / "q") as embedded:
        queue = embedded.ports.catalog.queues.named("orders")
        assert queue is not None
        assert [row.id for row in embedded.ports.catalog.pipes.live(queue.id)] == made


def test_a_pipe_whose_writer_is_alive_is_left_alone(tmp_path: Path, write: Writing) -> None:
    writer = write(pipe_id_of(1), "orders", 3)
    with opened(tmp_path / "q") as embedded:
        assert embedded.ports.catalog.pipes.ids() == set()
    frame = encode(3, [b"more"], Extras(0), pipe_key=pipe_key(pipe_id_of(1)))
    assert writer.append([frame], 4).seq == 4


def test_an_empty_pipe_without_a_row_is_removed(tmp_path: Path, write: Writing) -> None:
    write(pipe_id_of(1), "orders", 0).close()
    with opened(tmp_path / "q") as embedded:
        assert embedded.ports.catalog.queues.listed() == []
    assert names_in(tmp_path / "q") == set()


def test_an_empty_pipe_that_another_process_removes_meanwhile_is_not_news(
    tmp_path: Path,
    write: Writing,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(pipe_id_of(1), "orders", 0).close()
    seal = FilesStore.seal

    def late(store: FilesStore, pipe_id: str) -> Place:
        store.drop([pipe_id])
        return seal(store, pipe_id)

    monkeypatch.setattr(FilesStore, "seal", late)
    with caplog.at_level(logging.WARNING, logger="cassq"), opened(tmp_path / "q") as embedded:
        assert embedded.ports.catalog.queues.listed() == []
    assert caplog.text == ""


def test_an_adopted_pipe_is_adopted_once(tmp_path: Path, write: Writing) -> None:
    write(pipe_id_of(1), "orders", 3).close()
    for _ in range(2):
        with opened(tmp_path / "q") as embedded:
            assert len(embedded.ports.catalog.pipes.ids()) == 1
            assert len(embedded.ports.catalog.queues.listed()) == 1


def test_a_damaged_pipe_without_a_row_is_left_where_it_is_and_reported(
    tmp_path: Path, write: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    pipe_id = pipe_id_of(1)
    write(pipe_id, "orders", 3).close()
    path = tmp_path / "q" / PIPES / f"{pipe_id}.pipe"
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])
    with caplog.at_level(logging.WARNING, logger="cassq"), opened(tmp_path / "q") as embedded:
        assert embedded.ports.catalog.pipes.ids() == set()
    assert pipe_id in caplog.text
    assert path.exists()


def test_what_was_adopted_can_be_read(tmp_path: Path, write: Writing) -> None:
    pipe_id = pipe_id_of(1)
    write(pipe_id, "orders", 3).close()
    with opened(tmp_path / "q") as embedded:
        reader = embedded.ports.store.reader(pipe_id)
        try:
            (piece,) = reader.read(Place(0, 0), 3, 10, 1 << 20)
        finally:
            reader.close()
    assert piece.frame.payloads(0, 3) == [b"m0", b"m1", b"m2"]


def test_a_tilde_is_the_user_s_own_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/far/away")
    assert directory_of("~/queues") == Path("/far/away/queues")
    assert directory_of("//~/queues") == Path("/far/away/queues")


def test_the_directory_of_no_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no user 'nobody-of-that-name'") as caught:
        directory_of("~nobody-of-that-name/queues")
    assert "file:./~nobody-of-that-name" in caught.value.hint


def test_the_schema_of_a_directory_is_reported_and_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no queue directory"):
        schema_of_directory(tmp_path)
    with closing(sqlite3.connect(tmp_path / CATALOG)) as database:
        database.execute("CREATE TABLE others (id)")
    with pytest.raises(ConfigError, match="another program"):
        schema_of_directory(tmp_path)
    (tmp_path / CATALOG).unlink()
    open_directory(tmp_path, ManualClock(), "os").ports.catalog.close()
    version, needed = schema_of_directory(tmp_path)
    assert version == needed
    with closing(sqlite3.connect(tmp_path / CATALOG)) as database:
        database.execute(f"PRAGMA user_version={needed + 1}")
    assert schema_of_directory(tmp_path) == (needed + 1, needed)
