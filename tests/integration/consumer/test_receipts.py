"""Receipts: deliveries are settled, or get a deadline of their own, by others than their popper."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest

import cassq
from cassq.errors import BackendError, ClaimLostError, ReceiptError, UsageError
from tests.integration.deadlines import eventually, ticks
from tests.integration.places import Place
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push, reap


def waiting(queue: cassq.Queue) -> tuple[int, int]:
    """How many messages wait, and how many are pending."""
    depth = queue.stats().groups["default"]
    return depth.waiting, depth.pending


def test_another_client_acks_by_receipt(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, *numbers(3))
    popper = queue.popper()
    receipts = [message.receipt for message in popper.pop(3)]
    assert len(set(receipts)) == 3
    other = connect().queue("jobs")
    other.settle(receipts[1]).ack()
    assert waiting(queue) == (0, 2)
    other.settle([receipts[0], receipts[2]]).ack()
    assert waiting(queue) == (0, 0)
    assert queue.audit().findings == []


def test_the_popper_keeps_what_no_receipt_has_settled(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, *numbers(5))
    popper = queue.popper()
    messages = popper.pop(5)
    other = connect().queue("jobs")
    other.settle(messages[1].receipt).ack()
    other.settle(messages[3].receipt).release()
    popper.commit([messages[0], messages[1], messages[4]])
    assert payloads(other.popper().pop(5)) == [b"3"]
    popper.commit([messages[2]])
    assert waiting(queue) == (0, 1)
    with pytest.raises(ClaimLostError):
        popper.commit([messages[3]])
    assert popper.lost == 0
    assert queue.audit().findings == []


def test_a_claim_stays_though_a_receipt_settles_a_row_of_it_that_was_just_written(
    queue: cassq.Queue, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two rows with acks, one was changed by a receipt, so the popper writes again, and between
    these writes another receipt settles the rest of the other row."""
    push(queue, *numbers(8))
    popper = queue.popper()
    messages = popper.pop(8)
    other = connect().queue("jobs")
    other.settle(messages[3].receipt).release()
    popper.commit([messages[4]])  # now it knows of two rows: 0 to 2, and 5 to 7
    other.settle(messages[0].receipt).ack()

    claims = popper._catalog.claims
    write, written = claims.replace_many, 0

    def replace_many(*args: Any, **options: Any) -> list[bool]:
        nonlocal written
        written += 1
        done = write(*args, **options)
        if written == 1:
            other.settle([messages[6].receipt, messages[7].receipt]).ack()
        return done

    monkeypatch.setattr(claims, "replace_many", replace_many)
    popper.commit([messages[1], messages[5]])
    assert written == 2
    assert popper.lost == 0
    popper.commit([messages[2]])
    assert payloads(drain(other.popper())) == [b"3"]
    assert queue.audit().findings == []


@pytest.mark.parametrize("ending", ["dead", "purge"])
def test_an_ack_of_unknown_outcome_is_not_reported_as_done_if_others_settled_the_messages(
    queue: cassq.Queue, connect: Connect, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    push(queue, *numbers(3))
    popper = queue.popper()
    messages = popper.pop(3)
    claims = popper._catalog.claims

    def no_answer(*_: Any, **__: Any) -> list[bool]:
        raise BackendError("no answer came", outcome_unknown=True)

    with monkeypatch.context() as patch:
        patch.setattr(claims, "replace_many", no_answer)
        with pytest.raises(BackendError):
            popper.commit([messages[0]])
    other = connect().queue("jobs")
    if ending == "dead":
        other.settle([message.receipt for message in messages]).dead()
    else:
        other.purge(held=True)
    with pytest.raises(ClaimLostError):
        popper.commit([messages[0]])
    assert queue.stats().groups["default"].committed == 0


def test_an_ack_that_a_receipt_came_before_says_so_and_costs_no_other(
    queue: cassq.Queue, connect: Connect
) -> None:
    push(queue, *numbers(3))
    popper = queue.popper()
    messages = popper.pop(3)
    connect().queue("jobs").settle(messages[1].receipt).nack()
    with pytest.raises(ClaimLostError):
        popper.commit(messages)
    assert payloads(drain(queue.popper())) == [b"1"]


def test_a_receipt_of_an_earlier_delivery_changes_nothing(
    queue: cassq.Queue, connect: Connect
) -> None:
    push(queue, *numbers(2))
    popper = queue.popper()
    old = [message.receipt for message in popper.pop(2)]
    other = connect().queue("jobs")
    other.settle(old).release()
    again = popper.pop(2)
    assert [message.attempts for message in again] == [1, 1], "as if never delivered"
    settlement = other.settle(old)
    for verb in (
        settlement.ack,
        settlement.nack,
        settlement.release,
        settlement.dead,
        lambda: settlement.extend(0),
        lambda: settlement.extend(600),
    ):
        with pytest.raises(ReceiptError) as caught:
            verb()
        assert sorted(caught.value.receipts) == sorted(old)
    popper.commit(again)
    assert waiting(queue) == (0, 0)


def test_of_several_receipts_the_valid_ones_count(queue: cassq.Queue) -> None:
    push(queue, *numbers(4))
    popper = queue.popper()
    receipts = [message.receipt for message in popper.pop(4)]
    queue.settle(receipts[2]).ack()
    with pytest.raises(ReceiptError) as caught:
        queue.settle(receipts).ack()
    assert caught.value.receipts == (receipts[2],)
    assert waiting(queue) == (0, 0)


def test_a_failure_by_receipt_is_one_of_the_message(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, *numbers(2))
    popper = queue.popper()
    bad, worse = popper.pop(2)
    other = connect().queue("jobs")
    other.settle(bad.receipt).nack(delay=0, error=ValueError("no such user"))
    other.settle(worse.receipt).dead("broken")
    (again,) = popper.pop(2)
    assert (again.payload, again.attempts) == (b"0", 2)
    again.dead()
    popper.flush()
    letters = {letter.payload: letter.death for letter in queue.dead_letters().peek()}
    assert letters[b"1"]["error"] == "broken"
    assert letters.keys() == {b"0", b"1"}
    assert queue.audit().findings == []


def test_a_deadline_of_its_own_outlives_the_popper(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, *numbers(3))
    first = connect()
    popper = first.queue("jobs").popper()
    receipt = popper.pop(3)[1].receipt
    queue.settle(receipt).extend(600)
    first.close()
    others = queue.popper()
    for payload in (b"0", b"2"):
        (message,) = others.pop(1, wait=30)
        assert message.payload == payload
        others.commit([message])
    assert waiting(queue) == (0, 1)
    queue.settle(receipt).extend(1200)
    queue.settle(receipt).ack()
    assert waiting(queue) == (0, 0)
    assert queue.audit().findings == []


KILLED = """
import os, sys, cassq
popper = cassq.connect(sys.argv[1]).queue("jobs").popper()
print(*(message.receipt for message in popper.pop(3)), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_receipt_is_valid_after_its_popper_was_killed_and_every_client_closed(
    place: Place,
) -> None:
    """All that is left of the delivery is what its popper printed."""
    with cassq.connect(place.url) as first:
        push(first.create_queue("jobs", claim_timeout=600), *numbers(3))
    child = subprocess.run([sys.executable, "-c", KILLED, place.url], capture_output=True)
    acked, nacked, dead = child.stdout.decode().split()
    assert child.returncode == -9, child.stderr
    with cassq.connect(place.url) as client:
        queue = client.queue("jobs")
        queue.settle(acked).ack()
        queue.settle(nacked).nack(delay=0)
        queue.settle(dead).dead("by receipt")
        popper = queue.popper()
        (again,) = popper.pop(3)
        assert (again.payload, again.attempts) == (b"1", 2)
        for receipt in (acked, nacked, dead):
            with pytest.raises(ReceiptError):
                queue.settle(receipt).ack()
        popper.commit([again])
        assert waiting(queue) == (0, 0)
        (letter,) = queue.dead_letters().peek()
        assert letter.payload == b"2"
        assert queue.audit().findings == []


def test_rows_are_bounded_by_what_has_a_deadline_of_its_own(queue: cassq.Queue) -> None:
    """One for each such message, and one for what lies between two."""
    push(queue, *numbers(400))
    popper = queue.popper()
    messages, count = list(popper.pop(400)), 100
    assert len(messages) == 400
    queue.settle([message.receipt for message in messages[: 2 * count : 2]]).extend(3600)
    group, pipe_id = messages[0].group_id, messages[0].pipe_id
    rows = queue._ports.catalog.claims.rows
    assert count <= len(rows(group, pipe_id)) <= 2 * count + 1
    popper.commit(messages[1 : 2 * count : 2] + messages[2 * count :])
    assert len(rows(group, pipe_id)) <= 2 * count + 1
    queue.settle([message.receipt for message in messages[: 2 * count : 2]]).ack()
    assert rows(group, pipe_id) == []


def test_a_deadline_of_its_own_ends_though_the_popper_lives(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=600)
    push(queue, *numbers(3))
    popper = queue.popper()
    messages = popper.pop(3)
    receipt = messages[1].receipt
    queue.settle(receipt).extend(0.05)
    messages[0].extend(600)  # its popper extends the claim: not the one with a deadline of its own
    (again,) = eventually("it is delivered again", queue.popper().pop)
    assert (again.payload, again.attempts) == (b"1", 2)
    with pytest.raises(ReceiptError):
        queue.settle(receipt).ack()
    with pytest.raises(ClaimLostError):
        popper.commit(messages)
    again.ack()
    assert waiting(queue)[0] == 0


def test_the_deadline_of_one_leaves_its_neighbours_theirs(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=0.1)
    push(queue, *numbers(3))
    popper = queue.popper(keep_alive=0)
    receipts = [message.receipt for message in popper.pop(3)]
    queue.settle(receipts[0]).extend(600)
    ticks(120)
    found = eventually("the others come again", lambda: queue.popper(keep_alive=0).pop(3))
    assert set(payloads(found)) <= {b"1", b"2"}
    queue.settle(receipts[0]).ack()


def test_a_receipt_is_valid_past_the_deadline_until_another_has_the_message(
    client: cassq.Client,
) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=0.05)
    push(queue, b"x")
    receipt = queue.popper(keep_alive=0).pop()[0].receipt
    ticks(60)
    queue.settle(receipt).extend(600)
    assert not queue.popper().pop()
    queue.settle(receipt).ack()


def test_an_invalid_receipt_is_refused(client: cassq.Client, queue: cassq.Queue) -> None:
    push(queue, b"x")
    receipt = queue.popper().pop()[0].receipt
    for wrong in ("", "x", receipt[:-1], receipt + "A", receipt.swapcase(), "ü" * 40, 5, None):
        with pytest.raises(UsageError, match=r"receipt"):
            queue.settle(wrong)  # type: ignore[arg-type]
    other = client.create_queue("other")
    with pytest.raises(UsageError, match="does not belong to any group of queue 'other'"):
        other.settle(receipt).ack()
    for seconds in (-1, 12 * 3600 + 1, "5"):
        with pytest.raises(UsageError, match="seconds"):
            queue.settle(receipt).extend(seconds)  # type: ignore[arg-type]
    queue.settle([]).ack()
    assert waiting(queue) == (0, 1)


def test_messages_of_an_exclusive_group_have_no_receipts(client: cassq.Client) -> None:
    queue = client.create_queue("strict", consistency="cp")
    push(queue, b"x")
    (message,) = queue.popper().pop()
    with pytest.raises(UsageError, match="exclusive"):
        message.receipt  # noqa: B018


def test_poppers_and_receipts_settle_everything_once(client: cassq.Client) -> None:
    """At random, of claims of many messages, through the popper and by receipts in turn."""
    chance = random.Random(7)
    queue = client.create_queue("jobs", sick_check=False)
    push(queue, *numbers(200))
    popper = queue.popper()
    done: list[bytes] = []
    while messages := popper.pop(chance.randint(1, 40)):
        left = list(messages)
        chance.shuffle(left)
        for message in left:
            match chance.randint(0, 6):
                case 0:
                    queue.settle(message.receipt).release()
                    continue
                case 1:
                    queue.settle(message.receipt).extend(chance.choice([30, 600]))
                    queue.settle(message.receipt).ack()
                case 2 | 3:
                    queue.settle(message.receipt).ack()
                case 4:
                    message.release()
                    continue
                case _:
                    message.ack()
            done.append(message.payload)
    popper.close()
    assert sorted(done) == sorted(numbers(200))
    assert waiting(queue) == (0, 0)
    assert queue.audit().findings == []
    reap(client)
    assert queue.audit().balanced
