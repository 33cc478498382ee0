"""What a sidecar must do about its own extents, decided from the catalog's rows.

Pure; `cassq.sidecar.care.orphan_collector` walks and acts. An extent without a row that names this
replica is an *orphan*: it may be about to get one, so it is dropped only after a safe time.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from cassq.model.sidecar_rows import Placement, ReplicaAt
from cassq.sidecar.engine.port import Replica

UNFINISHED = "it is a copy that is not whole"


class OrphanVerb(enum.Enum):
    """What to do about an extent."""

    SETTLE = "settle"  # its end is recorded, but not known here
    DAMAGE = "damage"  # it is not what the row says
    DROP = "drop"  # it has been an orphan for long enough


class OrphanStep(NamedTuple):
    """What to do about one extent. end: for SETTLE. damage, behind: for DAMAGE, see `Replica`."""

    verb: OrphanVerb
    pipe_id: str
    end: int = 0
    damage: str = ""
    behind: bool = False


def plan(replica: Replica, placement: Placement | None, me: ReplicaAt) -> OrphanStep | None:
    """What to do about an extent that has its row; None for nothing."""
    if placement is None or me not in placement.replicas:
        return None
    pipe_id, end = replica.pipe_id, placement.end
    if end is None or replica.damage:
        return None  # a sealer or repairer handles it
    if replica.copying:
        # No placement names a new copy before it is whole. So this one was begun because the
        # replica was missing; if its repairer stops, nothing else would report it.
        return OrphanStep(OrphanVerb.DAMAGE, pipe_id, damage=UNFINISHED)
    if replica.final is None:
        if end < replica.acked:
            damage = f"all replicas had {replica.acked}, the catalog says {end}"
            return OrphanStep(OrphanVerb.DAMAGE, pipe_id, damage=damage)
        if replica.end < end:
            damage = f"it ends at {replica.end}, the catalog says {end}"
            return OrphanStep(OrphanVerb.DAMAGE, pipe_id, damage=damage, behind=True)
        return OrphanStep(OrphanVerb.SETTLE, pipe_id, end)
    if replica.final != end or replica.end != end:
        damage = f"it was settled at {replica.final}, the catalog says {end}"
        return OrphanStep(OrphanVerb.DAMAGE, pipe_id, damage=damage)
    return None


class Orphans:
    """Since when extents have had no row that names this replica, in boot milliseconds. safe_ms:
    how long they must have had none."""

    def __init__(self, safe_ms: int) -> None:
        self._safe_ms = safe_ms
        self._since_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._since_ms)

    def look(
        self,
        pipe_id: str,
        placement: Placement | None,
        me: ReplicaAt,
        *,
        now_ms: int,
        touched_ms: int,
    ) -> OrphanStep | None:
        """Note whether it is an orphan now; DROP when it has been one for long enough. touched_ms:
        when it was last copied to, which restarts its time."""
        if placement is not None and me in placement.replicas:
            self._since_ms.pop(pipe_id, None)
            return None
        since_ms = max(self._since_ms.setdefault(pipe_id, now_ms), touched_ms)
        if now_ms - since_ms < self._safe_ms:
            return None
        return OrphanStep(OrphanVerb.DROP, pipe_id)

    def forget(self, pipe_id: str) -> None:
        """Forget an extent that is gone."""
        self._since_ms.pop(pipe_id, None)
