"""Placing: which sidecars get the replicas of a new extent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence

from cassq.model.sidecar_rows import SidecarRow, SidecarState

# The write rate, in bytes per second, that weighs as much as half the space of a disk.
LOAD_UNIT = 20_000_000
_ROOM_MIN = 0.001
# A load counts as greater only if it is greater by this factor, so that sidecars that differ only
# in when they last looked at their disks are chosen alike.
_CLEARLY = 1.1


def takers(
    rows: Sequence[SidecarRow], now_ms: int, without: Collection[str] = ()
) -> list[SidecarRow]:
    """The sidecars that accept new extents, according to their rows, except those in `without`."""
    return [
        row
        for row in rows
        if row.state is SidecarState.UP
        and row.alive(now_ms)
        and not row.read_only
        and row.name not in without
    ]


def chosen(
    rows: Sequence[SidecarRow],
    count: int,
    rng: random.Random,
    *,
    beside: Sequence[SidecarRow] = (),
    zone: str = "",
) -> list[SidecarRow]:
    """`count` of the rows, or all if there are fewer.

    Each comes from a zone with the fewest chosen so far, the client's own first. Of two sidecars
    drawn at random from that zone, the first is taken unless the other has clearly more room or
    less to do: so new extents go where there is room, but not all to the same sidecars. beside:
    those already chosen.
    """
    left = list(rows)
    taken = Counter(row.zone for row in beside)
    found: list[SidecarRow] = []
    while left and len(found) < count:
        fewest = min((taken[row.zone], row.zone != zone) for row in left)
        near = [row for row in left if (taken[row.zone], row.zone != zone) == fewest]
        row, *others = rng.sample(near, min(2, len(near)))
        if others and _load_of(row) > _CLEARLY * _load_of(others[0]):
            row = others[0]
        found.append(row)
        left.remove(row)
        taken[row.zone] += 1
    return found


def _load_of(row: SidecarRow) -> float:
    """The load of a sidecar, from its current write rate and its free space."""
    room = row.free_bytes / row.total_bytes if row.total_bytes > 0 else 1.0
    return (1 + row.load / LOAD_UNIT) / max(room, _ROOM_MIN)
