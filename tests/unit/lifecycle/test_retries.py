"""Death records: what a message that died more than once remembers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cassq.lifecycle.retries import DEATHS_KEPT, EARLIER_ERROR_MAX, after


def a_death(reason: str = "rejected", *, at_ms: int = 1000, **more: Any) -> dict[str, Any]:
    times = {"first_ms": at_ms - 100, "last_ms": at_ms, "at_ms": at_ms}
    return {"queue": "jobs", "group": "default", "reason": reason, "error": "no", **times, **more}


def died(*deaths: dict[str, Any]) -> dict[str, Any]:
    record = "{}"
    for death in deaths:
        record = json.dumps(after(record, death))
    found: dict[str, Any] = json.loads(record)
    return found


def test_a_first_death_is_counted_and_nothing_else() -> None:
    assert died(a_death()) == {**a_death(), "count": 1}


def test_a_death_of_the_same_kind_is_counted_from_the_first() -> None:
    record = died(a_death(at_ms=1000), a_death(at_ms=5000, error="again"), a_death(at_ms=9000))
    assert record == {**a_death(at_ms=9000), "first_ms": 900, "count": 3}


@pytest.mark.parametrize(
    "other", [{"reason": "maxlen"}, {"group": "audit"}, {"queue": "mail"}, {"reason": "expired"}]
)
def test_deaths_of_other_kinds_are_kept(other: dict[str, str]) -> None:
    first, second = a_death(at_ms=1000, error="x" * 4000), {**a_death(at_ms=5000), **other}
    record = died(first, second)
    kept = {**first, "error": "x" * EARLIER_ERROR_MAX, "count": 1}
    assert record == {**second, "count": 1, "earlier": [kept]}
    again = died(first, second, first)
    assert again["count"] == 2
    assert [death["count"] for death in again["earlier"]] == [1]
    assert _kinds(again["earlier"]) == _kinds([second])


def _kinds(deaths: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(death["queue"], death["group"], death["reason"]) for death in deaths]


def test_the_oldest_kinds_are_forgotten() -> None:
    record = died(*(a_death(queue=f"q{number}") for number in range(20)))
    newest = [f"q{number}" for number in reversed(range(20))]
    assert [death["queue"] for death in record["earlier"]] == newest[1 : DEATHS_KEPT + 1]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "no json",
        "[]",
        "7",
        '{"count": "x", "first_ms": 1}',
        '{"earlier": 3}',
        '{"earlier": [4]}',
    ],
)
def test_anything_but_a_record_is_left_out(before: str) -> None:
    assert after(before, a_death()) == {**a_death(), "count": 1}
