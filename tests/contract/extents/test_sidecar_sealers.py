"""Seals of extents on sidecars, whose writer or sealer is late, dies, or is one of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.sqlite.sidecar_tables import SqliteSidecars
from cassq.errors import BackendError, BackendUnavailableError, PipeSealedError
from cassq.extents.protocol.messages import Append, Fence, RefusedError, Settle
from cassq.extents.sidecar.net.network import SidecarCall
from cassq.extents.sidecar.sealing import FENCE_LAG, FENCE_PATIENCE
from cassq.message.frames import Place
from cassq.model.sidecar_rows import Placement, ReplicaAt
from tests.catalog_parts import put_part
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import append, placement_of
from tests.contract.extents.sealed_sidecars import ACKED, TAIL, kind, pushed, read_from, tail
from tests.contract.extents.test_extents import PIPE, expected


@pytest.fixture
def place(tmp_path: Path) -> SidecarPlace:
    """Three sidecars, so that every extent is on all of them."""
    return SidecarPlace(tmp_path, sidecars=3)


# --- the writer -------------------------------------------------------------------------------


def test_a_dead_writer_s_last_frame_counts_where_a_majority_has_it(
    place: SidecarPlace, clock: ManualClock
) -> None:
    pushed(place, clock)
    for sidecar in place.sidecars[:2]:
        sidecar.serve([tail()])
    place.sidecars[2].down = True
    assert place.open(clock).seal(PIPE).seq == TAIL
    assert read_from(place, clock, TAIL) == expected(0, TAIL)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_writer_that_lost_its_replicas_seals_what_it_acknowledged(
    tmp_path: Path, clock: ManualClock, replicas: int
) -> None:
    """The frame that it then writes to another pipe never turns up in this one."""
    place = SidecarPlace(tmp_path, sidecars=replicas, replicas=replicas)
    store = place.open(clock)
    writer = store.create(PIPE, "q")
    append(writer, ACKED)
    for sidecar in place.sidecars[1:]:
        sidecar.lost_after = 1
    with pytest.raises(BackendUnavailableError) as caught:
        append(writer, TAIL - ACKED)
    assert caught.value.outcome_unknown
    for sidecar in place.sidecars[1:]:
        sidecar.down = True
    with pytest.raises(BackendUnavailableError):
        store.seal(PIPE)
    writer.close()
    assert store.seal(PIPE).seq == ACKED
    for sidecar in place.sidecars:
        sidecar.down = False
    kept = [sidecar.replica(PIPE) for sidecar in place.sidecars]
    assert [each and each.end for each in kept] == [ACKED, TAIL, TAIL][:replicas]
    assert place.open(clock).seal(PIPE).seq == ACKED
    assert read_from(place, clock, ACKED) == expected(0, ACKED)


def test_another_sealer_s_end_counts_if_it_came_first(
    place: SidecarPlace, clock: ManualClock
) -> None:
    store = place.open(clock)
    writer = store.create(PIPE, "q")
    append(writer, ACKED)
    for sidecar in place.sidecars:
        sidecar.lost_after = 1
    with pytest.raises(BackendUnavailableError):
        append(writer, TAIL - ACKED)
    writer.close()
    assert place.open(clock).seal(PIPE).seq == TAIL
    for sidecar in place.sidecars:
        sidecar.down = True
    assert store.seal(PIPE).seq == TAIL


def test_an_append_that_its_writer_was_closed_in_is_not_acknowledged(
    place: SidecarPlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe may have been sealed without it meanwhile."""
    writer = pushed(place, clock)
    write = writer._write

    def closed_in(frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        end = write(frames, end_seq)
        writer.close()
        return end

    monkeypatch.setattr(writer, "_write", closed_in)
    with pytest.raises(BackendUnavailableError) as caught:
        append(writer, 3)
    assert caught.value.outcome_unknown
    with pytest.raises(PipeSealedError):
        append(writer, 1)


@pytest.mark.parametrize("late", [1, 2, 3])
def test_what_a_paused_writer_sent_comes_after_the_seal(
    place: SidecarPlace, clock: ManualClock, late: int
) -> None:
    """To as many replicas; the others had it before."""
    writer = pushed(place, clock)
    for sidecar in place.sidecars[:late]:
        sidecar.hold = kind(Append)
    with pytest.raises(BackendUnavailableError) as caught:
        append(writer, 3)
    assert caught.value.outcome_unknown
    end = place.open(clock).seal(PIPE)
    assert end.seq == ACKED, "one of a majority has not got it"
    for sidecar in place.sidecars[:late]:
        (refusal,) = sidecar.deliver()
        assert isinstance(refusal, RefusedError)
    assert writer.end.seq == ACKED
    assert read_from(place, clock, ACKED) == expected(0, ACKED)
    assert place.open(clock).seal(PIPE) == end
    with pytest.raises(PipeSealedError):
        append(writer, 1)


def test_a_writer_that_wakes_after_the_seal_acknowledges_nothing(
    place: SidecarPlace, clock: ManualClock
) -> None:
    """However long it was stopped, right before it sent its frame."""
    writer = pushed(place, clock)
    sealed: list[int] = []

    def seal(calls: Sequence[SidecarCall]) -> None:
        if isinstance(calls[0].requests[0], Append):
            clock.advance(86_400)
            sealed.append(place.open(clock).seal(PIPE).seq)

    place.network.before_exchange = seal
    with pytest.raises(PipeSealedError):
        append(writer, 3)
    assert sealed == [ACKED]
    assert writer.end.seq == ACKED


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_seal_in_the_middle_of_an_append_is_seen(
    place: SidecarPlace, clock: ManualClock, before: int
) -> None:
    """So many replicas had the frame before they were fenced, the others not."""
    writer = pushed(place, clock)
    for sidecar in place.sidecars[before:]:
        sidecar.serve([Fence(PIPE, 2)])
    with pytest.raises(PipeSealedError):
        append(writer, 3)
    end = place.open(clock).seal(PIPE)
    assert end.seq == ACKED
    assert read_from(place, clock, ACKED) == expected(0, ACKED)


# --- the sealer -------------------------------------------------------------------------------


class CrashError(Exception):
    """The sealer dies here."""


class WatchedPlacements(SqliteSidecars):
    """Something happens before or after a placement is changed, once."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def change_placement(self, old: Placement, new: Placement) -> bool:
        before, self.before = self.before, None
        if before is not None:
            before()
        changed = super().change_placement(old, new)
        after, self.after = self.after, None
        if after is not None:
            after()
        return changed


@pytest.fixture
def watched(place: SidecarPlace) -> WatchedPlacements:
    """The catalog of stores that are opened from now on."""
    return put_part(place.catalog, WatchedPlacements)


def dies() -> None:
    raise CrashError


def is_not_answered() -> None:
    raise BackendError("no answer", outcome_unknown=True)


@pytest.mark.parametrize("fenced", range(4))
def test_a_sealer_that_dies_while_it_fences_leaves_it_to_the_next(
    place: SidecarPlace, clock: ManualClock, fenced: int
) -> None:
    writer = pushed(place, clock)
    for sidecar in place.sidecars[:fenced]:
        sidecar.serve([Fence(PIPE, 2)])
    if fenced == 0:
        append(writer, 3)
    else:
        with pytest.raises(PipeSealedError):
            append(writer, 3)
    assert place.open(clock).seal(PIPE) == writer.end


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sealer_that_dies_while_it_records_leaves_it_to_the_next(
    place: SidecarPlace, watched: WatchedPlacements, clock: ManualClock, when: str
) -> None:
    pushed(place, clock)
    setattr(watched, when, dies)
    with pytest.raises(CrashError):
        place.open(clock).seal(PIPE)
    assert place.open(clock).seal(PIPE).seq == ACKED
    with pytest.raises(RefusedError):
        place.sidecars[0].replica_state.handle(tail())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sealer_without_an_answer_looks_what_has_become_of_it(
    place: SidecarPlace, watched: WatchedPlacements, clock: ManualClock, when: str
) -> None:
    pushed(place, clock)
    setattr(watched, when, is_not_answered)
    assert place.open(clock).seal(PIPE).seq == ACKED
    assert placement_of(place).end == ACKED


@pytest.mark.parametrize("unreached", range(3))
def test_of_two_sealers_the_second_adopts_the_first_one_s_end(
    place: SidecarPlace, watched: WatchedPlacements, clock: ManualClock, unreached: int
) -> None:
    """They reach different replicas, so that each finds an end of its own."""
    pushed(place, clock)
    for sidecar in place.sidecars[1:]:
        sidecar.serve([tail()])
    mine, network = place.open(clock), place.network
    other = place.open(clock)
    network.cut.add(place.sidecars[unreached].name)
    ends: list[int] = []
    watched.before = lambda: ends.append(other.seal(PIPE).seq)
    end = mine.seal(PIPE)
    assert [end.seq] == ends == [placement_of(place).end]
    assert end.seq == ACKED, "the other reached all of them"
    for sidecar in place.sidecars:
        replica = sidecar.replica(PIPE)
        assert replica is not None
        assert replica.final == replica.end == ACKED
    assert read_from(place, clock, ACKED) == expected(0, ACKED)


def test_what_missed_the_end_is_settled_by_what_comes_later(
    place: SidecarPlace, clock: ManualClock
) -> None:
    pushed(place, clock)
    place.sidecars[0].serve([tail()])
    place.sidecars[0].deaf = True
    assert place.open(clock).seal(PIPE).seq == ACKED
    replica = place.sidecars[0].replica(PIPE)
    assert replica is not None
    assert (replica.end, replica.final, replica.fenced) == (TAIL, None, True)
    assert read_from(place, clock, ACKED) == expected(0, ACKED)
    place.sidecars[0].serve([Settle(PIPE, ACKED)])  # as its steward does
    assert (replica.end, replica.final) == (ACKED, ACKED)


# --- how long it takes --------------------------------------------------------------------------


def sealed_in(place: SidecarPlace, clock: ManualClock) -> float:
    """Seconds that a seal takes, whether it succeeds or not."""
    before_ms = clock.boot_ms()
    try:
        place.open(clock).seal(PIPE)
    except BackendUnavailableError:
        assert placement_of(place).end is None
    return (clock.boot_ms() - before_ms) / 1000


def test_a_seal_waits_little_for_the_last_replica(place: SidecarPlace, clock: ManualClock) -> None:
    pushed(place, clock)
    place.sidecars[1].stopped = True
    assert sealed_in(place, clock) == pytest.approx(FENCE_LAG)
    assert placement_of(place).end == ACKED


def test_a_seal_waits_longer_for_a_majority(place: SidecarPlace, clock: ManualClock) -> None:
    pushed(place, clock)
    for sidecar in place.sidecars[1:]:
        sidecar.slow = 1.5
    assert sealed_in(place, clock) == pytest.approx(1.5)
    assert placement_of(place).end == ACKED


def test_a_seal_waits_for_the_last_one_if_another_does_not_count(
    place: SidecarPlace, clock: ManualClock
) -> None:
    pushed(place, clock)
    place.sidecars[0].engine.cut(PIPE, 2)
    place.sidecars[1].slow = 1.0
    assert FENCE_LAG < sealed_in(place, clock) < FENCE_PATIENCE
    assert placement_of(place).end == ACKED


def test_a_seal_without_a_majority_ends_soon(place: SidecarPlace, clock: ManualClock) -> None:
    pushed(place, clock)
    for sidecar in place.sidecars[1:]:
        sidecar.stopped = True
    assert sealed_in(place, clock) == pytest.approx(FENCE_PATIENCE)
    for sidecar in place.sidecars:
        sidecar.stopped = False
    assert sealed_in(place, clock) < 0.1
    assert placement_of(place).end == ACKED


def test_an_extent_of_two_replicas_takes_both(tmp_path: Path, clock: ManualClock) -> None:
    place = SidecarPlace(tmp_path, sidecars=2, replicas=2)
    pushed(place, clock)
    place.sidecars[0].down = True
    with pytest.raises(BackendUnavailableError):
        place.open(clock).seal(PIPE)
    place.sidecars[0].down = False
    assert place.open(clock).seal(PIPE).seq == ACKED


def test_a_placement_that_was_sealed_is_believed(place: SidecarPlace, clock: ManualClock) -> None:
    """Nobody is asked, though all replicas are away."""
    pushed(place, clock)
    end = place.open(clock).seal(PIPE)
    for sidecar in place.sidecars:
        sidecar.down = True
    assert place.open(clock).seal(PIPE) == end
    assert place.network.calls == []


def test_a_replica_is_known_by_its_generation(place: SidecarPlace, clock: ManualClock) -> None:
    """A sidecar of the same name that lost everything, and has a new extent of that name."""
    pushed(place, clock)
    for sidecar in place.sidecars[:2]:
        sidecar.lose_directory()
    other = [ReplicaAt(s.name, s.engine.generation) for s in place.sidecars]
    assert set(other) != set(placement_of(place).replicas)
    with pytest.raises(BackendUnavailableError):
        place.open(clock).seal(PIPE)
