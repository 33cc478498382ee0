"""Claims of a popper that is known to be dead: freed at once, and counted as expired ones are."""

from __future__ import annotations

import pytest

import cassq
from cassq.consumer.dead_poppers import free_dead_popper
from cassq.errors import ClaimLostError
from cassq.model.rows import GroupRow
from tests.integration.stage import Connect, numbers, payloads, push


def group_row(client: cassq.Client, queue: cassq.Queue) -> GroupRow:
    (row,) = client.ports.catalog.queues.groups(queue.row.id)
    return row


def free(client: cassq.Client, queue: cassq.Queue, popper: cassq.Popper) -> int:
    return free_dead_popper(client.ports, queue.row, group_row(client, queue), popper.name)


def test_what_a_dead_popper_had_is_free_at_once_and_counted(
    client: cassq.Client, connect: Connect
) -> None:
    queue = client.create_queue("left", claim_timeout=3600)
    push(queue, *numbers(5))
    dead, other = connect().queue("left").popper(), queue.popper()
    theirs = dead.pop(3)
    others = other.pop(2)
    assert free(client, queue, dead) == 1
    again = queue.popper().pop(10, wait=30)
    assert payloads(again) == payloads(theirs)
    assert {message.attempts for message in again} == {2}
    other.commit(others)  # it still has its own
    with pytest.raises(ClaimLostError):
        dead.commit(theirs)
    assert free(client, queue, dead) == 0


def test_its_claim_is_recorded_as_lost(client: cassq.Client, connect: Connect) -> None:
    queue = client.create_queue("lost", claim_timeout=3600, max_deliveries=1, sick_check=False)
    push(queue, b"poison")
    dead = connect().queue("lost").popper()
    assert len(dead.pop(1)) == 1
    assert free(client, queue, dead) == 1
    client.reaper.reap([queue.row])
    (letter,) = queue.dead_letters().peek()
    assert (letter.death["reason"], letter.death["failure"]) == ("delivery_limit", "expired")
    assert letter.death["consumer"] == dead.name


def test_a_deadline_by_receipt_outlives_the_popper(client: cassq.Client, connect: Connect) -> None:
    queue = client.create_queue("dated", claim_timeout=60)
    push(queue, *numbers(2))
    dead = connect().queue("dated").popper()
    first, _ = dead.pop(2)
    queue.settle(first.receipt).extend(30)
    assert free(client, queue, dead) == 1
    assert payloads(queue.popper().pop(10)) == [b"1"]


@pytest.mark.parametrize("settings", [{"exclusive": True}, {"order": "key"}])
def test_where_a_lock_keeps_the_order_the_lock_is_free_at_once(
    client: cassq.Client, connect: Connect, settings: dict[str, object]
) -> None:
    queue = client.create_queue("locked", claim_timeout=3600)
    queue.create_group("one", **settings)  # type: ignore[arg-type]
    push(queue, *numbers(2))
    dead = connect().queue("locked").popper("one")
    assert payloads(dead.pop(1)) == [b"0"]
    other = queue.popper("one")
    assert other.pop(1) == []
    rows = client.ports.catalog.queues.groups(queue.row.id)
    row = next(each for each in rows if each.name == "one")
    assert free_dead_popper(client.ports, queue.row, row, other.name) == 0  # of another client
    assert free_dead_popper(client.ports, queue.row, row, dead.name) == 1
    (again,) = other.pop(1, wait=30)
    assert (again.payload, again.attempts) == (b"0", 2)
    again.ack()
    assert payloads(other.pop(1, wait=30)) == [b"1"]


def test_its_permits_are_free_at_once(client: cassq.Client, connect: Connect) -> None:
    queue = client.create_queue("limited", claim_timeout=3600, concurrency=2)
    push(queue, *numbers(4))
    dead = connect().queue("limited").popper()
    assert len(dead.pop(2)) == 2
    assert queue.popper().pop(2) == []
    assert free(client, queue, dead) == 1
    assert len(queue.popper().pop(4)) == 2


def test_a_worker_has_one_message_in_hand_that_crashed_two_of_its_like(
    client: cassq.Client, connect: Connect
) -> None:
    """What is in hand beside a message that kills is lost with it, as often as it is beside it."""
    settings = {"claim_timeout": 3600, "max_deliveries": 3, "sick_check": False}
    queue = client.create_queue("crashes", **settings)  # type: ignore[arg-type]
    push(queue, *numbers(3))
    for _ in range(2):
        dead = connect().queue("crashes")._shared("default", 0)
        assert len(dead.pop(1) + dead.pop(1) + dead.pop(1)) == 3
        assert free(client, queue, dead)
    push(queue, b"new")
    worker = queue._shared("default", 0)
    (one,) = worker.pop(10)
    assert payloads(worker.pop(10)) == [b"new"]
    assert worker.pop(10) == []
    (beside,) = connect().queue("crashes")._shared("default", 0).pop(10)  # another process
    one.ack()
    (last,) = worker.pop(10, wait=30)
    assert sorted(payloads([one, beside, last])) == numbers(3)
    assert last.attempts == 3


def test_what_a_worker_left_once_is_in_hand_all_at_once_again(
    client: cassq.Client, connect: Connect
) -> None:
    queue = client.create_queue("killed", claim_timeout=3600, max_deliveries=3)
    push(queue, *numbers(3))
    dead = connect().queue("killed")._shared("default", 0)
    assert len(dead.pop(3)) == 3
    assert free(client, queue, dead) == 1
    worker = queue._shared("default", 0)
    assert sorted(payloads([*worker.pop(1), *worker.pop(1), *worker.pop(1)])) == numbers(3)


def test_a_worker_has_the_last_delivery_of_a_message_in_hand_apart_from_others(
    client: cassq.Client, connect: Connect
) -> None:
    queue = client.create_queue("twice", claim_timeout=3600, max_deliveries=2)
    push(queue, *numbers(2))
    dead = connect().queue("twice")._shared("default", 0)
    assert len([*dead.pop(1), *dead.pop(1)]) == 2
    assert free(client, queue, dead)
    worker = queue._shared("default", 0)
    (one,) = worker.pop(10)
    assert worker.pop(10) == []
    one.nack()
    (other,) = worker.pop(10)
    assert other.payload != one.payload
