"""A directory whose catalog is gone: every command, and `connect`, rebuilds it and says so."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import cassq
from cassq.base.clock import SystemClock
from cassq.cli.main import NAME, main
from cassq.client.backends import embedded
from cassq.client.backends.embedded import open_directory
from cassq.errors import ConfigError
from tests.commands_page import verbs
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.integration.stage import drain, numbers, payloads, push

pytestmark = pytest.mark.embedded_only(reason="it is about the directory")

ROOT = Path(__file__).resolve().parents[3]
# Each command but those of `ELSEWHERE`, and its exit code.
COMMANDS = [
    ("audit", 0),
    ("audit mail", 0),
    ("cancel mail {id}", 2),
    ("dead export mail", 0),
    ("dead import mail -", 0),
    ("dead list", 0),
    ("dead merge mail", 0),
    ("dead peek mail", 0),
    ("dead purge mail --yes", 0),
    ("explain {id}", 0),
    ("group create mail billing", 0),
    ("group delete mail default --yes", 0),
    ("group keys mail default", 2),
    ("group list mail", 0),
    ("group release-key mail default a", 2),
    ("group update mail default --max-deliveries 3", 0),
    ("peek mail", 0),
    ("pop mail", 0),
    ("pipe list mail", 0),
    ("pipe show {pipe}", 0),
    ("pipe skip {pipe} --yes", 0),  # there is nothing to skip
    ("push mail", 0),
    ("queue create other", 0),
    ("queue delete mail --yes", 0),
    ("queue drain mail --timeout 0", 1),  # the messages are left
    ("queue list", 0),
    ("queue pause mail", 0),
    ("queue purge mail --yes", 0),
    ("queue resume mail", 0),
    ("queue show mail", 0),
    ("queue update mail --max-deliveries 3", 0),
    ("reap", 0),
    ("rollback", 0),
    ("schedule create nightly --queue mail --cron @daily", 0),
    ("schedule delete nightly --yes", 2),  # schedules are lost with the catalog
    ("schedule list", 0),
    ("schedule pause nightly", 2),
    ("schedule resume nightly", 2),
    ("schedule run nightly", 2),
    ("schedule show nightly", 2),
    ("schedule update nightly --payload x", 2),
    ("sidecar check", 2),  # there are none in a directory of files
    ("sidecar drain one", 2),
    ("sidecar forget one", 2),
    ("sidecar list", 2),
    ("sidecar show one", 2),
    ("stats", 0),
    ("stats mail", 0),
    ("task cancel {id}", 2),  # it is no call
    ("task list", 0),
    ("task retry {id}", 1),
    ("task show {id}", 2),  # it is no call
    ("task signal {id} go", 0),
]
# What needs no directory, or does not change one (`schema status` says what is missing), and what
# runs until it is stopped or in another process: these open their client by `connect`.
ELSEWHERE = (
    *("completion", "gateway", "outbox", "schema", "sidecar serve", "spark", "spill", "version"),
    "worker",
)


def lose(directory: Path, *, beside: bool = True) -> None:
    """Delete the catalog; beside: with the files that SQLite has beside it."""
    for path in directory.glob("catalog.sqlite*"):
        if beside or path.suffix == ".sqlite":
            path.unlink()


@pytest.fixture
def ids(client: cassq.Client) -> list[str]:
    """Messages of `mail`, in a directory that nobody uses; one of them was committed."""
    ids = push(client.create_queue("mail"), *numbers(3))
    popper = client.queue("mail").popper()
    popper.commit(popper.pop(1))
    client.close()
    return ids


def test_the_list_of_commands_is_whole() -> None:
    with click.Context(main, info_name=NAME) as root:
        leaves = {leaf.command_path.removeprefix(f"{NAME} ") for leaf in verbs(main, root)}
    listed = {
        leaf for leaf in leaves for words, _ in COMMANDS if f"{words} ".startswith(f"{leaf} ")
    }
    assert leaves - listed == {leaf for leaf in leaves if leaf.startswith(ELSEWHERE)}


def _marks(words: str) -> list[pytest.MarkDecorator]:
    drains = words.startswith("queue drain")
    return [pytest.mark.waits(reason="pushers are given time to learn of a pause")] * drains


@pytest.mark.parametrize(
    ("words", "code"),
    [pytest.param(words, code, id=words, marks=_marks(words)) for words, code in COMMANDS],
)
def test_a_command_rebuilds_it(
    ids: list[str], directory: Path, caplog: pytest.LogCaptureFixture, words: str, code: int
) -> None:
    lose(directory)
    arguments = words.format(id=ids[0], pipe=ids[0].partition(":")[0]).split()
    with caplog.at_level(logging.WARNING, logger="cassq"):
        done = CliRunner(env={"CASSQ_URL": f"file://{directory}"}).invoke(main, arguments, "")
    assert (done.exit_code, "no queue directory" in done.stderr) == (code, False), done.output
    found = [record.getMessage() for record in caplog.records if "was gone" in record.getMessage()]
    assert len(found) == 1
    assert "3 of queue 'mail'" in found[0]


def test_schedules_are_lost_and_the_list_says_so(client: cassq.Client, directory: Path) -> None:
    client.create_queue("mail")
    client.create_schedule("nightly", "mail", cron="@daily").run()
    assert client.rebuilt_at() is None
    client.close()
    lose(directory)

    def call(*words: str) -> Any:
        return CliRunner(env={"CASSQ_URL": f"file://{directory}"}).invoke(main, words)

    warned = call("schedule", "list", "--json")
    assert warned.stdout == "[]\n"
    listed = call("schedule", "list")
    told = "the catalog was lost and rebuilt on"
    for done in (warned, listed, call("schedule", "show", "nightly")):
        assert told in done.stderr
        assert "without schedules: create them again" in done.stderr
    with cassq.connect(f"file://{directory}", create=False) as again:
        assert again.rebuilt_at() is not None
        again.create_schedule("nightly", "mail", cron="@daily")
        again.create_queue("jobs")
    for words in (("list",), ("list", "--queue", "jobs"), ("show", "nightyl")):
        assert told not in call("schedule", *words).stderr


def test_the_command_warns_on_standard_error(ids: list[str], directory: Path) -> None:
    lose(directory)
    done = subprocess.run(
        [sys.executable, "-m", "cassq", "--url", f"file://{directory}", "pop", "mail", "--all"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n")
    assert done.stderr.startswith(f"warning: the catalog of {directory} was gone")


def test_after_a_rebuild_nothing_more_is_reported(
    ids: list[str], directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lose(directory)
    cassq.connect(f"file://{directory}", create=False).close()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="cassq"):
        cassq.connect(f"file://{directory}", create=False).close()
    assert caplog.records == []


def test_what_a_person_left_beside_the_pipes_is_not_an_obstacle(
    ids: list[str], directory: Path
) -> None:
    (directory / "catalog.sqlite").rename(directory / "catalog.sqlite.old")
    with cassq.connect(f"file://{directory}", create=False) as client:
        assert payloads(drain(client.queue("mail").popper())) == numbers(3)
    assert (directory / "catalog.sqlite.old").exists()


def test_a_directory_without_catalog_and_pipes_holds_no_queues(tmp_path: Path) -> None:
    (tmp_path / "bells").mkdir()
    (tmp_path / "pipes").mkdir()
    (tmp_path / "catalog.sqlite-wal").write_bytes(b"of a catalog that is gone")
    with pytest.raises(ConfigError, match="no queue directory"):
        cassq.connect(f"file://{tmp_path}", create=False)


# --- what SQLite left beside it -------------------------------------------------------------------


def log_of(directory: Path) -> tuple[bytes, bytes]:
    """The log and the index of a catalog in use, as a crash would leave them: with the whole of a
    database in the log, of which nothing is in the file yet."""
    path = directory.parent / "another" / "catalog.sqlite"
    path.parent.mkdir()
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE stale (word TEXT)")
    database.executemany("INSERT INTO stale VALUES (?)", [("x" * 500,)] * 500)
    log, index = (path.with_name(path.name + end).read_bytes() for end in ("-wal", "-shm"))
    database.close()
    return log, index


@pytest.mark.parametrize("emptied", [False, True])
def test_a_log_that_is_left_is_not_taken_for_the_new_catalog_s(
    ids: list[str], directory: Path, caplog: pytest.LogCaptureFixture, emptied: bool
) -> None:
    lose(directory)
    log, index = log_of(directory)
    (directory / "catalog.sqlite-wal").write_bytes(log)
    (directory / "catalog.sqlite-shm").write_bytes(index)
    if emptied:
        (directory / "catalog.sqlite").touch()
    with cassq.connect(f"file://{directory}", create=False) as client:
        queue = client.queue("mail")
        assert sorted(payloads(drain(queue.popper()))) == numbers(3)
        assert queue.audit().findings == []
    with sqlite3.connect(directory / "catalog.sqlite") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert not database.execute("SELECT * FROM sqlite_master WHERE name = 'stale'").fetchall()
    database.close()
    gone = [record.getMessage() for record in caplog.records if "removed" in record.getMessage()]
    assert len(gone) == 2


def test_processes_that_rebuild_it_at_once_agree(ids: list[str], directory: Path) -> None:
    lose(directory, beside=False)
    (directory / "catalog.sqlite-wal").write_bytes(log_of(directory)[0])
    command = [sys.executable, "-m", "cassq", "--url", f"file://{directory}", "stats", "mail"]
    started = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    errors = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), errors
    with cassq.connect(f"file://{directory}", create=False) as client:
        assert sorted(payloads(drain(client.queue("mail").popper()))) == numbers(3)


class WaitingClock(SystemClock):
    """Tells who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.waits.set()
        super().sleep(seconds)


def test_a_client_that_opens_during_a_rebuild_waits_and_finds_it_whole(
    ids: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(directory, beside=False)
    begun, go_on = threading.Event(), threading.Event()
    adopt = embedded.adopt

    def adopt_later(*args: Any) -> Any:
        if threading.current_thread() is not threads[0]:
            return embedded.AdoptedPipes({}, 1)  # as when the other one has the file in its hands
        begun.set()
        assert go_on.wait(DEADLINE_SECONDS)
        return adopt(*args)

    monkeypatch.setattr(embedded, "adopt", adopt_later)
    clock = WaitingClock()
    found: list[list[str]] = []

    def rebuild() -> None:
        cassq.connect(f"file://{directory}", create=False).close()

    def come() -> None:
        opened = open_directory(directory, clock, "os", create=False)
        found.append([row.name for row in opened.ports.catalog.queues.listed("")])
        clock.waits.set()  # at once, if it did not wait
        opened.ports.catalog.close()

    threads = [threading.Thread(target=rebuild), threading.Thread(target=come)]
    threads[0].start()
    assert begun.wait(DEADLINE_SECONDS)
    threads[1].start()
    assert clock.waits.wait(DEADLINE_SECONDS)
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert found == [["mail"]]


def test_a_process_forked_meanwhile_delays_no_other(tmp_path: Path) -> None:
    ends = os.pipe()
    clock = WaitingClock()
    with embedded._locked(tmp_path, clock, fcntl.LOCK_EX):
        child = os.fork()
        if not child:
            os.read(ends[0], 1)
            os._exit(0)
    with embedded._locked(tmp_path, clock, fcntl.LOCK_EX):
        assert not clock.waits.is_set()
    os.write(ends[1], b"x")
    os.waitpid(child, 0)
    for end in ends:
        os.close(end)


def test_a_pipe_being_written_is_reported_as_left_out(
    client: cassq.Client, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.create_queue("mail")
    pusher = queue.pusher()
    pusher.push(b"x")
    os.rename(directory / "catalog.sqlite", directory.parent / "catalog.sqlite")
    with caplog.at_level(logging.WARNING, logger="cassq"):
        cassq.connect(f"file://{directory}", create=False).close()
    assert "left out, as they are being written: 1" in caplog.text
