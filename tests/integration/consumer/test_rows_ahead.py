"""What the holder of a keyed group's lane claimed ahead, and gave to nobody: the next holder reads
of it what it needs, in order."""

from __future__ import annotations

import random
from itertools import count
from typing import Any, Literal

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.claiming.candidates import Readers
from cassq.consumer.keyed import lane
from cassq.consumer.keyed.take_over import FencedPipe, TakeOver
from cassq.errors import BackendUnavailableError, CassqError, CorruptionError
from cassq.extents.port import ExtentUnavailableError
from cassq.lifecycle.dead_keys import DeadKeys
from cassq.model.rows import Claim
from tests.integration.consumer.keyed_stage import (
    by_key,
    drained,
    pass_time,
    pipe_for_each,
    push,
    texts,
    with_all_claimed,
)
from tests.integration.places import Place
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

PIPES = 40


@pytest.fixture
def queue(timed: cassq.Client) -> cassq.Queue:
    """A queue with a strict order and a keyed group; each message is in a pipe of its own."""
    return pipe_for_each(timed, consistency="cp")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Claim]:
    """The rows whose messages were read as a lane was taken over."""
    found: list[Claim] = []
    segment = TakeOver.segment

    def counted(self: TakeOver, row: Claim) -> object:
        found.append(row)
        return segment(self, row)

    monkeypatch.setattr(TakeOver, "segment", counted)
    return found


def claimed_ahead(queue: cassq.Queue) -> list[str]:
    """Messages of two keys, all of which a popper claims before it leaves; it settles the first two
    only. Returns what is left, in order."""
    names = [f"{'ab'[number % 2]}{number:02}" for number in range(PIPES)]
    push(queue, names)
    popper, first = with_all_claimed(queue, 2)
    popper.commit(first)
    popper.close()
    return names[2:]


def test_a_holder_reads_only_what_it_needs(
    queue: cassq.Queue, read: list[Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 4)
    left = claimed_ahead(queue)
    popper = queue.popper("keyed")
    assert texts(popper.pop(1)) == left[:1]
    assert len(read) == 4
    popper.close()
    assert by_key(drained(queue.popper("keyed"))) == by_key(left)
    assert len(read) == 4 + len(left)


def test_what_was_claimed_ahead_comes_before_what_was_not(
    queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 1)
    left = claimed_ahead(queue)
    push(queue, ["a98", "b99"])
    assert by_key(drained(queue.popper("keyed"))) == by_key([*left, "a98", "b99"])
    assert queue.audit().findings == []


def test_what_failed_comes_again_though_others_of_its_pipe_are_still_ahead(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is known to the lane, which leaves the pipe out when it asks what is due."""
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 1)
    monkeypatch.setattr(lane, "ROW_MESSAGES", 1)
    queue = timed.create_queue("jobs", consistency="cp", sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", *(f"b{number}" for number in range(10)), "a2"])
    popper, (a1, b0) = with_all_claimed(queue, 2)
    queue.settle(b0.receipt).extend(5)
    a1.nack(delay=2)
    popper.close()
    popper = queue.popper("keyed")
    assert texts(popper.pop(10)) == []
    clock.advance(3)
    assert texts(popper.pop(10)) == ["a1"]
    clock.advance(3)
    assert texts(popper.pop(10)) == ["b0"]


def test_what_failed_holds_its_key_before_less_urgent_messages_that_were_claimed_ahead(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 1)
    queue = client.create_queue("jobs", sick_check=False)
    queue.create_group("keyed", order="key")
    with queue.pusher() as pusher:
        pusher.push(b"a-low", key=b"a")
        pusher.push(b"a-high", key=b"a", priority=9)
    popper = queue.popper("keyed")
    (high,) = popper.pop(1)
    assert high.payload == b"a-high"
    assert texts(popper.pop(1)) == [], "a-low is claimed, too"
    high.nack(delay=3600)
    popper.close()
    assert texts(queue.popper("keyed").pop(10)) == []


def test_what_others_removed_of_it_is_passed_over(
    queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the holder has begun, and before it has read that far."""
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 1)
    left = claimed_ahead(queue)
    popper = queue.popper("keyed")
    first = popper.pop(1)
    assert texts(first) == left[:1]
    assert queue.purge("keyed") == {"keyed": len(left) - 1}
    push(queue, ["a98", "b99"])
    popper.commit(first)
    assert drained(popper) == ["a98", "b99"]
    assert queue.audit().findings == []


def test_what_expired_of_it_is_passed_over_in_the_same_call(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 4)
    queue = expiring(timed, "cp")
    claimed_ahead(queue)
    clock.advance(61)
    push(queue, ["a98", "b99"])
    assert texts(queue.popper("keyed").pop(10)) == ["a98", "b99"]


def test_its_chain_goes_on_once_its_pipes_are_retired(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 1)
    queue = expiring(timed, "ap")
    with queue.pusher() as pusher:
        for number in range(PIPES):
            pusher.push(b"a%02d" % number, key=b"a")
        popper, first = with_all_claimed(queue)
        popper.commit(first)
        popper.close()
        popper = queue.popper("keyed", keep_alive=1000)
        first = popper.pop(1)
        assert texts(first) == ["a01"]
        before = len(list(queue.pipes()))
        pass_time(clock, popper, 70)
        for _ in range(5):
            timed.reap()
        assert len(list(queue.pipes())) < before - PIPES / 2
        pusher.push(b"a98", key=b"a")
        popper.commit(first)
        assert drained(popper) == ["a98"]


def expiring(client: cassq.Client, consistency: Literal["ap", "cp"]) -> cassq.Queue:
    """A queue whose messages expire after a minute, each in a pipe of its own."""
    return pipe_for_each(client, consistency=consistency, message_ttl=60)


def test_what_was_taken_and_cannot_be_opened_again_comes_again(
    queue: cassq.Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = claimed_ahead(queue)
    taken, get = TakeOver.taken, Readers.get
    opened = count()

    def get_after_all(self: Readers, pipe_id: str) -> object:
        if next(opened) == 2:
            raise ExtentUnavailableError("its sidecars are away", pipe_id=pipe_id)
        return get(self, pipe_id)

    def take(self: TakeOver, *given: Any) -> object:
        found = taken(self, *given)
        if found:
            monkeypatch.setattr(Readers, "get", get_after_all)
        return found

    monkeypatch.setattr(TakeOver, "taken", take)
    popper = queue.popper("keyed")
    with pytest.raises(ExtentUnavailableError):
        popper.pop(10)
    clock.advance(60)
    assert by_key(drained(popper)) == by_key(left)


def test_a_take_over_that_fails_halfway_begins_again(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what could not be reached before."""
    queue = pipe_for_each(timed)
    push(queue, ["a1", "a2", "a3", "a4"])
    popper, (first,) = with_all_claimed(queue)
    first.nack()
    popper.close()
    unsettled = TakeOver.unsettled
    errors: list[type[CassqError] | None] = [ExtentUnavailableError]

    def failing(self: TakeOver, fenced: FencedPipe, *, timed: bool) -> object:
        error = errors.pop(0) if errors else None
        if error is not None:
            raise error("away")
        return unsettled(self, fenced, timed=timed)

    monkeypatch.setattr(TakeOver, "unsettled", failing)
    popper = queue.popper("keyed")
    assert texts(popper.pop(1)) == []
    errors += [None, None, BackendUnavailableError]
    clock.advance(2)
    with pytest.raises(BackendUnavailableError):
        popper.pop(1)
    found: list[str] = []
    for _ in range(5):
        found += drained(popper)
        pass_time(clock, popper, 1)
    assert found == ["a1", "a2", "a3", "a4"]


def test_a_chain_that_is_adopted_later_waits_while_dead_letters_cannot_be_read(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = timed.create_queue("jobs", max_pushes_per_pipe=1, sick_check=False)
    queue.create_group("keyed", order="key", on_dead="hold")
    push(queue, ["a1", "a2"])
    popper = queue.popper("keyed")
    (first,) = popper.pop(1)
    first.nack(delay=100)
    popper.close()
    unsettled, look = TakeOver.unsettled, DeadKeys.look
    away: list[CassqError] = [ExtentUnavailableError("away")]
    busy: list[CassqError] = []

    def failing(self: TakeOver, fenced: FencedPipe, *, timed: bool) -> object:
        if away:
            raise away.pop()
        return unsettled(self, fenced, timed=timed)

    def looks(self: DeadKeys) -> object:
        if busy:
            raise busy.pop()
        return look(self)

    monkeypatch.setattr(TakeOver, "unsettled", failing)
    monkeypatch.setattr(DeadKeys, "look", looks)
    popper = queue.popper("keyed", keep_alive=1000)
    assert texts(popper.pop(1)) == []
    busy.append(BackendUnavailableError("busy"))
    clock.advance(2)
    with pytest.raises(BackendUnavailableError):
        popper.pop(1)
    assert [texts(popper.pop(1)) for _ in range(2)] == [[], []], "a1 holds its key"
    pass_time(clock, popper, 110)
    assert drained(popper) == ["a1", "a2"]


def test_a_popper_that_waits_beside_a_chain_that_is_held_up_rests(
    client: cassq.Client, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 1)
    queue = pipe_for_each(client)
    with queue.pusher() as pusher:
        for text in (b"a1", b"a-damaged", b"a3"):
            pusher.push(text, key=b"a")
        popper, first = with_all_claimed(queue)
        popper.commit(first)
        popper.close()
        place.damage(b"a-damaged")
        popper = queue.popper("keyed")
        with pytest.raises(CorruptionError):
            popper.pop(1)
        pusher.push(b"a4", key=b"a")
        takes = count()
        take = lane.Lane.take

        def counted(self: lane.Lane, limit: int) -> object:
            next(takes)
            return take(self, limit)

        monkeypatch.setattr(lane.Lane, "take", counted)
        assert texts(popper.pop(1, wait=1.0)) == []
        assert next(takes) < 50


def test_less_urgent_messages_that_were_claimed_ahead_get_their_share(client: cassq.Client) -> None:
    queue = pipe_for_each(client, priority_share=2)
    with queue.pusher() as pusher:
        for number in range(20):
            pusher.push(b"low %d" % number, key=b"low")
        popper, first = with_all_claimed(queue)
        popper.commit(first)
        popper.close()
        for number in range(100):
            pusher.push(b"urgent", key=b"%d" % number, priority=9)
    popper = queue.popper("keyed")
    found: list[str] = []
    for _ in range(20):
        messages = popper.pop(1)
        found += texts(messages)
        popper.commit(messages)
    assert len([text for text in found if text != "urgent"]) >= 5


def test_rows_of_one_push_count_its_bytes_once(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage, in which every other message failed: the rest are of a key that waits."""
    queue = timed.create_queue("jobs", sick_check=False, max_deliveries=100)
    queue.create_group("keyed", order="key")
    keys = [key for number in range(200) for key in (b"stuck", b"%d" % number)]
    keys += [b"free %d" % number for number in range(5)]
    payloads = [(b"o" if key.startswith(b"free") else b"x") + b"." * 99 for key in keys]
    with queue.pusher() as pusher:
        pusher.push_many(payloads, keys=keys)
    popper = queue.popper("keyed")
    for message in popper.pop(201):
        message.nack(delay=3600)
    popper.close()
    monkeypatch.setattr(lane, "LINE_BYTES_MAX", 20 * len(payloads) * 200)
    popper = queue.popper("keyed", keep_alive=1000)
    found: list[str] = []
    for _ in range(20):
        found += drained(popper)
        pass_time(clock, popper, 1)
    assert [text[0] for text in found] == ["o"] * 5


def test_what_others_have_in_hand_stays_theirs_once_a_chain_can_be_read_again(
    timed: cassq.Client, clock: ManualClock, place: Place
) -> None:
    queue = pipe_for_each(timed)
    with queue.pusher() as pusher:
        pusher.push(b"a-damaged", key=b"a")
        first = queue.popper("keyed")
        (damaged,) = first.pop(10)
        damaged.nack()
        first.close()
        pusher.push(b"a2", key=b"a")
        pusher.push(b"a3", key=b"a")
    pipe_id = place.damage(b"a-damaged")
    popper = queue.popper("keyed")
    with pytest.raises(CorruptionError):
        popper.pop(10)
    push(queue, ["b1"])
    (b1,) = popper.pop(10)
    queue.skip_damage(pipe_id)
    found: list[str] = []
    for _ in range(60):
        pass_time(clock, popper, 1)
        found += drained(popper)
    assert found == ["a2", "a3"]
    b1.ack()
    popper.flush()
    assert queue.audit().findings == []


def test_what_cannot_be_read_holds_up_its_pusher_and_no_other(
    client: cassq.Client, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 1)
    queue = pipe_for_each(client)
    pusher = queue.pusher()
    pusher.push_many([b"a1", b"a2", b"a-damaged", b"a3"], keys=[b"a"] * 4)
    push(queue, ["b1", "b2"])
    popper = queue.popper("keyed")
    first = popper.pop(2)
    assert sorted(texts(first)) == ["a1", "b1"]
    assert texts(popper.pop(1)) == [], "all are claimed to see that none is ready"
    popper.commit(first)
    popper.close()
    pusher.push(b"a4", key=b"a")
    pusher.close()
    damaged = place.damage(b"a-damaged")
    popper = queue.popper("keyed")
    found: list[str] = []
    reported = 0
    for _ in range(10):
        try:
            messages = popper.pop(1)
        except CorruptionError as exc:
            assert damaged in str(exc)
            reported += 1
            continue
        found += texts(messages)
        popper.commit(messages)
    assert (sorted(found), reported) == (["a2", "b2"], 1)


@pytest.mark.parametrize("seed", range(20))
def test_keys_stay_in_order_whoever_has_the_lane(
    queue: cassq.Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Poppers come and go, and settle messages in all ways; each time the next one finds a lot that
    was claimed ahead."""
    chance = random.Random(seed)
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", chance.choice((1, 3, 64)))
    names = [f"{chance.choice('abc')}{number:02}" for number in range(PIPES)]
    push(queue, names)
    acked: list[str] = []
    for _ in range(2000):
        popper = queue.popper("keyed", keep_alive=0)
        for _ in range(chance.randint(1, 4)):
            for message in popper.pop(chance.randint(1, 4)):
                match chance.randint(0, 5):
                    case 0:
                        message.nack(delay=chance.choice((0, 3)))
                    case 1:
                        queue.settle(message.receipt).extend(chance.randint(1, 40))
                    case 2:
                        queue.settle(message.receipt).release()
                    case _:
                        message.ack()
                        acked += texts([message])
            popper.flush()
            clock.advance(chance.choice((0.1, 1, 5)))
        popper.close()
        if len(acked) >= len(names):
            break
    for key in "abc":
        assert [each for each in acked if each[0] == key] == [n for n in names if n[0] == key]
    assert queue.audit().findings == []
