"""Groups made with `on_dead="hold"`: a dead letter holds later messages of its key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import ConfigError, UsageError
from tests.integration.consumer.keyed_stage import drained, pass_time, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


@pytest.fixture
def held(timed: cassq.Client) -> cassq.Queue:
    """A queue with a group whose dead letters hold their keys."""
    queue = timed.create_queue("jobs", max_deliveries=1, sick_check=False)
    queue.create_group("keyed", order="key", on_dead="hold")
    return queue


def bury(queue: cassq.Queue, popper: cassq.Popper) -> str:
    """Make a dead letter of the next message; its id."""
    (message,) = popper.pop(1)
    popper.dead([message], "no good")
    return message.id


def waited(clock: ManualClock, popper: cassq.Popper) -> list[str]:
    """What comes once the popper has looked for released keys."""
    clock.advance(1)
    popper.maintain()
    return drained(popper)


def test_a_dead_letter_holds_its_key_and_no_other(held: cassq.Queue) -> None:
    push(held, ["a1", "a2", "b1", "a3", "b2"])
    popper = held.popper("keyed")
    bury(held, popper)
    assert drained(popper) == ["b1", "b2"]
    push(held, ["a4", "c1"])
    assert drained(popper) == ["c1"]
    assert held.audit().findings == []


@pytest.mark.parametrize("how", ["rejected", "spent", "expired"])
def test_however_a_message_died_it_holds_its_key(
    held: cassq.Queue, clock: ManualClock, how: str
) -> None:
    push(held, ["a1", "a2"])
    popper = held.popper("keyed")
    if how == "expired":
        with ThreadPoolExecutor(1) as consumer:
            consumer.submit(popper.pop, 1).result()
        pass_time(clock, popper, 70)  # in which its thread is gone
        assert drained(popper) == []
        assert held.stats().groups["keyed"].dead == 1
        return
    (message,) = popper.pop(1)
    if how == "spent":
        popper.rollback([message])
    else:
        popper.dead([message], "no good")
    assert drained(popper) == []
    assert held.stats().groups["keyed"].dead == 1


def test_a_released_key_goes_on_and_its_letter_stays(held: cassq.Queue, clock: ManualClock) -> None:
    push(held, ["a1", "a2", "a3"])
    popper = held.popper("keyed")
    bury(held, popper)
    assert drained(popper) == []
    assert held.release_key("keyed", b"b") == 0
    assert held.release_key("keyed", b"a") == 1
    assert held.release_key("keyed", b"a") == 0
    assert waited(clock, popper) == ["a2", "a3"]
    assert [letter.payload for letter in held.dead_letters("keyed").peek()] == [b"a1"]


def test_a_key_that_dies_again_is_held_again(held: cassq.Queue, clock: ManualClock) -> None:
    push(held, ["a1", "a2", "a3"])
    popper = held.popper("keyed")
    bury(held, popper)
    held.release_key("keyed", b"a")
    clock.advance(1)
    bury(held, popper)
    assert waited(clock, popper) == []
    assert held.release_key("keyed", b"a") == 1
    assert waited(clock, popper) == ["a3"]


@pytest.mark.parametrize("how", ["purge", "merge", "commit"])
def test_a_letter_that_is_gone_holds_nothing(
    held: cassq.Queue, clock: ManualClock, timed: cassq.Client, how: str
) -> None:
    push(held, ["a1", "a2", "a3"])
    popper = held.popper("keyed")
    bury(held, popper)
    assert waited(clock, popper) == []
    letters = held.dead_letters("keyed")
    if how == "purge":
        letters.purge(everything=True)
    elif how == "merge":
        letters.merge()
    else:
        drained(timed.queue(letters.name).popper())
    came = waited(clock, popper)
    assert [text for text in came if text != "a1"] == ["a2", "a3"]
    assert ("a1" in came) == (how == "merge")
    assert held.audit().findings == []


def test_keys_stay_held_when_another_popper_takes_over(
    held: cassq.Queue, clock: ManualClock, timed: cassq.Client
) -> None:
    push(held, ["a1", "a2", "b1", "b2"])
    popper = held.popper("keyed")
    bury(held, popper)
    popper.close()
    second = held.popper("keyed")
    assert drained(second) == ["b1", "b2"]
    held.release_key("keyed", b"a")
    second.close()
    third = held.popper("keyed")
    assert drained(third) == ["a2"]


def test_a_key_stays_held_over_pipes_that_are_gone(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", max_deliveries=1, sick_check=False, max_pushes_per_pipe=1)
    queue.create_group("keyed", order="key", on_dead="hold")
    push(queue, ["a1", "a2", "b1", "a3"])
    popper = queue.popper("keyed")
    bury(queue, popper)
    assert drained(popper) == ["b1"]
    popper.close()
    for _ in range(40):
        clock.advance(30)
        timed.reaper.reap([queue.row])
    assert drained(queue.popper("keyed")) == []


def test_a_dropped_message_holds_nothing(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs", max_length=2, overflow="drop-oldest")
    queue.delete_group("default")
    queue.create_group("keyed", order="key", on_dead="hold")
    push(queue, ["a1", "a2", "a3", "a4"])
    found = drained(queue.popper("keyed"))
    assert found[-1] == "a4"


def test_only_messages_in_order_can_be_held(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    with pytest.raises(ConfigError, match="messages can be held only in a group with order='key'"):
        queue.create_group("keyed", on_dead="hold")
    with pytest.raises(ConfigError, match="on_dead must be"):
        queue.create_group("keyed", order="key", on_dead="wait")  # type: ignore[arg-type]
    queue.create_group("keyed", order="key")
    with pytest.raises(UsageError, match="hold no keys"):
        queue.release_key("keyed", b"a")
