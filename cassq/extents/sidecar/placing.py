"""Placing: which sidecars the replicas of a new extent come to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence

from cassq.model.sidecar_rows import SidecarRow, SidecarState

# Bytes a second written that weigh as much as half the room of a disk.
LOAD_UNIT = 20_000_000
_ROOM_MIN = 0.001
# By so much a burden is greater before it counts: sidecars alike in all but the moment of their
# last look at their disks are chosen alike.
_CLEARLY = 1.1


def takers(
    rows: Sequence[SidecarRow], now_ms: int, without: Collection[str] = ()
) -> list[SidecarRow]:
    """Those that take new extents, as far as their rows tell; `without` these."""
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
    """`count` of the rows, or all if there are not so many.

    Each comes from a zone that has the fewest so far, the client's own first; of two of that zone,
    drawn at random, it is the first, unless the other has clearly more room or less to do: so new
    extents go where there is room, and not all of them to the same sidecars. beside: those that
    are chosen already.
    """
    left = list(rows)
    taken = Counter(row.zone for row in beside)
    found: list[SidecarRow] = []
    while left and len(found) < count:
        fewest = min((taken[row.zone], row.zone != zone) for row in left)
        near = [row for row in left if (taken[row.zone], row.zone != zone) == fewest]
        row, *others = rng.sample(near, min(2, len(near)))
        if others and _burden(row) > _CLEARLY * _burden(others[0]):
            row = others[0]
        found.append(row)
        left.remove(row)
        taken[row.zone] += 1
    return found


def _burden(row: SidecarRow) -> float:
    """How little it should get: by what it writes at the moment, and the room that it has."""
    room = row.free_bytes / row.total_bytes if row.total_bytes > 0 else 1.0
    return (1 + row.load / LOAD_UNIT) / max(room, _ROOM_MIN)
