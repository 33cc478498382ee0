"""Tools a test needs: found, or the test is skipped at a desk and fails in CI.

A test asks by marker or by fixture::

    @pytest.mark.needs("redis-server", "module:confluent_kafka")
    def test_...(needs):
        server = needs("postgres")  # its path

In CI (the environment has CI=true) nothing is skipped silently: *every* skip, also one by `skipif`,
`importorskip` or of a whole module, is a failure, unless the test is marked `may_skip(reason)`;
those that made use of it are listed at the end of the run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

import pytest

MODULE = "module:"
JAVA_VERSION_MIN = 17

# Where distributions keep servers that are not on the PATH.
_FURTHER_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/sbin",
    "/usr/sbin",
)
_ALLOWED_SKIPS = pytest.StashKey[list[str]]()


def in_ci() -> bool:
    """Whether this run is a continuous integration's."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def find(tool: str) -> str | None:
    """The path of a program (or the name of a module, asked for as `module:name`), if there.

    `java` counts only from version 17 on.
    """
    if tool.startswith(MODULE):
        name = tool.removeprefix(MODULE)
        return name if importlib.util.find_spec(name) else None
    path = shutil.which(tool) or shutil.which(tool, path=_further_path())
    if path is not None and tool == "java" and _java_version(path) < JAVA_VERSION_MIN:
        return None
    return path


def _further_path() -> str:
    places: list[str] = []
    for pattern in _FURTHER_PLACES:
        found = Path("/").glob(pattern.lstrip("/"))
        places += (str(p) for p in sorted(found, key=_numbers, reverse=True))
    return os.pathsep.join(places)


def _numbers(path: Path) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", str(path))]


def _java_version(path: str) -> int:
    """The major version: 17 for `17.0.15`, 8 for `1.8.0`; 0 where it does not start."""
    shown = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    return int(match[1]) if match else 0


def require(tool: str) -> str:
    """Like `find`, but ends the test if there is none: a skip at a desk, a failure in CI."""
    found = find(tool)
    if found is None:
        missing(f"{_described(tool)} is not installed")
    return found


def _described(tool: str) -> str:
    if tool == "java":
        return f"java {JAVA_VERSION_MIN} or later"
    return f"the Python module {tool.removeprefix(MODULE)}" if tool.startswith(MODULE) else tool


def missing(reason: str) -> NoReturn:
    """End the test for what is not to be had here: a skip at a desk, a failure in CI."""
    if in_ci():
        pytest.fail(f"{reason}; in CI a missing tool is a failure", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def needs() -> Callable[[str], str]:
    """`needs(tool)` gives the tool's path, or ends the test if there is none."""
    return require


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*tools): programs or `module:name`s the test uses")
    config.addinivalue_line("markers", "linux_only: it looks into /proc, or goes by locked FIFOs")
    config.addinivalue_line("markers", "may_skip(reason): the test may be skipped in CI as well")
    config.stash[_ALLOWED_SKIPS] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for tool in marker.args:
            require(tool)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not in_ci() or not report.skipped or hasattr(report, "wasxfail"):
        return report
    marker = item.get_closest_marker("may_skip")
    if marker is not None:
        why = marker.args[0] if marker.args else marker.kwargs["reason"]
        item.config.stash[_ALLOWED_SKIPS].append(f"{item.nodeid}: {_reason(report)} ({why})")
        return report
    report.outcome = "failed"
    report.longrepr = f"skipped, which CI does not allow: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if in_ci() and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What a skip said of itself: its report holds a triple of file, line and message."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skips = terminalreporter.config.stash[_ALLOWED_SKIPS]
    if skips:
        terminalreporter.section("skipped by permission")
        for line in skips:
            terminalreporter.write_line(line)
