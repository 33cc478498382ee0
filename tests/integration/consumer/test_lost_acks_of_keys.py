"""What a keyed group's popper notices too late, as a row of its lane was freed meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.delivery import Message
from cassq.consumer.keyed.lane import HELD_FOR
from cassq.errors import ClaimLostError
from cassq.model.rows import Cursor
from tests.integration.consumer.test_keys import push, texts
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


@pytest.fixture
def queue(timed: cassq.Client) -> cassq.Queue:
    """Each message is in a pipe, and so in a row, of its own."""
    queue = timed.create_queue("jobs", claim_timeout=2, max_pushes_per_pipe=1)
    queue.create_group("keyed", order="key")
    return queue


def freed(
    client: cassq.Client, clock: ManualClock, queue: cassq.Queue, popper: cassq.Popper
) -> Message:
    """The first of two messages, whose row expires and is freed by a reaper, while the popper has
    the lane, and the row of the second one, for longer."""
    push(queue, ["a1"])
    (message,) = popper.pop(10)
    clock.advance(1.3)
    push(queue, ["a2"])
    assert texts(popper.pop(10)) == []
    clock.advance(2.8)
    client.reap()
    return message


@pytest.mark.parametrize("pipes", ["two", "one, and another later"])
def test_what_an_earlier_holder_claims_at_the_last_moment_keeps_its_place(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, pipes: str
) -> None:
    """A popper stalls before it claims; another takes the lane, and has seen what is claimed when
    the first one goes on."""
    queue = timed.create_queue("jobs", claim_timeout=2, consistency="cp", max_pushes_per_pipe=1)
    queue.create_group("keyed", order="key")
    stalled, popper = queue.popper("keyed"), queue.popper("keyed", keep_alive=0)
    assert texts(stalled.pop(1)) == []
    clock.advance(0.5)
    push(queue, ["a1", "a2"] if pipes == "two" else ["a1"])
    claims = timed.runtime.ports.catalog.claims
    claim, cursors = claims.claim, claims.cursors
    found: list[Message] = []

    def claim_late(*given: Any, **options: Any) -> bool:
        """Stall until the other popper has seen what is claimed."""
        monkeypatch.setattr(claims, "claim", claim)
        outcome: list[bool] = []

        def see_first(*read: Any) -> list[Cursor]:
            monkeypatch.setattr(claims, "cursors", cursors)
            seen = cursors(*read)
            outcome.append(claim(*given, **options))
            return seen

        monkeypatch.setattr(claims, "cursors", see_first)
        clock.advance(2 * HELD_FOR - 0.4)
        with ThreadPoolExecutor() as pool:
            found.extend(pool.submit(popper.pop, 1).result())
        return outcome[0]

    monkeypatch.setattr(claims, "claim", claim_late)
    assert texts(stalled.pop(1)) == []
    if pipes != "two":
        push(queue, ["a2"])
    popper.commit(found)
    assert [*texts(found), *drained(clock, popper)] == ["a1", "a2"]


def drained(clock: ManualClock, popper: cassq.Popper) -> list[str]:
    found: list[str] = []
    for _ in range(100):
        messages = popper.pop(10)
        found += texts(messages)
        popper.commit(messages)
        clock.advance(0.1)
    return found


def test_what_follows_a_message_whose_ack_was_lost_waits_for_it(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    popper = queue.popper("keyed", keep_alive=0)
    message = freed(timed, clock, queue, popper)
    with pytest.raises(ClaimLostError):
        message.ack()
        popper.flush()
    assert drained(clock, popper) == ["a1", "a2"]


def test_a_key_goes_on_after_its_message_was_freed_by_another(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    popper = queue.popper("keyed", keep_alive=0)
    freed(timed, clock, queue, popper)
    assert drained(clock, popper) == ["a1", "a2"]
