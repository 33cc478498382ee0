"""The pages of guarantees: every sentence names a check, and every check it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.planted import SLOW
from tests.simulation.plants.plants import PLANTS
from tests.simulation.plants.schedule_plants import SCHEDULE_PLANTS
from tests.simulation.plants.sidecar_plants import SIDECAR_PLANTS
from tests.simulation.plants.spill_plants import SPILL_PLANTS
from tests.simulation.tasks.step_plants import STEP_PLANTS

ROOT = Path(__file__).resolve().parents[3]
# What is asked of each page begins at a heading.
PAGES = {"guarantees.md": "# Guarantees", "spark.md": "## Guarantees"}
# What no cheap test shows: storms, clusters and jobs of Spark, drivers that are JVMs of their own,
# servers of locks that die, three Cassandra nodes, and one with other settings. `./dev test --all`
# runs these.
DEAR = (
    "faults/storm/test_storm.py",
    "faults/cassandra/test_nodes.py",
    "servers/test_servers.py",
    "spark/processes/test_executors.py",
    "spark/test_busy.py",
    "spark/test_flights.py",
    "spark/test_streams.py",
    "spark/processes/test_killed_drivers.py",
    "spark/processes/test_killed_streams.py",
    "spark/jobs/test_rollup.py",
    "spark/jobs/test_archive.py",
    "spark/jobs/test_compact.py",
    "spark/jobs/test_audit.py",
    "spark/jobs/test_replay.py",
    "contract/locks/test_hazelcast.py",
    "contract/locks/test_locker_failures.py",
)
CHECK = re.compile(r"\[`([^`]+)`\]")


@cache
def parsed(path: str) -> ast.Module:
    """A file of tests, of which many are named hundreds of times."""
    return ast.parse((ROOT / "tests" / path).read_text())


def sentences() -> list[str]:
    """The items of the pages' lists."""
    items: list[str] = []
    for page, heading in PAGES.items():
        _, _, text = (ROOT / "docs" / page).read_text().partition(f"{heading}")
        items += re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    return [re.split(r"^\n|^#", item, maxsplit=1, flags=re.MULTILINE)[0] for item in items]


def checks() -> list[str]:
    return sorted({check for sentence in sentences() for check in CHECK.findall(sentence)})


def test_every_sentence_ends_with_what_checks_it() -> None:
    assert len(sentences()) > 50
    unchecked = [s for s in sentences() if not s.rstrip().endswith("`]")]
    assert unchecked == []


@pytest.mark.parametrize("check", checks())
def test_every_check_that_is_named_exists(check: str) -> None:
    kind, colon, name = check.partition(":")
    if kind == "plant" and colon:
        plants = (*PLANTS, *SIDECAR_PLANTS, *SPILL_PLANTS, *SCHEDULE_PLANTS, *STEP_PLANTS)
        assert name in {plant.name for plant in plants}
        return
    path, _, function = check.partition("::")
    tree = parsed(path)
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_gate_checks_every_sentence() -> None:
    """At least one check of each runs in `./dev test`, which leaves out what is marked `long`."""
    late = [s for s in sentences() if not any(runs_in_the_gate(c) for c in CHECK.findall(s))]
    of_late = {check.partition("::")[0] for s in late for check in CHECK.findall(s)}
    assert of_late == set(DEAR)


def runs_in_the_gate(check: str) -> bool:
    """Whether a check is none that is marked `long`, by itself or with its whole file."""
    if check.startswith("plant:"):
        return check.removeprefix("plant:") not in SLOW
    path, _, function = check.partition("::")
    tree = parsed(path)
    marks = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            marks += map(ast.unparse, node.decorator_list)
    return not any("pytest.mark.long(" in mark for mark in marks)
