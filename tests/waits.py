"""Tests that wait: each whose call idles for more than two seconds says why.

    @pytest.mark.waits(reason="a session of ZooKeeper has four seconds at least")

How long a call idled is what it took, less the processor time of this process and of those that it
started, and less the time that they stood in line for a processor. At its end a run lists the tests
that idled for longer than `--idle-most` without the mark (or `long`, whose reason says it, too).
That fails nothing: on a busy machine a disk, for one, makes any test wait. On a quiet one the list
is empty.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

WAITS = "waits"

_IDLED = pytest.StashKey[float]()
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
    began, before = time.monotonic(), busy_seconds()
    try:
        return (yield)
    finally:
        busy = max(0.0, busy_seconds() - before)
        item.stash[_IDLED] = time.monotonic() - began - busy


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    idled = item.stash.get(_IDLED, 0.0)
    says = item.get_closest_marker(WAITS) or item.get_closest_marker("long")
    if call.when == "call" and idled > item.config.getoption("--idle-most") and not says:
        # An attribute goes along to the process that prints the summary.
        report.idled_without_saying = idled
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


def busy_seconds() -> float:
    """What this process and all it started have had of processors, and what they waited for one.

    Cost: a look at every process of the machine, some milliseconds. Without Linux's /proc it is the
    processor time of this process and of the children that have ended.
    """
    own = os.times()
    ended = own.children_user + own.children_system
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for place in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if place.isdigit():
            try:
                told = Path(f"/proc/{place}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(place)] = int(told[1])
            seconds[int(place)] = sum(map(int, told[11:15])) / _TICKS
    me = os.getpid()
    others = [pid for pid in parents if _descends(pid, me, parents)]
    lines = sum(_in_line(pid) for pid in (me, *others))
    return own.user + own.system + ended + lines + sum(seconds[pid] for pid in others)


def _descends(pid: int, of: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == of:
            return True
    return False


def _in_line(pid: int) -> float:
    """What the first thread of a process waited for a processor."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # it has ended, or this kernel does not tell
        return 0.0
