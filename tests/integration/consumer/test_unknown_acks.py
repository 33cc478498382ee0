"""Acks of which no answer came: they are read back, and pass for written only where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import BackendError, BackendTimeoutError, ClaimLostError
from tests.catalog_parts import WithRoles
from tests.integration.places import Place
from tests.integration.stage import drain, numbers, payloads, push, reap
from tests.integration.timed import clock

__all__ = ["clock"]

pytestmark = pytest.mark.embedded_only(reason="two clients go by one clock, which the test turns")

TIMEOUT = 10.0


class LosingClaims:
    """A catalog's claims, from which no answer comes to an ack. lose: "before" the ack was
    written, or "after". ensured: how often what is there was made durable."""

    def __init__(self, claims: Any) -> None:
        self._claims = claims
        self.lose = ""
        self.ensured = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claims, name)

    def replace_many(self, changes: Sequence[Any], **others: Any) -> list[bool]:
        lose, self.lose = self.lose, ""
        if lose == "before":
            raise BackendTimeoutError("no answer to an ack", outcome_unknown=True)
        done: list[bool] = self._claims.replace_many(changes, **others)
        if lose == "after":
            raise BackendTimeoutError("no answer to an ack", outcome_unknown=True)
        return done

    def ensure_durable(self) -> None:
        self.ensured += 1
        self._claims.ensure_durable()


class Scene(NamedTuple):
    """Two clients of one directory. claims: of mine."""

    mine: cassq.Client
    other: cassq.Client
    claims: LosingClaims


@pytest.fixture
def scene(place: Place, clock: ManualClock) -> Iterator[Scene]:
    opened = place.open(clock)
    claims = LosingClaims(opened.ports.catalog.claims)
    catalog: Any = WithRoles(opened.ports.catalog, claims=claims)
    ports: Any = opened.ports._replace(catalog=catalog)
    with (
        cassq.Client(place.url, opened._replace(ports=ports), clock) as mine,
        cassq.Client(place.url, place.open(clock), clock) as other,
    ):
        mine.runtime.housekeeper.stop()
        other.runtime.housekeeper.stop()
        yield Scene(mine, other, claims)


def held_by_mine(scene: Scene, consistency: str, lose: str) -> tuple[cassq.Popper, Any]:
    """A popper of mine with three messages of a sealed pipe, which it has committed in vain."""
    scene.mine.create_queue(
        "jobs", consistency=consistency, claim_timeout=TIMEOUT, sick_check=False
    )
    queue = scene.mine.queue("jobs")
    push(queue, *numbers(3))
    popper = queue.popper()
    messages = popper.pop(3)
    assert payloads(messages) == numbers(3)
    scene.claims.lose = lose
    with pytest.raises(BackendError) as caught:
        popper.commit(messages)
    assert caught.value.outcome_unknown
    return popper, messages


@pytest.mark.parametrize("retired", [True, False])
def test_an_ack_that_was_fenced_since_is_not_taken_for_written(
    scene: Scene, clock: ManualClock, retired: bool
) -> None:
    """Also when another has acked it all, and nothing is left of the pipe to tell whose ack it
    was."""
    popper, messages = held_by_mine(scene, "cp", "before")
    clock.advance(2 * TIMEOUT)
    assert payloads(drain(scene.other.queue("jobs").popper())) == numbers(3)
    if retired:
        reap(scene.other)
        pipes = [message.id.split(":")[0] for message in messages]
        assert scene.other.ports.catalog.pipes.by_id(pipes[0]) is None
    with pytest.raises(ClaimLostError):
        popper.commit(messages)
    assert popper.lost == 3
    assert scene.mine.queue("jobs").audit().findings == []


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_an_ack_that_was_written_counts_though_no_answer_came(
    scene: Scene, clock: ManualClock, consistency: str
) -> None:
    popper, messages = held_by_mine(scene, consistency, "after")
    assert scene.claims.ensured == 0
    popper.commit(messages)
    assert popper.lost == 0
    assert scene.claims.ensured == 1, "what can be read may not be durable yet"
    clock.advance(2 * TIMEOUT)
    assert scene.other.queue("jobs").popper().pop(10) == []


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_an_ack_that_was_not_written_is_written_again(
    scene: Scene, clock: ManualClock, consistency: str
) -> None:
    popper, messages = held_by_mine(scene, consistency, "before")
    popper.commit(messages)
    assert popper.lost == 0
    clock.advance(2 * TIMEOUT)
    assert scene.other.queue("jobs").popper().pop(10) == []


@pytest.mark.parametrize("lose", ["before", "after"])
def test_what_was_claimed_ahead_in_order_waits_until_the_ack_before_it_is_written(
    scene: Scene, clock: ManualClock, lose: str
) -> None:
    queue = scene.mine.create_queue("jobs", consistency="cp", claim_timeout=TIMEOUT)
    push(queue, *numbers(100))
    popper = queue.popper()
    messages = iter(popper)
    message = next(messages)
    while len(popper._buffer) < 2:
        clock.advance(0.01)
        message.ack()
        message = next(messages)
    scene.claims.lose = lose
    with pytest.raises(BackendTimeoutError):
        message.ack()
    following = popper.pop(1)
    assert payloads(following) == [b"%d" % (int(message.payload) + 1)]
    acked = scene.other.queue("jobs").stats().groups["default"].committed
    assert acked == int(following[0].payload), "all before it"


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_an_ack_that_was_not_written_is_lost_with_its_claim(
    scene: Scene, clock: ManualClock, consistency: str
) -> None:
    popper, messages = held_by_mine(scene, consistency, "before")
    clock.advance(2 * TIMEOUT)
    theirs = scene.other.queue("jobs").popper()
    again = theirs.pop(3)
    assert payloads(again) == numbers(3)
    with pytest.raises(ClaimLostError):
        popper.commit(messages)
    theirs.commit(again)
    assert scene.mine.queue("jobs").stats().groups["default"].committed == 3
