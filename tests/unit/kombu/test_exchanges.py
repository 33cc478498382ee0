"""Which messages a binding is for."""

from __future__ import annotations

import pytest

from cassq.kombu.exchanges import matches


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("#", ["", "a", "a.b"], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "ab", "b.a"]),
        ("#.a", ["a", "b.a", "c.b.a"], ["ba", "a.b"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b"], ["a", "ab", "a.xb"]),
        ("a.*", ["a.b"], ["a", "a.b.c", "a."]),
        ("*.b", ["a.b"], ["b", "a.a.b"]),
        ("a.b", ["a.b"], ["axb", "a.b.c"]),
    ],
)
def test_topics(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [key for key in matching + others if matches("topic", pattern, key)] == matching


def test_direct_keys_are_equal_and_fanout_has_no_keys() -> None:
    assert matches("direct", "a", "a")
    assert not matches("direct", "#", "a")
    assert matches("fanout", "a", "b")
