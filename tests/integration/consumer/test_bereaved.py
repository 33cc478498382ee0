"""Claims of a popper that is known to be dead: freed at once, and counted as expired ones are."""

from __future__ import annotations

import pytest

import cassq
from cassq.consumer.bereaved import free_all_of
from cassq.errors import ClaimLostError
from cassq.model.rows import GroupRow
from tests.integration.stage import Connect, numbers, payloads, push


def group_row(client: cassq.Client, queue: cassq.Queue) -> GroupRow:
    (row,) = client.ports.catalog.queues.groups(queue.row.id)
    return row


def free(client: cassq.Client, queue: cassq.Queue, popper: cassq.Popper) -> int:
    return free_all_of(client.ports, queue.row, group_row(client, queue), popper.name)


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
    assert free_all_of(client.ports, queue.row, row, other.name) == 0  # of another client
    assert free_all_of(client.ports, queue.row, row, dead.name) == 1
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
