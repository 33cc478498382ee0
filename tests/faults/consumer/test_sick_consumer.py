"""Sick consumers: while nothing succeeds messages are kept, and tried ever more seldom."""

from __future__ import annotations

import pytest

import cassq
from tests.faults.actors import Act, Actor
from tests.integration.deadlines import eventually
from tests.integration.stage import numbers, payloads, push

DEAD = "jobs~default~dead"


class Sick:
    """Consumers of one group, one after another, that die of whatever they get."""

    def __init__(self, act: Act, url: str, group: str, batch: int) -> None:
        self._start = lambda: act("die_of_anything", url, group, batch)
        self._actor: Actor = self._start()
        self.attempts: dict[bytes, int] = {}
        self.deaths = 0

    def go_on(self) -> int:
        """If one has died, another follows; how many died so far."""
        if not self._actor.alive:
            self.attempts |= dict(self._actor.expect("dying")[1])
            self.deaths += 1
            self._actor = self._start()
        return self.deaths

    def have_tried_each(self, count: int, more_than: int) -> bool:
        """Whether so many messages were each delivered more often than that."""
        self.go_on()
        return len(self.attempts) == count and min(self.attempts.values()) > more_than

    def end(self) -> None:
        """The last of them."""
        self._actor.kill()


def names(client: cassq.Client) -> list[str]:
    return [queue.name for queue in client.queues()]


@pytest.mark.parametrize(("max_deliveries", "batch"), [(2, 1), (3, 10), (4, 2)])
def test_what_only_sick_consumers_had_is_kept_for_a_healthy_one(
    client: cassq.Client, act: Act, url: str, max_deliveries: int, batch: int
) -> None:
    """Each message was delivered more often than it may be when the healthy one comes; its first
    success does not make dead letters of the others."""
    queue = client.create_queue("jobs", claim_timeout=0.05, max_deliveries=max_deliveries)
    sent = numbers(5)
    push(queue, *sent)
    sick = Sick(act, url, "default", batch)
    eventually(
        "each message is tried more often than it may be",
        lambda: sick.have_tried_each(5, max_deliveries),
        seconds=60,
    )
    sick.end()
    stats = queue.stats().groups["default"]
    assert (stats.waiting + stats.pending, stats.dead) == (5, 0)
    assert names(client) == ["jobs"], "nothing was put away"
    queue.update(claim_timeout=60)  # a healthy one keeps what it has
    healthy = act("pop_orderly", url, "default", 1)
    eventually("it does them all", lambda: queue.stats().groups["default"].committed == 5)
    healthy.say("enough")
    assert healthy.join() == 0
    audit = queue.audit()
    assert audit.findings == []
    assert (audit.groups["default"].committed, audit.groups["default"].dead) == (5, 0)
    assert sorted({p for _, _, found in healthy.reports("got") for p in found}) == sent
    assert names(client) == ["jobs"]


def test_a_sick_group_is_tried_less_and_less_often(
    client: cassq.Client, act: Act, url: str
) -> None:
    """Two groups of equally sick consumers, side by side; one of them is not to be spared."""
    queue = client.create_queue("jobs", claim_timeout=0.05, max_deliveries=1000)
    queue.create_group("careless", sick_check=False)
    push(queue, b"x")
    spared = Sick(act, url, "default", 1)
    careless = Sick(act, url, "careless", 1)

    def often_tried() -> bool:
        spared.go_on()
        return careless.go_on() >= 30

    eventually("the careless group dies again and again", often_tried, seconds=120)
    assert 2 <= spared.deaths <= careless.deaths / 2
    spared.end()
    careless.end()


def test_only_the_message_that_kills_consumers_dies_while_others_succeed(
    client: cassq.Client, act: Act, url: str
) -> None:
    """Several consumers at once, a limit of deliveries, and the group's check for sickness."""
    queue = client.create_queue("jobs", claim_timeout=1, max_deliveries=3)
    assert queue.policy.sick_check, "it is on unless it is turned off"
    sent = numbers(4999)
    push(queue, *sent[:3000], b"poison", *sent[3000:])
    poppers = [act("die_of_poison", url, 200) for _ in range(3)]
    deaths = 0

    def all_done() -> bool:
        nonlocal deaths
        for at, popper in enumerate(poppers):
            if not popper.alive:
                popper.expect("dying")
                deaths += 1
                poppers[at] = act("die_of_poison", url, 200)
        stats = queue.stats().groups["default"]
        return stats.waiting + stats.pending == 0

    eventually("all but the poison is done", all_done, seconds=60)
    for popper in poppers:
        popper.say("enough")
        assert popper.join() == 0
    audit = queue.audit()
    assert audit.findings == []
    assert (audit.groups["default"].committed, audit.groups["default"].dead) == (4999, 1)
    assert deaths >= 3
    letters = client.queue(DEAD).popper().pop(10)
    assert payloads(letters) == [b"poison"]
