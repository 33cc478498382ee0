"""The checker of storms: what it says of groups that keep the order of keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cassq.model.scaling import key_lane_of
from tests.faults.storm.checker import check
from tests.faults.storm.ground import KEYED_GROUPS, LANES, QUEUE_SETTINGS, STRICT, Ground
from tests.faults.storm.history import Delivery, History, Sent
from tests.faults.storm.journal import order_key_of
from tests.faults.storm.tale import GROUPS, Tale, right_by_key

# What a name ends with decides the key: 0 and 5, or 1 and 6, have the same.


def came_before_the_first_of_its_key(tale: Tale, queue: str) -> None:
    tale.push(queue, "x:0")
    tale.push(queue, "x:5")
    tale.eat(queue, "x:5")
    tale.eat(queue, "x:0")


def came_while_the_first_of_its_key_failed(tale: Tale, queue: str) -> None:
    tale.push(queue, "x:0", "x:5")
    tale.eat(queue, "x:0", how="rollback")
    tale.eat(queue, "x:5", who="another")
    tale.eat(queue, "x:0")


def turned_round_within_its_key(tale: Tale, queue: str) -> None:
    tale.push(queue, "x:0", "x:1", "x:5")
    tale.eat(queue, "x:1")
    tale.eat(queue, "x:5")
    tale.eat(queue, "x:0")


@pytest.mark.parametrize("queue", GROUPS)
@pytest.mark.parametrize(
    "wrong",
    [
        came_before_the_first_of_its_key,
        came_while_the_first_of_its_key_failed,
        turned_round_within_its_key,
    ],
)
def test_a_wrong_order_of_a_key_is_seen(wrong: Callable[[Tale, str], None], queue: str) -> None:
    tale = right_by_key()
    wrong(tale, queue)
    counts = tale.verdict(keyed=True).counts
    assert [name for name, count in counts.items() if count] == ["the order of a key is kept"]


def test_the_order_of_a_key_over_pushers_is_kept_on_strict_queues_alone() -> None:
    for queue in GROUPS:
        tale = right_by_key()
        tale.push(queue, "x:0")
        tale.push(queue, "y:0", who="another")
        tale.eat(queue, "y:0")
        tale.eat(queue, "x:0")
        found = tale.verdict(keyed=True).counts["the order of a key is kept"]
        assert found == (queue == "cp")


def test_another_pusher_of_the_same_client_keeps_its_own_order() -> None:
    tale = right_by_key()
    tale.push("ap", "x:0")
    tale.write("pusher", "pusher", "ap", "opened")
    tale.push("ap", "x:5")
    tale.eat("ap", "x:5")
    tale.eat("ap", "x:0")
    verdict = tale.verdict(keyed=True)
    assert verdict.good, verdict.findings


@pytest.mark.parametrize("queue", GROUPS)
@pytest.mark.parametrize("how", ["commit", "rollback", "release"])
def test_two_of_a_key_in_hand_are_seen(queue: str, how: str) -> None:
    tale = right_by_key()
    first, second = tale.begin(queue, "x:0"), tale.begin(queue, "y:5", who="another")
    tale.acknowledge(queue, first, "x:0")
    tale.acknowledge(queue, second, "y:5", who="another")
    batch = tale.get(queue, "x:0")
    tale.eat(queue, "y:5", who="another")
    tale.settle(queue, batch, how, "x:0")
    tale.settled(queue, batch, how, "x:0")
    if how != "commit":
        tale.eat(queue, "x:0")
    counts = tale.verdict(keyed=True).counts
    assert [name for name, count in counts.items() if count] == ["one of a key is in hand"]


@pytest.mark.parametrize("queue", GROUPS)
def test_two_of_a_key_in_one_delivery_are_seen(queue: str) -> None:
    tale = right_by_key()
    tale.push(queue, "x:0", "x:5")
    tale.eat(queue, "x:0", "x:5")
    counts = tale.verdict(keyed=True).counts
    assert [name for name, count in counts.items() if count] == ["one of a key is in hand"]


@pytest.mark.parametrize("queue", GROUPS)
def test_messages_of_other_keys_come_in_any_order_and_together(queue: str) -> None:
    tale = right_by_key()
    tale.push(queue, "x:0", "x:1", "x:2")
    batch = tale.get(queue, "x:2", "x:1")
    tale.eat(queue, "x:0", who="another")
    tale.settle(queue, batch, "commit", "x:2", "x:1")
    tale.settled(queue, batch, "commit", "x:2", "x:1")
    verdict = tale.verdict(keyed=True)
    assert verdict.good, verdict.findings


@pytest.mark.parametrize("queue", GROUPS)
def test_what_was_taken_from_its_holder_lets_its_key_go_on(queue: str) -> None:
    tale = right_by_key()
    tale.push(queue, "x:0", "x:5")
    batch = tale.get(queue, "x:0")
    tale.eat(queue, "x:0", who="another")
    tale.eat(queue, "x:5", who="another")
    tale.settle(queue, batch, "commit", "x:0")
    tale.settled(queue, batch, "commit", "x:0", result="lost")
    verdict = tale.verdict(keyed=True)
    assert verdict.good, verdict.findings


@pytest.mark.parametrize(
    ("queue", "group"),
    [(queue, group) for queue in Ground.groups for group in Ground.groups[queue]],
)
def test_which_groups_of_a_storm_keep_the_order_of_keys(queue: str, group: str) -> None:
    history = History(frozenset(STRICT), frozenset(KEYED_GROUPS))
    for at, key in enumerate(("x:0", "x:5")):
        done = 2 * at + 1
        history.sent[key] = Sent(key, queue, ("x", at), 0, done - 1, ("x", 0), done, "acknowledged")
    item = "x:5", ("pipe", 1), 1, "pipe:1"
    history.view(queue, group).deliveries.append(Delivery("popper", 0, 5, 6, [item]))
    found = check(history).counts["the order of a key is kept"]
    assert found == (group in KEYED_GROUPS)


def test_every_lane_of_a_storm_has_messages() -> None:
    lanes = QUEUE_SETTINGS[LANES]["key_lanes"]
    keys = {order_key_of(f"x:{number}") for number in range(100)}
    assert {key_lane_of(key.encode(), lanes) for key in keys} == set(range(lanes))
