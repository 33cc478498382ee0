"""The checker of storms: what it says of groups with limits."""

from __future__ import annotations

import pytest

from tests.faults.storm.checker import OF_LIMITED_GROUPS
from tests.faults.storm.ground import LIMITS
from tests.faults.storm.history import Limit
from tests.faults.storm.report import figures_of
from tests.faults.storm.run import limits
from tests.faults.storm.tale import Tale

# Each deed takes ten moments.
LIMIT = Limit(concurrency=2, rate=4, window_ns=100, claim_ns=200)
IN_HAND, RATE = OF_LIMITED_GROUPS


def wrong(tale: Tale) -> list[str]:
    counts = tale.verdict(limit=LIMIT).counts
    return [name for name, count in counts.items() if count]


def three_in_hand(tale: Tale, *, waits: int = 0, result: str = "ok") -> None:
    """Two processes have three messages, the second one once the first had its own for a while."""
    tale.push("ap", "x:0", "x:1", "x:2")
    first = tale.get("ap", "x:0", "x:1")
    tale.wait(waits)
    second = tale.get("ap", "x:2", who="another")
    tale.settle("ap", second, "commit", "x:2", who="another")
    tale.settled("ap", second, "commit", "x:2", who="another")
    tale.settle("ap", first, "commit", "x:0", "x:1")
    tale.settled("ap", first, "commit", "x:0", "x:1", result=result)


@pytest.mark.parametrize("result", ["ok", "unknown"])
def test_more_in_hand_than_allowed_are_seen_whatever_comes_of_them(result: str) -> None:
    tale = Tale()
    three_in_hand(tale, result=result)
    verdict = tale.verdict(limit=LIMIT)
    assert wrong(tale) == [IN_HAND]
    assert verdict.findings[IN_HAND] == ["3 of ap/one were in hand at 40, where 2 may"]


def test_more_in_one_delivery_than_allowed_are_seen() -> None:
    tale = Tale()
    tale.push("ap", "x:0", "x:1", "x:2")
    tale.eat("ap", "x:0", "x:1", "x:2")
    assert wrong(tale) == [IN_HAND]


@pytest.mark.parametrize("how", ["commit", "rollback", "release", "dead"])
def test_a_message_makes_room_when_its_consumer_begins_to_settle_it(how: str) -> None:
    tale = Tale()
    tale.push("ap", "x:0", "x:1", "x:2")
    first = tale.get("ap", "x:0", "x:1")
    tale.settle("ap", first, how, "x:0")
    second = tale.get("ap", "x:2", who="another")
    tale.settled("ap", first, how, "x:0")
    for who, batch, key in (("another", second, "x:2"), ("popper", first, "x:1")):
        tale.settle("ap", batch, "commit", key, who=who)
        tale.settled("ap", batch, "commit", key, who=who)
    if how in ("rollback", "release"):
        tale.eat("ap", "x:0")
    tale.dead["ap"] += ["x:0"] if how == "dead" else []
    assert wrong(tale) == []


def test_what_a_process_had_in_hand_that_stood_still_counts_as_long_as_its_claim() -> None:
    for waits, found in ((150, [IN_HAND]), (200, [])):
        tale = Tale()
        three_in_hand(tale, waits=waits)
        assert wrong(tale) == found


def test_what_a_killed_process_had_in_hand_does_not_count() -> None:
    tale = Tale()
    tale.push("ap", "x:0", "x:1")
    tale.get("ap", "x:0", "x:1")  # and dies, nobody knows when
    tale.eat("ap", "x:0", "x:1", who="another")
    assert wrong(tale) == []


def test_other_groups_have_no_limit() -> None:
    tale = Tale()
    three_in_hand(tale)
    assert tale.verdict().good


# --- the rate ---------------------------------------------------------------------------------


def five_pops(*, waits: int, called: int | None = None) -> Tale:
    """One message each, a wait before the last. called: when the last pop began."""
    tale = Tale()
    tale.push("ap", *(f"x:{number}" for number in range(5)))
    for number in range(5):
        key = f"x:{number}"
        tale.wait(waits if number == 4 else 0)
        batch = tale.get("ap", key, called=called if number == 4 else None)
        tale.settle("ap", batch, "commit", key)
    return tale


def test_more_than_the_rate_within_a_second_are_seen() -> None:
    """The first pop was called at 21, the last one returned at 110."""
    for window_ns, offences in ((89, 0), (90, 1)):
        limit = Limit(2, 4, window_ns, claim_ns=200)
        verdict = five_pops(waits=0).verdict(limit=limit)
        assert verdict.counts[RATE] == offences
        assert verdict.good == (not offences), verdict.findings


def test_more_than_the_rate_in_one_pop_are_seen_and_told_once() -> None:
    tale = Tale()
    tale.push("ap", *(f"x:{number}" for number in range(6)))
    batch = tale.get("ap", *(f"x:{number}" for number in range(6)))
    tale.settle("ap", batch, "commit", *(f"x:{number}" for number in range(6)))
    verdict = tale.verdict(limit=Limit(6, 4, 100, 200))
    assert verdict.counts[RATE] == 1
    assert "6 messages came to ap/one" in verdict.findings[RATE][0]


def test_what_is_spread_over_more_than_a_second_is_within_the_rate() -> None:
    assert wrong(five_pops(waits=60)) == []


def test_a_pop_that_took_longer_than_a_second_proves_nothing() -> None:
    """It may have claimed at any moment since, as when its process stood still."""
    assert wrong(five_pops(waits=300, called=11)) == []


# --- the limits of a storm --------------------------------------------------------------------


def test_clients_that_may_be_wrong_about_the_time_shorten_what_is_certain() -> None:
    exact, vague = limits(0.0), limits(0.25)
    assert exact.keys() == vague.keys() == LIMITS.keys()
    for place, limit in exact.items():
        assert (limit.window_ns, limit.claim_ns) == (1_000_000_000, 6_000_000_000)
        other = vague[place]
        assert (other.window_ns, other.claim_ns) == (500_000_000, 5_500_000_000)
        assert (limit.concurrency, limit.rate) == (other.concurrency, other.rate)


def test_the_report_says_how_much_of_the_limits_was_used() -> None:
    tale = Tale()
    three_in_hand(tale)
    history = tale.history(ended=True, keyed=False, limit=LIMIT)
    figures = figures_of(history, tale.verdict(limit=LIMIT), 0, tale.now())
    assert figures["ap/one"]["most in hand"] == "3 of 2"
    assert figures["ap/one"]["most in a second"] == "3 of 4"
