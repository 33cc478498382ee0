"""The checker of storms: it accepts a right history, and sees each wrong one for what it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from cassq.model.scaling import key_lane_of
from tests.faults.storm.checker import (
    OF_ALL,
    OF_GROUPS,
    OF_KEYED_GROUPS,
    OF_STRICT_GROUPS,
    Verdict,
    check,
)
from tests.faults.storm.ground import KEYED_GROUPS, LANES, QUEUE_SETTINGS, STRICT, Ground
from tests.faults.storm.history import Delivery, History, Sent, history_of
from tests.faults.storm.journal import Story, order_key_of, priority_of, story_of

GROUPS = {"ap": ["one"], "cp": ["one"]}


class Tale:
    """A history in the making; every deed takes a moment after the one before."""

    def __init__(self) -> None:
        self._lines: dict[str, list[list[object]]] = {}
        self._now = 0
        self._counts: dict[str, int] = {}
        self._seqs: dict[str, int] = {}
        self._done: dict[str, list[str]] = {}
        self.dead: dict[str, list[str]] = {"ap": [], "cp": []}
        self.findings: list[str] = []
        self.ledger: dict[str, list[int]] = {}
        self.places: dict[str, tuple[str, int]] = {}
        self.levels: dict[str, int] = {}  # other priorities than theirs

    def write(self, who: str, role: str, queue: str, *line: object) -> None:
        group = "one" if role == "popper" else ""
        name = f"{who} {role} {queue}"
        lines = self._lines.setdefault(name, [[0, "role", role, name, queue, group]])
        self._now += 10
        lines.append([self._now, *line])

    def op(self, who: str) -> int:
        self._counts[who] = self._counts.get(who, -1) + 1
        return self._counts[who]

    # --- pushing ------------------------------------------------------------------------------

    def begin(self, queue: str, *keys: str, who: str = "pusher") -> int:
        op = self.op(f"{who} pusher {queue}")
        self.write(who, "pusher", queue, "push", op, list(keys))
        for key in keys:
            self._seqs[queue] = self._seqs.get(queue, -1) + 1
            self.places[key] = f"pipe-{queue}", self._seqs[queue]
        return op

    def acknowledge(self, queue: str, op: int, *keys: str, who: str = "pusher") -> None:
        ids = [self.id(key) for key in keys]
        self.write(who, "pusher", queue, "pushed", op, ids)

    def push(self, queue: str, *keys: str, who: str = "pusher") -> None:
        self.acknowledge(queue, self.begin(queue, *keys, who=who), *keys, who=who)

    def fail(self, queue: str, op: int, how: str, pushed: int = 0) -> None:
        self.write("pusher", "pusher", queue, "failed", op, how, pushed, "Error: no")

    def id(self, key: str) -> str:
        pipe, seq = self.places[key]
        return f"{pipe}:{seq}"

    # --- popping ------------------------------------------------------------------------------

    def level(self, queue: str, key: str) -> int:
        return self.levels.get(key, priority_of(key, strict=queue in STRICT))

    def get(self, queue: str, *keys: str, who: str = "popper", called: int | None = None) -> int:
        batch = self.op(f"{who} popper {queue}")
        items = [[key, *self.places[key], 1, self.id(key), self.level(queue, key)] for key in keys]
        called = self._now + 1 if called is None else called
        self.write(who, "popper", queue, "got", batch, called, items)
        return batch

    def settle(self, queue: str, batch: int, how: str, *keys: str, who: str = "popper") -> None:
        self.write(who, "popper", queue, "settle", batch, how, list(keys))

    def settled(
        self, queue: str, batch: int, how: str, *keys: str, who: str = "popper", result: str = "ok"
    ) -> None:
        found = ("settled", batch, how, list(keys), result)
        self.write(who, "popper", queue, *found)

    def eat(self, queue: str, *keys: str, who: str = "popper", how: str = "commit") -> None:
        batch = self.get(queue, *keys, who=who)
        self.settle(queue, batch, how, *keys, who=who)
        self.settled(queue, batch, how, *keys, who=who)
        self._done.setdefault(queue, []).extend(keys)

    def now(self) -> int:
        return self._now

    # --- the end ------------------------------------------------------------------------------

    def verdict(self, *, ended: bool = True, keyed: bool = False) -> Verdict:
        """keyed: whether the groups keep the order of keys instead."""
        for queue in GROUPS:
            self.write("drain", "drainer", "", "dead", queue, "one", self.dead[queue])
            count = self._seqs.get(queue, -1) + 1
            dead = len(self.dead[queue])
            parts = self.ledger.get(queue, [0, 0, count - dead, dead, count])
            found = ("audit", queue, {"one": parts}, parts[4], self.findings)
            self.write("drain", "drainer", "", *found)
        if ended:
            self.write("drain", "drainer", "", "end")
        return check(history_of(self.stories(), STRICT, GROUPS, ["one"] if keyed else []))

    def stories(self) -> Iterator[Story]:
        for lines in self._lines.values():
            yield story_of("".join(json.dumps(line) + "\n" for line in lines).encode())


def right() -> Tale:
    """Something of everything that may happen."""
    tale = Tale()
    for queue in GROUPS:
        tale.push(queue, f"{queue}:0")
        tale.push(queue, f"{queue}:1", f"{queue}:2", f"{queue}:3")
        tale.eat(queue, f"{queue}:0")
        batch = tale.get(queue, f"{queue}:1", f"{queue}:2")
        tale.settle(queue, batch, "rollback", f"{queue}:1")
        tale.settled(queue, batch, "rollback", f"{queue}:1")
        tale.settle(queue, batch, "commit", f"{queue}:2")
        tale.settled(queue, batch, "commit", f"{queue}:2")
        tale.eat(queue, f"{queue}:1", who="another")
        tale.get(queue, f"{queue}:3")  # and dies
        batch = tale.get(queue, f"{queue}:3", who="another")
        tale.settle(queue, batch, "commit", f"{queue}:3", who="another")  # and dies
        tale.fail(queue, tale.begin(queue, f"{queue}:4", f"{queue}:5"), "unknown", 1)
        tale.eat(queue, f"{queue}:4", f"{queue}:5")
        tale.push(queue, f"{queue}:6")
        tale.eat(queue, f"{queue}:6", how="dead")
        tale.dead[queue].append(f"{queue}:6")
    return tale


def test_a_right_history_is_accepted() -> None:
    verdict = right().verdict()
    assert verdict.good, verdict.findings
    of_some = OF_STRICT_GROUPS.keys() | OF_KEYED_GROUPS.keys()
    assert set(verdict.counts) == OF_ALL.keys() | OF_GROUPS.keys() | of_some
    assert verdict.duplicates == {"ap/one": 0}


# --- wrong histories --------------------------------------------------------------------------


def lost(tale: Tale, queue: str) -> None:
    tale.push(queue, "lost:0")


def delivered_and_never_finished(tale: Tale, queue: str) -> None:
    tale.push(queue, "lost:0")
    tale.eat(queue, "lost:0", how="rollback")


def lost_of_a_push_that_was_told_half_done(tale: Tale, queue: str) -> None:
    op = tale.begin(queue, "lost:0", "unsure:1")
    tale.fail(queue, op, "unknown", 1)


def invented(tale: Tale, queue: str) -> None:
    tale.places["invented:0"] = "pipe", 0
    tale.eat(queue, "invented:0")


def of_another_queue(tale: Tale, queue: str) -> None:
    other = {"ap": "cp", "cp": "ap"}[queue]
    tale.push(other, "astray:0")
    tale.eat(other, "astray:0")
    tale.eat(queue, "astray:0")


def invented_dead(tale: Tale, queue: str) -> None:
    tale.dead[queue].append("invented:0")


def again_after_its_commit(tale: Tale, queue: str) -> None:
    tale.push(queue, "again:0")
    tale.eat(queue, "again:0")
    tale.get(queue, "again:0", who="another")


def under_another_id(tale: Tale, queue: str) -> None:
    tale.push(queue, "renamed:0")
    tale.places["renamed:0"] = "another pipe", 7
    tale.eat(queue, "renamed:0")


def with_another_priority(tale: Tale, queue: str) -> None:
    tale.push(queue, "raised:0")
    tale.eat(queue, "raised:0", how="rollback")
    tale.levels["raised:0"] = 3
    tale.eat(queue, "raised:0")


def refused_and_there(tale: Tale, queue: str) -> None:
    tale.fail(queue, tale.begin(queue, "refused:0"), "refused")
    tale.eat(queue, "refused:0")


def found_by_the_audit(tale: Tale, queue: str) -> None:
    tale.findings.append(f"{queue}: no claim row covers seq 3")


def left_over(tale: Tale, queue: str) -> None:
    tale.ledger[queue] = [1, 0, 6, 0, 7]


def not_in_the_ledger(tale: Tale, queue: str) -> None:
    tale.ledger[queue] = [0, 0, 2, 0, 2]


def not_what_was_pushed(tale: Tale, queue: str) -> None:
    tale.ledger[queue] = [0, 0, 7, 0, 8]


def more_than_was_tried(tale: Tale, queue: str) -> None:
    tale.ledger[queue] = [0, 0, 7, 1, 8]


def a_refused_push_in_the_ledger(tale: Tale, queue: str) -> None:
    tale.fail(queue, tale.begin(queue, "refused:0"), "refused")
    tale.ledger[queue] = [0, 0, 7, 1, 8]


def taken_from_its_holder(
    tale: Tale, queue: str, *, result: str, also: tuple[str, ...] = ()
) -> None:
    """Another gets what a popper holds, commits it, and then the first commits, too."""
    keys = ("held:0", *also)
    tale.push(queue, *keys)
    called = tale.now()
    batch = tale.get(queue, *keys)
    second = tale.get(queue, "held:0", who="another", called=called)
    tale.settle(queue, second, "commit", "held:0", who="another")
    tale.settle(queue, batch, "commit", *keys)
    tale.settled(queue, second, "commit", "held:0", who="another")
    tale.settled(queue, batch, "commit", *keys, result=result)


def committed_by_two_holders(tale: Tale, queue: str) -> None:
    taken_from_its_holder(tale, queue, result="ok")


def refused_as_lost(tale: Tale, queue: str, *keys: str) -> None:
    tale.push(queue, *keys)
    batch = tale.get(queue, *keys)
    tale.settle(queue, batch, "commit", *keys)
    tale.settled(queue, batch, "commit", *keys, result="lost")


def refused_as_lost_and_never_seen_again(tale: Tale, queue: str) -> None:
    refused_as_lost(tale, queue, "gone:0")


def all_refused_as_lost_and_none_seen_again(tale: Tale, queue: str) -> None:
    refused_as_lost(tale, queue, "gone:0", "gone:1")


def dead_twice(tale: Tale, queue: str) -> None:
    tale.push(queue, "dead:0")
    tale.eat(queue, "dead:0", how="dead")
    tale.dead[queue] += ["dead:0", "dead:0"]
    tale.ledger[queue] = [0, 0, 6, 2, 8]


def dead_and_committed(tale: Tale, queue: str) -> None:
    tale.push(queue, "dead:0")
    tale.eat(queue, "dead:0")
    tale.dead[queue].append("dead:0")


WRONG = [
    ("nothing acknowledged is lost", lost),
    ("nothing acknowledged is lost", delivered_and_never_finished),
    ("nothing acknowledged is lost", lost_of_a_push_that_was_told_half_done),
    ("nothing is invented", invented),
    ("nothing is invented", of_another_queue),
    ("nothing is invented", invented_dead),
    ("what was committed does not come again", again_after_its_commit),
    ("a message keeps its id", under_another_id),
    ("a message keeps its priority", with_another_priority),
    ("what was refused is not there", refused_and_there),
    ("the ledger balances", found_by_the_audit),
    ("the ledger balances", left_over),
    ("the ledger balances", not_in_the_ledger),
    ("the ledger balances", not_what_was_pushed),
    ("the ledger balances", more_than_was_tried),
    ("the ledger balances", a_refused_push_in_the_ledger),
    ("a message is committed once", committed_by_two_holders),
    ("what was refused as lost comes again", refused_as_lost_and_never_seen_again),
    ("what was refused as lost comes again", all_refused_as_lost_and_none_seen_again),
    ("what is dead was not committed", dead_twice),
    ("what is dead was not committed", dead_and_committed),
]


@pytest.mark.parametrize("queue", GROUPS)
@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_wrong_history_is_seen(name: str, wrong: Callable[[Tale, str], None], queue: str) -> None:
    tale = right()
    wrong(tale, queue)
    verdict = tale.verdict()
    assert verdict.counts[name] == len(verdict.findings[name]) > 0, verdict.counts
    others = {other for other, count in verdict.counts.items() if count} - {name}
    assert others <= {"the ledger balances"}, "what is invented is not in the ledger either"


# --- wrong on a strict queue ------------------------------------------------------------------


def passed_by(tale: Tale) -> None:
    tale.push("cp", "x:0")
    tale.push("cp", "x:1")
    tale.eat("cp", "x:1")
    tale.eat("cp", "x:0")


def passed_by_another_pushers(tale: Tale) -> None:
    tale.push("cp", "x:0")
    tale.push("cp", "y:0", who="another")
    tale.eat("cp", "y:0")
    tale.eat("cp", "x:0")


def delivered_while_one_before_is_held(tale: Tale) -> None:
    tale.push("cp", "x:0")
    tale.push("cp", "x:1")
    batch = tale.get("cp", "x:0")
    tale.eat("cp", "x:1", who="another")
    tale.settle("cp", batch, "commit", "x:0")
    tale.settled("cp", batch, "commit", "x:0")


def delivered_while_one_before_is_to_be_tried_again(tale: Tale) -> None:
    tale.push("cp", "x:0")
    tale.push("cp", "x:1")
    tale.eat("cp", "x:0", how="rollback")
    tale.eat("cp", "x:1")
    tale.eat("cp", "x:0")


def turned_round_in_a_batch(tale: Tale) -> None:
    tale.push("cp", "x:0")
    tale.push("cp", "x:1")
    tale.eat("cp", "x:1", "x:0")


def turned_round_in_a_push(tale: Tale) -> None:
    tale.push("cp", "x:0", "x:1")
    tale.eat("cp", "x:1")
    tale.eat("cp", "x:0")


def dead_after_what_came_later(tale: Tale) -> None:
    tale.push("cp", "x:0")
    tale.push("cp", "x:1")
    tale.eat("cp", "x:1")
    tale.eat("cp", "x:0", how="rollback")
    tale.dead["cp"].append("x:0")


ORDERS = [
    passed_by,
    passed_by_another_pushers,
    delivered_while_one_before_is_held,
    delivered_while_one_before_is_to_be_tried_again,
    turned_round_in_a_batch,
    turned_round_in_a_push,
    dead_after_what_came_later,
]


@pytest.mark.parametrize("wrong", ORDERS)
def test_a_wrong_order_is_seen(wrong: Callable[[Tale], None]) -> None:
    tale = right()
    wrong(tale)
    counts = tale.verdict().counts
    assert [name for name, count in counts.items() if count] == ["the order is kept"]


def test_what_was_pushed_at_the_same_time_may_come_in_any_order() -> None:
    tale = right()
    first = tale.begin("cp", "x:0")
    second = tale.begin("cp", "y:0", who="another")
    tale.acknowledge("cp", second, "y:0", who="another")
    tale.acknowledge("cp", first, "x:0")
    tale.eat("cp", "y:0")
    tale.eat("cp", "x:0")
    assert tale.verdict().good


def test_a_message_of_unknown_fate_may_come_at_any_place_or_not_at_all() -> None:
    tale = right()
    tale.fail("cp", tale.begin("cp", "x:0"), "unknown")
    tale.begin("cp", "x:1")  # and dies
    tale.push("cp", "y:0", who="another")
    tale.eat("cp", "y:0")
    tale.eat("cp", "x:0")
    assert tale.verdict().good


def test_a_message_that_died_of_its_failures_may_be_passed_by() -> None:
    tale = right()
    tale.push("cp", "x:0")
    tale.push("cp", "x:1")
    tale.eat("cp", "x:0", how="rollback")
    tale.dead["cp"].append("x:0")
    tale.eat("cp", "x:1")
    assert tale.verdict().good


def test_a_pop_that_began_before_the_commit_may_return_what_was_committed() -> None:
    tale = right()
    tale.push("cp", "x:0")
    called = tale.now()
    tale.eat("cp", "x:0")
    tale.get("cp", "x:0", who="another", called=called)
    assert tale.verdict().good


# --- the order of keys --------------------------------------------------------------------------
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
    ("queue", "group"), [(queue, group) for queue in Ground.groups for group in Ground.groups[queue]]
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


def right_by_key() -> Tale:
    """Something of what may happen where the order of keys is kept."""
    tale = Tale()
    for queue in GROUPS:
        tale.push(queue, f"{queue}:3")
        tale.push(queue, f"{queue}:4", f"{queue}:9")
        tale.eat(queue, f"{queue}:4", how="rollback")
        tale.eat(queue, f"{queue}:3")
        tale.eat(queue, f"{queue}:4")
        tale.eat(queue, f"{queue}:9")
    return tale


# --- right ones that look like wrong ones -----------------------------------------------------


def test_a_ledger_holds_what_a_push_of_unknown_outcome_may_have_pushed() -> None:
    for pushed in (7, 8):
        tale = right()
        tale.fail("cp", tale.begin("cp", "unsure:0"), "unknown")
        tale.ledger["cp"] = [0, 0, pushed - 1, 1, pushed]
        verdict = tale.verdict()
        assert verdict.good, verdict.findings


def test_a_ledger_holds_each_copy_of_an_ap_queue_that_was_delivered() -> None:
    tale = right()
    tale.push("ap", "x:0")
    tale.eat("ap", "x:0")
    tale.places["x:0"] = "another pipe", 0
    tale.eat("ap", "x:0")
    tale.ledger["ap"] = [0, 0, 8, 1, 9]
    verdict = tale.verdict()
    assert verdict.good, verdict.findings
    tale.ledger["ap"] = [0, 0, 9, 1, 10]
    assert tale.verdict().counts["the ledger balances"] > 0


@pytest.mark.parametrize("queue", GROUPS)
@pytest.mark.parametrize("also", [(), ("kept:1",)])
def test_one_of_two_holders_may_commit(queue: str, also: tuple[str, ...]) -> None:
    tale = right()
    taken_from_its_holder(tale, queue, result="lost", also=also)
    verdict = tale.verdict()
    assert verdict.good, verdict.findings


@pytest.mark.parametrize("queue", GROUPS)
def test_two_holders_may_commit_if_one_of_them_got_no_answer(queue: str) -> None:
    tale = right()
    taken_from_its_holder(tale, queue, result="unknown")
    verdict = tale.verdict()
    assert verdict.good, verdict.findings


@pytest.mark.parametrize("queue", GROUPS)
@pytest.mark.parametrize("how", ["again", "dead"])
def test_what_was_refused_as_lost_may_come_again_or_be_dead(queue: str, how: str) -> None:
    tale = right()
    refused_as_lost(tale, queue, "lost:0")
    if how == "dead":
        tale.dead[queue].append("lost:0")
    else:
        tale.eat(queue, "lost:0", who="another")
    verdict = tale.verdict()
    assert verdict.good, verdict.findings


@pytest.mark.parametrize("how", ["commit", "dead"])
def test_each_copy_of_a_message_of_an_ap_queue_may_die_or_be_committed(how: str) -> None:
    tale = right()
    tale.push("ap", "x:0")
    tale.eat("ap", "x:0", how="dead")
    tale.places["x:0"] = "another pipe", 0
    tale.eat("ap", "x:0", how=how)
    tale.dead["ap"] += ["x:0"] * (2 if how == "dead" else 1)
    tale.ledger["ap"] = [0, 0, 9 - len(tale.dead["ap"]), len(tale.dead["ap"]), 9]
    verdict = tale.verdict()
    assert verdict.good, verdict.findings


def test_a_copy_of_a_message_of_an_ap_queue_is_counted_and_no_offence() -> None:
    tale = right()
    tale.push("ap", "x:0")
    tale.eat("ap", "x:0")
    tale.places["x:0"] = "another pipe", 0
    tale.eat("ap", "x:0")
    verdict = tale.verdict()
    assert verdict.good, verdict.findings
    assert verdict.duplicates == {"ap/one": 1}


def test_a_run_that_was_not_drained_or_proved_nothing_fails() -> None:
    assert not right().verdict(ended=False).good
    empty = Tale().verdict()
    assert empty.findings["the end was reached"] == [
        "nothing was acknowledged: the run proved nothing"
    ]


# --- journals ---------------------------------------------------------------------------------


def test_a_line_that_a_kill_cut_off_was_not_written() -> None:
    story = story_of(b'[1,"role","pusher","p","q",""]\n[2,"push",0,["p:0"]]\n[3,"pus')
    assert [line.word for line in story.lines] == ["push"]


def test_a_journal_that_is_damaged_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with a role"):
        story_of(b'[2,"push",0,["p:0"]]\n')
