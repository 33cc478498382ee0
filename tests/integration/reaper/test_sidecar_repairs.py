"""Repairs between real sidecars: whatever is lost or damaged is there again, as often as before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cassq
from cassq.errors import CorruptionError
from cassq.extents.protocol.messages import Drop, List, ListedExtent, Scrub
from cassq.inspect.inspection import inspect
from cassq.reaper.actions import DONE, FAILED
from tests.integration.deadlines import eventually
from tests.integration.reaper.sidecar_processes import SidecarProcesses

pytest.importorskip("rocksdict")

Start = Callable[..., SidecarProcesses]
PAYLOADS = [b"message %06d " % number * 20 for number in range(3000)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[SidecarProcesses] = []

    def begin(count: int, *options: str) -> SidecarProcesses:
        running.append(SidecarProcesses(tmp_path, count, options))
        return running[-1]

    yield begin
    for each in running:
        each.close()


def pushed(sidecars: SidecarProcesses, pipes: int = 1) -> list[str]:
    """So many sealed pipes with all payloads. Their client is closed: an open one would repair in
    passing."""
    before = sidecars.where()
    with cassq.connect(sidecars.url) as client:
        queue = client.create_queue("mail", max_pushes_per_pipe=len(PAYLOADS))
        for _ in range(pipes):
            with queue.pusher() as pusher:
                for at in range(0, len(PAYLOADS), 500):
                    pusher.push_many(PAYLOADS[at : at + 500])
    sidecars.client.reaper.reap(only=("seal",))
    found = [p for p in sidecars.client.ports.catalog.sidecars.placements() if p.end]
    found = [p for p in found if p.pipe_id not in before]
    assert [p.end for p in found] == pipes * [len(PAYLOADS)]
    return [p.pipe_id for p in found]


def popped(sidecars: SidecarProcesses) -> list[bytes]:
    with sidecars.client.queue("mail").popper() as popper:
        found: list[bytes] = []
        while messages := popper.pop(1000):
            found += [message.payload for message in messages]
            popper.commit(messages)
        return sorted(found)


def extents_of(sidecars: SidecarProcesses, name: str, only: str = "") -> list[ListedExtent]:
    return list(sidecars[name].ask(List("", 1000, only)).extents)


def is_well(sidecars: SidecarProcesses) -> bool:
    found = inspect(sidecars.client.ports.catalog, sidecars.upkeep)
    return found.is_well and not found.found


@pytest.mark.waits(reason="sidecars tell of themselves every few seconds")
def test_a_data_directory_that_is_lost_is_filled_again(start: Start) -> None:
    sidecars = start(3)
    pipes = pushed(sidecars, 2)
    sidecars["b"].kill()
    sidecars["b"].lose_data()
    sidecars["b"].start()
    eventually(
        "it is known", lambda: "b" in inspect(sidecars.client.ports.catalog, sidecars.upkeep).lost
    )
    sidecars.repaired(2)
    assert sorted(each.pipe_id for each in extents_of(sidecars, "b")) == sorted(pipes)
    assert is_well(sidecars)
    sidecars["a"].kill()
    sidecars["c"].kill()
    assert popped(sidecars) == sorted(2 * PAYLOADS)


@pytest.mark.long(reason="leases of processes run out; tests/contract has it without")
def test_a_sidecar_that_does_not_come_back_is_replaced(start: Start) -> None:
    sidecars = start(4)
    (pipe,) = pushed(sidecars)
    lost = sidecars.where()[pipe][0]
    sidecars[lost].kill()
    sidecars.lost(lost)
    (action,) = [a for a in sidecars.repaired(1) if a.outcome == DONE]
    assert action.subject == pipe
    assert action.queue == "mail"
    assert sidecars.where()[pipe] == sorted({"a", "b", "c", "d"} - {lost})
    assert popped(sidecars) == PAYLOADS
    # It comes back with what it had, which is nobody's now.
    sidecars[lost].start()
    sidecars.settled()
    found = inspect(sidecars.client.ports.catalog, sidecars.upkeep)
    assert [(each.kind, each.sidecar) for each in found.found] == [("orphaned", lost)]
    assert found.is_well


@pytest.mark.long(reason="leases of processes run out; tests/contract has it without")
def test_orphans_are_collected_after_the_safe_time_alone(start: Start) -> None:
    sidecars = start(4, "--orphans-after", "2s")
    (pipe,) = pushed(sidecars)
    lost = sidecars.where()[pipe][0]
    sidecars[lost].kill()
    sidecars.lost(lost)
    sidecars.repaired(1)
    sidecars[lost].start()
    sidecars.settled()
    eventually("it is removed", lambda: not extents_of(sidecars, lost))
    assert is_well(sidecars)
    assert popped(sidecars) == PAYLOADS


@pytest.mark.long(reason="sidecars that are repaired, waited for")
@pytest.mark.waits(reason="sidecars tell of themselves every few seconds")
def test_flipped_bytes_are_found_by_a_scrub_and_repaired_in_place(start: Start) -> None:
    sidecars = start(3)
    (pipe,) = pushed(sidecars)
    sidecars["c"].kill()
    assert sidecars["c"].flip(PAYLOADS[1234])
    sidecars["c"].start()
    sidecars.settled()
    sidecars["c"].ask(Scrub(pipe, 0))
    assert [each.pipe_id for each in extents_of(sidecars, "c", "damaged")] == [pipe]
    eventually("it is told", lambda: sidecars.upkeep.fleet().sidecars["c"].damaged == 1)
    (action,) = [a for a in sidecars.repaired(1) if a.outcome == DONE]
    assert action.detail.startswith("copied again to c: 3,000 messages")
    assert extents_of(sidecars, "c", "damaged") == []
    assert sidecars.where()[pipe] == ["a", "b", "c"]
    assert is_well(sidecars)
    sidecars["a"].kill()
    sidecars["b"].kill()
    assert popped(sidecars) == PAYLOADS


@pytest.mark.long(reason="sidecars that are repaired, waited for")
@pytest.mark.waits(reason="sidecars tell of themselves every few seconds")
def test_a_replica_that_was_removed_is_copied_again(start: Start) -> None:
    sidecars = start(3)
    lost, kept = pushed(sidecars, 2)
    assert not any(a.outcome == DONE for a in sidecars.client.reaper.reap(only=("repair",)))
    sidecars["b"].ask(Drop([lost]))
    assert [each.pipe_id for each in extents_of(sidecars, "b")] == [kept]
    checked = sidecars.run("sidecar", "check", "--json")
    assert checked.returncode == 1
    counts = json.loads(checked.stdout)["counts"]
    assert (counts["missing"], counts["under-replicated"]) == (1, 1)
    # Everything was looked at before; it is looked at again, since it was told.
    found = sidecars.repaired(1)
    (action,) = [a for a in found if a.outcome == DONE]
    assert (action.subject, action.queue) == (lost, "mail")
    assert action.detail.startswith("copied again to b: 3,000 messages")
    assert not any(a.outcome == FAILED for a in found)
    assert is_well(sidecars)
    assert sidecars.where()[lost] == ["a", "b", "c"]
    sidecars["a"].kill()
    sidecars["c"].kill()
    assert popped(sidecars) == sorted(2 * PAYLOADS)


@pytest.mark.long(reason="sidecars that are repaired, waited for")
@pytest.mark.waits(reason="sidecars tell of themselves every few seconds")
def test_an_older_copy_of_a_data_directory_is_filled_with_what_it_lacks(
    start: Start, tmp_path: Path
) -> None:
    sidecars = start(3)
    (older,) = pushed(sidecars)
    sidecars["b"].stop()
    shutil.copytree(sidecars["b"].data, tmp_path / "older")
    sidecars["b"].start()
    sidecars.settled()
    (newer,) = pushed(sidecars)
    sidecars["b"].stop()
    sidecars["b"].lose_data()
    (tmp_path / "older").rename(sidecars["b"].data)
    sidecars["b"].start()
    sidecars.settled()
    assert [each.pipe_id for each in extents_of(sidecars, "b")] == [older]
    (action,) = [a for a in sidecars.repaired(1) if a.outcome == DONE]
    assert action.subject == newer
    assert is_well(sidecars)
    sidecars["a"].kill()
    sidecars["c"].kill()
    assert popped(sidecars) == sorted(2 * PAYLOADS)


@pytest.mark.long(reason="sidecars that are repaired, waited for")
@pytest.mark.waits(reason="sidecars tell of themselves every few seconds")
def test_a_sidecar_that_was_down_while_an_extent_was_sealed_catches_up(
    start: Start,
) -> None:
    sidecars = start(4)
    with cassq.connect(sidecars.url) as client, client.create_queue("mail").pusher() as pusher:
        pusher.push_many(PAYLOADS[:500])
        ((pipe, names),) = sidecars.where().items()
        away = names[0]
        sidecars[away].kill()
        pusher.push_many(PAYLOADS[500:1000])  # in another pipe
    sidecars.client.reaper.reap(only=("seal",))
    sidecars[away].start()
    sidecars.settled()

    def in_line() -> bool:
        """Its steward has settled it; or has found that it lacks the last frame, and it was
        copied."""
        sidecars.client.reaper.reap(only=("repair",))
        extent = next(each for each in extents_of(sidecars, away) if each.pipe_id == pipe)
        placement = sidecars.client.ports.catalog.sidecars.placements_of([pipe])[0]
        assert placement is not None
        return not extent.damage and extent.final == extent.end == placement.end

    eventually("it is brought in line", in_line, seconds=60)
    assert is_well(sidecars)
    for name in names:
        if name != away:
            sidecars[name].kill()
    assert set(popped(sidecars)) >= set(PAYLOADS[:500])


@pytest.mark.long(reason="leases of processes run out; tests/contract has it without")
def test_a_sidecar_is_drained_and_forgotten(start: Start) -> None:
    sidecars = start(4)
    pipes = pushed(sidecars, 3)
    names = [name for each in sidecars.where().values() for name in each]
    leaving = max(set(names), key=names.count)
    refused = sidecars.run("sidecar", "forget", leaving)
    assert refused.returncode == 2
    assert "have a replica on sidecar" in refused.stderr
    drained = sidecars.run("sidecar", "drain", leaving, "--wait", "--json")
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout) == {"sidecar": leaving, "state": "draining", "left": 0}
    assert not any(leaving in names for names in sidecars.where().values())
    assert extents_of(sidecars, leaving) == []
    running = sidecars.run("sidecar", "forget", leaving)
    assert running.returncode == 2
    assert "stop it first" in running.stderr
    sidecars[leaving].stop()
    sidecars.lost(leaving)
    forgotten = sidecars.run("sidecar", "forget", leaving, "--json")
    assert json.loads(forgotten.stdout)["forgotten"]
    assert leaving not in sidecars.upkeep.fleet().sidecars
    assert len(pipes) == 3
    assert popped(sidecars) == sorted(3 * PAYLOADS)


@pytest.mark.long(reason="leases of processes run out; tests/contract has it without")
def test_a_sidecar_drains_while_somebody_pushes_to_it(start: Start) -> None:
    sidecars = start(4)
    count = 0
    with cassq.connect(sidecars.url) as client, client.create_queue("mail").pusher() as pusher:
        pusher.push(b"first")
        ((_, names),) = sidecars.where().items()
        command = [sys.executable, "-m", "cassq", "sidecar", "drain", names[0], "--wait"]
        with subprocess.Popen([*command, "--url", sidecars.url]) as draining:
            while draining.poll() is None:
                pusher.push(b"%d" % count)
                count += 1
        assert draining.returncode == 0
        pusher.push(b"last")
        assert not any(names[0] in each for each in sidecars.where().values())
    assert count > 0
    payloads = [b"first", *(b"%d" % number for number in range(count)), b"last"]
    assert popped(sidecars) == sorted(payloads)


@pytest.mark.long(reason="leases of processes run out; tests/contract has it without")
def test_the_next_reaper_goes_on_with_a_copy_that_was_begun(start: Start) -> None:
    """The first one is killed: its lease lapses, and what it copied stays."""
    sidecars = start(4)
    (pipe,) = pushed(sidecars)
    lost = sidecars.where()[pipe][0]
    other = next(name for name in "abcd" if name not in sidecars.where()[pipe])
    sidecars[lost].kill()
    sidecars.lost(lost)

    def begun() -> bool:
        there = extents_of(sidecars, other)
        return any(0 < each.end < len(PAYLOADS) and each.copying for each in there)

    command = [sys.executable, "-m", "cassq", "reap", "--every", "1s", "--url"]
    with subprocess.Popen([*command, f"{sidecars.url}&repair_rate=200K"]) as slow:
        try:
            eventually("a copy is begun", begun)
        finally:
            slow.kill()
    assert other not in sidecars.where()[pipe]
    sidecars.repaired(1)
    assert other in sidecars.where()[pipe]
    assert is_well(sidecars)
    assert popped(sidecars) == PAYLOADS


@pytest.mark.long(reason="leases of processes run out; tests/contract has it without")
def test_clients_repair_in_passing(start: Start) -> None:
    sidecars = start(4)
    (pipe,) = pushed(sidecars)
    lost = sidecars.where()[pipe][0]
    sidecars[lost].kill()
    with sidecars.client.queue("mail").popper():
        eventually("it is repaired", lambda: lost not in sidecars.where()[pipe], seconds=60)
    assert len(sidecars.where()[pipe]) == 3


@pytest.mark.long(reason="sidecars that are repaired, waited for")
@pytest.mark.waits(reason="sidecars tell of themselves every few seconds")
def test_check_reports_what_is_wrong_or_that_nothing_is(start: Start) -> None:
    sidecars = start(3)
    (pipe,) = pushed(sidecars)
    well = sidecars.run("sidecar", "check")
    assert (well.returncode, well.stdout) == (0, "1 extent: all is well\n")
    sidecars["b"].kill()
    sidecars.lost("b")
    checked = sidecars.run("sidecar", "check", "--json")
    assert checked.returncode == 1
    printed = json.loads(checked.stdout)
    assert printed["counts"]["under-replicated"] == 1
    assert printed["lost"] == {"b": 1}
    assert printed["found"][0]["pipe_id"] == pipe
    assert "no sidecar can take a copy now" in printed["found"][0]["detail"]
    # Nothing can be done, and nothing fails.
    assert not any(a.outcome == FAILED for a in sidecars.client.reap())


@pytest.mark.waits(reason="sidecars tell of themselves every few seconds")
def test_list_and_show(start: Start) -> None:
    sidecars = start(3)
    pushed(sidecars)
    listed = json.loads(sidecars.run("sidecar", "list", "--json").stdout)
    assert [each["name"] for each in listed] == ["a", "b", "c"]
    assert all(each["alive"] and each["zone"] == f"zone-{each['name']}" for each in listed)
    table = sidecars.run("sidecar", "list").stdout.splitlines()
    assert table[0].split() == [
        *("NAME", "ADDRESS", "ZONE", "STATE", "ALIVE"),
        *("FREE", "EXTENTS", "LOAD", "READ-ONLY", "DAMAGED", "LEFT"),
    ]
    assert [line.split()[0] for line in table[1:]] == ["a", "b", "c"]
    shown = json.loads(sidecars.run("sidecar", "show", "b", "--json").stdout)
    assert shown["sidecar"]["name"] == shown["info"]["sidecar"] == "b"
    assert shown["damaged"] == []
    assert "zone-b" in sidecars.run("sidecar", "show", "b").stdout
    assert sidecars.run("sidecar", "show", "nobody").returncode == 2
    sidecars["b"].kill()
    listed = json.loads(sidecars.run("sidecar", "list", "--json").stdout)
    assert [each["alive"] for each in listed] == [True, False, True], "though its lease lasts"
    shown_b = sidecars.run("sidecar", "list").stdout.splitlines()[2]
    assert "yes" not in shown_b.split()
    silent = sidecars.run("sidecar", "show", "b", "--json")
    assert silent.returncode == 1
    assert json.loads(silent.stdout)["error"]


@pytest.mark.long(reason="all sidecars are killed and start anew; in a directory it is in the gate")
def test_what_is_damaged_on_every_replica_is_skipped_by_command_alone(start: Start) -> None:
    """Of one frame of 500 messages no replica is whole; what is behind it is delivered."""
    sidecars = start(3)
    (pipe,) = pushed(sidecars)
    for each in sidecars.all:
        each.kill()
        each.start()  # from its log it makes tables: a damaged log ends where the damage is
        each.kill()
        assert each.flip(PAYLOADS[1234])
        each.start()
    sidecars.settled()
    queue = sidecars.client.queue("mail")
    popper = queue.popper()
    found: list[bytes] = []
    with pytest.raises(CorruptionError):
        while messages := popper.pop(500):
            found += [message.payload for message in messages]
            popper.commit(messages)
    assert found == PAYLOADS[:1000]
    cost = queue.skip_damage(pipe, dry_run=True)
    assert ([each[:2] for each in cost.damaged], cost.skipped) == ([(1000, 1500)], False)
    done = queue.skip_damage(pipe)
    assert (done.lost, done.skipped) == (500, True)
    popper.close()
    assert popped(sidecars) == PAYLOADS[1500:]
    audit = queue.audit()
    assert (audit.groups["default"].lost, audit.balanced) == (500, True)
