"""The sweep: what it never removes, and that one reaper at a time removes pipes, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import CorruptionError
from cassq.message.frames import Extras, encode, pipe_key
from cassq.reaper import DONE, LEASE_MS, VOID, Action
from cassq.reaper.actions import PIPES_AT_ONCE
from cassq.reaper.sweep import REMOVAL_LEASE, Removal, Sweep
from tests.integration.stage import client_on, drain, extents, push

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


# --- who removes consumed pipes -------------------------------------------------------------------


def consumed(client: cassq.Client, count: int) -> list[str]:
    """Pipes of a queue whose files and rows are still to be removed, oldest first."""
    queue = client.create_queue("jobs", max_pushes_per_pipe=1)
    push(queue, *[b"x"] * count)
    assert len(drain(queue.popper())) == count
    pipes = client.ports.catalog.pipes
    made = [pipe.id for pipe in pipes.live(queue.id)]
    client.reaper.reap(only=["seal"])
    for pipe_id in made:
        assert pipes.retire([pipe_id], client.ports.catalog.queues.listed()[0].groups_version)
    return made


def test_the_oldest_pipe_is_removed_first(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes = client.ports.catalog.pipes
    made, gone = consumed(client, PIPES_AT_ONCE + 2), list[str]()
    in_disorder, forget = pipes.consumed()[::-1], pipes.forget

    def forgotten(pipe_ids: list[str]) -> None:
        gone.extend(pipe_ids)
        forget(pipe_ids)

    monkeypatch.setattr(pipes, "consumed", lambda: in_disorder)
    monkeypatch.setattr(pipes, "forget", forgotten)
    assert Removal(client.ports).remove() == set(made)
    assert gone == made


def test_what_another_reaper_removes_is_left_to_it_and_to_the_next_sweep(
    client: cassq.Client, clock: ManualClock
) -> None:
    made, leases = consumed(client, 2), client.ports.catalog.leases
    assert leases.take(REMOVAL_LEASE, "another", LEASE_MS) is not None
    swept = client.reaper.reap(only=["sweep"])
    assert {action.outcome for action in swept} == {VOID}
    assert sorted(extents(client)) == sorted(made)
    clock.advance(LEASE_MS / 1000)  # it died
    swept = client.reaper.reap(only=["sweep"])
    assert [action.outcome for action in swept] == [DONE] * 2
    assert extents(client) == []
    assert leases.take(REMOVAL_LEASE, "another", LEASE_MS) is not None, "it was given back"


def test_a_reaper_whose_lease_has_lapsed_stops(
    client: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow, and another goes on."""
    consumed(client, PIPES_AT_ONCE + 2)
    store, leases = client.ports.store, client.ports.catalog.leases
    drop = store.drop

    def slow(pipe_ids: list[str]) -> None:
        drop(pipe_ids)
        clock.advance(LEASE_MS / 1000)
        assert leases.take(REMOVAL_LEASE, "another", LEASE_MS) is not None

    monkeypatch.setattr(store, "drop", slow)
    assert len(Removal(client.ports).remove()) == PIPES_AT_ONCE
    assert len(extents(client)) == 2
    assert leases.owner(REMOVAL_LEASE) == "another"
