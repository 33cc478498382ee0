"""Pushing much at once to sidecars: how many appends that takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.client.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.extents.protocol.words import Append
from cassq.lifecycle.ports import Life, Ports
from cassq.locks.lease import LeaseLocker
from tests.contract.backends import SidecarPlace

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("replicas", "appends"), [(1, [24, 6]), (2, [12, 12, 6]), (3, [8, 8, 8, 6])]
)
def test_an_append_is_of_24_mib_for_all_replicas_together(
    tmp_path: Path, clock: ManualClock, replicas: int, appends: list[int]
) -> None:
    place = SidecarPlace(tmp_path, replicas, replicas)
    ids, store = Ids(), place.open(clock)
    ports = Ports(
        place.catalog,
        store,
        LeaseLocker(place.catalog, ids.client),
        clock,
        ids,
        Life(),
        upkeep=store.upkeep,
    )
    embedded = Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: None)
    with cassq.Client("sidecars", embedded, clock) as client:
        with client.create_queue("q").pusher() as pusher:
            pushed = pusher.push_many([b"x" * MIB] * 30)
    assert len(pushed) == 30
    found = []
    for call in place.network.calls:
        frames = [request for request in call.requests if isinstance(request, Append)]
        if frames and call.sidecar == "s1":
            found.append(sum(request.messages for request in frames))
    assert found == appends
