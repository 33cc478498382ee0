"""Dropping extents: their replicas, then their placements."""

from __future__ import annotations

from collections.abc import Sequence

from cassq.errors import BackendUnavailableError
from cassq.extents.protocol.messages import EXTENTS_MAX, Drop
from cassq.extents.sidecar.net.network import Patience
from cassq.extents.sidecar.store_context import StoreContext, call_of
from cassq.model.sidecar_rows import Placement, ReplicaAt
from cassq.plurals import counted

# How many seconds to wait for the last sidecar to answer; one that does not answer removes what it
# still has by itself, as orphans.
LAG = 0.2


def drop_extents(context: StoreContext, pipe_ids: Sequence[str]) -> None:
    """Remove these extents, if they exist.

    The writer of an unsealed extent may live; dropping any replica stops it. If none of its
    sidecars can be reached, the extent stays, and a BackendUnavailableError reports that at the
    end, when the others are dropped.
    """
    placements = [at for at in context.catalog.sidecars.placements_of(pipe_ids) if at is not None]
    if not placements:
        return
    reached = _dropped_at(context, placements)
    stuck = [at for at in placements if at.end is None and reached.isdisjoint(at.replicas)]
    if stuck:
        lost = context.directory.lost([replica for at in stuck for replica in at.replicas])
        stuck = [at for at in stuck if lost.isdisjoint(at.replicas)]
    left = {at.pipe_id for at in stuck}
    context.catalog.sidecars.forget_placements(
        [at.pipe_id for at in placements if at.pipe_id not in left]
    )
    if stuck:
        raise BackendUnavailableError(
            f"{counted(len(stuck), 'extent')} cannot be dropped, among them {stuck[0].pipe_id}:"
            " they are not sealed, and none of their sidecars answers"
        )


def _dropped_at(context: StoreContext, placements: Sequence[Placement]) -> set[ReplicaAt]:
    """Drop the replicas of these extents; returns those that were dropped."""
    parts: dict[ReplicaAt, list[str]] = {}
    for placement in placements:
        for replica in placement.replicas:
            parts.setdefault(replica, []).append(placement.pipe_id)
    calls = [
        call_of(
            replica,
            [Drop(part[at : at + EXTENTS_MAX]) for at in range(0, len(part), EXTENTS_MAX)],
        )
        for replica, part in parts.items()
    ]
    patience = Patience(context.settings.lag, LAG, max(1, len(calls) - 1))
    answers = context.network.exchange(calls, patience)
    context.health.note(answers, slow=False)
    return {replica for replica, answer in zip(parts, answers, strict=True) if answer.error is None}
