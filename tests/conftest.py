"""What holds for every test: the tools they need, and the order they run in."""

from __future__ import annotations

import faulthandler
import gc
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.needs",
    "tests.at_once",
    "tests.gate",
    "tests.waits",
    "tests.shaken",
    "tests.servers.fixtures",
    "tests.integration.on",
    "pytester",
]

# A thread may stand still at any time: no example fails for how long it took.
settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# What fails fastest and tells most runs first; folders not named here run between.
_FIRST = ("unit", "contract", "simulation")
_LAST = ("integration", "faults", "servers")


# Thousands of tests and their modules are made at once, and stay: looking for garbage among them
# takes a third of the collection, and later much of each full look.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)  # a stable sort: within a folder the order stays


# A run may hang after a test, too: while the fixtures of one that failed end, which pytest takes
# for a debugger at work, and at its own end, waiting for threads that nobody has told to stop.


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    if isinstance(node, pytest.Item):
        _limit(node.config, node.config.stash[fault_handler_stderr_fd_key])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    assert sys.__stderr__ is not None
    _limit(config, sys.__stderr__.fileno())


def _limit(config: pytest.Config, errors: int) -> None:
    seconds = float(config.getini("faulthandler_timeout") or 0)
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True, file=errors)


def _rank(item: pytest.Item) -> int:
    here = Path(__file__).parent
    folder = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
    if folder in _FIRST:
        return _FIRST.index(folder) - len(_FIRST)
    if folder in _LAST:
        return _LAST.index(folder) + 1
    return 0
