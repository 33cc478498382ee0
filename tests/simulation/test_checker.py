"""What the simulation's checker excuses, and what it does not, in short scripted runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cassq.consumer.delivery import Message
from cassq.message.message_ids import MessageId
from tests.simulation.actors.client import SteppedClient
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.checks.model import Sent
from tests.simulation.worlds.scenario import draw_calm
from tests.simulation.worlds.scheduler import CalmProcess
from tests.simulation.worlds.world import World


class Desk:
    """A world in which a test does by hand what actors do."""

    def __init__(self) -> None:
        drawn = draw_calm(random.Random(0))
        policy = {"ap": drawn.policy["ap"] | {"max_deliveries": 1, "sick_check": False}}
        scenario = replace(drawn, queues=["ap"], policy=policy, groups={"ap": []}, delayed=0.0)
        self.world = World(0, scenario)
        self.process = CalmProcess(self.world.scheduler, "by hand")
        self.client: SteppedClient = self.world.open_client(self.process)
        self.queue: Any = self.client.create_queue("ap", **policy["ap"])
        commits, checker = self.world.commits, self.world.checker
        commits.tick, commits.watch = checker.tick, checker.look
        checker.look()

    def push(self, sent: Sent) -> str:
        """Push a message; the checker does not hear where it is."""
        self.world.checker.push(sent)
        with self.queue.pusher() as pusher:
            return str(pusher.push(sent.payload))

    def bury(self) -> None:
        """Make a dead letter of the first message, of whose delivery the checker does not hear."""
        popper = self.queue.popper()
        popper.dead(popper.pop(1), "no good")
        popper.close()

    def letters(self) -> list[Message]:
        """Dead letters as they are delivered, which the checker hears."""
        popper = self.client.queue(self.queue.dead_letters().name).popper()
        messages: list[Message] = popper.pop(10)
        self.heard(popper, messages)
        return messages

    def heard(self, popper: Any, messages: Sequence[Message]) -> None:
        """The checker hears of a delivery."""
        self.world.checker.delivered(popper, self.process, messages, 0)

    def sent(self, payload: bytes) -> Sent:
        wall_ms = self.world.scheduler.clock.wall_ms()
        return Sent(payload, "ap", self.world.checker.tick(), {}, None, wall_ms)


@pytest.fixture
def desk() -> Any:
    desk = Desk()
    yield desk
    desk.world.end()


def pushed_twice(desk: Desk, *, troubled: bool) -> str:
    """A push whose first write may or may not have been made, and which then wrote it again: the
    first is dead before anybody says that they had it."""
    sent = desk.sent(b"plain:1:")
    first = desk.push(sent)
    desk.bury()
    second = desk.push(sent)
    sent.troubled = troubled
    desk.world.checker.pushed([sent], [MessageId(second)])
    return first


def test_a_dead_letter_may_be_a_copy_that_its_push_could_not_know_of(desk: Desk) -> None:
    first = pushed_twice(desk, troubled=True)
    assert [str(letter.id) for letter in desk.letters()] == [first]


def test_a_dead_letter_is_not_a_second_copy_of_a_push_that_succeeded(desk: Desk) -> None:
    pushed_twice(desk, troubled=False)
    with pytest.raises(BrokenPromiseError, match="there twice, for no reason"):
        desk.letters()


def test_what_a_claim_of_unknown_outcome_held_may_come_late(desk: Desk) -> None:
    """At the limit each of its messages is delivered once more, with the attempts of the first."""
    popper, claimed = three_of_a_pipe(desk)
    desk.heard(popper, popper.pop(1))
    desk.process.sleep(2 * popper._claimer.rules.claim_timeout_ms / 1000)
    again = popper.pop(1)
    assert [(each.id, each.attempts) for each in again] == [(claimed[0].id, 1)]
    desk.heard(popper, again)


def test_what_comes_for_the_first_time_comes_in_order(desk: Desk) -> None:
    popper, claimed = three_of_a_pipe(desk)
    desk.heard(popper, claimed[1:])
    with pytest.raises(BrokenPromiseError, match="was first delivered after 1"):
        desk.heard(popper, claimed[:1])


def three_of_a_pipe(desk: Desk) -> tuple[Any, list[Message]]:
    """A popper and two of three messages, which it claimed together; the checker did not hear."""
    sent = [desk.sent(b"plain:%d:" % number) for number in range(3)]
    for each in sent:
        desk.world.checker.push(each)
    with desk.queue.pusher() as pusher:
        ids = pusher.push_many([each.payload for each in sent])
    desk.world.checker.pushed(sent, ids)
    popper = desk.queue.popper(keep_alive=0)
    return popper, popper.pop(2)
