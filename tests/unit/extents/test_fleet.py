"""How replicas stand, and what an extent needs: all cases, at and beside each threshold."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from cassq.extents.replicas.fleet import Fleet, Need, ReplicaStanding, fleet_of, mended
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow, SidecarState

NOW_MS, LEASE_MS, AFTER_MS = 10_000_000, 10_000, 600_000
# When a sidecar in each state of life was last seen.
SEEN_MS = {"alive": NOW_MS - 1, "away": NOW_MS - LEASE_MS, "dead": NOW_MS - LEASE_MS - AFTER_MS}


def a_sidecar(name: str, life: str = "alive") -> SidecarRow:
    return SidecarRow(
        name,
        address=f"{name}:7000",
        zone=f"zone-{name}",
        generation="1",
        state=SidecarState.UP,
        lease_ms=LEASE_MS,
        free_bytes=50,
        total_bytes=100,
        extents=1,
        load=0,
        read_only=False,
        damaged=0,
        seen_ms=SEEN_MS[life],
    )


def at(name: str, generation: str = "1") -> ReplicaAt:
    return ReplicaAt(name, generation)


def placed(*names: str, wanted: int = 3, end: int | None = 7) -> Placement:
    return Placement("p", "mail", False, tuple(map(at, names)), wanted, "v", 0, end)


DRAINING, GONE = SidecarState.DRAINING, SidecarState.GONE


def fleet(*rows: SidecarRow) -> Fleet:
    return fleet_of(rows, NOW_MS, AFTER_MS)


def the_fleet(described: str) -> tuple[Fleet, set[ReplicaAt]]:
    """Sidecars told as `a b:away c:draining`, and those of their replicas that are damaged."""
    rows, damaged = [], set()
    for part in described.split():
        name, *words = part.split(":")
        life = next((word for word in words if word in SEEN_MS), "alive")
        row = a_sidecar(name, life)
        if "draining" in words:
            row = replace(row, state=DRAINING)
        if "gone" in words:
            row = replace(row, state=GONE)
        if "new" in words:
            row = replace(row, generation="2")
        if "full" in words:
            row = replace(row, read_only=True)
        if "damaged" in words:
            damaged.add(at(name))
        rows.append(row)
    return fleet(*rows), damaged


def the_missing(described: str) -> set[ReplicaAt]:
    """Those of their replicas that are missing, told as `a b:missing`."""
    return {at(part.split(":")[0]) for part in described.split() if "missing" in part.split(":")}


# --- how a replica stands -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described", "standing"),
    [
        ("a", ReplicaStanding.GOOD),
        ("a:full", ReplicaStanding.GOOD),
        ("a:damaged", ReplicaStanding.DAMAGED),
        ("a:away", ReplicaStanding.AWAY),
        ("a:away:damaged", ReplicaStanding.AWAY),
        ("a:away:draining", ReplicaStanding.AWAY),
        ("a:dead", ReplicaStanding.LOST),
        ("a:dead:draining", ReplicaStanding.LOST),
        ("a:gone", ReplicaStanding.LOST),
        ("a:gone:away", ReplicaStanding.LOST),
        ("a:new", ReplicaStanding.LOST),
        ("a:draining", ReplicaStanding.LEAVING),
        ("a:draining:damaged", ReplicaStanding.LOST),
        ("a:missing", ReplicaStanding.MISSING),
        ("a:draining:missing", ReplicaStanding.MISSING),
        ("a:away:missing", ReplicaStanding.AWAY),
        ("a:new:missing", ReplicaStanding.LOST),
        ("a:gone:missing", ReplicaStanding.LOST),
        # Told to be damaged, it is there.
        ("a:damaged:missing", ReplicaStanding.DAMAGED),
        ("b", ReplicaStanding.LOST),
    ],
)
def test_how_a_replica_stands(described: str, standing: ReplicaStanding) -> None:
    sidecars, damaged = the_fleet(described)
    a, missing = at("a"), the_missing(described)
    assert sidecars.standing(a, damaged=a in damaged, missing=a in missing) is standing


@pytest.mark.parametrize(
    ("seen_ms", "standing"),
    [
        (NOW_MS - LEASE_MS + 1, ReplicaStanding.GOOD),
        (NOW_MS - LEASE_MS, ReplicaStanding.AWAY),
        (NOW_MS - LEASE_MS - AFTER_MS + 1, ReplicaStanding.AWAY),
        (NOW_MS - LEASE_MS - AFTER_MS, ReplicaStanding.LOST),
    ],
)
def test_a_silent_sidecar_is_away_after_its_lease_and_lost_after_its_time(
    seen_ms: int, standing: ReplicaStanding
) -> None:
    sidecars = fleet(replace(a_sidecar("a"), seen_ms=seen_ms))
    assert sidecars.standing(at("a")) is standing


# --- what an extent needs -----------------------------------------------------------------------


def text_of(need: Need | None) -> str:
    """A need in words."""
    if need is None:
        return "nothing"
    if need.gone:
        return "without " + " ".join(each.sidecar for each in need.gone)
    sources = " ".join(each.sidecar for each in need.sources)
    if need.in_place is not None:
        return f"{need.in_place.sidecar} anew from {sources}"
    targets = " ".join(row.name for row in need.targets)
    instead = f" for {need.instead.sidecar}" if need.instead else ""
    return f"{sources} to {targets}{instead}"


@pytest.mark.parametrize(
    ("sidecars", "placement", "short", "needs"),
    [
        # All is well.
        ("a b c d", placed("a", "b", "c"), 0, "nothing"),
        # One is lost, in each way.
        ("a b c:dead d", placed("a", "b", "c"), 1, "a b to d for c"),
        ("a b c:gone d", placed("a", "b", "c"), 1, "a b to d for c"),
        ("a b d", placed("a", "b", "c"), 1, "a b to d for c"),
        ("a b c:new d", placed("a", "b", "c"), 1, "a b to c d for c"),
        # Only its own sidecar is left, with an empty directory.
        ("a b c:new", placed("a", "b", "c"), 1, "a b to c for c"),
        # It is not known for long enough; or there is no place for a copy.
        ("a b c:away d", placed("a", "b", "c"), 0, "nothing"),
        ("a b c:dead", placed("a", "b", "c"), 1, "nothing"),
        ("a b c:dead d:full", placed("a", "b", "c"), 1, "nothing"),
        ("a b c:dead d:draining", placed("a", "b", "c"), 1, "nothing"),
        ("a b c:dead d:away", placed("a", "b", "c"), 1, "nothing"),
        # Not sealed yet.
        ("a b c:dead d", placed("a", "b", "c", end=None), 1, "nothing"),
        # Two are lost: one after the other.
        ("a b:dead c:dead d e", placed("a", "b", "c"), 2, "a to d e for b"),
        # All are lost; one that was given up and lives is better than none.
        ("a:dead b:dead c:dead d", placed("a", "b", "c"), 3, "nothing"),
        ("a:dead b:gone c:dead d", placed("a", "b", "c"), 3, "b to d for a"),
        # Nothing to copy from while those that have it are away.
        ("a:away b:away c:dead d", placed("a", "b", "c"), 1, "nothing"),
        # Damaged: in place, but what is lost comes first, whatever becomes of the other.
        ("a b c:damaged", placed("a", "b", "c"), 1, "c anew from a b"),
        ("a b c:damaged d", placed("a", "b", "c"), 1, "c anew from a b"),
        ("a b:dead c:damaged d", placed("a", "b", "c"), 2, "a to d for b"),
        ("a b:dead c:damaged", placed("a", "b", "c"), 2, "c anew from a"),
        ("a:damaged b:damaged c:damaged d", placed("a", "b", "c"), 3, "nothing"),
        ("a:damaged b:away c:away d", placed("a", "b", "c"), 1, "nothing"),
        # Damaged where there is no room for a copy: elsewhere, if there is one.
        ("a b c:damaged:full d", placed("a", "b", "c"), 1, "a b to d for c"),
        ("a b c:damaged:full", placed("a", "b", "c"), 1, "nothing"),
        # Draining: copied first; it may be copied from.
        ("a b c:draining d", placed("a", "b", "c"), 0, "a b c to d for c"),
        ("a b c:draining", placed("a", "b", "c"), 0, "nothing"),
        ("a b:dead c:draining d", placed("a", "b", "c"), 1, "a c to d for b"),
        ("c:draining d", placed("c", wanted=1), 0, "c to d for c"),
        ("a b c:draining:damaged d", placed("a", "b", "c"), 1, "a b to d for c"),
        # Missing: to its place or elsewhere, and nobody copies from it.
        ("a b c:missing", placed("a", "b", "c"), 1, "a b to c for c"),
        ("a b c:missing d", placed("a", "b", "c"), 1, "a b to c d for c"),
        ("a b:missing c:missing", placed("a", "b", "c"), 2, "a to b for b"),
        ("a b:dead c:missing", placed("a", "b", "c"), 2, "a to c for c"),
        ("a b:damaged c:missing", placed("a", "b", "c"), 2, "a to c for c"),
        ("a:missing b:missing c:missing d", placed("a", "b", "c"), 3, "nothing"),
        ("a:missing b:away c:away d", placed("a", "b", "c"), 1, "nothing"),
        ("a b c:missing", placed("a", "b", "c", end=None), 1, "nothing"),
        ("a b c:missing:full d", placed("a", "b", "c"), 1, "a b to d for c"),
        ("a b c:missing:full", placed("a", "b", "c"), 1, "nothing"),
        ("a b c:missing:draining d", placed("a", "b", "c"), 1, "a b to d for c"),
        # Under-replicated.
        ("a b c", placed("a", "b"), 1, "a b to c"),
        ("a b", placed("a", "b"), 1, "nothing"),
        ("a b c d", placed("a", "b", wanted=4), 2, "a b to c d"),
        # More than are wanted: those that are lost go; good ones only where enough good ones stay.
        ("a b c d:dead", placed("a", "b", "c", "d"), 0, "without d"),
        ("a b c:away d:dead", placed("a", "b", "c", "d"), 0, "without d"),
        ("a b c d:draining", placed("a", "b", "c", "d"), 0, "without d"),
        ("a b c:away d:draining", placed("a", "b", "c", "d"), 0, "nothing"),
        ("a b c:away d:draining e", placed("a", "b", "c", "d"), 0, "nothing"),
        ("a b c d:damaged", placed("a", "b", "c", "d"), 0, "without d"),
        ("a b c:away d:damaged", placed("a", "b", "c", "d"), 0, "d anew from a b"),
        ("a b c d:missing", placed("a", "b", "c", "d"), 0, "without d"),
        ("a b c d", placed("a", "b", "c", "d"), 0, "nothing"),
    ],
)
def test_what_an_extent_needs(sidecars: str, placement: Placement, short: int, needs: str) -> None:
    known, damaged = the_fleet(sidecars)
    state = known.state_of(placement, damaged, the_missing(sidecars))
    assert (state.short, text_of(state.need)) == (short, needs)


def test_the_source_with_the_least_to_do_comes_first() -> None:
    busy, idle = replace(a_sidecar("a"), load=100), replace(a_sidecar("b"), load=1)
    need = fleet(busy, idle, a_sidecar("d")).state_of(placed("a", "b")).need
    assert need is not None
    assert need.sources == [at("b"), at("a")]


def test_a_copy_is_placed_beside_the_replicas_that_stay() -> None:
    known, damaged = the_fleet("a b:away c:dead d:damaged e:draining f")
    need = known.state_of(placed("a", "b", "c", "d", "e", wanted=4), damaged).need
    assert need is not None
    assert {row.name for row in need.beside} == {"a", "b", "d"}


@pytest.mark.parametrize(
    ("sidecars", "readable"),
    [
        ("a:dead b:damaged c", True),
        ("a:dead b:away", True),
        ("a:dead b:draining", True),
        ("a:dead b:damaged", False),
        ("a:dead b:missing", False),
        ("", False),
    ],
)
def test_an_extent_is_readable_while_a_replica_is_whole_or_may_come_back(
    sidecars: str, readable: bool
) -> None:
    known, damaged = the_fleet(sidecars)
    missing = the_missing(sidecars)
    assert known.state_of(placed("a", "b", "c"), damaged, missing).readable is readable


# --- afterwards ---------------------------------------------------------------------------------


def test_a_copy_stands_where_the_replica_stood_that_it_replaces() -> None:
    need = Need(placed("a", "b", "c"), 2, instead=at("b"))
    after = mended(need, "w", at("d"))
    assert after.replicas == (at("a"), at("d"), at("c"))
    assert (after.version, after.end, after.wanted) == ("w", 7, 3)


def test_one_more_replica_comes_last() -> None:
    assert mended(Need(placed("a", "b"), 2), "w", at("d")).replicas == (at("a"), at("b"), at("d"))


def test_what_goes_without_a_copy_goes() -> None:
    after = mended(Need(placed("a", "b", "c", "d"), 3, gone=[at("b")]), "w")
    assert after.replicas == (at("a"), at("c"), at("d"))


LIVES = [
    *("", ":away", ":dead", ":gone", ":gone:away", ":new", ":draining"),
    *(":draining:damaged", ":damaged", ":full", ":damaged:full"),
    *(":missing", ":missing:full", ":missing:draining"),
]


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_repairs_never_reduce_the_good_replicas_and_come_to_an_end(
    wanted: int,
) -> None:
    looked_at = 0
    for lives in product(LIVES, repeat=3):
        sidecars = "a{} b{} c{} d e".format(*lives)
        known, damaged = the_fleet(sidecars)
        missing = the_missing(sidecars)
        placement = placed("a", "b", "c", wanted=wanted)
        for _ in range(8):
            state = known.state_of(placement, damaged, missing)
            need = state.need
            if need is None:
                break
            looked_at += 1
            good = _good(known, placement, damaged, missing)
            assert not missing.intersection(need.sources), sidecars
            if need.in_place is not None:
                assert need.sources, sidecars
                damaged = damaged - {need.in_place}
            else:
                row = need.targets[0] if need.targets else None
                copy = None if row is None else at(row.name, row.generation)
                placement = mended(need, "w", copy)
                missing = missing - {copy}
            assert _good(known, placement, damaged, missing) >= min(good, wanted), sidecars
            assert len(set(placement.replicas)) == len(placement.replicas)
        else:
            pytest.fail(f"it never ends: {sidecars}")
    assert looked_at > len(LIVES) ** 2


def _good(
    known: Fleet, placement: Placement, damaged: set[ReplicaAt], missing: set[ReplicaAt]
) -> int:
    standings = known.state_of(placement, damaged, missing).standings.values()
    return sum(
        standing in (ReplicaStanding.GOOD, ReplicaStanding.LEAVING) for standing in standings
    )
