"""Popping from pipes on sidecars, of which some cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.client.backends.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.errors import BackendUnavailableError
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from tests.contract.backends import SidecarPlace


@pytest.fixture
def place(tmp_path: Path) -> SidecarPlace:
    """Two sidecars; each pipe is on one of them."""
    return SidecarPlace(tmp_path, sidecars=2, replicas=1)


@pytest.fixture
def client(place: SidecarPlace, clock: ManualClock) -> Iterator[cassq.Client]:
    ids, store = Ids(), place.open(clock)
    locker = LeaseLocker(place.catalog, ids.client)
    ports = Ports(place.catalog, store, locker, clock, ids, Lifecycle(), upkeep=store.upkeep)
    embedded = Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: None)
    with cassq.Client("sidecars", embedded, clock) as made:
        made.runtime.housekeeper.stop()  # what a test counts is not done in passing
        yield made


def pipes_on_both(queue: cassq.Queue, place: SidecarPlace) -> dict[str, list[bytes]]:
    """Push to pipes until each sidecar has one at least; the payloads by sidecar."""
    found: dict[str, list[bytes]] = {}
    while len(found) < 2:
        payload = b"message %03d" % sum(map(len, found.values()))
        with queue.pusher() as pusher:
            pipe_id = pusher.push(payload).partition(":")[0]
        (placement,) = place.catalog.sidecars.placements_of([pipe_id])
        assert placement is not None
        found.setdefault(placement.replicas[0].sidecar, []).append(payload)
    return found


def all_popped(popper: cassq.Popper) -> list[bytes]:
    """Everything that there is, until an error says that there is more."""
    found: list[bytes] = []
    while True:
        try:
            messages = popper.pop(100)
        except BackendUnavailableError:
            return found
        if not messages:
            return found
        found += [message.payload for message in messages]
        popper.commit(messages)


@pytest.mark.parametrize("away", [0, 1])
def test_pipes_that_cannot_be_reached_do_not_hide_the_others(
    place: SidecarPlace, client: cassq.Client, clock: ManualClock, away: int
) -> None:
    queue = client.create_queue("q")
    payloads = pipes_on_both(queue, place)
    gone, there = place.sidecars[away], place.sidecars[1 - away]
    with queue.popper() as popper:
        gone.down = True
        assert sorted(all_popped(popper)) == sorted(payloads[there.name])
        clock.advance(2)
        with pytest.raises(BackendUnavailableError, match="no replica"):
            popper.pop(100)
        assert popper.pop(100) == [], "told once, and left alone for a moment"
        gone.down = False
        clock.advance(70)
        assert sorted(all_popped(popper)) == sorted(payloads[gone.name])


def test_pipes_that_cannot_be_reached_do_not_fill_the_window(
    place: SidecarPlace, client: cassq.Client, clock: ManualClock
) -> None:
    queue = client.create_queue("q", max_pop_width=1)
    payloads = pipes_on_both(queue, place)
    gone = next(s for s in place.sidecars if b"message 000" in payloads[s.name])
    there = next(s for s in place.sidecars if s is not gone)
    with queue.popper() as popper:
        gone.down = True
        assert [m.payload for m in popper.pop(100)] == payloads[there.name][:1]


def test_a_pipe_tried_in_vain_is_left_alone_for_longer_each_time_up_to_eight_seconds(
    place: SidecarPlace, client: cassq.Client, clock: ManualClock
) -> None:
    queue = client.create_queue("q")
    with queue.pusher() as pusher:
        pusher.push(b"alone")
    for sidecar in place.sidecars:
        sidecar.down = True
    with queue.popper() as popper:
        for seconds in (1, 2, 4, 8, 8):
            with pytest.raises(BackendUnavailableError, match="no replica"):
                popper.pop()
            clock.advance(seconds - 0.001)
            assert popper.pop() == []
            clock.advance(0.001)
        for sidecar in place.sidecars:
            sidecar.down = False
        assert [m.payload for m in popper.pop()] == [b"alone"]


@pytest.mark.parametrize("away", [0, 1])
def test_what_came_back_in_a_pipe_that_cannot_be_reached_does_not_hide_the_others(
    place: SidecarPlace, client: cassq.Client, clock: ManualClock, away: int
) -> None:
    queue = client.create_queue("q", sick_check=False)
    payloads = pipes_on_both(queue, place)
    gone, there = place.sidecars[away], place.sidecars[1 - away]
    with queue.popper() as first:
        messages = first.pop(100)
        while more := first.pop(100):
            messages += more
        first.rollback(messages)
    with queue.popper() as popper:  # it has nothing of them in memory
        gone.down = True
        assert sorted(all_popped(popper)) == sorted(payloads[there.name])
        gone.down = False
        clock.advance(70)
        assert sorted(all_popped(popper)) == sorted(payloads[gone.name])


def test_on_a_cp_queue_nothing_passes_what_cannot_be_reached(
    place: SidecarPlace, client: cassq.Client, clock: ManualClock
) -> None:
    queue = client.create_queue("q", consistency="cp")
    payloads = pipes_on_both(queue, place)
    in_order = sorted(payload for some in payloads.values() for payload in some)
    first = next(s for s in place.sidecars if in_order[0] in payloads[s.name])
    with queue.popper() as popper:
        first.down = True
        for _ in range(3):
            with pytest.raises(BackendUnavailableError):
                popper.pop(100)
        first.down = False
        clock.advance(70)
        assert all_popped(popper) == in_order
