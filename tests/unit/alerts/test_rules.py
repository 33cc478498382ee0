"""What alerts find wrong with a group: each threshold just below, at, and above it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cassq.alerts.rules import IMPORTANCES_MAX, OTHER, Snapshot, bounded, findings
from cassq.errors import ConfigError
from cassq.inspect.held_keys import HeldKey
from cassq.inspect.stats import GroupStats
from cassq.model.queues import QueuePolicy, changed

NOW_MS = 10_000_000
OFF = QueuePolicy(alert_no_consumer=None)


def snapshot(policy: QueuePolicy = OFF, **fields: Any) -> Snapshot:
    stats = {k: fields.pop(k) for k in list(fields) if k in GroupStats.__slots__}
    seen = Snapshot("jobs", "default", "q1", "g1", policy, GroupStats(**stats))
    return replace(seen, **fields)


def kinds(seen: Snapshot) -> list[str]:
    return [finding.kind for finding in findings(seen, NOW_MS)]


# --- keys held for too long -------------------------------------------------------------------

WORST = HeldKey(b"k", "p:3", "in hand", 1, None, "me", behind=1200)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stuck_keys": 2}, "2 messages failed for more than 15 minutes; later messages of their"),
        ({"stuck_in_hand": 1, "worst": WORST}, "1 message was in hand for more than 15 minutes;"),
        ({"stuck_in_hand": 2, "worst": WORST}, "2 messages were in hand for more than 15 minutes"),
        ({"stuck_keys": 1, "stuck_in_hand": 1, "worst": WORST}, "1 message failed and 1 message"),
        ({"stuck_in_hand": 1, "worst": WORST}, "1,200 for message p:3 of key 'k', which me"),
    ],
)
def test_keys_that_are_held_for_too_long_are_reported(fields: dict[str, Any], said: str) -> None:
    (finding,) = findings(snapshot(**fields), NOW_MS)
    assert finding.kind == "stuck_keys"
    assert said in finding.message
    assert finding.values["stuck"] == fields.get("stuck_keys", 0)


@pytest.mark.parametrize("worst", [None, replace(WORST, behind=0)])
def test_a_message_in_hand_that_nothing_waits_for_is_not_reported(worst: HeldKey | None) -> None:
    assert kinds(snapshot(stuck_in_hand=1, worst=worst)) == []


# --- no consumer ------------------------------------------------------------------------------


def lonely(**fields: Any) -> Snapshot:
    return snapshot(QueuePolicy(), **{"waiting": 3, "oldest_age": 900.0, **fields})


def test_messages_that_nobody_came_for_in_a_quarter_of_an_hour_are_reported_by_default() -> None:
    (finding,) = findings(lonely(), NOW_MS)
    assert finding.kind == "no_consumer"
    assert finding.message == "no consumer has been seen for 15 minutes, with 3 messages unacked"
    assert finding.values == {"waiting": 3, "pending": 0, "threshold": 900.0}


def test_messages_held_by_consumers_that_are_gone_are_not_reported_as_waiting() -> None:
    (finding,) = findings(lonely(waiting=3, delayed=2, pending=2), NOW_MS)
    assert finding.message.endswith("with 3 messages unacked (1 waiting, 2 pending)")
    assert finding.values == {"waiting": 1, "pending": 2, "threshold": 900.0}


@pytest.mark.parametrize(
    "fields",
    [
        {"oldest_age": 899.9},
        {"oldest_age": None},
        {"members": 1},
        {"success_ms": NOW_MS - 899_999},
        {"created_ms": NOW_MS - 899_999},
        {"queue": "jobs~default~dead"},
    ],
)
def test_without_a_quarter_of_an_hour_alone_nothing_is_reported(fields: dict[str, Any]) -> None:
    assert kinds(lonely(**fields)) == []


def test_an_old_success_does_not_count_as_a_consumer() -> None:
    seen = lonely(success_ms=NOW_MS - 900_000, created_ms=NOW_MS - 900_000)
    assert kinds(seen) == ["no_consumer"]


# --- the others -------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "found"), [(59.9, []), (60.0, ["oldest_age"]), (None, [])])
def test_the_oldest_message_may_be_too_old(age: float | None, found: list[str]) -> None:
    assert kinds(snapshot(replace(OFF, alert_oldest_age=60), oldest_age=age, members=1)) == found


@pytest.mark.parametrize(
    ("grown", "found"), [(9, []), (10, ["dead_growth"]), (11, ["dead_growth"])]
)
def test_dead_letters_may_grow_too_fast(grown: int, found: list[str]) -> None:
    assert kinds(snapshot(replace(OFF, alert_dead_growth=10), grown=grown)) == found


STALLED = {"oldest_age": 120.0, "members": 2, "waiting": 5, "success_ms": NOW_MS - 120_000}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, ["stalled"]),
        ({"members": 0, "pending": 1}, ["stalled"]),
        ({"members": 0}, []),
        ({"oldest_age": 119.9}, []),
        ({"success_ms": NOW_MS - 119_999}, []),
        ({"created_ms": NOW_MS - 119_999}, []),
    ],
)
def test_a_group_is_stalled_when_consumers_commit_nothing(
    fields: dict[str, Any], found: list[str]
) -> None:
    policy = replace(OFF, alert_stalled=120)
    assert kinds(snapshot(policy, **{**STALLED, **fields})) == found


def test_a_paused_group_is_not_stalled() -> None:
    assert kinds(snapshot(replace(OFF, alert_stalled=120, pop_paused=True), **STALLED)) == []


def test_failed_messages_are_reported_by_importance() -> None:
    found = findings(snapshot(letters={"normal": 1, "high": 2}, letters_depth=3), NOW_MS)
    assert [(f.kind, f.importance) for f in found] == [("failed", "high"), ("failed", "normal")]
    assert found[0].message == "2 messages of importance high failed for good"
    assert len({finding.key for finding in found}) == 2


def test_no_number_of_importances_makes_more_than_a_few_incidents() -> None:
    letters = {f"p{number:03}": 1 for number in range(50)}
    kept = bounded(letters)
    assert len(kept) == IMPORTANCES_MAX + 1
    assert kept[OTHER] == 50 - IMPORTANCES_MAX
    assert sum(kept.values()) == 50
    assert bounded({"high": 2}) == {"high": 2}


def test_the_key_of_a_finding_stays_while_its_numbers_change() -> None:
    (first,) = findings(lonely(), NOW_MS)
    (second,) = findings(lonely(waiting=9, oldest_age=5000.0), NOW_MS + 60_000)
    assert first.key == second.key


# --- the settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {"owner": 5},
        {"owner": "x" * 201},
        {"alert_no_consumer": 0},
        {"alert_oldest_age": -1},
        {"alert_stalled": "soon"},
        {"alert_dead_growth": 0},
        {"alert_dead_growth": 1.5},
    ],
)
def test_a_bad_threshold_is_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        QueuePolicy(**setting)


def test_every_threshold_can_be_turned_off() -> None:
    names = ("alert_no_consumer", "alert_oldest_age", "alert_dead_growth", "alert_stalled")
    policy = changed(QueuePolicy(), dict.fromkeys(names))
    seen = snapshot(policy, oldest_age=1e9, waiting=9, grown=99, members=0)
    assert kinds(seen) == []
