"""What an audit says, from rows alone."""

from __future__ import annotations

from cassq.inspect.audit import bounded


def test_of_several_faults_the_first_is_reported() -> None:
    assert bounded(["a", "b"], 2) == ["a", "b"]
    assert bounded(["a", "b", "c"], 1) == ["a", "and 2 more like these"]
