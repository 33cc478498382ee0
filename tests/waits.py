"""Tests that wait: each whose call idles for more than two seconds says why.

    @pytest.mark.waits(reason="a session of ZooKeeper has four seconds at least")

How long a call idled is what it took, less the processor time of this process and of those that it
started, and less what they stood in line for a processor, as far as that is known. At its end a run
lists the tests that idled for longer than `--idle-most` without the mark (or `long`, whose reason
says it, too). That fails nothing: on a busy machine a disk, for one, makes any test wait. On a
quiet one the list is empty.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

WAITS = "waits"

_IDLED = pytest.StashKey[float]()
_SEEN = pytest.StashKey[tuple[float, "Work | None"]]()
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--idle-most",
        metavar="SECONDS",
        type=float,
        default=2.0,
        help=f"list tests that idle for longer and are not marked {WAITS} (default: %(default)g)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{WAITS}(reason): its call may idle for more than two seconds"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    began, before = time.monotonic(), _lately(item.config)
    try:
        return (yield)
    finally:
        took = time.monotonic() - began
        # A look takes milliseconds, and there are thousands of tests: most are not worth one.
        if took > item.config.getoption("--idle-most"):
            item.stash[_IDLED] = took - look().busy_since(before)


def _lately(config: pytest.Config) -> Work:
    """What was done up to a moment ago, or just now: looked at once a second at most. What tests
    did since counts as the next one's work, which then idled for so much less."""
    at, seen = config.stash.get(_SEEN, (-math.inf, None))
    if seen is None or time.monotonic() - at > 1.0:
        seen = look()
        config.stash[_SEEN] = time.monotonic(), seen
    return seen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    idled = item.stash.get(_IDLED, 0.0)
    says = item.get_closest_marker(WAITS) or item.get_closest_marker("long")
    if call.when == "call" and idled > item.config.getoption("--idle-most") and not says:
        # An attribute goes along to the process that prints the summary.
        report.idled_without_saying = idled  # type: ignore[attr-defined]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = [
        (report.idled_without_saying, report.nodeid)
        for reports in terminalreporter.stats.values()
        for report in reports
        if hasattr(report, "idled_without_saying")
    ]
    if found:
        most = terminalreporter.config.getoption("--idle-most")
        terminalreporter.section(f"idle for more than {most:g} s, and no mark says why")
        for idled, name in sorted(found, reverse=True):
            terminalreporter.write_line(f"{idled:6.1f} s  {name}")


class Work(NamedTuple):
    """What this process and all that it started have done so far.

    seconds: the processor time of all. threads: of each that lives, what it has had of processors,
    and what it waited for one, in seconds.
    """

    seconds: float
    threads: dict[int, tuple[float, float]]

    def busy_since(self, before: Work) -> float:
        """Seconds of work, and those that it stood in line. How long a process that has ended did
        that is not known: it is taken to have waited as the others did."""
        ran = waited = 0.0
        for thread, (had, stood) in self.threads.items():
            was = before.threads.get(thread, (0.0, 0.0))
            ran, waited = ran + had - was[0], waited + stood - was[1]
        seconds = max(0.0, self.seconds - before.seconds)
        return seconds * (1 + waited / ran) if ran > 0 else seconds


def look() -> Work:
    """Cost: a look at every process of the machine and at every thread of ours: some milliseconds,
    with a cluster of servers some dozens. Without Linux's /proc it is the processor time of this
    process and of the children that have ended."""
    own = os.times()
    seconds = own.user + own.system + own.children_user + own.children_system
    parents: dict[int, int] = {}
    each: dict[int, float] = {}
    for place in _places():
        if place.isdigit():
            try:
                fields = Path(f"/proc/{place}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(place)] = int(fields[1])
            each[int(place)] = sum(map(int, fields[11:15])) / _TICKS
    me = os.getpid()
    others = [pid for pid in parents if _descends(pid, me, parents)]
    threads: dict[int, tuple[float, float]] = {}
    for pid in (me, *others):
        threads |= _threads(pid)
    return Work(seconds + sum(each[pid] for pid in others), threads)


def _places(folder: str = "/proc") -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _descends(pid: int, of: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == of:
            return True
    return False


def _threads(pid: int) -> dict[int, tuple[float, float]]:
    threads: dict[int, tuple[float, float]] = {}
    for thread in _places(f"/proc/{pid}/task"):
        try:
            ran, waited, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
        except (OSError, ValueError):  # it has ended, or this kernel does not tell
            continue
        threads[int(thread)] = int(ran) / 1e9, int(waited) / 1e9
    return threads
