"""One rule, one place: no six consecutive lines of logic stand in two places of the package.

Lines are compared as `ast.unparse` writes them, relative to the least indented one. What a module
imports, what a function is called with, docstrings, and data without logic do not count.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

import cassq

PACKAGE = Path(cassq.__file__).parent
LINES = 6
GENERATED = {"cassq/gateway/wire/sqs.py"}  # the tables of SQS's service model
# Two places that may hold the same lines, with the reason.
EXCEPTIONS: dict[frozenset[str], str] = {
    frozenset({"cassq/extents/files/pipe_file.py", "cassq/extents/read_loop.py"}): (
        "the loop over files is the shortest way from a pop to its messages: it steps by bytes,"
        " and a call for each frame would cost it time"
    ),
}

_DATA = (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.UnaryOp, ast.unaryop, ast.Load)
_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")


class Line(NamedTuple):
    """A simple statement, or the head of a compound one."""

    number: int
    depth: int
    text: str


class Twin(NamedTuple):
    """The same lines in two places: (file, number of the first line)."""

    one: tuple[str, int]
    other: tuple[str, int]

    @property
    def files(self) -> frozenset[str]:
        return frozenset({self.one[0], self.other[0]})


def is_data(node: ast.stmt) -> bool:
    """Whether a statement has no logic: an import, a docstring, or a literal with a name."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return node.value is None or all(isinstance(each, _DATA) for each in ast.walk(node.value))
    return False


def runs(body: list[ast.stmt]) -> Iterator[list[Line]]:
    """The lines of logic of a body; those of each function and class in it are a run apart."""
    run: list[Line] = []
    inner: list[ast.stmt] = []

    def walk(nodes: list[ast.stmt], depth: int) -> None:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner.append(node)
            elif not is_data(node):
                text = ast.unparse(node)
                blocks = [name for name in _BLOCKS if getattr(node, name, None)]
                number = getattr(node, "lineno", 0)  # the case of a match has none
                run.append(Line(number, depth, text.split("\n")[0] if blocks else text))
                for name in blocks:
                    block = getattr(node, name)
                    if name in ("orelse", "finalbody"):
                        run.append(Line(block[0].lineno, depth, name))
                    walk(block, depth + 1)

    walk(body, 0)
    yield run
    for node in inner:
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from runs(node.body)


def twins(sources: Mapping[str, str]) -> list[Twin]:
    """Places with the same lines, whose sources are given by the file."""
    places: dict[tuple[tuple[int, str], ...], list[tuple[str, int]]] = defaultdict(list)
    for file, source in sources.items():
        for run in runs(ast.parse(source).body):
            for at in range(len(run) - LINES + 1):
                window = run[at : at + LINES]
                least = min(line.depth for line in window)
                key = tuple((line.depth - least, line.text) for line in window)
                places[key].append((file, window[0].number))
    return [Twin(*pair) for found in places.values() for pair in combinations(found, 2)]


@pytest.fixture(scope="module")
def of_the_package() -> list[Twin]:
    files = {f"cassq/{path.relative_to(PACKAGE)}": path for path in PACKAGE.rglob("*.py")}
    return twins(
        {file: files[file].read_text(encoding="utf-8") for file in sorted(files.keys() - GENERATED)}
    )


def test_no_logic_stands_in_two_places(of_the_package: list[Twin]) -> None:
    assert [twin for twin in of_the_package if twin.files not in EXCEPTIONS] == []


def test_each_exception_is_still_needed(of_the_package: list[Twin]) -> None:
    assert {twin.files for twin in of_the_package} >= EXCEPTIONS.keys()


LOGIC = """
    try:
        found = read(name)
    except KeyError:
        found = None
    finally:
        close()
    return found
"""


def test_a_planted_twin_is_seen() -> None:
    one = f"def one(name):\n    '''Reads.'''{LOGIC}"
    # Its layout, depth, signature and data differ.
    deeper = LOGIC.replace("\n", "\n    ").replace("read(name)", "read(\n name\n)  # it may fail")
    other = f"import os\nclass A:\n    async def other(self, name=1):\n        LIMITS = [1]{deeper}"
    (first,) = twins({"one.py": one, "other.py": other})
    assert first == Twin(("one.py", 3), ("other.py", 5))
    assert twins({"both.py": f"{one}\n{one}"}) != []


@pytest.mark.parametrize(
    "source",
    [
        LOGIC.replace("    return found\n", "").replace("        close()", "        pass"),
        "".join(f"    import m{each}\n" for each in range(8)),
        "".join(f"    limit_{each} = {{'a': (-1, [2])}}\n" for each in range(8)),
        "".join(f"    limit_{each}: int\n" for each in range(8)),
    ],
)
def test_few_lines_and_data_are_not_twins(source: str) -> None:
    one = f"def one():\n{source}"
    assert twins({"one.py": one, "other.py": one.replace("one", "other")}) == []


def test_other_logic_is_not_a_twin() -> None:
    other = LOGIC.replace("found = None", "found = name")
    sources = {"one.py": f"def f(name):{LOGIC}", "other.py": f"def f(name):{other}"}
    assert twins(sources) == []
