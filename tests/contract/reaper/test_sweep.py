"""The sweep: what it never removes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import CorruptionError
from cassq.message.frames import Extras, encode, pipe_key
from cassq.reaper.actions import Action
from cassq.reaper.sweep import Sweep
from tests.integration.stage import client_on, extents

STRAY = "0123456789abcdef01234567"


@pytest.fixture
def client(tmp_path: Path, clock: ManualClock) -> Iterator[cassq.Client]:
    with client_on(tmp_path, clock=clock) as client:
        client.runtime.housekeeper.stop()
        yield client


def stray(client: cassq.Client, messages: int) -> Action:
    """An extent without a row; what a sweep is to do about it."""
    writer = client.ports.store.create(STRAY, "jobs")
    if messages:
        frame = encode(0, [b"x"] * messages, Extras(0), pipe_key=pipe_key(STRAY))
        writer.append([frame], messages)
    writer.close()
    (info,) = client.ports.store.extents()
    return Action("sweep", STRAY, "jobs", row=info)


def test_an_extent_without_a_row_that_has_messages_is_left_alone(client: cassq.Client) -> None:
    action = stray(client, 3)
    with pytest.raises(CorruptionError, match="3 messages"):
        Sweep(client.ports).apply(action)
    assert extents(client) == [STRAY]


def test_an_empty_extent_without_a_row_is_removed(client: cassq.Client) -> None:
    action = stray(client, 0)
    assert Sweep(client.ports).apply(action) == "never had a row"
    assert extents(client) == []
