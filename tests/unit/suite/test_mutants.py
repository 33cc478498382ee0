"""The known bugs that are planted: each fits the source as it is, and names tests that are there.

That they are caught is what `python -m tests.mutants` shows.
"""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutants.mutant import TREE, Mutant, PatchError, file_of
from tests.mutants.roster import MUTANTS, SIMULATED, plants_of

LEAST = 80

PLANT = """=== a-name: frames.py
What it is,
in two lines.
tests: unit/message/frames::flipped unit/message/ranges
<<<
    return 1
---
    return 2
>>>
"""


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= LEAST
    names = Counter(mutant.name for mutant in (*MUTANTS, *SIMULATED))  # type: ignore[attr-defined]
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_patch_fits_the_source_and_leaves_it_python(mutant: Mutant) -> None:
    source = (TREE / mutant.place).read_text()
    ast.parse(mutant.patched(source))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_see_a_mutant_are_there(mutant: Mutant) -> None:
    assert mutant.tests
    for each in mutant.tests.split():
        name, _, word = each.partition("::")
        path = TREE / file_of(name)
        assert path.is_file(), path
        assert word in path.read_text()


def test_a_plant_is_read_as_it_is_written() -> None:
    (mutant,) = plants_of(PLANT)
    assert mutant == Mutant(
        "a-name",
        "frames.py",
        "What it is, in two lines.",
        "    return 1",
        "    return 2",
        "unit/message/frames::flipped unit/message/ranges",
    )
    assert mutant.arguments() == [
        "tests/unit/message/test_frames.py",
        "tests/unit/message/test_ranges.py",
        "-k",
        "flipped or test_ranges.py",
    ]


def test_anything_but_a_plant_is_refused() -> None:
    with pytest.raises(ValueError, match="no plant begins"):
        list(plants_of(PLANT + "something else\n"))


@pytest.mark.parametrize("source", ["", "    return 1\n    return 1\n"])
def test_a_patch_that_does_not_fit_is_refused(source: str) -> None:
    (mutant,) = plants_of(PLANT)
    with pytest.raises(PatchError, match="a-name"):
        mutant.patched(source)
    assert mutant.patched("if x:\n    return 1\n") == "if x:\n    return 2\n"
