"""Fixtures of pytest for programs with tasks: `pytest_plugins = ["cassq.tasks.testing"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cassq.tasks.calls import Call
from cassq.tasks.inline import inline, recorded


@pytest.fixture
def inline_tasks() -> Iterator[None]:
    """Each call runs at once where it is pushed, and raises there what the task raises."""
    with inline():
        yield


@pytest.fixture
def recorded_tasks() -> Iterator[list[Call]]:
    """Nothing is pushed: calls are added to this list."""
    with recorded() as calls:
        yield calls
