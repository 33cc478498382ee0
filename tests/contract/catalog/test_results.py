"""The Catalog port: results of tasks."""

from __future__ import annotations

from cassq.base.clock import ManualClock
from cassq.catalog.port import Catalog
from tests.integration.deadlines import eventually

DAY = 86_400.0


def test_a_result_is_found_by_every_client(catalog: Catalog, other: Catalog) -> None:
    assert catalog.results.find(["a"]) == {}
    catalog.results.put("a", b"\x00one", DAY)
    catalog.results.put("b", b"", DAY)
    assert other.results.find(["a", "b", "c"]) == {"a": b"\x00one", "b": b""}


def test_the_last_one_stands(catalog: Catalog, other: Catalog) -> None:
    catalog.results.put("a", b"1", DAY)
    other.results.put("a", b"2", DAY)
    assert catalog.results.find(["a"]) == {"a": b"2"}


def test_what_was_dropped_is_gone(catalog: Catalog, other: Catalog) -> None:
    for key in ("a", "b", "c"):
        catalog.results.put(key, b"1", DAY)
    other.results.drop(["a", "b", "none"])
    assert catalog.results.find(["a", "b", "c"]) == {"c": b"1"}


def test_many_are_found_at_once(catalog: Catalog) -> None:
    keys = [f"key-{number}" for number in range(600)]
    for key in keys[:300]:
        catalog.results.put(key, key.encode(), DAY)
    assert catalog.results.find(keys) == {key: key.encode() for key in keys[:300]}


def test_a_result_ends_by_itself(catalog: Catalog, clock: ManualClock) -> None:
    catalog.results.put("a", b"1", 1.0)

    def ended() -> bool:
        clock.advance(1.0)
        return not catalog.results.find(["a"])

    eventually("it has ended", ended)


def test_of_several_new_values_the_first_stays(catalog: Catalog, other: Catalog) -> None:
    assert catalog.results.put_new("a", b"1", DAY) == b"1"
    assert other.results.put_new("a", b"2", DAY) == b"1"
    assert catalog.results.put_new("a", b"1", DAY) == b"1"
    assert catalog.results.find(["a"]) == {"a": b"1"}
