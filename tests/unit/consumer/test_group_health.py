"""Health: what a group's successes say of a message's failures."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from cassq.consumer.group_health import LOOK_MS, NOTE_MS, SPARED, GroupHealth, freed
from cassq.model.claims import failure_record
from cassq.model.queues import GroupPolicy, QueuePolicy, Rules, rules_of
from cassq.model.rows import Claim, ClaimState

FIRST_MS = 10_000  # when the messages first failed


class Catalog:
    """What other clients know of the group's successes. It is its own records."""

    def __init__(self) -> None:
        self.records = self
        self.time_ms = 0
        self.known_ms = 0
        self.reads = 0
        self.notes: list[int] = []

    def now_ms(self) -> int:
        return self.time_ms

    def success_ms(self, group_id: str) -> int:
        self.reads += 1
        return self.known_ms

    def note_success(self, group_id: str, now_ms: int) -> None:
        self.notes.append(now_ms)


class Group:
    """A group of one client: its health, its catalog and its clock."""

    def __init__(self, **policy: Any) -> None:
        self.catalog, self.now_ms = Catalog(), 0
        self.rules: Rules = rules_of(QueuePolicy(**policy), GroupPolicy())
        clock = SimpleNamespace(boot_ms=lambda: self.now_ms)
        ports: Any = SimpleNamespace(catalog=self.catalog, clock=clock, sharing=None)
        self.health = GroupHealth(ports, "g", lambda: self.rules)

    def fails(self, claim: Claim, now_ms: int = FIRST_MS) -> Claim:
        """The claim after it expired; it is one row still."""
        (row,) = freed(claim, now_ms, self.rules, self.health, lambda: "v")
        return row


def claim(deliveries: int = 1, failure: str = "", state: ClaimState = ClaimState.HELD) -> Claim:
    return Claim("g", "p", 0, 1, 0, state, 0, deliveries, holder="h", version="v", failure=failure)


def again(row: Claim) -> Claim:
    """A free row as its next consumer has it."""
    return claim(row.deliveries + 1, row.failure)


FAILED = failure_record("expired", "", "h", FIRST_MS)


@pytest.mark.parametrize(
    ("success_ms", "sick"), [(0, True), (FIRST_MS - 1, True), (FIRST_MS, False)]
)
def test_a_group_is_sick_when_nothing_succeeded_since_the_first_failure(
    success_ms: int, sick: bool
) -> None:
    group = Group()
    group.health.succeeded(success_ms)
    assert group.health.sick(claim(3, FAILED)) is sick
    other = Group()
    other.catalog.known_ms = success_ms
    assert other.health.sick(claim(3, FAILED)) is sick


def test_what_has_not_failed_and_what_is_not_to_be_checked_is_not_sick() -> None:
    assert not Group().health.sick(claim(3))
    assert not Group(sick_check=False).health.sick(claim(3, FAILED))


def test_the_catalog_is_read_and_written_now_and_then() -> None:
    group = Group()
    for group.now_ms in (0, LOOK_MS - 1, LOOK_MS):
        group.health.sick(claim(3, FAILED))
    assert group.catalog.reads == 2
    for now_ms in (5, 6, 4 + NOTE_MS, 5 + NOTE_MS):
        group.catalog.time_ms = now_ms
        group.health.succeeded(now_ms)
    assert group.catalog.notes == [5, 5 + NOTE_MS]
    group.health.succeeded(6 + NOTE_MS)
    group.health.record_success(at_once=True)
    group.health.record_success(at_once=True)
    assert group.catalog.notes[2:] == [6 + NOTE_MS]


@pytest.mark.parametrize(
    ("deliveries", "ms"),
    [(1, 0), (2, 50), (3, 100), (5, 400), (11, 25_600), (12, 30_000), (10**6, 30_000)],
)
def test_a_sick_group_is_tried_less_and_less_often(deliveries: int, ms: int) -> None:
    group = Group()
    assert group.health.slow_ms(claim(deliveries, FAILED)) == ms
    group.health.succeeded(FIRST_MS)
    assert group.health.slow_ms(claim(deliveries, FAILED)) == 0


def test_what_failed_in_a_sick_time_must_fail_a_delivery_that_began_after_it() -> None:
    group = Group()
    first = group.fails(claim(1))
    assert json.loads(first.failure)["first_ms"] == FIRST_MS
    second = group.fails(again(first))
    group.health.succeeded(FIRST_MS + 1)
    spared = [second]
    while group.health.sick(spared[-1]):
        spared.append(group.fails(again(spared[-1])))
    assert len(spared) == 1 + SPARED
    assert json.loads(spared[-1].failure).keys() == json.loads(FAILED).keys()


def test_while_others_succeed_no_failure_is_spared() -> None:
    group = Group()
    first = group.fails(claim(1))
    group.health.succeeded(FIRST_MS)
    assert not group.health.sick(group.fails(again(first)))


def test_without_the_check_nothing_is_spared() -> None:
    group = Group(sick_check=False)
    assert "spared" not in group.fails(claim(3, FAILED)).failure


@pytest.mark.parametrize(("waited_ms", "kept"), [(599_999, True), (600_000, False)])
def test_a_group_that_never_succeeded_keeps_a_failing_message_for_the_sick_hold(
    waited_ms: int, kept: bool
) -> None:
    group = Group()
    row = group.fails(again(group.fails(claim(1))))
    assert group.health.sick(row)
    group.catalog.time_ms = FIRST_MS + waited_ms
    assert group.health.spares(row) is kept
    assert group.health.sick(row), "it comes as seldom as before"
    assert group.health.slow_ms(claim(12, row.failure)) == (1 if kept else 30_000)


def test_a_group_that_ever_succeeded_keeps_messages_until_it_does_again() -> None:
    group = Group(sick_hold=1)
    group.catalog.known_ms = FIRST_MS - 1
    row = group.fails(again(group.fails(claim(1))))
    group.catalog.time_ms = FIRST_MS + 10**9
    assert group.health.spares(row)


def test_a_hold_of_nothing_spares_nothing_in_a_new_group() -> None:
    group = Group(sick_hold=0)
    group.catalog.time_ms = FIRST_MS
    row = group.fails(again(group.fails(claim(1))))
    assert "spared" not in row.failure
    assert not group.health.spares(row)
