"""Wedged groups: claim rows with gaps, or that overlap, are found by the audit and mended by the
reaper; nothing is lost, and nothing that was acked comes again."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import CassqError, CorruptionError
from cassq.lifecycle.retries import DeadLetters
from cassq.model.rows import ClaimState, Move
from cassq.reaper import Reaper
from cassq.reaper.mend import mend
from tests.integration.stage import Connect, alone, numbers, payloads, push

pytestmark = pytest.mark.embedded_only(reason="it writes rows past the catalog")

HELD, FREE, DONE = ClaimState.HELD, ClaimState.FREE, ClaimState.DONE


class Wedges:
    """Writes rows into the catalog's file as no code of cassq does."""

    def __init__(self, client: cassq.Client, queue: cassq.Queue) -> None:
        self._path = Path(client.url.removeprefix("file://")) / "catalog.sqlite"
        self.client = client
        self.queue = queue
        (self.group,) = client.ports.catalog.queues.groups(queue.id)

    def run(self, statement: str, *values: Any) -> int:
        with sqlite3.connect(self._path, timeout=30) as connection:
            count = connection.execute(statement, values).rowcount
        connection.close()
        return count

    def drop(self, start: int) -> None:
        """A claim row is gone."""
        assert self.run("DELETE FROM claims WHERE start_seq = ?", start) == 1

    def move_chain(self, seq: int) -> None:
        oldest = "pipe_id = (SELECT min(pipe_id) FROM cursors)"
        assert self.run(f"UPDATE cursors SET chain_seq = ? WHERE {oldest}", seq) == 1

    def expire(self) -> None:
        """The time of all claims is over."""
        self.run("UPDATE claims SET due_ms = 0")

    def stretch(self, start: int, end: int) -> None:
        """A claim row reaches further than it may."""
        changed = self.run("UPDATE claims SET end_seq = ? WHERE start_seq = ?", end, start)
        assert changed == 1

    def copy(self, start: int, to: int, end: int) -> None:
        """A second row, of what another has."""
        with sqlite3.connect(self._path, timeout=30) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute("SELECT * FROM claims WHERE start_seq = ?", (start,))
            row = dict(found.fetchone())
            row |= {"start_seq": to, "end_seq": end, "version": f"copy{to}"}
            marks = ", ".join("?" * len(row))
            names = ", ".join(row)
            connection.execute(
                f"INSERT INTO claims ({names}) VALUES ({marks})", tuple(row.values())
            )
        connection.close()

    def reap(self, **how: Any) -> list[Any]:
        found = self.client.reaper.reap([self.queue.row], only=["mend"], **how)
        assert all(action.outcome != "failed" for action in found), found
        return found


@pytest.fixture
def wedges(queue: cassq.Queue, client: cassq.Client) -> Wedges:
    alone(client)
    return Wedges(client, queue)


def found_by_audit(queue: cassq.Queue) -> str:
    audit = queue.audit()
    assert not audit.balanced
    (finding,) = [each for each in audit.findings if "is wedged in pipe" in each]
    assert "cassq reap" in finding
    return finding


def rest_of(queue: cassq.Queue) -> list[bytes]:
    """What a new popper gets, however often it must ask."""
    found: list[bytes] = []
    with queue.popper() as popper:
        while messages := popper.pop(100):
            popper.commit(messages)
            found += payloads(messages)
    return sorted(found, key=int)


def check_mended(wedges: Wedges, wanted: list[bytes]) -> None:
    """A dry run shows it, one pass mends it, a second one finds nothing, and it comes out whole."""
    queue = wedges.queue
    (planned,) = wedges.reap(dry_run=True)
    assert (planned.verb, planned.outcome) == ("mend", "planned")
    assert not queue.audit().balanced
    (done,) = wedges.reap()
    assert done.outcome == "done"
    assert wedges.reap() == []
    assert queue.audit().findings == []
    assert rest_of(queue) == wanted
    stats = queue.stats().groups["default"]
    assert (stats.committed, stats.waiting, stats.pending) == (stats.pushed, 0, 0)
    assert queue.audit().findings == []


def test_a_gap_in_the_middle_is_delivered_again(queue: cassq.Queue, wedges: Wedges) -> None:
    push(queue, *numbers(30))
    popper = queue.popper()
    batches = [popper.pop(10) for _ in range(3)]
    wedges.drop(10)
    assert "no claim row covers seq 10" in found_by_audit(queue)
    popper.commit(batches[2])
    popper.commit(batches[0])  # the ack offset does not go over the gap
    assert "no claim row covers seq 10" in found_by_audit(queue)
    check_mended(wedges, numbers(10, first=10))


def test_a_gap_in_front_is_delivered_again(queue: cassq.Queue, wedges: Wedges) -> None:
    push(queue, *numbers(30))
    popper = queue.popper()
    batches = [popper.pop(10) for _ in range(2)]
    wedges.drop(0)
    popper.commit(batches[1])
    assert "no claim row covers seq 0" in found_by_audit(queue)
    check_mended(wedges, [*numbers(10), *numbers(10, first=20)])


def test_a_chain_that_moved_without_its_row_is_delivered_again(
    queue: cassq.Queue, wedges: Wedges
) -> None:
    """A group so wedged has nothing due: nobody would ever come by."""
    push(queue, *numbers(30))
    popper = queue.popper()
    popper.commit(popper.pop(10))
    wedges.move_chain(30)
    assert "no claim row covers seq 10" in found_by_audit(queue)
    assert rest_of(queue) == []
    check_mended(wedges, numbers(20, first=10))


def test_a_row_that_was_never_claimed_stops_only_its_own_pipe(
    queue: cassq.Queue, wedges: Wedges
) -> None:
    push(queue, *numbers(30))
    push(queue, *numbers(10, first=30))
    first, popper = queue.popper(), queue.popper()
    held = first.pop(10)
    wedges.move_chain(0)  # and its row stays
    errors: list[CassqError] = []
    found: list[bytes] = []
    for _ in range(10):
        try:
            messages = popper.pop(100)
        except CorruptionError as exc:
            errors.append(exc)
            continue
        popper.commit(messages)
        found += payloads(messages)
    assert found == numbers(10, first=30)
    assert [error.hint for error in errors] == [errors[0].hint]
    assert "cassq reap" in errors[0].hint
    assert "which was not claimed" in found_by_audit(queue)
    first.commit(held[:4])
    check_mended_with_holder(wedges, first, held)


def check_mended_with_holder(wedges: Wedges, popper: cassq.Popper, held: cassq.Messages) -> None:
    """Who held what was mended may still commit it, or it comes again; never both."""
    (done,) = wedges.reap()
    assert done.outcome == "done"
    popper.commit(held[4:6])
    popper.close()
    assert rest_of(wedges.queue) == [*numbers(4, first=6), *numbers(20, first=10)]
    assert wedges.queue.audit().findings == []


def test_rows_that_overlap_keep_every_ack(queue: cassq.Queue, wedges: Wedges) -> None:
    push(queue, *numbers(30))
    popper = queue.popper()
    batches = [popper.pop(10) for _ in range(3)]
    popper.commit(batches[0][5:])
    popper.commit(batches[2][3:])
    wedges.stretch(0, 25)
    assert "has another claim row" in found_by_audit(queue)
    popper.commit(batches[1])
    wedges.expire()
    check_mended(wedges, [*numbers(5), *numbers(3, first=20)])


def test_a_row_inside_another_keeps_every_ack(queue: cassq.Queue, wedges: Wedges) -> None:
    push(queue, *numbers(30))
    popper = queue.popper()
    messages = popper.pop(30)
    popper.commit(messages[:12])
    wedges.copy(0, 10, 20)
    wedges.expire()
    assert found_by_audit(queue)
    check_mended(wedges, numbers(18, first=12))


def test_free_rows_in_the_way_of_each_other_hold_up_no_other_pipe(
    queue: cassq.Queue, wedges: Wedges
) -> None:
    push(queue, *numbers(30))
    with queue.popper() as popper:
        popper.release(popper.pop(30))
    wedges.copy(0, 5, 20)
    push(queue, *numbers(5, first=30))
    found: list[bytes] = []
    errors: list[CassqError] = []
    popper = queue.popper()
    for _ in range(40):
        try:
            messages = popper.pop(5)
        except CorruptionError as exc:
            errors.append(exc)
            continue
        popper.commit(messages)
        found += payloads(messages)
        if set(found) >= set(numbers(5, first=30)):
            break
    assert set(found) >= set(numbers(5, first=30))
    popper.close()
    wedges.reap()
    assert sorted([*found, *rest_of(queue)], key=int) == numbers(35)
    assert queue.audit().findings == []


@pytest.mark.parametrize("policy", [{"consistency": "cp"}, {}], ids=["cp", "exclusive"])
def test_in_order_nothing_passes_a_gap(client: cassq.Client, policy: dict[str, Any]) -> None:
    alone(client)
    queue = client.create_queue("strict", **policy)
    name = "default"
    if not policy:
        queue.delete_group("default")
        queue.create_group("default", exclusive=True)
    push(queue, *numbers(20))
    popper = queue.popper(name)
    popper.commit(popper.pop(5))
    popper.pop(5)
    popper.close()
    wedges = Wedges(client, queue)
    wedges.drop(5)
    with queue.popper(name) as other:
        with pytest.raises(CorruptionError, match="no claim row covers seq 5") as caught:
            other.pop(1)
        assert "cassq reap" in caught.value.hint
        assert other.pop(10) == []
    wedges.reap()
    with queue.popper(name) as after:
        assert payloads(after.pop(100))[:5] == numbers(5, first=5)


def test_what_is_on_record_as_removed_or_dead_does_not_come_again(
    queue: cassq.Queue, wedges: Wedges
) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    messages = popper.pop(10)
    popper.dead(messages[2:4])
    popper.release(messages[6:8])
    popper.close()
    pipe_id = messages[0].id.partition(":")[0]
    values = (wedges.group.id, pipe_id, 6, 8, "purged", 0)
    wedges.run("INSERT INTO removed VALUES (?, ?, ?, ?, ?, ?)", *values)
    wedges.run("DELETE FROM claims")
    check_mended_but(wedges, [*numbers(2), *numbers(2, first=4), *numbers(2, first=8)])


def check_mended_but(wedges: Wedges, wanted: list[bytes]) -> None:
    (done,) = wedges.reap()
    assert done.outcome == "done"
    assert rest_of(wedges.queue) == wanted
    assert wedges.queue.audit().findings == []


def test_a_move_under_way_in_a_gap_is_finished_first(
    client: cassq.Client, queue: cassq.Queue, wedges: Wedges
) -> None:
    """It may have arrived: so it is looked for there before it is delivered here."""
    push(queue, *numbers(4))
    popper = queue.popper()
    messages = popper.pop(4)
    popper.dead(messages[1:2])
    popper.close()
    pipe_id = messages[0].id.partition(":")[0]
    catalog = client.ports.catalog
    (move,) = catalog.claims.moves(wedges.group.id, pipe_id)
    wedges.run("UPDATE moves SET settled = 0")
    wedges.run("DELETE FROM claims")
    wedges.run("UPDATE cursors SET ack_seq = 0, ack_pos = 0")
    (done,) = wedges.reap()
    assert done.outcome == "done"
    client.reaper.reap([queue.row], only=["rollback"])
    assert rest_of(queue) == [b"0", b"2", b"3"]
    (settled,) = catalog.claims.moves(wedges.group.id, pipe_id)
    assert (settled.settled, settled.dest_seq) == (True, move.dest_seq)
    assert isinstance(settled, Move)
    assert len(queue.dead_letters().peek(10)) == 1
    assert queue.audit().findings == []


def test_delayed_messages_in_a_gap_keep_their_due_times(queue: cassq.Queue, wedges: Wedges) -> None:
    with queue.pusher() as pusher:
        pusher.push_many([b"1", b"2"], delay=3600)
        ids = pusher.push_many([b"3"], delay=1800)
    queue.cancel(ids[0])  # which schedules them
    wedges.run("DELETE FROM claims")
    wedges.reap()
    assert queue.audit().findings == []
    stats = queue.stats().groups["default"]
    assert (stats.delayed, stats.purged) == (2, 1)


def test_of_several_at_once_one_mends(queue: cassq.Queue, wedges: Wedges, connect: Connect) -> None:
    push(queue, *numbers(30))
    popper = queue.popper()
    popper.pop(30)
    pipe_id = queue.pipes()[0].id
    wedges.drop(0)
    other = connect()
    catalog = wedges.client.ports.catalog
    planned = catalog.claims.mend
    met: list[str | None] = []

    def late(*args: Any) -> bool:
        """Somebody else mends between the look and the write."""
        if not met:
            met.append(mend(other.ports, wedges.group.id, pipe_id))
        return planned(*args)

    catalog.claims.mend = late  # type: ignore[method-assign]
    assert mend(wedges.client.ports, wedges.group.id, pipe_id) is None
    assert met[0] is not None
    assert rest_of(queue) == numbers(30)
    assert queue.audit().findings == []


def test_a_reaper_that_goes_on_finds_it_and_looks_rarely(
    queue: cassq.Queue, wedges: Wedges
) -> None:
    push(queue, *numbers(30))
    with queue.popper() as popper:
        popper.pop(10)
        wedges.drop(0)
        client = wedges.client
        reaper = Reaper(client.ports, DeadLetters(client.ports, lambda name: None).add)  # type: ignore[arg-type,return-value]
        assert [action.outcome for action in reaper.reap(only=["mend"])] == ["done"]
        wedges.move_chain(30)
        assert reaper.reap(only=["mend"]) == []  # it has just looked
        assert len(reaper.reap(only=["mend"], dry_run=True)) == 1
        assert len(wedges.client.ports.catalog.claims.wedged()) == 1
    assert len(wedges.reap()) == 1
