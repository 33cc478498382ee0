"""Dataclasses that only type checkers keep frozen: otherwise as those of the standard library."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from pathlib import Path

import pytest
from mypy import api

from cassq.frozen import dataclass
from cassq.model.rows import Member


@dataclass(frozen=True, slots=True)
class Point:
    """A point."""

    x: int
    y: int = 0


def test_values_are_equal_by_their_fields() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 1)
    assert {Point(1), Point(1, 0), Point(2)} == {Point(1), Point(2)}
    assert repr(Point(1)).endswith("Point(x=1, y=0)")
    assert [each.name for each in fields(Point)] == ["x", "y"]


def test_they_have_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Point(1).z = 2  # type: ignore[attr-defined]


def test_they_are_replaced_copied_and_pickled() -> None:
    assert replace(Point(1, 2), x=3) == Point(3, 2)
    member = Member("group", "name", 5, waiting=True)
    assert copy.deepcopy(member) == pickle.loads(pickle.dumps(member)) == member


def test_a_type_checker_refuses_to_change_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from cassq.model.rows import Move\ndef f(a: Move) -> None:\n    a.seq = 1\n"
    )
    said, _, code = api.run(["--strict", f"--cache-dir={tmp_path}", str(program)])
    assert (code, 'Property "seq" defined in "Move" is read-only' in said) == (1, True), said
