"""The audit finds what is amiss in the rows and frames of a directory, whatever made it so."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.catalog.port import limit_names
from cassq.client.backends.embedded import CATALOG
from cassq.model.limits import permits_as_text
from cassq.model.scaling import key_lane_of
from cassq.model.schedules import TickPlace
from tests.integration.stage import client_on, numbers, push


@pytest.fixture
def client(tmp_path: Path, clock: ManualClock) -> Iterator[cassq.Client]:
    with client_on(tmp_path, clock=clock) as client:
        client.runtime.housekeeper.stop()
        yield client


@pytest.fixture
def queue(client: cassq.Client) -> cassq.Queue:
    """Ten messages, of which the first seven are held, in two claims."""
    queue = client.create_queue("jobs", max_deliveries=2, sick_check=False)
    push(queue, *numbers(10))
    popper = queue.popper()
    assert len(popper.pop(4)) == 4
    assert len(popper.pop(3)) == 3
    assert queue.audit().findings == []
    return queue


def change(directory: Path, *statements: str) -> None:
    """Do to the catalog what no cassq does."""
    with closing(sqlite3.connect(directory / CATALOG, isolation_level=None)) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement


REMOVE_ONE = (
    "INSERT INTO removed (group_id, pipe_id, start_seq, end_seq, reason, at_ms)"
    " SELECT group_id, pipe_id, 5, 6, 'purged', 1 FROM claims LIMIT 1"
)
WRONG = {
    "a claim is gone": (["DELETE FROM claims WHERE start_seq = 0"], "no claim row covers seq 0"),
    "the last claim is gone": (
        ["DELETE FROM claims WHERE start_seq = 4"],
        "no claim row covers seq 4",
    ),
    "a claim is too short": (
        ["UPDATE claims SET end_seq = 3 WHERE start_seq = 0"],
        "no claim row covers seq 3",
    ),
    "a claim overlaps the next": (
        ["UPDATE claims SET end_seq = 5 WHERE start_seq = 0"],
        "a claim row covers seq 4, which has another",
    ),
    "more is claimed than there is": (
        [
            "UPDATE claims SET end_seq = 12 WHERE start_seq = 4",
            "UPDATE cursors SET chain_seq = 12",
        ],
        "claimed 12 messages of pipe",
    ),
    "what was removed is not done": (
        [REMOVE_ONE],
        "seqs 5 are both purged and pending",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_rows_that_do_not_fit_are_reported(queue: cassq.Queue, tmp_path: Path, what: str) -> None:
    statements, finding = WRONG[what]
    change(tmp_path, *statements)
    audit = queue.audit()
    assert not audit.balanced
    assert any(finding in each for each in audit.findings), audit.findings


@pytest.mark.parametrize("dest_seq", [1, 9])
def test_a_dead_letter_that_is_not_where_its_move_says_is_reported(
    client: cassq.Client, tmp_path: Path, dest_seq: int
) -> None:
    """Another letter stands there, or none."""
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False)
    push(queue, *numbers(3))
    popper = queue.popper()
    for message in popper.pop(2):
        message.nack()
    popper.flush()
    assert queue.stats().groups["default"].dead == 2
    assert queue.audit().findings == []
    change(tmp_path, f"UPDATE moves SET dest_seq = {dest_seq} WHERE seq = 0")
    (finding,) = queue.audit().findings
    assert "is not in the dead letters" in finding


def test_a_tick_whose_push_was_left_is_reported_until_somebody_finishes_it(
    client: cassq.Client, clock: ManualClock
) -> None:
    queue = client.create_queue("jobs")
    push(queue, *numbers(1))
    client.create_schedule("tidy", "jobs", every=3600)
    records = client.ports.catalog.records
    (row,) = records.schedules()
    clock.advance(3600)
    (pipe,) = client.ports.catalog.pipes.live(queue.row.id)
    left = replace(row, firing=TickPlace(row.next_ms, pipe.id, 1))
    assert records.change_schedule(row, left)
    clock.advance(60)
    assert queue.audit().findings == []
    clock.advance(1)
    (finding,) = queue.audit().findings
    assert finding.startswith("schedule tidy: the tick of 2023-11-14T23:13:20Z was begun and not")
    assert client.create_queue("other").audit().findings == []
    client.schedule("tidy").pause()
    assert queue.audit().findings == [], "it waits for the end of the pause"
    client.schedule("tidy").resume()
    client.reaper.reap(only=("schedule",))
    assert queue.audit().findings == []


def test_messages_in_the_pipe_of_another_key_lane_are_reported(
    client: cassq.Client, tmp_path: Path
) -> None:
    queue = client.create_queue("jobs", key_lanes=2)
    keys = [b"%d" % (number % 9) for number in range(40)]
    with queue.pusher() as pusher:
        pusher.push_many(numbers(40), keys=keys)
        pusher.push_many(numbers(10))
    assert queue.audit().findings == []
    change(tmp_path, "UPDATE pipes SET owner = 'another'")  # whose pipes are those of lane 0
    (finding,) = queue.audit().findings
    astray = sum(key_lane_of(key, 2) == 1 for key in keys)
    assert 0 < astray < 40
    assert f"has {astray} messages whose keys belong to other key lanes" in finding
    assert ": seqs 0-" in finding


def test_more_permits_than_there_are_are_reported(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", concurrency=3)
    push(queue, *numbers(5))
    popper = queue.popper()
    assert len(popper.pop(5)) == 3
    audit = queue.audit()
    assert (audit.findings, audit.groups["default"].permits) == ([], 3)
    (group,) = client.ports.catalog.queues.groups(queue.row.id)
    leases, (_, name) = client.ports.catalog.leases, limit_names(group.id)
    until_ms = client.ports.catalog.now_ms() + 60_000
    assert leases.swap(name, leases.shared(name), permits_as_text({"x": (4, until_ms)}, "x"))
    (finding,) = queue.audit().findings
    assert "consumers may have 4 messages at once, but concurrency is 3" in finding
    queue.update(concurrency=4)
    assert queue.audit().findings == []
    queue.update(concurrency=None)
    assert queue.audit().findings == []
