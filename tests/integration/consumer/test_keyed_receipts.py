"""Receipts of keyed groups: the key waits for a message that another process settles, or dates."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.client.settlement import Settlement
from cassq.consumer.delivery import Message
from cassq.consumer.keyed.elsewhere import LOOK_MS
from cassq.errors import ClaimLostError, ReceiptError
from cassq.model.rows import Claim
from tests.integration.consumer.keyed_stage import counts, drained, keyed, pass_time, push, texts
from tests.integration.deadlines import eventually, in_threads
from tests.integration.places import Place
from tests.integration.stage import Connect, alone
from tests.integration.timed import clock, timed

__all__ = ["clock", "keyed", "timed"]

Settle = Callable[[cassq.Queue, str], None]


@pytest.fixture
def strict(timed: cassq.Client) -> cassq.Queue:
    """A queue with one strict order, and a group in the order of its keys."""
    queue = timed.create_queue("jobs", consistency="cp", sick_check=False)
    queue.create_group("keyed", order="key")
    return queue


def seen(clock: ManualClock, popper: cassq.Popper) -> list[str]:
    """What comes once the popper has looked for what receipts did."""
    clock.advance(LOOK_MS * 5 / 1000)
    return texts(popper.pop(10))


# --- settling -----------------------------------------------------------------------------------


def test_a_key_goes_on_as_soon_as_another_client_has_acked(
    keyed: cassq.Queue, connect: Connect
) -> None:
    push(keyed, ["a1", "b1", "a2", "a3"])
    popper = keyed.popper("keyed")
    a1, b1 = popper.pop(10)
    other = connect().queue("jobs")
    waiting: list[Message] = []

    def act(number: int) -> None:
        if number:
            waiting.extend(popper.pop(10, wait=60))
        else:
            other.settle(a1.receipt).ack()

    in_threads(2, act)
    assert texts(waiting) == ["a2"]
    b1.ack()
    popper.commit(waiting)
    assert drained(popper) == ["a3"]
    assert counts(keyed) == (0, 4, 0)
    assert keyed.audit().findings == []


def test_a_key_goes_on_though_its_consumers_always_find_others(
    strict: cassq.Queue, clock: ManualClock
) -> None:
    push(strict, ["a1", "a2", *(f"-{number}" for number in range(50))])
    popper = strict.popper("keyed")
    (a1,) = popper.pop(1)
    receipt = a1.receipt
    strict.settle(receipt).extend(600)
    popper.pop(1)
    strict.settle(receipt).ack()
    clock.advance(1)
    popper.pop(1)
    assert texts(popper.pop(60))[-1] == "a2", "it is ready, behind those that were before"


def failed(queue: cassq.Queue, receipt: str) -> None:
    queue.settle(receipt).nack(delay=3)


def released(queue: cassq.Queue, receipt: str) -> None:
    queue.settle(receipt).release()


def extended(queue: cassq.Queue, receipt: str) -> None:
    queue.settle(receipt).extend(3)


@pytest.mark.parametrize(
    ("settle", "seconds", "attempts"),
    [(failed, 3, 2), (released, 0, 1), (extended, 3, 2)],
)
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_what_comes_again_comes_before_the_next_of_its_key(
    strict: cassq.Queue,
    clock: ManualClock,
    settle: Settle,
    seconds: int,
    attempts: int,
    known: bool,
) -> None:
    """Whether its popper looks before it is due, or not."""
    push(strict, ["a1", "a2", "b1"])
    popper = strict.popper("keyed")
    a1, b1 = popper.pop(10)
    settle(strict, a1.receipt)
    if known and seconds:
        assert seen(clock, popper) == []
        pass_time(clock, popper, 1)
        assert texts(popper.pop(10)) == []
    clock.advance(seconds + 1)
    (again,) = popper.pop(10)
    assert (again.payload, again.attempts) == (b"a1", attempts)
    with pytest.raises(ClaimLostError):
        popper.commit([a1])
    popper.commit([b1, again])
    assert drained(popper) == ["a2"]
    assert counts(strict) == (0, 3, 0)
    assert strict.audit().findings == []


def test_what_failed_and_is_due_is_not_taken_for_another_message(
    strict: cassq.Queue, clock: ManualClock
) -> None:
    """Its row is found among those that are due, before its popper looks what receipts did."""
    push(strict, ["a1", "a2", "b1", "c1", "d1"])
    popper = strict.popper("keyed")
    receipt = popper.pop(1)[0].receipt
    assert texts(popper.pop(1)) == ["b1"]
    strict.settle(receipt).nack(delay=0)
    clock.advance((LOOK_MS - 5) / 1000)
    assert texts(popper.pop(1)) == ["c1"]
    clock.advance(1)
    found = popper.pop(2)
    assert {(m.payload, m.attempts) for m in found} == {(b"a1", 2), (b"d1", 1)}
    popper.commit(found)
    assert drained(popper) == ["a2"]


@pytest.mark.parametrize("on_dead", ["continue", "hold"])
@pytest.mark.parametrize("dated", [False, True], ids=["in hand", "dated"])
def test_a_dead_letter_by_receipt_holds_its_key_or_lets_it_go_on(
    timed: cassq.Client, clock: ManualClock, on_dead: str, dated: bool
) -> None:
    queue = timed.create_queue("jobs", sick_check=False)
    queue.create_group("keyed", order="key", on_dead=on_dead)  # type: ignore[arg-type]
    push(queue, ["a1", "a2", "b1"])
    popper = queue.popper("keyed")
    a1, b1 = popper.pop(10)
    receipt = a1.receipt
    if dated:
        queue.settle(receipt).extend(600)
        assert seen(clock, popper) == []
    queue.settle(receipt).dead("no good")
    (letter,) = queue.dead_letters("keyed").peek()
    assert letter.payload == b"a1"
    popper.commit([b1])
    clock.advance(1)
    assert texts(popper.pop(10)) == ([] if on_dead == "hold" else ["a2"])
    if on_dead == "hold":
        assert queue.release_key("keyed", b"a") == 1
        clock.advance(1)
        assert texts(popper.pop(10)) == ["a2"]


def test_a_receipt_of_an_earlier_delivery_changes_nothing(
    strict: cassq.Queue, clock: ManualClock
) -> None:
    push(strict, ["a1", "a2"])
    popper = strict.popper("keyed")
    old: list[str] = []
    for give in (Message.release, Message.nack, Message.release):
        (message,) = popper.pop(10)
        old.append(message.receipt)
        give(message)
    (message,) = popper.pop(10)
    assert message.attempts == 2
    assert message.receipt not in old
    settlement = strict.settle(old)
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
    assert seen(clock, popper) == []
    strict.settle(message.receipt).ack()
    assert seen(clock, popper) == ["a2"]


def test_of_several_receipts_the_valid_ones_count(strict: cassq.Queue, clock: ManualClock) -> None:
    push(strict, ["a1", "b1", "c1", "a2", "b2", "c2"])
    popper = strict.popper("keyed")
    receipts = [message.receipt for message in popper.pop(10)]
    strict.settle(receipts[1]).ack()
    with pytest.raises(ReceiptError) as caught:
        strict.settle(receipts).ack()
    assert caught.value.receipts == (receipts[1],)
    assert seen(clock, popper) == ["a2", "b2", "c2"]


def test_what_is_not_in_hand_has_no_receipt(strict: cassq.Queue) -> None:
    push(strict, ["a1", "b1"])
    popper = strict.popper("keyed")
    a1, b1 = popper.pop(10)
    popper.commit([a1])
    for message in (a1, b1):
        if message is b1:
            popper.close()
        with pytest.raises(ClaimLostError):
            _ = message.receipt


def test_an_ack_of_the_popper_does_not_count_once_the_message_has_a_deadline(
    strict: cassq.Queue, clock: ManualClock
) -> None:
    """Nor does its key go on by that."""
    push(strict, ["a1", "a2", "b1", "b2"])
    popper = strict.popper("keyed")
    a1, b1 = popper.pop(10)
    receipt = a1.receipt
    strict.settle(receipt).extend(600)
    a1.ack()
    b1.ack()
    assert texts(popper.pop(10)) == ["b2"]
    assert seen(clock, popper) == []
    strict.settle(receipt).ack()
    assert seen(clock, popper) == ["a2"]


def test_both_may_ack(strict: cassq.Queue, clock: ManualClock) -> None:
    push(strict, ["a1", "a2", "b1"])
    popper = strict.popper("keyed")
    a1, b1 = popper.pop(10)
    receipt = a1.receipt
    a1.ack()
    strict.settle(receipt).ack()
    assert texts(popper.pop(10)) == ["a2"]
    popper.commit([b1])
    assert popper.lost == 0
    assert counts(strict) == (1, 2, 0)


# --- take-overs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["acked", "expired"])
def test_the_key_stays_busy_until_the_deadline_whichever_popper_has_the_lane(
    strict: cassq.Queue, clock: ManualClock, end: str
) -> None:
    push(strict, ["a1", "a2", "b1", "b2"])
    first = strict.popper("keyed")
    a1, _ = first.pop(10)
    receipt = a1.receipt
    strict.settle(receipt).extend(3600)
    first.close()
    popper = strict.popper("keyed")
    assert drained(popper) == ["b1", "b2"]
    pass_time(clock, popper, 10)
    assert texts(popper.pop(10)) == []
    popper.close()
    popper = strict.popper("keyed")
    assert texts(popper.pop(10)) == []
    if end == "acked":
        strict.settle(receipt).extend(7200)
        assert seen(clock, popper) == []
        strict.settle(receipt).ack()
        assert seen(clock, popper) == ["a2"]
        return
    clock.advance(3600)
    (again,) = popper.pop(10)
    assert (again.payload, again.attempts) == (b"a1", 2)
    with pytest.raises(ReceiptError):
        strict.settle(receipt).ack()
    popper.commit([again])
    assert drained(popper) == ["a2"]
    assert strict.audit().findings == []


def test_a_key_waits_for_a_message_whose_deadline_ends_as_the_lane_is_taken_over(
    timed: cassq.Client, strict: cassq.Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder of the lane reads the rows of many pipes, and then their messages: meanwhile the
    deadline of one may end."""
    push(strict, ["a1", "a2", "b1"])
    first = strict.popper("keyed")
    a1, _ = first.pop(10)
    strict.settle(a1.receipt).extend(3600)
    first.close()
    clock.advance(3599.5)
    claims = timed.runtime.ports.catalog.claims
    read = claims.rows_in

    def read_slowly(group_id: str, pipe_ids: Sequence[str]) -> list[list[Claim]]:
        rows = read(group_id, pipe_ids)
        clock.advance(1)
        return rows

    monkeypatch.setattr(claims, "rows_in", read_slowly)
    popper = strict.popper("keyed")
    found = popper.pop(10)
    assert texts(found) == ["a1", "b1"]
    popper.commit(found)
    assert texts(popper.pop(10)) == ["a2"]


KILLED = """
import os, sys, cassq
queue = cassq.connect(sys.argv[1]).queue("jobs")
messages = queue.popper("keyed").pop(3)
receipts = [message.receipt for message in messages]
queue.settle(receipts[:2]).extend(3600)
print(*receipts, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_deadline_outlives_a_killed_process(
    client: cassq.Client, connect: Connect, place: Place
) -> None:
    """What it had without one comes again, and everything else goes on all the time."""
    queue = client.create_queue("jobs", claim_timeout=1, sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "b1", "c1", "d1", "a2", "b2", "c2", "d2"])
    child = subprocess.run([sys.executable, "-c", KILLED, place.url], capture_output=True)
    assert child.returncode == -9, child.stderr
    receipts = child.stdout.decode().split()
    popper, found = queue.popper("keyed"), dict[str, int]()
    while len(found) < 4:
        messages = popper.pop(10, wait=60)
        found |= {message.payload.decode(): message.attempts for message in messages}
        popper.commit(messages)
    assert found == {"c1": 2, "d1": 1, "c2": 1, "d2": 1}
    connect().queue("jobs").settle(receipts[0]).ack()
    with pytest.raises(ReceiptError):
        connect().queue("jobs").settle(receipts[2]).ack()
    (a2,) = eventually("its key goes on", lambda: popper.pop(10, wait=1))
    assert (a2.payload, a2.attempts) == (b"a2", 1)
    assert not popper.pop(10), "b1 has its deadline"
    popper.commit([a2])
    queue.settle(receipts[1]).dead()
    assert texts(eventually("its key goes on", lambda: popper.pop(10, wait=1))) == ["b2"]


# --- limits and shares --------------------------------------------------------------------------


def test_a_message_with_a_deadline_counts_as_one_of_its_key(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", sick_check=False)
    queue.create_group("keyed", limit_per_key=2)
    push(queue, ["a1", "a2", "a3", "a4", "b1"])
    first = queue.popper("keyed")
    receipts = [message.receipt for message in first.pop(3)]
    queue.settle(receipts).extend(20)
    assert seen(clock, first) == []
    first.close()
    popper = queue.popper("keyed")
    assert texts(popper.pop(10)) == []
    queue.settle(receipts[1]).ack()
    assert seen(clock, popper) == ["a3"]
    queue.settle(receipts[0]).nack(delay=5)
    assert seen(clock, popper) == ["a4"], "a message that failed makes room"
    clock.advance(20)
    (again,) = popper.pop(10)
    assert (again.payload, again.attempts) == (b"b1", 2), "a1 waits for one of its key"


def test_a_fair_group_counts_what_has_a_deadline(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", fair=True)
    push(queue, [f"a{number}" for number in range(8)])
    first = queue.popper("keyed")
    queue.settle([message.receipt for message in first.pop(4)]).extend(3600)
    first.close()
    push(queue, ["b1", "b2"])
    popper = queue.popper("keyed")
    assert texts(popper.pop(3)) == ["b1", "b2", "a4"]


def test_a_deadline_counts_as_long_as_the_popper_is_open(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key", concurrency=2)
    push(queue, ["a1", "b1", "c1"])
    popper = queue.popper("keyed")
    queue.settle([message.receipt for message in popper.pop(10)]).extend(3600)
    assert seen(clock, popper) == []
    clock.advance(5)
    popper.maintain()
    assert texts(popper.pop(10)) == []
    popper.close()
    assert texts(queue.popper("keyed").pop(10)) == ["c1"]


# --- others who remove what is there -----------------------------------------------------------


def test_a_purge_of_what_is_held_ends_a_deadline(strict: cassq.Queue, clock: ManualClock) -> None:
    push(strict, ["a1", "b1"])
    popper = strict.popper("keyed")
    receipt = popper.pop(1)[0].receipt
    strict.settle(receipt).extend(3600)
    assert strict.purge("keyed") == {"keyed": 0}
    assert strict.purge("keyed", held=True) == {"keyed": 2}
    with pytest.raises(ReceiptError):
        strict.settle(receipt).ack()
    push(strict, ["a2"])
    clock.advance(1)
    assert eventually("its key goes on", lambda: texts(popper.pop(10))) == ["a2"]
    assert strict.audit().findings == []


def test_rows_are_bounded_by_what_is_out(strict: cassq.Queue) -> None:
    """One for each message with a deadline, and one for what lies between two."""
    push(strict, [f"{chr(0x100 + number)}1" for number in range(400)])
    popper = strict.popper("keyed")
    messages = list(popper.pop(400))
    ports, count = strict._ports, 100
    strict.settle([message.receipt for message in messages[: 2 * count : 2]]).extend(3600)
    group, pipe_id = messages[0].group_id, messages[0].pipe_id
    assert len(ports.catalog.claims.rows(group, pipe_id)) <= 2 * count + 1
    popper.commit(messages[1 : 2 * count : 2] + messages[2 * count :])
    strict.settle([message.receipt for message in messages[:0]]).ack()
    assert len(ports.catalog.claims.rows(group, pipe_id)) <= 2 * count + 1


def test_poppers_and_receipts_settle_everything_once_in_the_order_of_keys(
    client: cassq.Client,
) -> None:
    """At random, through the popper and by receipts in turn, by poppers one after another."""
    alone(client)
    chance = random.Random(7)
    queue = client.create_queue("jobs", sick_check=False, consistency="cp")
    queue.create_group("keyed", order="key")
    push(queue, [f"{'abcdef'[number % 6]}{number:03}" for number in range(120)])
    popper, done = queue.popper("keyed"), defaultdict[str, list[str]](list)
    dated: list[tuple[str, Settlement]] = []
    while sum(map(len, done.values())) < 120:
        for message in popper.pop(chance.randint(1, 6)):
            text = message.payload.decode()
            match chance.randint(0, 6):
                case 0:
                    queue.settle(message.receipt).release()
                    continue
                case 1:
                    dated.append((text, queue.settle(message.receipt)))
                    dated[-1][1].extend(600)
                    continue
                case 2 | 3:
                    queue.settle(message.receipt).ack()
                case 4:
                    message.release()
                    continue
                case _:
                    message.ack()
            done[text[0]].append(text)
        if dated and chance.random() < 0.5:
            text, settlement = dated.pop()
            settlement.ack()
            done[text[0]].append(text)
        if chance.random() < 0.1:
            popper.close()
            popper = queue.popper("keyed")
    popper.close()
    assert all(found == sorted(found) for found in done.values())
    assert counts(queue) == (0, 120, 0)
    assert queue.audit().findings == []
