"""The checker of storms: it accepts a right history, and sees each wrong one for what it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.storm.checker import (
    OF_ALL,
    OF_GROUPS,
    OF_KEYED_GROUPS,
    OF_LIMITED_GROUPS,
    OF_STRICT_GROUPS,
)
from tests.faults.storm.journal import story_of
from tests.faults.storm.tale import GROUPS, Tale, right


def test_a_right_history_is_accepted() -> None:
    verdict = right().verdict()
    assert verdict.good, verdict.findings
    of_some = OF_STRICT_GROUPS.keys() | OF_KEYED_GROUPS.keys() | OF_LIMITED_GROUPS.keys()
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
