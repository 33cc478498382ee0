"""A client on a clock that the test moves: for what depends on minutes and hours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.clock import ManualClock
from tests.integration.stage import client_on


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(directory: Path, clock: ManualClock) -> Iterator[cassq.Client]:
    """A client on the test's clock: nothing happens in passing but what the test calls."""
    with client_on(directory, clock=clock) as client:
        yield client
