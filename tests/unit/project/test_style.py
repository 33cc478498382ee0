"""Style as a test: sizes, names, docstrings, where time comes from, and what no file may say."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
FOLDER_FILES_MAX = 12

# Folders of one family may have two more. The files at the top of the package are counted apart.
FAMILIES = {
    *("cassq/catalog/cassandra/partition", "cassq/extents/sidecar", "cassq/reaper"),
    "cassq/worker",
}

# A longer file may be listed here, with the reason why it is not cut.
LONGER_FILES: dict[str, str] = {}

PYTHON_FOLDERS = ("cassq", "bench", "examples", "tests")
TEXT_FOLDERS = (*PYTHON_FOLDERS, "schema", "docs", ".ci")
TEXT_SUFFIXES = {
    *(".cfg", ".cql", ".csv", ".html", ".in", ".ini", ".json", ".md", ".py", ".rst", ".sh"),
    *(".sql", ".svg", ".toml", ".txt", ".xml", ".yaml", ".yml", ""),
}
NOT_SOURCE = {"__pycache__", "cassq-data", "out"}

# Folders of tests that are about no room of the package.
FOLDERS_WITHOUT_ROOM = {"bench", "catalog_cassandra", "project", "storm", "suite"}

CLOCK_READS = {
    *("time", "time_ns", "sleep", "monotonic", "monotonic_ns"),
    *("clock_gettime", "clock_gettime_ns"),
}
WALL_CLOCK_READS = {"now", "utcnow", "today"}

BANNED_DEFINITION = re.compile(r"Manager|Impl(?![a-z])|^Base.*Factory$|^(utils?|common|helpers?)$")
BANNED_FILE = re.compile(r"(^|_)(manager|impl|utils?|common|helpers?)(_|$)")

# What belongs to one machine or one registry, not to the project. Each is spelled in two parts,
# for this file is searched as well.
BANNED_TEXT = [
    re.compile(r"(?<![\w.])/" + r"(work|root)/"),
    re.compile(r"(?<![\w.])/" + r"(home|Users)/[a-z]"),
    re.compile("pypi" + r"\.org|python" + r"hosted\.org", re.IGNORECASE),
    re.compile("repo1?" + r"\.maven|registry" + r"\.npmjs", re.IGNORECASE),
]

Complaints = Iterator[str]
Rule = Callable[[str, str], Complaints]


@lru_cache(maxsize=2)
def parsed(source: str) -> ast.Module:
    """The source of a file, which several rules look at one after another."""
    return ast.parse(source)


# --- the rules: each yields a complaint an offence -------------------------------------------


def file_length(place: str, source: str) -> Complaints:
    lines = len(source.splitlines())
    if lines > FILE_LINES_MAX and place not in LONGER_FILES:
        yield f"{place}: {lines} lines, more than {FILE_LINES_MAX}"


def function_length(place: str, source: str) -> Complaints:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{place}:{node.lineno}: {node.name} has {lines} lines"


def module_docstring(place: str, source: str) -> Complaints:
    """An empty file, such as a test folder's `__init__.py`, has nothing to introduce; each folder
    of the package says what lives there."""
    if not source.strip() and not place.startswith("cassq/"):
        return
    docstring = ast.get_docstring(parsed(source), clean=False) or ""
    if not docstring.split("\n")[0].strip():
        yield f"{place}: no first docstring line that says what lives there"


def time_from_the_clock(place: str, source: str) -> Complaints:
    tree = parsed(source)
    names = _names_of(tree, "time")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            for alias in node.names:
                if alias.name in CLOCK_READS | {"*"}:
                    yield f"{place}:{node.lineno}: {alias.name} of time; ask cassq.base.clock"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in names and node.attr in CLOCK_READS:
                yield f"{place}:{node.lineno}: time.{node.attr}; ask cassq.base.clock"
            elif node.value.id in {"datetime", "date"} and node.attr in WALL_CLOCK_READS:
                yield f"{place}:{node.lineno}: {node.value.id}.{node.attr}; ask cassq.base.clock"


def _names_of(tree: ast.AST, module: str) -> set[str]:
    """The names a module is imported under."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == module
    }


def one_rule_for_attempts(place: str, source: str) -> Complaints:
    """A loop that attempts a compare-and-set again has its bound and its pauses from one place; one
    that repeats something else names what it counts."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
            given = " ".join(map(ast.unparse, node.args))
            if found := re.search(r"\b(?:\w*_)?TRIES(?:_\w*)?\b", given):
                yield f"{place}:{node.lineno}: {found[0]}; use attempts of cassq.base.clock"


def definition_names(place: str, source: str) -> Complaints:
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if BANNED_DEFINITION.search(node.name):
            yield f"{place}:{node.lineno}: the name {node.name} says nothing"


def file_names(place: str, source: str) -> Complaints:
    for part in Path(place).with_suffix("").parts:
        if BANNED_FILE.search(part):
            yield f"{place}: the name {part} says nothing"


def errors_are_handled(place: str, source: str) -> Complaints:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield f"{place}:{node.lineno}: a bare except"
            if all(_does_nothing(statement) for statement in node.body):
                yield f"{place}:{node.lineno}: an except that does nothing; say contextlib.suppress"


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def no_sleep(place: str, source: str) -> Complaints:
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name == "sleep" and ast.unparse(node.func) in {"time.sleep", "sleep"}:
            yield f"{place}:{node.lineno}: a sleep; wait for a signal, or turn a manual clock"


def speaks_of_itself(place: str, source: str) -> Complaints:
    for number, line in enumerate(source.splitlines(), 1):
        for pattern in BANNED_TEXT:
            if match := pattern.search(line):
                yield f"{place}:{number}: {match[0]} belongs to one machine or registry"


# --- the tree --------------------------------------------------------------------------------


def _python_files(*folders: str) -> list[str]:
    return [place for place in _files(*folders) if place.endswith(".py")]


def _files(*folders: str) -> list[str]:
    found: list[str] = []
    for folder in folders:
        for parent, children, names in os.walk(ROOT / folder):
            children[:] = sorted(set(children) - NOT_SOURCE)
            found += (str((Path(parent) / n).relative_to(ROOT)) for n in sorted(names))
    return found


def _text_files() -> list[str]:
    # In a worktree `.git` is a file that names a place of this machine.
    top = [p.name for p in sorted(ROOT.iterdir()) if p.is_file() and p.name != ".git"]
    return [p for p in top + _files(*TEXT_FOLDERS) if Path(p).suffix in TEXT_SUFFIXES]


def _complaints(places: list[str], *rules: Rule) -> list[str]:
    assert places, "no files were found to look at"
    found: list[str] = []
    for place in places:
        source = (ROOT / place).read_text(encoding="utf-8")
        for rule in rules:
            found += rule(place, source)
    return found


def test_the_package_is_cut_small_and_named_well() -> None:
    places = _python_files("cassq")
    assert _complaints(places, file_length, function_length, definition_names) == []


def test_time_comes_from_the_clock_alone() -> None:
    places = _python_files("cassq")
    places.remove("cassq/base/clock.py")
    assert _complaints(places, time_from_the_clock) == []


def test_a_compare_and_set_is_attempted_by_one_rule() -> None:
    assert _complaints(_python_files("cassq"), one_rule_for_attempts) == []


def test_every_python_file_follows_the_house() -> None:
    places = _python_files(*PYTHON_FOLDERS)
    assert _complaints(places, module_docstring, file_names, errors_are_handled) == []


def test_no_unit_or_contract_test_sleeps() -> None:
    assert _complaints(_python_files("tests/unit", "tests/contract"), no_sleep) == []


def test_the_project_speaks_of_itself_alone() -> None:
    assert _complaints(_text_files(), speaks_of_itself) == []


def test_the_folders_of_tests_are_the_rooms_of_the_package() -> None:
    rooms = _folders("cassq") | FOLDERS_WITHOUT_ROOM
    for kind in ("unit", "contract", "integration", "faults"):
        assert _folders(f"tests/{kind}") <= rooms, kind


def test_a_folder_of_the_package_has_few_files() -> None:
    for path in sorted((ROOT / "cassq").glob("**/__init__.py")):
        place = path.parent.relative_to(ROOT).as_posix()
        files = [each for each in path.parent.glob("*.py") if each != path]
        assert len(files) <= FOLDER_FILES_MAX + 2 * (place in FAMILIES), place
        assert place not in FAMILIES or len(files) > FOLDER_FILES_MAX, f"{place} needs no more"


# Classes of one name: the clients of threads and of event loops are called alike, and what other
# frameworks look for has the name that they give it.
SAME_NAMES = {
    **dict.fromkeys(("Client", "Message", "Popper", "Pusher", "Queue"), "in cassq and cassq.aio"),
    "Backend": "of Celery's results, and of Django's tasks",
    "Broker": "of Dramatiq, and of taskiq",
    "Results": "of Dramatiq, and the catalog's role",
}


def test_a_name_is_that_of_one_class() -> None:
    places: dict[str, set[str]] = {}
    for place in _python_files("cassq"):
        for node in ast.walk(parsed((ROOT / place).read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, set()).add(place)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert set(shared) == set(SAME_NAMES), shared


def _folders(place: str) -> set[str]:
    return {path.parent.name for path in (ROOT / place).glob("*/__init__.py")}


def test_a_longer_file_on_the_list_is_there_and_longer() -> None:
    for place in LONGER_FILES:
        assert len((ROOT / place).read_text().splitlines()) > FILE_LINES_MAX, place


# --- each rule sees what it forbids, and only that -------------------------------------------

OFFENCES: list[tuple[Rule, str]] = [
    (file_length, "x = 1\n" * (FILE_LINES_MAX + 1)),
    (function_length, "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (function_length, "class A:\n  async def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (module_docstring, ""),
    (module_docstring, "x = 1\n"),
    (module_docstring, '"""\nThe first line is empty."""\n'),
    (time_from_the_clock, "import time\ntime.time()\n"),
    (time_from_the_clock, "import time as t\nt.sleep(1)\n"),
    (time_from_the_clock, "from time import monotonic\n"),
    (time_from_the_clock, "from datetime import datetime\ndatetime.now()\n"),
    (time_from_the_clock, "def f(wait=time.sleep): ...\nimport time\n"),
    (one_rule_for_attempts, "for _ in range(TRIES_MAX): ...\n"),
    (one_rule_for_attempts, "for number in range(1, self._CHANGE_TRIES + 1): ...\n"),
    (definition_names, "class PipeManager: ...\n"),
    (definition_names, "class CatalogImpl: ...\n"),
    (definition_names, "def helpers(): ...\n"),
    (errors_are_handled, "try:\n  f()\nexcept:\n  raise\n"),
    (errors_are_handled, "try:\n  f()\nexcept OSError:\n  pass\n"),
    (errors_are_handled, "try:\n  f()\nexcept OSError:\n  ...\n"),
    (no_sleep, "import time\ntime.sleep(1)\n"),
    (speaks_of_itself, "see /" + "work/notes\n"),
    (speaks_of_itself, "--index https://pypi" + ".org/simple\n"),
]

ACCEPTED: list[tuple[Rule, str]] = [
    (file_length, "x = 1\n" * FILE_LINES_MAX),
    (function_length, "def f():\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)),
    (module_docstring, '"""Pipes."""\nx = 1\n'),
    (time_from_the_clock, "import time\ntime.strftime('%H')\nclock.sleep(1)\n"),
    (time_from_the_clock, "from datetime import datetime\ndatetime.fromtimestamp(1)\n"),
    (one_rule_for_attempts, "for _ in attempts(clock): ...\nrange(ENTRIES_MAX)\nTRIES_MAX = 5\n"),
    (definition_names, "from contextlib import contextmanager\nclass Implicit: ...\n"),
    (errors_are_handled, "try:\n  f()\nexcept OSError:\n  x = 1\n"),
    (no_sleep, "clock.sleep(1)\n"),
    (speaks_of_itself, "/var/lib/cassq/ and docs/work/notes and the PyPI package\n"),
]


@pytest.mark.parametrize(("rule", "source"), OFFENCES)
def test_a_rule_sees_an_offence(rule: Rule, source: str) -> None:
    assert list(rule("cassq/offence.py", source)) != []


@pytest.mark.parametrize(("rule", "source"), ACCEPTED)
def test_a_rule_accepts_what_is_just_inside_it(rule: Rule, source: str) -> None:
    assert list(rule("cassq/accepted.py", source)) == []


@pytest.mark.parametrize("place", ["cassq/utils.py", "cassq/common/pipes.py", "cassq/pipe_impl.py"])
def test_a_file_name_that_says_nothing_is_seen(place: str) -> None:
    assert list(file_names(place, "")) != []


def test_the_search_for_text_covers_the_whole_project() -> None:
    found = set(_text_files())
    expected = {"pyproject.toml", "setup.cfg", "dev", ".ci/run", "cassq/errors.py"}
    assert expected <= found, expected - found
