"""A mutant: a bug as a small patch of the source, and the tests that should see it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).parents[2]
# What a copy of the tree consists of.
COPIED = ("cassq", "tests", "schema", "docs", "pyproject.toml", "setup.cfg")


class PatchError(Exception):
    """A patch does not fit the source any more."""


class Mutant(NamedTuple):
    """A bug. file: the module within `cassq`. old, new: the patch; `old` stands there once. tests:
    files of tests without what they all begin and end with, as "unit/message/frames", or single
    tests, as "unit/message/frames::a_word_of_their_names"."""

    name: str
    file: str
    what: str
    old: str
    new: str
    tests: str

    @property
    def place(self) -> str:
        return f"cassq/{self.file}"

    def patched(self, source: str) -> str:
        """The source with the bug. Raises PatchError where `old` is not there just once."""
        count = source.count(self.old)
        if count != 1:
            raise PatchError(f"{self.name}: the old text stands {count} times in {self.place}")
        if self.old == self.new:
            raise PatchError(f"{self.name}: it changes nothing")
        return source.replace(self.old, self.new)

    def arguments(self) -> list[str]:
        """What pytest is given."""
        found = [each.partition("::") for each in self.tests.split()]
        files = [file_of(name) for name, _, _ in found]
        # Of a file without a word its own name is one, which all of its tests bear.
        words = [word or Path(file_of(name)).name for name, _, word in found]
        chosen = ["-k", " or ".join(words)] if any(word for _, _, word in found) else []
        return [*files, *chosen]


class Simulated(NamedTuple):
    """A bug that the simulation plants by itself, with the test that it is caught."""

    name: str
    what: str
    file: str

    @property
    def place(self) -> str:
        return "simulation"

    @property
    def tests(self) -> str:
        return f"{Path(self.file).stem.removeprefix('test_')}[{self.name}]"

    def arguments(self) -> list[str]:
        """What pytest is given."""
        return [f"{self.file}::test_a_planted_bug_is_caught[{self.name}]"]


def file_of(name: str) -> str:
    """The path of a file of tests."""
    folder, _, stem = name.rpartition("/")
    return f"tests/{folder}/test_{stem}.py"
