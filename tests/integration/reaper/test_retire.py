"""Retiring: files of consumed pipes go, nothing that is pending does, the directory stays small."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.reaper import retire
from cassq.reaper.actions import Action
from cassq.reaper.retire import Retire
from tests.integration.deadlines import eventually
from tests.integration.stage import (
    Connect,
    alone,
    drain,
    extents,
    numbers,
    payloads,
    push,
    reap,
)


def size_bytes(directory: Path) -> int:
    return sum(map(file_size, directory.rglob("*")))


def file_size(path: Path) -> int:
    """None for what is no file, or was removed since it was listed: a client does in passing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def test_a_consumed_pipes_file_goes_and_its_totals_stay(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    alone(client)
    push(queue, *numbers(10))
    drain(queue.popper())
    assert len(extents(client)) == 1
    actions = {action.verb: action.outcome for action in reap(client)}
    assert actions["retire"] == "done"
    assert extents(client) == []
    audit = queue.audit()
    assert (audit.pushed, audit.groups["default"].committed) == (10, 10)
    assert queue.stats().pipes["retired"] == 1


def test_nothing_pending_waiting_or_delayed_is_retired(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    for n in range(4):
        push(queue, b"%d" % n)
    popper = queue.popper()
    messages = {m.payload: m for _ in range(3) for m in popper.pop()}
    assert len(messages) == 3  # the fourth waits
    popper.commit([messages[b"0"]])
    messages[b"1"].nack(delay=3600)
    reap(client)
    assert queue.stats().pipes["sealed"] == 3
    popper.commit([messages[b"2"]])
    drain(popper)
    reap(client)
    assert queue.stats().pipes["sealed"] == 1  # the delayed one's
    assert queue.audit().findings == []


def test_every_group_has_to_be_done(queue: cassq.Queue, client: cassq.Client) -> None:
    queue.create_group("slow")
    push(queue, *numbers(3))
    drain(queue.popper())
    slow = queue.popper("slow")
    slow.commit(slow.pop(2))
    reap(client)
    assert len(extents(client)) == 1
    slow.commit(slow.pop(1))
    reap(client)
    assert extents(client) == []


def test_an_open_pipe_is_never_retired(queue: cassq.Queue, client: cassq.Client) -> None:
    pusher = queue.pusher()
    pusher.push(b"a")
    drain(queue.popper())
    reap(client)
    assert pusher.push(b"b").endswith(":1")  # the same pipe
    assert payloads(drain(queue.popper())) == [b"b"]


def test_a_running_client_retires_in_passing(queue: cassq.Queue, client: cassq.Client) -> None:
    popper = queue.popper()
    push(queue, *numbers(3))
    drain(popper)
    eventually("the housekeeper retires the pipe", lambda: extents(client) == [])


def test_a_dry_run_says_what_it_would_do_and_does_nothing(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    client.reaper.dry_run = True
    push(queue, *numbers(3))
    drain(queue.popper())
    planned = [action for action in reap(client) if action.verb == "retire"]
    assert [action.outcome for action in planned] == ["planned"]
    assert len(extents(client)) == 1


def four_consumed_pipes(queue: cassq.Queue, client: cassq.Client) -> None:
    alone(client)
    for n in range(4):
        push(queue, b"%d" % n)
    drain(queue.popper())


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_reaper_that_is_to_stop_leaves_the_rest_to_the_next_run(
    queue: cassq.Queue, client: cassq.Client, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(retire, "PIPES_AT_ONCE", at_once)
    four_consumed_pipes(queue, client)
    reaper = client.reaper
    reaper.stopping = lambda: queue.stats().pipes["retired"] > 0
    outcomes = [action.outcome for action in reaper.reap(only=("retire", "sweep"))]
    assert outcomes == at_once * ["done"]
    assert queue.stats().pipes["retired"] == at_once
    reaper.stopping = lambda: False
    assert {action.outcome for action in reap(client)} == {"done"}
    assert queue.stats().pipes["retired"] == 4


def test_one_run_of_the_reaper_ends_between_two_actions(
    queue: cassq.Queue, client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in passing does that has lost its lease to another client."""
    monkeypatch.setattr(retire, "PIPES_AT_ONCE", 1)
    four_consumed_pipes(queue, client)
    left = iter([True, True, True])  # before the pass and the first two actions
    actions = client.reaper.reap(only=("retire", "sweep"), goes_on=lambda: next(left, False))
    assert [action.outcome for action in actions] == ["done", "done"]
    assert queue.stats().pipes["retired"] == 2
    assert {action.outcome for action in reap(client)} == {"done"}
    assert queue.stats().pipes["retired"] == 4


@pytest.mark.parametrize("ended", [(), ("--every", "60")], ids=["once", "as a daemon"])
def test_a_command_that_gets_sigterm_ends_between_two_actions(
    client: cassq.Client,
    queue: cassq.Queue,
    monkeypatch: pytest.MonkeyPatch,
    ended: tuple[str, ...],
) -> None:
    monkeypatch.setattr(retire, "PIPES_AT_ONCE", 1)
    four_consumed_pipes(queue, client)
    right = Retire._retired

    def terminated(self: Retire, actions: Sequence[Action]) -> list[str | None]:
        signal.raise_signal(signal.SIGTERM)
        return right(self, actions)

    monkeypatch.setattr(Retire, "_retired", terminated)
    result = CliRunner().invoke(main, ["--url", client.url, "reap", *ended])
    assert result.exit_code == (0 if ended else 128 + signal.SIGTERM)
    assert queue.stats().pipes["retired"] == 1


def test_a_reader_that_meets_a_retired_pipe_goes_on(
    queue: cassq.Queue, client: cassq.Client, connect: Connect
) -> None:
    push(queue, *numbers(3))
    slow = connect().queue("jobs").popper()
    slow.rollback(slow.pop())  # it knows the pipe now, and may keep it open
    drain(queue.popper())
    reap(client)
    assert extents(client) == []
    push(queue, b"next")
    assert payloads(drain(slow)) == [b"next"]


@pytest.mark.embedded_only(reason="it is about files")
def test_the_directory_stops_growing(client: cassq.Client, directory: Path) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=500)
    pusher, popper = queue.pusher(), queue.popper()
    sizes: list[int] = []
    for n in range(70):  # the catalog's log of up to 8 MB is begun anew twice or more
        for _ in range(5):
            pusher.push_many(numbers(300, first=300 * n))
            drain(popper)
        reap(client)
        sizes.append(size_bytes(directory))
    assert max(sizes[45:]) <= max(sizes[:45]) + 256 * 1024
    assert len(extents(client)) <= 2
    assert queue.audit().groups["default"].committed == 70 * 1500


@pytest.mark.linux_only
@pytest.mark.embedded_only(reason="it is about files")
def test_many_short_lived_clients_leave_no_files_behind(
    connect: Connect, client: cassq.Client, directory: Path
) -> None:
    client.create_queue("jobs")
    opened = len(os.listdir("/proc/self/fd"))
    for n in range(20):
        with cassq.connect(f"file://{directory}") as short:
            queue = short.queue("jobs")
            push(queue, b"%d" % n)
            drain(queue.popper())
    reap(client)
    names = sorted(path.name for path in directory.rglob("*") if path.is_file())
    assert [name for name in names if name.endswith((".pipe", ".draft"))] == []
    assert len(names) < 10
    assert len(os.listdir("/proc/self/fd")) < opened + 20


@pytest.mark.embedded_only(reason="it is about files")
def test_a_file_that_a_crash_left_half_made_is_swept_at_open(
    queue: cassq.Queue, client: cassq.Client, connect: Connect, directory: Path
) -> None:
    push(queue, b"x")
    draft = directory / "pipes" / f"{'a' * 24}.draft"
    draft.write_bytes(b"half a page")
    (directory / "pipes" / "notes.txt").write_text("mine")
    client.close()
    again = connect()
    assert not draft.exists()
    assert (directory / "pipes" / "notes.txt").read_text() == "mine"
    assert payloads(drain(again.queue("jobs").popper())) == [b"x"]
