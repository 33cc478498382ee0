"""Reserving: a popper that takes one message after another has claimed the next one already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.claiming.reserving import ALONE_MS, DUE_MS
from cassq.consumer.delivery import TURN_MS
from cassq.errors import BackendTimeoutError, ClaimLostError
from tests.integration.places import Place
from tests.integration.stage import numbers, payloads, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

TURN_SECONDS = 0.01


class Writes:
    """Counts a client's conditional writes of claims and acks, and has some fail."""

    def __init__(self, client: cassq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.unanswered = False  # the next one has an effect, but no answer
        claims = client.ports.catalog.claims
        monkeypatch.setattr(claims, "reserves", True)
        for name in ("claim", "replace_many", "fence"):
            monkeypatch.setattr(claims, name, self._counting(getattr(claims, name)))

    def _counting(self, write: Any) -> Any:
        def counted(*args: Any, **more: Any) -> Any:
            self.count += 1
            done = write(*args, **more)
            if self.unanswered:
                self.unanswered = False
                raise BackendTimeoutError("no answer", outcome_unknown=True)
            return done

        return counted


@pytest.fixture
def writes(timed: cassq.Client, monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(timed, monkeypatch)


@pytest.fixture
def queue(timed: cassq.Client, writes: Writes) -> cassq.Queue:
    return timed.create_queue("jobs", claim_timeout=30)


@pytest.fixture
def pusher(queue: cassq.Queue) -> Iterator[cassq.Pusher]:
    with queue.pusher() as made:
        yield made


@pytest.fixture
def popper(queue: cassq.Queue) -> cassq.Popper:
    return queue.popper()


@pytest.fixture
def another(
    place: Place, clock: ManualClock, queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> Iterator[cassq.Popper]:
    """A popper of another client, as another process has it."""
    with cassq.Client(place.url, place.open(clock), clock) as client:
        client.runtime.housekeeper.stop()
        monkeypatch.setattr(client.ports.catalog.claims, "reserves", True)
        yield client.queue("jobs").popper()


def turns(
    pusher: cassq.Pusher, popper: cassq.Popper, clock: ManualClock, *sent: bytes
) -> list[bytes]:
    """Push one, pop it, commit it, and the next; what was popped."""
    done: list[bytes] = []
    for each in sent:
        pusher.push(each)
        messages = popper.pop()
        clock.advance(TURN_SECONDS)
        popper.commit(messages)
        done += payloads(messages)
    return done


def test_a_message_in_turn_takes_one_conditional_write(
    pusher: cassq.Pusher, popper: cassq.Popper, clock: ManualClock, writes: Writes
) -> None:
    turns(pusher, popper, clock, *numbers(3))  # it is known to come soon again
    for number in range(5):
        before = writes.count
        assert turns(pusher, popper, clock, b"%d" % number) == [b"%d" % number]
        assert writes.count == before + 1


def test_a_reserved_message_that_is_no_longer_wanted_is_given_back(
    queue: cassq.Queue, pusher: cassq.Pusher, popper: cassq.Popper, another: cassq.Popper,
    clock: ManualClock,
) -> None:  # fmt: skip
    turns(pusher, popper, clock, *numbers(4))
    assert popper._claimer.reserving.held is not None
    pusher.push(b"next")
    assert not another.pop()
    clock.advance(TURN_MS / 1000)
    popper.maintain()
    (message,) = another.pop()
    assert (message.payload, message.attempts) == (b"next", 1)


def test_a_popper_that_comes_seldom_reserves_nothing(
    pusher: cassq.Pusher, popper: cassq.Popper, clock: ManualClock
) -> None:
    for number in range(5):
        turns(pusher, popper, clock, b"%d" % number)
        assert popper._claimer.reserving.held is None
        clock.advance(2 * TURN_MS / 1000)


def test_others_claim_what_follows_the_reserved_message(
    queue: cassq.Queue, pusher: cassq.Pusher, popper: cassq.Popper, another: cassq.Popper,
    clock: ManualClock,
) -> None:  # fmt: skip
    turns(pusher, popper, clock, *numbers(4))
    pusher.push_many([b"mine", b"other", b"more"])
    assert payloads(another.pop(2)) == [b"other", b"more"]
    (message,) = popper.pop()
    assert message.payload == b"mine"
    popper.commit([message])
    assert queue.stats().groups["default"].pending == 2


def test_a_popper_that_met_another_reserves_nothing_for_a_while(
    pusher: cassq.Pusher, popper: cassq.Popper, another: cassq.Popper, clock: ManualClock
) -> None:
    turns(pusher, popper, clock, *numbers(4))
    pusher.push_many([b"mine", b"other"])
    another.commit(another.pop())
    popper.commit(popper.pop())
    turns(pusher, popper, clock, *numbers(3))
    assert popper._claimer.reserving.held is None
    clock.advance(ALONE_MS / 1000)
    turns(pusher, popper, clock, *numbers(3))
    assert popper._claimer.reserving.held is not None


def test_what_a_dead_popper_had_reserved_comes_when_that_expires(
    pusher: cassq.Pusher, popper: cassq.Popper, another: cassq.Popper, clock: ManualClock
) -> None:
    turns(pusher, popper, clock, *numbers(4))
    pusher.push(b"next")
    held = popper.pop()
    clock.advance(DUE_MS / 1000 - 1)
    assert not another.pop()
    clock.advance(2)
    (message,) = another.pop()
    assert (message.payload, message.attempts) == (b"next", 2), "it may have been handed out"
    with pytest.raises(ClaimLostError):
        popper.commit(held)


def test_a_message_that_takes_long_is_seen_to_be_held_and_is_extended(
    queue: cassq.Queue, pusher: cassq.Pusher, popper: cassq.Popper, another: cassq.Popper,
    clock: ManualClock,
) -> None:  # fmt: skip
    turns(pusher, popper, clock, *numbers(4))
    pusher.push(b"slow")
    messages = popper.pop()
    clock.advance(2 * TURN_MS / 1000)
    popper.maintain()
    assert queue.stats().groups["default"].pending == 1
    for _ in range(4):
        clock.advance(9)
        popper.maintain()
        assert not another.pop()
    popper.commit(messages)
    assert queue.stats().groups["default"].committed == 5


def test_a_popper_that_has_a_reserved_message_claims_the_next_in_one_write(
    queue: cassq.Queue, pusher: cassq.Pusher, popper: cassq.Popper, clock: ManualClock,
    writes: Writes,
) -> None:  # fmt: skip
    turns(pusher, popper, clock, *numbers(4))
    pusher.push(b"first")
    first = popper.pop()
    pusher.push(b"second")
    before = writes.count
    second = popper.pop()
    assert payloads(second) == [b"second"]
    assert writes.count == before + 1
    assert queue.stats().groups["default"].pending == 2
    popper.commit([*second, *first])
    assert queue.stats().groups["default"].committed == 6


def test_a_receipt_of_a_reserved_message_is_good_at_once(
    queue: cassq.Queue, pusher: cassq.Pusher, popper: cassq.Popper, clock: ManualClock
) -> None:
    turns(pusher, popper, clock, *numbers(4))
    pusher.push(b"next")
    (message,) = popper.pop()
    queue.settle(message.receipt).ack()
    assert queue.stats().groups["default"].committed == 5


def test_a_reserved_message_is_given_back_and_comes_again(
    pusher: cassq.Pusher, popper: cassq.Popper, clock: ManualClock
) -> None:
    turns(pusher, popper, clock, *numbers(4))
    pusher.push(b"next")
    popper.rollback(popper.pop(), delay=0)
    (message,) = popper.pop()
    assert (message.payload, message.attempts) == (b"next", 2)
    popper.commit([message])


@pytest.mark.parametrize("ends", ["stop", "close"])
def test_a_popper_that_ends_gives_back_what_it_reserved(
    queue: cassq.Queue, pusher: cassq.Pusher, popper: cassq.Popper, another: cassq.Popper,
    clock: ManualClock, ends: str,
) -> None:  # fmt: skip
    turns(pusher, popper, clock, *numbers(4))
    getattr(popper, ends)()
    if ends == "stop":
        popper.maintain()
    pusher.push(b"next")
    (message,) = another.pop()
    assert (message.payload, message.attempts) == (b"next", 1)


def test_a_pipe_is_retired_with_a_reservation_at_its_end(
    timed: cassq.Client, queue: cassq.Queue, pusher: cassq.Pusher, popper: cassq.Popper,
    clock: ManualClock,
) -> None:  # fmt: skip
    turns(pusher, popper, clock, *numbers(4))
    pusher.close()
    timed.reaper.reap(timed.ports.catalog.queues.listed())
    assert not timed.ports.catalog.pipes.live(queue._row.id)
    assert push(queue, b"other pipe")
    clock.advance(2)
    assert payloads(popper.pop()) == [b"other pipe"]


def test_an_ack_without_an_answer_counts_once(
    queue: cassq.Queue, pusher: cassq.Pusher, popper: cassq.Popper, clock: ManualClock,
    writes: Writes,
) -> None:  # fmt: skip
    turns(pusher, popper, clock, *numbers(4))
    pusher.push(b"next")
    messages = popper.pop()
    writes.unanswered = True
    with pytest.raises(BackendTimeoutError):
        popper.commit(messages)
    popper.flush()
    stats = queue.stats().groups["default"]
    assert (stats.committed, stats.pending, stats.waiting) == (5, 0, 0)
    assert popper.lost == 0
    assert turns(pusher, popper, clock, b"later") == [b"later"]
