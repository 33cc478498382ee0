"""What holds for every test: the tools they need, and the order they run in."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["tests.needs", "tests.servers.fixtures", "tests.integration.on", "pytester"]

# What fails fastest and tells most runs first; folders not named here run between.
_FIRST = ("unit", "contract", "simulation")
_LAST = ("integration", "faults", "servers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)  # a stable sort: within a folder the order stays


def _rank(item: pytest.Item) -> int:
    here = Path(__file__).parent
    folder = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
    if folder in _FIRST:
        return _FIRST.index(folder) - len(_FIRST)
    if folder in _LAST:
        return _LAST.index(folder) + 1
    return 0
