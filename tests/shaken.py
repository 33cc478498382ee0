"""`pytest --shake SEED`: threads stand still for a moment, at random, as on a busy machine.

A test that passes alone and fails so counts on a thread being fast. Its report lists who stood
still, where and for how long. Most of it strikes the lines that a thread of the test runs when it
has just waited for something: there it runs beside what it waited for. With `--shake-main` it is
the test's own function that stands still, for longer. With `--shake-share` only some of the tests
run, chosen by the seed.

What a seed does to a test depends on how its threads run: the same seed may miss it the next time.
Processes that a test starts run as ever. Cost: threads are traced, tests take two to ten times as
long.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

WAITED_SECONDS = 0.0015  # between two lines of a thread: it waited
LINES_AFTER = 6
STALLS = (0.02, 0.05, 0.1, 0.4)
STALLS_OF_MAIN = (0.1, 0.4, 0.8, 1.3)
SECONDS_MOST = 5.0  # in one test, for lines of tests and for calls of the library each

_SHAKER = pytest.StashKey["Shaker"]()
# What tests wait with is no test.
_SPARED = {"shaken.py", "deadlines.py", "timed.py", "conftest.py"}

Site = tuple[CodeType, int]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("threads that stand still")
    group.addoption(
        "--shake",
        metavar="SEED",
        help="let threads stand still at random, to find tests that count on their being fast",
    )
    group.addoption(
        "--shake-main",
        action="store_true",
        help="with --shake: it is the test's own function that does",
    )
    group.addoption(
        "--shake-share",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="with --shake: run this share of the tests, such as 0.2, others for another seed",
    )


def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--shake")
    if seed is None:
        if config.getoption("--shake-main"):
            raise pytest.UsageError("--shake-main is for --shake SEED")
        if config.getoption("--shake-share") < 1:
            raise pytest.UsageError("--shake-share is for --shake SEED")
        return
    shaker = Shaker(seed, config.rootpath, main=config.getoption("--shake-main"))
    config.stash[_SHAKER] = shaker
    tracing = ExitStack()
    tracing.enter_context(shaker.tracing())
    config.add_cleanup(tracing.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, seed = config.getoption("--shake-share"), config.getoption("--shake")
    left_out = [item for item in items if random.Random(f"{seed} {item.nodeid}").random() >= share]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    shaker = item.config.stash.get(_SHAKER, None)
    if shaker is None:
        return (yield)
    shaker.begin(item.nodeid)
    try:
        return (yield)
    finally:
        item.add_report_section("call", "shaken", "\n".join(shaker.end()))


class Shaker:
    """Trace functions that sleep. main: in test functions of the main thread; otherwise in all that
    other threads run of `tests` and `cassq`. root: the directory these are in."""

    def __init__(self, seed: str, root: Path, *, main: bool) -> None:
        self.main = main
        self._seed = seed
        self._tests, self._library = f"{root / 'tests'}/", f"{root / 'cassq'}/"
        self._root = f"{root}/"
        self._thread = threading.local()
        self._on = False
        self._start("")

    def _start(self, name: str) -> None:
        self._random = random.Random(f"{self._seed} {name}")
        self._visits: Counter[tuple[Site, int]] = Counter()
        self._stalls: Counter[Site] = Counter()
        self._left = {self._tests: SECONDS_MOST, self._library: SECONDS_MOST}
        self._told: list[str] = []

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """While threads that are begun may be made to stand still."""
        before = threading.gettrace()
        if not self.main:
            threading.settrace(self.trace)
        try:
            yield
        finally:
            threading.settrace(before)  # type: ignore[arg-type]

    def begin(self, name: str) -> None:
        self._start(name)
        self._on = True
        if self.main:
            self._before = sys.gettrace()
            sys.settrace(self.trace)

    def end(self) -> list[str]:
        """Where threads stood still since `begin`."""
        if self.main:
            sys.settrace(self._before)
        self._on = False
        return self._told

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """For `sys.settrace`."""
        path = frame.f_code.co_filename
        if path.startswith(self._tests):
            if path.rpartition("/")[2] in _SPARED:
                return None
            if self.main and not frame.f_code.co_name.startswith("test_"):
                return None
            return self._lines
        if path.startswith(self._library) and not self.main:
            self._maybe(frame, self._library, 0.15)
        return None

    def _lines(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            if self.main:
                self._maybe(frame, self._tests, 0.4)
            else:
                self._line(frame)
        return self._lines

    def _line(self, frame: FrameType) -> None:
        mine = self._thread
        if time.monotonic() - getattr(mine, "last", 0.0) > WAITED_SECONDS:
            mine.lines = LINES_AFTER
        if mine.lines > 0:
            mine.lines -= 1
            often = self._stalls[_site(frame)]
            if self._random.random() < 0.5 / (1 + often) ** 0.3:
                self._stall(frame, self._tests)
        else:
            self._maybe(frame, self._tests, 0.15)
        mine.last = time.monotonic()

    def _maybe(self, frame: FrameType, of: str, chance: float) -> None:
        """The rarer the oftener a thread came by."""
        key = (_site(frame), threading.get_ident())
        self._visits[key] += 1
        if self._random.random() < chance / self._visits[key]:
            self._stall(frame, of)

    def _stall(self, frame: FrameType, of: str) -> None:
        if not self._on or self._left[of] <= 0:
            return
        seconds = self._random.choice(STALLS_OF_MAIN if self.main else STALLS)
        self._left[of] -= seconds
        self._stalls[_site(frame)] += 1
        place = frame.f_code.co_filename.removeprefix(self._root)
        self._told.append(
            f"{threading.current_thread().name} {place}:{frame.f_lineno}"
            f" {frame.f_code.co_name} {seconds:g} s"
        )
        time.sleep(seconds)


def _site(frame: FrameType) -> Site:
    return frame.f_code, frame.f_lineno
