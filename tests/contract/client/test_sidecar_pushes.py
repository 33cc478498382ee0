"""Pushing to sidecars: how many appends that takes, and what comes of those that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.client.backends.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.extents.protocol.messages import Append
from cassq.extents.sidecar.opening import OPEN_LAG
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from tests.contract.backends import SidecarPlace

MIB = 1024 * 1024


def client_on(place: SidecarPlace, clock: ManualClock) -> cassq.Client:
    ids, store = Ids(), place.open(clock)
    ports = Ports(
        place.catalog,
        store,
        LeaseLocker(place.catalog, ids.client),
        clock,
        ids,
        Lifecycle(),
        upkeep=store.upkeep,
    )
    embedded = Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: None)
    return cassq.Client("sidecars", embedded, clock)


@pytest.mark.parametrize(
    ("replicas", "appends"), [(1, [24, 6]), (2, [12, 12, 6]), (3, [8, 8, 8, 6])]
)
def test_an_append_is_of_24_mib_for_all_replicas_together(
    tmp_path: Path, clock: ManualClock, replicas: int, appends: list[int]
) -> None:
    place = SidecarPlace(tmp_path, replicas, replicas)
    with client_on(place, clock) as client:
        with client.create_queue("q").pusher() as pusher:
            pushed = pusher.push_many([b"x" * MIB] * 30)
    assert len(pushed) == 30
    found = []
    for call in place.network.calls:
        frames = [request for request in call.requests if isinstance(request, Append)]
        if frames and call.sidecar == "s1":
            found.append(sum(request.messages for request in frames))
    assert found == appends


@pytest.mark.parametrize("pushing", [True, False])
@pytest.mark.parametrize("policy", [{}, {"consistency": "cp"}], ids=["plain", "cp"])
def test_a_pipe_without_the_replica_of_a_slow_sidecar_is_replaced_within_5_seconds(
    tmp_path: Path, pushing: bool, policy: dict[str, Any]
) -> None:
    """No push waits until it has made its replica, unless the queue takes turns."""
    place = SidecarPlace(tmp_path, sidecars=3)
    clock, third = place.clock, place.sidecars[2]
    third.slow = 2 * OPEN_LAG
    with client_on(place, clock) as client, client.create_queue("q", **policy).pusher() as pusher:
        client.runtime.housekeeper.stop()  # it goes by real time
        start_ms = clock.boot_ms()
        pusher.push(b"0")
        (first,) = place.catalog.sidecars.placements()
        assert len(first.replicas) == 2
        if policy:
            third.slow = 0.0
        for second in range(1, 6):
            place.beat()
            pusher.maintain()
            if pushing:
                began_ms = clock.boot_ms()
                pusher.push(b"%d" % second)
                # One append to all replicas, with the last pipe and with the next.
                assert clock.boot_ms() - began_ms <= 1000 * third.slow
            clock.advance(1 - clock.boot_ms() % 1000 / 1000)
        assert clock.boot_ms() <= start_ms + 6000
        pusher.push(b"last")
        found = {each.pipe_id: each for each in place.catalog.sidecars.placements()}
        assert len(found) == 2
        ended = found.pop(first.pipe_id).end
        assert ended is not None
        assert ended >= 1
        (following,) = found.values()
        assert len(following.replicas) == 3


def test_a_message_comes_once_though_its_first_pipe_lost_a_replica_that_has_it(
    tmp_path: Path,
) -> None:
    """Of two: so nobody could fence a majority, and the message went to another pipe."""
    place = SidecarPlace(tmp_path, sidecars=3)
    _, second, third = place.sidecars
    with client_on(place, place.clock) as client:
        third.down = True
        queue = client.create_queue("q")
        pusher, popper = queue.pusher(), queue.popper()
        pusher.push(b"0")
        third.down = False
        second.lost_after = 1000
        pushed = pusher.push(b"1")
        assert pusher.tally.carried_over == 1
        assert pusher.tally.doubtful == 0
        came = [*popper.pop(10), *popper.pop(10)]
        popper.commit(came)
        assert [message.payload for message in came] == [b"0", b"1"]
        assert came[1].id == pushed
        second.lost_after = 0
        place.beat()
        pusher.close()
        for _ in range(3):
            client.reap()
        assert popper.pop(10).payloads == []
        popper.close()
