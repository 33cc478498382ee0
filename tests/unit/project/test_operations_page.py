"""The page for operators: the metrics and the errors that it names are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from cassq.base.counters import Requests, Tallies
from cassq.errors import BackendUnavailableError
from cassq.inspect.metrics import (
    GROUP,
    OPERATION,
    QUEUE,
    SYSTEM,
    Histogram,
    Meter,
    queue_metrics,
    schedule_metrics,
)
from cassq.lifecycle.ports import Ports

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text()
# What Cassandra says, which cassq passes on.
SERVERS = {"User", "has no", "permission", "unconfigured table", "keyspace does not exist"}
# What Prometheus adds to the name of a histogram.
OF_HISTOGRAMS = ("_bucket", "_count", "_sum")


# --- metrics ----------------------------------------------------------------------------------


def unreachable() -> Ports:
    raise BackendUnavailableError("no node answers")


@cache
def metrics_made() -> set[str]:
    """The names of all metrics."""
    made = Meter(unreachable, Requests(), Tallies(), dict, queues=True).read()
    names = {metric.name for metric in [*made, *queue_metrics([]), *schedule_metrics([], 0)]}
    for histogram in made:
        if isinstance(histogram, Histogram):
            names |= {histogram.name + end for end in OF_HISTOGRAMS}
    return names


def metrics_named(text: str) -> list[str]:
    """The names of metrics in a text. One that is cut short, such as `…_dead_…`, has the beginning
    and the end of the whole name before it."""
    found: list[str] = []
    for name in re.findall(r"\b(?:cassq|messaging)_[a-z_]+|…_[a-z_]+_…", text):
        if name.startswith("…"):
            whole = found[-1].split("_")
            name = "_".join((*whole[:2], name.strip("…_"), *whole[-2:]))
        found.append(name)
    return found


def test_names_that_are_cut_short_are_read_whole() -> None:
    text = "`cassq_client_lost_messages_total`, `…_held_up_…`, `…_dead_…`; `cassq_queue_pipes`"
    assert metrics_named(text) == [
        "cassq_client_lost_messages_total",
        "cassq_client_held_up_messages_total",
        "cassq_client_dead_messages_total",
        "cassq_queue_pipes",
    ]


def test_each_metric_that_the_page_names_is_made() -> None:
    unknown = set(metrics_named(PAGE)) - metrics_made() - {GROUP, OPERATION, QUEUE, SYSTEM}
    assert not unknown


def test_each_metric_is_on_the_page() -> None:
    named = set(metrics_named(PAGE))
    missing = {name for name in metrics_made() - named if not name.endswith(OF_HISTOGRAMS)}
    assert not missing


# --- errors -----------------------------------------------------------------------------------


class Texts(ast.NodeVisitor):
    """Collects the texts of modules, without comments, and their classes. What is filled into a
    text later is `{}`."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.classes: set[str] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.add(node.name)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = [str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values]
        self.found.append("".join(parts))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.found.append(node.value)


@cache
def code() -> Texts:
    """What is in cassq/."""
    visitor = Texts()
    for path in sorted((ROOT / "cassq").rglob("*.py")):
        visitor.visit(ast.parse(path.read_text()))
    return visitor


def is_said(part: str) -> bool:
    return any(part in text for text in code().found)


def quoted() -> list[str]:
    """The parts of what the page says that errors say, without what differs each time."""
    rows = re.findall(r"^\| `\w+Error`: ([^|]+) \|", PAGE, re.MULTILINE)
    said = re.findall(r"(?:says|reports)\s(?:`([^`]+)`|\"([^\"]+)\")", PAGE)
    whole = rows + [one or other for one, other in said]
    parts = [part.strip() for text in whole for part in re.split(r", |…", " ".join(text.split()))]
    return sorted({re.sub(r"\d+( servers?)?", "{}", part) for part in parts if part})


@pytest.mark.parametrize("part", quoted())
def test_what_the_page_quotes_of_errors_is_what_they_say(part: str) -> None:
    # A count such as "1 of 2" may be filled in as one.
    assert part in SERVERS or is_said(part) or is_said(part.replace("{} of {}", "{}"))


def test_errors_are_quoted() -> None:
    """Otherwise the test above shows nothing."""
    assert {"cannot be reached", "only {} of the {} required replicas are up"} <= set(quoted())
    assert {"are damaged", "is wedged in pipe"} <= set(quoted())


def test_each_error_that_the_page_names_exists() -> None:
    names = set(re.findall(r"`(\w+Error)`", PAGE))
    assert len(names) > 10
    assert names <= code().classes
