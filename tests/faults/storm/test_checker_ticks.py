"""The checker of storms: what it says of the ticks of schedules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.storm.journal import key_of, order_key_of, payload_of, priority_of
from tests.faults.storm.tale import GROUPS, Tale, right, right_by_key


def ticking() -> Tale:
    """Ticks of each queue, delivered in their order, some again; one is dead."""
    tale = right_by_key()
    for queue in GROUPS:
        tale.push(queue, f"{queue}:10")
        first, second, third = tale.tick(queue, 10, 20, 30)
        tale.eat(queue, first, how="rollback")
        tale.eat(queue, f"{queue}:10", first)
        tale.eat(queue, second, how="dead")
        tale.dead[queue].append(second)
        tale.eat(queue, third)
    return tale


@pytest.mark.parametrize("keyed", [False, True])
def test_ticks_that_are_one_message_each_are_accepted(keyed: bool) -> None:
    tale = ticking()
    for queue in GROUPS:
        tale.schedule(queue, 3)
    verdict = tale.verdict(keyed=keyed)
    assert verdict.counts["each tick is one message"] == 0
    del verdict.counts["the order is kept"]  # that of keys is kept here, no other
    assert verdict.good, verdict.findings


def never_pushed(tale: Tale, queue: str) -> None:
    tale.schedule(queue, 4)


def due_and_left(tale: Tale, queue: str) -> None:
    tale.schedule(queue, 3, next_in=0)


def begun_and_left(tale: Tale, queue: str) -> None:
    tale.schedule(queue, 3, pushing=True)


def without_any(tale: Tale, queue: str) -> None:
    tale.tick(queue)
    tale.schedule(queue, 0)


def twice(tale: Tale, queue: str) -> None:
    tale.eat(queue, *tale.tick(queue, 30))
    tale.schedule(queue, 3)


def of_no_tick(tale: Tale, queue: str) -> None:
    tale.eat(queue, *tale.tick(queue, 25))
    tale.schedule(queue, 3)


def after_the_last_that_was_due(tale: Tale, queue: str) -> None:
    tale.eat(queue, *tale.tick(queue, 40))
    tale.schedule(queue, 3)


ONE = "each tick is one message"


@pytest.mark.parametrize("queue", GROUPS)
@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (never_pushed, {ONE, "nothing acknowledged is lost"}),
        (due_and_left, {ONE}),
        (begun_and_left, {ONE}),
        (without_any, {ONE, "nothing is invented"}),
        (twice, {ONE}),
        (of_no_tick, {"nothing is invented"}),
        (after_the_last_that_was_due, {"nothing is invented"}),
    ],
)
def test_wrong_ticks_are_seen(
    wrong: Callable[[Tale, str], None], names: set[str], queue: str
) -> None:
    tale = ticking()
    wrong(tale, queue)
    for other in set(GROUPS) - {queue}:
        tale.schedule(other, 3)
    counts = tale.verdict(keyed=True).counts
    of_copies = {"the ledger balances", "a message keeps its id", "a message is committed once"}
    of_copies |= {"what was committed does not come again"}
    assert {name for name, count in counts.items() if count} - of_copies == names


def test_a_tick_that_passes_one_before_it_is_seen_on_a_strict_queue() -> None:
    for queue in GROUPS:
        tale = Tale()
        tale.push(queue, "x:0")
        first, second = tale.tick(queue, 10, 20)
        tale.eat(queue, second, "x:0", first)
        tale.schedule(queue, 2)
        counts = tale.verdict().counts
        wrong = [name for name, count in counts.items() if count]
        assert wrong == ([] if queue == "ap" else ["the order is kept"])


def test_a_schedule_of_which_nothing_was_told_proves_nothing() -> None:
    tale = right()
    tale.schedules.append("tick-ap")
    assert tale.verdict().findings["the end was reached"] == ["nobody told which ticks tick-ap had"]


def test_which_tick_a_message_is_of_is_known_by_its_headers() -> None:
    headers = {"cassq-schedule": "tick-ap", "cassq-tick": "2026-11-27T10:00:02.500Z"}
    key = key_of(b"", headers)
    assert key == "tick-ap:1795773602500"
    assert (order_key_of(key), priority_of(key, strict=False)) == (key, 0)
    assert key_of(payload_of("x:0"), {}) == "x:0"
    assert key_of(b"", {}).startswith("damaged")
