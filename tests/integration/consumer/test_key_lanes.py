"""Key lanes: poppers of several processes work for a keyed group at once, each for keys of its
own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.keyed import lane, lanes
from cassq.errors import BackendError, ClaimLostError, ConfigError, QueueExistsError
from cassq.model.scaling import key_lane_of
from tests.integration.consumer.keyed_stage import by_key, drained, push, texts
from tests.integration.places import Place
from tests.integration.stage import Connect
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

LANES = 4
# Letters, two of each lane.
KEYS = ["".join(c for c in "abcdefghijklmnopqrstuvwxyz" if key_lane_of(c.encode(), LANES) == n)[:2]
        for n in range(LANES)]  # fmt: skip


def made(client: cassq.Client, **settings: float) -> cassq.Queue:
    queue = client.create_queue("jobs", key_lanes=LANES, claim_timeout=30, **settings)  # type: ignore[arg-type]
    queue.create_group("keyed", order="key")
    return queue


@pytest.fixture
def queue(client: cassq.Client) -> cassq.Queue:
    return made(client)


def texts_of(*numbers: int) -> list[str]:
    """A text of each key and number, those of a key in order."""
    return [f"{key}{number}" for number in numbers for pair in KEYS for key in pair]


def keys_of(found: Iterable[str]) -> set[str]:
    return {text[0] for text in found}


def held(popper: cassq.Popper) -> int:
    """How many lanes a popper has."""
    assert popper.lanes is not None
    return sum(lane.is_held for lane in popper.lanes.lanes)


def pass_time(clock: ManualClock, poppers: Iterable[cassq.Popper], *clients: cassq.Client) -> None:
    """A second passes, in which poppers ask for nothing, and housekeepers do their work."""
    clock.advance(1.1)
    for client in clients:
        client.runtime.online().presence.maintain()
    for popper in poppers:
        popper.maintain()


# --- order --------------------------------------------------------------------------------------


def test_a_popper_alone_gets_everything_each_key_in_order(queue: cassq.Queue) -> None:
    push(queue, texts_of(*range(9)))
    found = by_key(drained(queue.popper("keyed")))
    assert found == {key: [f"{key}{n}" for n in range(9)] for pair in KEYS for key in pair}
    assert queue.audit().findings == []


def test_one_of_a_key_at_a_time(queue: cassq.Queue) -> None:
    push(queue, texts_of(1, 2))
    popper = queue.popper("keyed")
    first = popper.pop(100)
    assert sorted(texts(first)) == sorted(texts_of(1))
    assert not popper.pop(100)
    popper.commit(first)
    assert sorted(texts(popper.pop(100))) == sorted(texts_of(2))


def test_the_order_of_a_key_holds_over_pipes_and_pushes_of_every_kind(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", key_lanes=LANES, max_pushes_per_pipe=3)
    queue.create_group("keyed", order="key")
    keys = [key.encode() for pair in KEYS for key in pair]
    with queue.pusher() as pusher:
        pusher.push_many([key + b"0" for key in keys], keys=keys)
        for key in keys:
            pusher.push(key + b"1", key=key)
        futures = [pusher.push_soon(key + b"2", key=key) for key in keys]
        pusher.flush()
        assert all(future.done() for future in futures)
        pushes = [cassq.Push(key + b"3", key=key) for key in keys]
        assert not [each for each in pusher.push_each(pushes) if isinstance(each, Exception)]
        pusher.push_many([key + b"4" for key in keys], keys=keys)
    found = by_key(drained(queue.popper("keyed")))
    assert found == {key: [f"{key}{n}" for n in range(5)] for pair in KEYS for key in pair}


def test_a_failed_message_holds_its_key_and_no_other(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = made(timed, retry_schedule=(5,), sick_check=False)
    push(queue, texts_of(1, 2))
    popper = queue.popper("keyed")
    first = popper.pop(100)
    first[0].nack()
    popper.commit(first[1:])
    key = first[0].payload[:1].decode()
    assert key not in keys_of(drained(popper))
    clock.advance(6)
    (again,) = popper.pop(100)
    assert (again.payload, again.attempts) == (first[0].payload, 2)
    popper.commit([again])
    assert drained(popper) == [f"{key}2"]


def test_a_delayed_message_comes_once_to_the_holder_of_its_lane(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = made(timed)
    push(queue, texts_of(1), delay=10)
    poppers = [queue.popper("keyed"), queue.popper("keyed")]
    assert not any(popper.pop(100) for popper in poppers)
    clock.advance(11)
    found = [texts(popper.pop(100)) for popper in poppers]
    assert sorted(found[0] + found[1]) == sorted(texts_of(1))
    assert not keys_of(found[0]) & keys_of(found[1])


def test_messages_without_a_key_are_spread_over_the_lanes(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        ids = [pusher.push(b"x") for _ in range(2 * LANES)]
    assert len({id.rpartition(":")[0] for id in ids}) == LANES
    assert len(drained(queue.popper("keyed"))) == 2 * LANES


def test_a_group_without_order_gets_everything_too(queue: cassq.Queue) -> None:
    push(queue, texts_of(1, 2))
    assert sorted(drained(queue.popper())) == sorted(texts_of(1, 2))


def test_dead_letters_come_back_in_their_lanes(queue: cassq.Queue) -> None:
    push(queue, texts_of(1, 2))
    popper = queue.popper("keyed")
    for message in popper.pop(100):
        message.dead("bad")
    popper.flush()
    assert sorted(drained(popper)) == sorted(texts_of(2))
    letters = queue.dead_letters("keyed")
    assert letters.merge().messages == 2 * LANES
    first = popper.pop(100)
    assert sorted(texts(first)) == sorted(texts_of(1))
    pipes = {message.payload[:1]: message.id for message in first}
    assert len(pipes) == 2 * LANES
    popper.commit(first)
    assert queue.audit().findings == []


# --- side by side -------------------------------------------------------------------------------


def test_poppers_work_side_by_side_for_keys_of_their_own(
    queue: cassq.Queue, connect: Connect
) -> None:
    push(queue, texts_of(1, 2))
    mine, theirs = queue.popper("keyed"), connect().queue("jobs").popper("keyed")
    first = mine.pop(1)
    (key,) = keys_of(texts(first))
    rest = texts(theirs.pop(100))
    pair = next(pair for pair in KEYS if key in pair)
    assert keys_of(rest) == {each for other in KEYS if other != pair for each in other}
    mine.commit(first)
    assert keys_of(drained(mine)) == set(pair)


def test_a_popper_that_comes_later_gets_a_fair_share(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = made(timed)
    push(queue, texts_of(*range(20)))
    first, second = queue.popper("keyed"), queue.popper("keyed")
    first.commit(first.pop(100))
    assert held(first) == LANES
    assert not second.pop(100)
    for _ in range(20):
        pass_time(clock, [first, second], timed)
        for popper in (second, first):
            popper.commit(popper.pop(1))
        if held(first) == held(second) == LANES // 2:
            break
    assert (held(first), held(second)) == (LANES // 2, LANES // 2)
    mine, theirs = texts(first.pop(100)), texts(second.pop(100))
    assert len(mine) == len(theirs) == LANES
    assert not keys_of(mine) & keys_of(theirs)


def test_a_lane_with_messages_in_hand_is_given_up_once_they_are_settled(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = made(timed)
    push(queue, texts_of(*range(9)))
    first, second = queue.popper("keyed"), queue.popper("keyed")
    messages = first.pop(100)
    assert len(messages) == 2 * LANES
    for _ in range(3):
        pass_time(clock, [first, second], timed)
        assert not second.pop(100)
        first.pop(1)
    assert held(first) == LANES
    first.commit(messages)
    pass_time(clock, [first], timed)
    found = texts(second.pop(100))
    assert len(keys_of(found)) == 2
    assert {text[1:] for text in found} == {"1"}, "in the order of each key"


def test_unused_lanes_go_to_busy_poppers(timed: cassq.Client, clock: ManualClock) -> None:
    queue = made(timed)
    push(queue, texts_of(*range(9)))
    first, second = queue.popper("keyed"), queue.popper("keyed")
    first.commit(first.pop(1))
    second.commit(second.pop(100))
    assert held(first) == 1
    second.close()
    for _ in range(LANES):
        clock.advance(lanes.BUSY_MS / 1000)
        first.commit(first.pop(1))  # there is always something in the lane that it has
    assert held(first) == LANES


def test_a_popper_that_takes_nothing_leaves_its_lanes(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = made(timed)
    push(queue, texts_of(1, 2))
    first, second = queue.popper("keyed"), queue.popper("keyed")
    first.commit(first.pop(100))
    assert held(first) == LANES
    clock.advance(lane.IDLE_MS / 1000 + 1)
    first.maintain()
    assert held(first) == 0
    assert sorted(texts(second.pop(100))) == sorted(texts_of(2))


def test_a_closed_popper_gives_back_what_it_had_of_all_lanes(
    queue: cassq.Queue, connect: Connect
) -> None:
    push(queue, texts_of(1))
    first = queue.popper("keyed")
    assert len(first.pop(100)) == 2 * LANES
    first.close()
    found = connect().queue("jobs").popper("keyed").pop(100)
    assert sorted(texts(found)) == sorted(texts_of(1))
    assert {message.attempts for message in found} == {2}


KILLED = """
import os, sys, cassq
queue = cassq.connect(sys.argv[1]).queue("jobs")
popper = queue.popper("keyed")
messages = popper.pop(3)
popper.commit(messages[:1])
print(*(message.payload.decode() for message in messages), flush=True)
os.kill(os.getpid(), 9)
"""


def test_attempts_are_exact_after_a_kill(client: cassq.Client, place: Place) -> None:
    queue = client.create_queue("jobs", key_lanes=LANES, claim_timeout=1, sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, texts_of(1, 2))
    child = subprocess.run(
        [sys.executable, "-c", KILLED, place.url], capture_output=True, text=True, check=False
    )
    done, *lost = child.stdout.split()
    assert len(lost) == 2, child.stderr
    popper = queue.popper("keyed")
    found: dict[str, int] = {}
    while len(found) < 4 * LANES - 1:
        messages = popper.pop(100, wait=30)
        found |= {message.payload.decode(): message.attempts for message in messages}
        popper.commit(messages)
    assert done not in found
    assert found == {text: 2 if text in lost else 1 for text in texts_of(1, 2) if text != done}
    assert queue.audit().findings == []


def test_lanes_that_lapsed_are_taken_over_and_acks_are_refused(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = made(timed, sick_check=False)
    push(queue, texts_of(1))
    stalled, popper = queue.popper("keyed"), queue.popper("keyed")
    first = stalled.pop(100)
    assert not popper.pop(100)
    clock.advance(lane.HELD_FOR * 30 + 1)
    found = popper.pop(100)
    assert sorted(texts(found)) == sorted(texts_of(1))
    with pytest.raises(ClaimLostError):
        stalled.commit(first)
    popper.commit(found)


def test_a_receipt_lets_a_key_go_on_whichever_popper_has_its_lane(
    queue: cassq.Queue, connect: Connect
) -> None:
    push(queue, texts_of(1, 2))
    popper = queue.popper("keyed")
    receipts = [message.receipt for message in popper.pop(100)]
    other = connect().queue("jobs")
    other.settle(receipts).ack()
    found: list[str] = []
    while len(found) < 2 * LANES:
        found += texts(popper.pop(100, wait=30))
    assert sorted(found) == sorted(texts_of(2))


def fail_at_the_third_lane(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The third lane that is taken from fails, once."""
    take, calls = lane.Lane.take, list[int]()

    def failing(self: lane.Lane, limit: int) -> cassq.Messages:
        calls.append(limit)
        if len(calls) == 3:
            raise error
        return take(self, limit)

    monkeypatch.setattr(lane.Lane, "take", failing)


def test_an_interrupt_between_two_lanes_leaves_what_was_taken_to_the_next_pop(
    queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(queue, texts_of(1))
    popper = queue.popper("keyed")
    fail_at_the_third_lane(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        popper.pop(100)
    found = popper.pop(100)
    assert sorted(texts(found)) == sorted(texts_of(1))
    assert {message.attempts for message in found} == {1}


def test_an_error_in_one_lane_comes_after_what_others_had(
    queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(queue, texts_of(1))
    popper = queue.popper("keyed")
    fail_at_the_third_lane(monkeypatch, BackendError("the disk is gone"))
    found = texts(popper.pop(100))
    assert len(found) == 4
    with pytest.raises(BackendError, match="the disk is gone"):
        popper.pop(100)
    found += texts(popper.pop(100))
    assert sorted(found) == sorted(texts_of(1))


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 65, "4", True, 1.5])
def test_an_invalid_number_of_lanes_is_refused(client: cassq.Client, count: object) -> None:
    with pytest.raises(ConfigError, match="key_lanes"):
        client.create_queue("jobs", key_lanes=count)  # type: ignore[arg-type]


def test_a_cp_queue_has_one_lane(client: cassq.Client) -> None:
    with pytest.raises(ConfigError, match="key_lanes is 4, but a cp queue has one order"):
        client.create_queue("jobs", consistency="cp", key_lanes=4)


def test_the_number_of_lanes_cannot_be_changed(queue: cassq.Queue) -> None:
    with pytest.raises(ConfigError, match="key_lanes cannot be changed"):
        queue.update(key_lanes=2)
    assert queue.policy.key_lanes == LANES


def test_a_queue_made_again_with_other_lanes_is_refused_with_what_to_do(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    with pytest.raises(QueueExistsError, match=f"key_lanes is {LANES}, not 8") as caught:
        client.create_queue("jobs", key_lanes=8)
    hint = "key_lanes cannot be changed: create another queue under another name"
    assert caught.value.hint == hint
    with pytest.raises(QueueExistsError) as caught:
        client.create_queue("jobs", consistency="cp")
    assert caught.value.hint == f"consistency and {hint}"
    assert queue.policy.key_lanes == LANES
