"""Processes that stand still, or die, in the middle: a dead letter is written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.client.queue import own_queue
from cassq.lifecycle.moves import HOLD_MS
from cassq.lifecycle.retries import DeadLetters
from cassq.message.batches import Batch, Intend
from cassq.model.rows import Claim
from tests.integration.places import Place
from tests.integration.stage import drain, push, reap
from tests.integration.timed import clock

__all__ = ["clock"]

pytestmark = pytest.mark.embedded_only(reason="two clients go by one clock, which the test turns")

DEAD = "jobs~default~dead"


class Killed(BaseException):
    """The process ended here."""


class Scene(NamedTuple):
    """Two clients of one directory, and a message that failed, in a pipe that is sealed."""

    mine: cassq.Client
    other: cassq.Client
    clock: ManualClock
    claim: Claim

    def mover(self, append_to: Callable[[str, Batch, Intend], None]) -> DeadLetters:
        """One of mine."""
        return DeadLetters(self.mine.ports, append_to)

    def move(self, mover: DeadLetters) -> bool:
        queue = self.mine.queue("jobs")
        group = next(
            g for g in self.mine.ports.catalog.queues.groups(queue.id) if g.name == "default"
        )
        return mover.add(queue.row, group, self.claim)

    def push_letter(self, name: str, batch: Batch, intend: Intend) -> None:
        """As a client of mine does it."""
        with own_queue(self.mine.runtime, name).pusher() as pusher:
            pusher.push_intended(batch, intend)

    def taken_over(self) -> None:
        """The other finds that the mover has had its time, and moves the message itself."""
        self.clock.advance(HOLD_MS / 1000 + 1)
        for _ in range(3):
            reap(self.other)
        assert self.other.queue("jobs").stats().groups["default"].dead == 1

    def letters(self) -> list[bytes]:
        """All that were ever written."""
        return [message.payload for message in drain(self.other.queue(DEAD).popper())]


@pytest.fixture
def scene(place: Place, clock: ManualClock) -> Iterator[Scene]:
    with (
        cassq.Client(place.url, place.open(clock), clock) as mine,
        cassq.Client(place.url, place.open(clock), clock) as other,
    ):
        mine.runtime.housekeeper.stop()
        other.runtime.housekeeper.stop()
        queue = mine.create_queue("jobs", max_deliveries=5, sick_check=False)
        push(queue, b"bad")
        with queue.popper() as popper:
            (message,) = popper.pop()
            message.nack(error="planned")
            popper.flush()
        (group,) = mine.ports.catalog.queues.groups(queue.id)
        (claim,) = mine.ports.catalog.claims.rows(group.id, message.id.split(":")[0])
        yield Scene(mine, other, clock, claim)


@pytest.mark.parametrize("retired", [True, False])
def test_a_mover_of_dead_letters_that_was_paused_while_another_moved_them_writes_nothing(
    scene: Scene, retired: bool
) -> None:
    """Also when the pipe was retired meanwhile, with all that told of the first letter."""

    def stood_still(name: str, batch: Batch, intend: Intend) -> None:
        scene.taken_over()
        if retired:
            assert scene.other.ports.catalog.pipes.by_id(scene.claim.pipe_id) is None
        scene.push_letter(name, batch, intend)

    if not retired:
        scene.mine.queue("jobs").create_group("slow", start="beginning")
    assert not scene.move(scene.mover(stood_still))
    assert scene.letters() == [b"bad"]
    assert scene.other.queue("jobs").audit().findings == []


@pytest.mark.parametrize("pushed", [True, False])
def test_what_a_burier_that_died_has_pushed_is_not_pushed_again(scene: Scene, pushed: bool) -> None:
    def dies(name: str, batch: Batch, intend: Intend) -> None:
        if pushed:
            scene.push_letter(name, batch, intend)
        raise Killed

    with pytest.raises(Killed):
        scene.move(scene.mover(dies))
    scene.taken_over()
    assert scene.letters() == [b"bad"]
    assert scene.other.queue("jobs").audit().findings == []


def test_another_letter_in_the_place_that_an_intent_names_is_not_taken_for_it(
    scene: Scene,
) -> None:
    """Its mover died between the intent and the push, and its pipe was written on."""
    letters = own_queue(scene.mine.runtime, DEAD).pusher()
    letters.push(b"first")
    places: list[tuple[str, int]] = []

    def dies(_name: str, batch: Batch, intend: Intend) -> None:
        def intend_and_die(pipe_id: str, seq: int, which: range) -> None:
            intend(pipe_id, seq, which)
            places.append((pipe_id, seq))
            raise Killed

        letters.push_intended(batch, intend_and_die)

    with pytest.raises(Killed):
        scene.move(scene.mover(dies))
    (place,) = places
    assert letters.push(b"another") == f"{place[0]}:{place[1]}"
    letters.close()
    scene.taken_over()
    assert sorted(scene.letters()) == [b"another", b"bad", b"first"]


def test_of_two_buriers_one_writes_the_letter(scene: Scene) -> None:
    mover = scene.mover(scene.push_letter)
    assert scene.move(mover)
    assert not scene.move(mover)
    assert scene.letters() == [b"bad"]
