"""Extents on sidecars that are dropped, forgotten, or come late."""

from __future__ import annotations

import pytest

from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.errors import (
    BackendUnavailableError,
)
from cassq.extents.protocol.messages import Append, Drop, Fence, Mark
from cassq.extents.sidecar import SidecarStore
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.reaper.actions import Action
from cassq.reaper.sweep import Sweep
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import (
    append,
    place,
    sidecars_of,
    store,
)
from tests.contract.extents.test_extents import OTHER, PIPE, expected, read_all

__all__ = ["place", "store"]


def test_a_drop_leaves_to_the_sidecars_what_it_does_not_reach(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    append(store.create(PIPE, "q"), 4)
    away = sidecars_of(place)[0]
    away.down = True
    store.drop([PIPE])
    assert place.catalog.sidecars.placements_of([PIPE]) == [None]
    assert [sidecar.name for sidecar in place.sidecars if sidecar.replica(PIPE)] == [away.name]


def test_a_sealed_extent_is_dropped_though_no_sidecar_answers(
    place: SidecarPlace, store: SidecarStore
) -> None:
    append(store.create(PIPE, "q"), 4)
    store.seal(PIPE)
    for sidecar in place.sidecars:
        sidecar.down = True
    store.drop([PIPE])
    assert place.catalog.sidecars.placements_of([PIPE]) == [None]


def test_what_is_not_sealed_stays_until_its_writer_can_be_stopped(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    append(writer, 4)
    other = place.open(clock)
    other.create(OTHER, "q").close()
    other.seal(OTHER)
    for sidecar in sidecars_of(place):
        place.network.cut.add(sidecar.name)
    with pytest.raises(BackendUnavailableError, match=PIPE):
        other.drop([PIPE, OTHER])
    assert place.catalog.sidecars.placements_of([OTHER]) == [None]
    assert append(writer, 1).seq == 5
    assert place.open(clock).seal(PIPE).seq == 5
    for sidecar in sidecars_of(place):
        sidecar.lose_directory()
    other.drop([PIPE])
    assert place.catalog.sidecars.placements_of([PIPE]) == [None]


def test_what_was_lost_for_good_can_be_dropped_unsealed(
    place: SidecarPlace, store: SidecarStore
) -> None:
    append(store.create(PIPE, "q"), 4)
    for sidecar in sidecars_of(place):
        sidecar.lose_directory()
    place.beat()
    store.drop([PIPE])
    assert place.catalog.sidecars.placements_of([PIPE]) == [None]


def test_a_drop_that_was_interrupted_is_finished_by_the_sweep(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    """The replicas are gone, and their placement is not."""
    append(store.create(PIPE, "q"), 4)
    for sidecar in sidecars_of(place):
        sidecar.serve([Drop([PIPE])])
    (stray,) = store.extents()
    catalog = place.catalog
    ports = Ports(catalog, store, LeaseLocker(catalog, "sweeper"), clock, Ids(), Lifecycle())
    assert Sweep(ports).apply(Action("sweep", PIPE, "q", row=stray))
    assert catalog.sidecars.placements_of([PIPE]) == [None]


# --- strays -----------------------------------------------------------------------------------


def test_a_writer_that_was_closed_is_known_to_be_gone_by_any_replica(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    for pipe_id in (PIPE, OTHER):
        append(store.create(pipe_id, "q"), 1)
    sidecars = sidecars_of(place)
    sidecars[0].deaf = True
    sidecars[1].hold = lambda request: isinstance(request, Mark)
    store._writers[PIPE].close()
    other = place.open(clock)
    assert other.all_abandoned([PIPE, OTHER]) == {PIPE}
    sidecars[2].down = True
    assert other.all_abandoned([PIPE, OTHER]) == set()


def test_strays_are_reported_from_the_placements_alone(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    store.create(PIPE, "q").close()
    store.create(OTHER, "q")
    for sidecar in place.sidecars:
        sidecar.down = True
    found = list(place.open(clock).extents())
    assert [(info.pipe_id, info.abandoned) for info in found] == [(PIPE, False), (OTHER, False)]


def test_late_requests_change_nothing_for_the_next_writer(
    place: SidecarPlace, store: SidecarStore
) -> None:
    """A frame that was sent again comes again, behind newer ones."""
    writer = store.create(PIPE, "q")
    append(writer, 2)
    sent = [request for request in sidecars_of(place)[0].asked if isinstance(request, Append)]
    append(writer, 3)
    for sidecar in sidecars_of(place):
        (reply,) = sidecar.serve(sent)
        assert reply.end == 5
    append(writer, 1)
    assert read_all(store.reader(PIPE), 6) == expected(0, 6)
    assert not any(isinstance(request, Fence) for s in place.sidecars for request in s.asked)
