"""A client on a clock that the test moves: for what depends on minutes and hours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cassq
from cassq.base.clock import ManualClock
from tests.integration.places import Place


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(place: Place, clock: ManualClock) -> Iterator[cassq.Client]:
    """A client on the test's clock: nothing happens in passing but what the test calls.

    Its housekeeper would sleep by the machine's clock, and after a second do what is due by the
    test's.
    """
    with cassq.Client(place.url, place.open(clock), clock) as client:
        client.runtime.housekeeper.stop()
        yield client
