"""Directories: whose they may be, where they may lie, and many that open one at once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import cassq
from cassq.client.backends.embedded import check_file_system
from cassq.errors import ConfigError, CorruptionError
from tests.faults.actors import Act
from tests.integration.stage import Connect, push

pytestmark = pytest.mark.embedded_only(reason="it is about the directory")


def test_a_directory_of_other_files_is_refused_and_left_alone(directory: Path) -> None:
    directory.mkdir()
    (directory / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="holds 'thesis.tex'"):
        cassq.connect(f"file://{directory}")
    assert [path.name for path in directory.iterdir()] == ["thesis.tex"]


def test_an_empty_directory_or_one_with_hidden_files_is_accepted(directory: Path) -> None:
    directory.mkdir()
    (directory / ".gitkeep").touch()
    cassq.connect(f"file://{directory}").close()


def test_a_file_in_the_place_of_the_directory_is_refused(directory: Path) -> None:
    directory.write_text("not a directory")
    with pytest.raises(ConfigError, match="is a file"):
        cassq.connect(f"file://{directory}")


def test_another_programs_database_is_refused_and_left_alone(directory: Path) -> None:
    directory.mkdir()
    path = directory / "catalog.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE art (title TEXT)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program's"):
        cassq.connect(f"file://{directory}")
    assert path.read_bytes() == before


def test_a_directory_of_a_newer_cassq_is_refused(client: cassq.Client, directory: Path) -> None:
    client.close()
    database = sqlite3.connect(directory / "catalog.sqlite")
    (version,) = database.execute("PRAGMA user_version").fetchone()
    database.execute(f"PRAGMA user_version = {version + 1}")
    database.close()
    with pytest.raises(ConfigError, match=f"schema version {version + 1}") as caught:
        cassq.connect(f"file://{directory}")
    assert "newer" in caught.value.hint


def test_a_file_that_is_not_a_database_is_reported_as_damage(directory: Path) -> None:
    directory.mkdir()
    (directory / "catalog.sqlite").write_bytes(b"once upon a time " * 1000)
    with pytest.raises(CorruptionError, match="damaged") as caught:
        cassq.connect(f"file://{directory}")
    assert "move it away" in caught.value.hint


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_refused(kind: str) -> None:
    mounted = {"/": "ext4", "/mnt/share": kind, "/mnt/share/scratch": "tmpfs"}
    for place in ("/mnt/share", "/mnt/share/queues/one"):
        with pytest.raises(ConfigError, match=kind) as caught:
            check_file_system(Path(place), mounted)
        assert "local disk" in caught.value.hint
    check_file_system(Path("/mnt/share/scratch/queues"), mounted)
    check_file_system(Path("/mnt/shared"), mounted)


def test_a_link_to_a_network_file_system_is_refused(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "link").symlink_to(share)
    with pytest.raises(ConfigError, match="nfs"):
        check_file_system(tmp_path / "link" / "queues", {"/": "ext4", str(share): "nfs"})


@pytest.mark.parametrize("round_", range(3))
def test_processes_that_make_one_directory_and_queue_at_once_all_succeed(
    url: str, connect: Connect, act: Act, round_: int
) -> None:
    actors = [act("create", url) for _ in range(6)]
    for actor in actors:
        actor.expect("waiting")
    for actor in actors:
        actor.say("go")
    for actor in actors:
        actor.expect("done")
        actor.join()
    client = connect()
    assert [queue.name for queue in client.queues()] == ["jobs"]
    assert client.queue("jobs").stats().pushed == len(actors)
    assert client.queue("jobs").audit().findings == []


def test_a_directory_that_is_reopened_often_disturbs_no_pusher(
    url: str, connect: Connect, act: Act
) -> None:
    connect().create_queue("jobs", max_pushes_per_pipe=1)  # every push makes a file
    openers = [act("reopen", url, 40) for _ in range(2)]
    pusher = connect().queue("jobs").pusher()
    count = 0
    while any(not actor.reports("done") for actor in openers):
        pusher.push(b"x")
        count += 1
    for actor in openers:
        actor.join()
    pusher.close()
    assert connect().queue("jobs").audit().pushed == count


def test_closing_leaves_a_directory_that_can_be_copied(
    client: cassq.Client, queue: cassq.Queue, directory: Path, tmp_path: Path
) -> None:
    push(queue, b"x", b"y")
    client.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in directory.rglob("*"):
        target = copy / path.relative_to(directory)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    with cassq.connect(f"file://{copy}") as other:
        assert len(other.queue("jobs").popper().pop(10)) == 2
