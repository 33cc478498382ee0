"""The Catalog port: steps of tasks."""

from __future__ import annotations

from cassq.base.clock import ManualClock
from cassq.catalog.port import Catalog
from tests.integration.deadlines import eventually

DAY = 86_400.0


def test_the_first_record_of_a_step_stands(catalog: Catalog, other: Catalog) -> None:
    assert catalog.steps.find("one") == {}
    assert catalog.steps.add("one", "a", b"\x00first", DAY) == b"\x00first"
    assert other.steps.add("one", "a", b"second", DAY) == b"\x00first"
    assert other.steps.add("two", "a", b"another", DAY) == b"another"
    assert other.steps.find("one") == {"a": b"\x00first"}


def test_a_record_changes_only_from_what_it_is(catalog: Catalog, other: Catalog) -> None:
    assert not catalog.steps.change("one", "a", b"1", b"2", DAY)
    catalog.steps.add("one", "a", b"1", DAY)
    assert other.steps.change("one", "a", b"1", b"2", DAY)
    assert not catalog.steps.change("one", "a", b"1", b"3", DAY)
    assert catalog.steps.find("one") == {"a": b"2"}


def test_the_records_of_a_task_are_kept_together(catalog: Catalog, clock: ManualClock) -> None:
    for key in ("a", "b"):
        catalog.steps.add("one", key, key.encode(), DAY)
    catalog.steps.keep("one", 1.0)
    catalog.steps.keep("none", 1.0)

    def ended() -> bool:
        clock.advance(1.0)
        return not catalog.steps.find("one")

    eventually("they have ended", ended)


def test_a_record_whose_time_is_over_counts_as_absent(catalog: Catalog, clock: ManualClock) -> None:
    catalog.steps.add("one", "a", b"1", 1.0)

    def ended() -> bool:
        clock.advance(1.0)
        return not catalog.steps.find("one")

    eventually("it has ended", ended)
    assert not catalog.steps.change("one", "a", b"1", b"2", DAY)
    catalog.steps.keep("one", DAY)
    assert catalog.steps.find("one") == {}
    assert catalog.steps.add("one", "a", b"3", DAY) == b"3"
    assert catalog.steps.find("one") == {"a": b"3"}
