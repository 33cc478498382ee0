"""Staged pipes: nobody's until their write is published, then the queue's like any other."""

from __future__ import annotations

from collections import Counter

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import (
    ConfigError,
    FencedError,
    MessageNotFoundError,
    QueueFullError,
    QueueNotFoundError,
    QueuePausedError,
)
from cassq.message.batches import Batch
from cassq.model.lanes import lane_of
from cassq.model.rows import WriteRow
from cassq.producer import staging
from cassq.producer.staging import DRIVER_LEASE_MS, Stage, StagedPipe
from cassq.reaper import DONE
from tests.integration.stage import Connect, alone, drain, extents, numbers, payloads, push, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def begin(
    client: cassq.Client, queue: cassq.Queue, driver: str = "d1", number: int = 0
) -> WriteRow:
    return staging.begin(client.ports, queue.row, "w", number, driver)


def fill(
    client: cassq.Client, queue: cassq.Queue, write: WriteRow, messages: list[bytes]
) -> list[StagedPipe]:
    """One attempt at a task, to its end."""
    stage = Stage(client.ports, queue.row, write)
    stage.append(Batch(messages, 1_700_000_000_000))
    return stage.finish()


def publish(
    client: cassq.Client, queue: cassq.Queue, write: WriteRow, pipes: list[StagedPipe]
) -> bool:
    return staging.publish(client.ports, queue.row, write, pipes)


def test_what_is_staged_is_nobodys_and_what_is_published_everybodys(
    client: cassq.Client, connect: Connect, queue: cassq.Queue
) -> None:
    queue.create_group("more")
    write = begin(client, queue)
    (pipe,) = fill(client, queue, write, numbers(20))
    assert (pipe.messages, pipe.size > 0) == (20, True)
    there = connect().queue("jobs")
    assert there.popper().pop() == []
    assert there.peek(5) == []
    assert there.stats().groups["default"].waiting == 0
    assert there.stats().pipes["sealed"] == 0
    assert there.audit().pushed == 0
    assert there.purge() == {"default": 0, "more": 0}
    with pytest.raises(MessageNotFoundError):
        there.explain(f"{pipe.id}:3")
    publish(client, queue, write, [pipe])
    assert there.stats().groups["default"].waiting == 20
    for group in ("default", "more"):
        assert payloads(drain(there.popper(group))) == numbers(20)
    assert there.explain(f"{pipe.id}:3").id == f"{pipe.id}:3"
    audit = there.audit()
    assert (audit.pushed, audit.findings) == (20, [])
    reap(client)
    assert there.stats().pipes["retired"] == 1
    assert there.audit().findings == []


def test_a_staged_message_with_a_due_time_waits_for_it_after_the_publish(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """Also when the publish comes later than the lane's pipe was opened; losers are removed."""
    queue = timed.create_queue("jobs", idle_seal=10**6)
    write = begin(timed, queue)
    due_ms = timed.ports.catalog.now_ms() + 3_600_000
    kept: list[StagedPipe] = []
    for _ in range(2):  # the second attempt counts
        stage = Stage(timed.ports, queue.row, write)
        stage.append(Batch([b"now"], 7))
        later = Batch([b"later", b"last"], 7, dues_ms=[due_ms, due_ms + 60_000])
        stage.append(later, lane_of(3_600_000))
        kept = stage.finish()
    assert [pipe.messages for pipe in kept] == [1, 2]
    assert publish(timed, queue, write, kept)
    popper = queue.popper()
    assert payloads(drain(popper)) == [b"now"]
    clock.advance(3_599)
    assert drain(popper) == []
    clock.advance(2)
    assert payloads(drain(popper)) == [b"later"]
    clock.advance(60)
    assert payloads(drain(popper)) == [b"last"]
    audit = queue.audit()
    assert (audit.pushed, audit.findings) == (3, [])


def test_losers_are_removed_when_the_winners_are_published(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    alone(client)
    write = begin(client, queue)
    winners = fill(client, queue, write, numbers(5)) + fill(client, queue, write, numbers(5, 5))
    fill(client, queue, write, numbers(5))
    straggler = Stage(client.ports, queue.row, write)
    straggler.append(Batch(numbers(3), 7))
    publish(client, queue, write, winners)
    with pytest.raises(FencedError):
        fill(client, queue, write, numbers(1))
    straggler.close()
    assert payloads(drain(queue.popper())) == numbers(10)
    reap(client)
    assert extents(client) == []
    assert queue.audit().findings == []


def test_a_write_of_one_id_is_published_once(client: cassq.Client, queue: cassq.Queue) -> None:
    write = begin(client, queue)
    mine, others = (fill(client, queue, write, numbers(5, n)) for n in (0, 5))
    assert publish(client, queue, write, mine)
    assert not publish(client, queue, write, others)
    again = begin(client, queue, "d2")
    assert staging.is_over(again, 0)
    assert payloads(drain(queue.popper())) == numbers(5)


def test_a_restarted_driver_begins_again_and_the_old_one_is_refused(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    old = begin(client, queue, "d1")
    stale = fill(client, queue, old, numbers(5))
    new = begin(client, queue, "d2")
    with pytest.raises(FencedError):
        publish(client, queue, old, stale)
    with pytest.raises(FencedError):
        begin(client, queue, "d1")
    assert not staging.abort(client.ports, old)
    publish(client, queue, new, fill(client, queue, new, numbers(7)))
    assert payloads(drain(queue.popper())) == numbers(7)


def test_batches_under_one_id_are_published_once_each(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    for number in range(3):
        for _ in range(2):  # the second time it is a batch that is replayed
            write = begin(client, queue, number=number)
            if not staging.is_over(write, number):
                pipes = fill(client, queue, write, numbers(4, 4 * number))
                publish(client, queue, write, pipes)
    assert payloads(drain(queue.popper())) == numbers(12)


def test_an_attempt_whose_write_is_aborted_while_it_ends_fails_with_that_reason(
    client: cassq.Client, queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(client)
    write = begin(client, queue)
    stage = Stage(client.ports, queue.row, write)
    stage.append(Batch(numbers(5), 7))
    seal = client.ports.store.seal

    def seal_late(pipe_id: str) -> object:
        assert staging.abort(client.ports, write)
        reap(client)
        assert extents(client) == []
        return seal(pipe_id)

    monkeypatch.setattr(client.ports.store, "seal", seal_late)
    with pytest.raises(FencedError):
        stage.finish()


def test_an_aborted_write_leaves_nothing(client: cassq.Client, queue: cassq.Queue) -> None:
    alone(client)
    write = begin(client, queue)
    fill(client, queue, write, numbers(5))
    unfinished = Stage(client.ports, queue.row, write)
    unfinished.append(Batch(numbers(5), 7))
    assert len(extents(client)) == 2
    assert staging.abort(client.ports, write)
    unfinished.close()
    reap(client)
    assert extents(client) == []
    assert queue.audit().pushed == 0
    with pytest.raises(FencedError):
        publish(client, queue, write, [])


def test_a_deleted_queue_takes_what_is_staged_along(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    write = begin(client, queue)
    row = queue.row
    pipes = fill(client, queue, write, numbers(5))
    client.delete_queue("jobs")
    assert extents(client) == []
    with pytest.raises(QueueNotFoundError):
        staging.publish(client.ports, row, write, pipes)
    with pytest.raises(QueueNotFoundError):
        staging.begin(client.ports, row, "w", 0, "d9")
    assert client.ports.catalog.writes.unfinished() == []


def test_a_group_made_meanwhile_gets_what_is_published_later(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    write = begin(client, queue)
    pipes = fill(client, queue, write, numbers(5))
    queue.create_group("late", start="now")
    publish(client, queue, write, pipes)
    queue.create_group("too-late", start="now")
    assert payloads(drain(queue.popper("late"))) == numbers(5)
    assert drain(queue.popper("too-late")) == []
    assert queue.audit().findings == []


def test_a_cp_queue_takes_no_write(client: cassq.Client) -> None:
    strict = client.create_queue("strict", consistency="cp")
    with pytest.raises(ConfigError, match="one order"):
        begin(client, strict)


def test_a_paused_queue_takes_no_write(client: cassq.Client, queue: cassq.Queue) -> None:
    write = begin(client, queue)
    pipes = fill(client, queue, write, numbers(5))
    queue.pause()
    for act in (lambda: begin(client, queue), lambda: publish(client, queue, write, pipes)):
        with pytest.raises(QueuePausedError):
            act()
    queue.resume()
    publish(client, queue, write, pipes)
    assert payloads(drain(queue.popper())) == numbers(5)


def test_a_full_queue_takes_all_of_a_write_or_nothing(client: cassq.Client) -> None:
    queue = client.create_queue("small", max_length=10)
    push(queue, *numbers(6))
    write = begin(client, queue)
    pipes = fill(client, queue, write, numbers(5, 6))
    with pytest.raises(QueueFullError, match="limit is 10"):
        publish(client, queue, write, pipes)
    assert payloads(drain(queue.popper())) == numbers(6)
    publish(client, queue, write, pipes)
    assert payloads(drain(queue.popper())) == numbers(5, 6)


def test_poppers_at_work_get_each_winner_once(
    client: cassq.Client, connect: Connect, queue: cassq.Queue
) -> None:
    popper = connect().queue("jobs").popper()
    found: list[bytes] = []
    for number in range(4):
        write = begin(client, queue, number=number)
        pipes = [
            pipe
            for task in range(5)
            for pipe in fill(client, queue, write, numbers(20, 100 * number + 20 * task))
        ]
        found += payloads(drain(popper))
        publish(client, queue, write, pipes)
        found += payloads(drain(popper))
    assert Counter(found) == Counter(numbers(400))


# --- whoever leads it is gone -----------------------------------------------------------------


def unstaged(client: cassq.Client) -> list[str]:
    actions = client.reaper.reap(only=("unstage",))
    return [action.subject for action in actions if action.outcome == DONE]


@pytest.mark.embedded_only(reason="time is turned")
def test_a_stage_that_takes_hours_is_left_while_its_driver_lives(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    write = begin(timed, queue)
    pipes = fill(timed, queue, write, numbers(5))
    for _ in range(200):
        timed.ports.catalog.writes.beat_driver("d1", DRIVER_LEASE_MS)
        assert unstaged(timed) == []
        clock.advance(DRIVER_LEASE_MS / 1000 - 1)
        assert unstaged(timed) == []
    publish(timed, queue, write, pipes)
    assert payloads(drain(queue.popper())) == numbers(5)


@pytest.mark.embedded_only(reason="time is turned")
@pytest.mark.parametrize("beats", [0, 3])
def test_writes_of_a_driver_that_is_gone_are_aborted_after_its_lease(
    timed: cassq.Client, clock: ManualClock, beats: int
) -> None:
    queue = timed.create_queue("jobs")
    write = begin(timed, queue)
    pipes = fill(timed, queue, write, numbers(5))
    for _ in range(beats):
        timed.ports.catalog.writes.beat_driver("d1", DRIVER_LEASE_MS)
    clock.advance(3600)
    assert unstaged(timed) == [], "however long ago it was, a watcher sees it for the first time"
    clock.advance(DRIVER_LEASE_MS / 1000 - 0.001)
    assert unstaged(timed) == []
    clock.advance(0.001)
    assert unstaged(timed) == ["w"]
    with pytest.raises(FencedError):
        publish(timed, queue, write, pipes)
    reap(timed)
    assert extents(timed) == []
    again = begin(timed, queue, "d2")
    publish(timed, queue, again, fill(timed, queue, again, numbers(5)))
    assert payloads(drain(queue.popper())) == numbers(5)
