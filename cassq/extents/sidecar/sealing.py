"""Sealing an extent: fence a majority, take their smallest end, record it, trim.

The steps; any number of clients may do any of them at any time:

1. `Fence` to all replicas. Each that answered takes no append from then on. A majority of those
   that are not certainly lost must answer, unless the caller was the extent's writer.
2. The end is the smallest end of the replicas that count, which all have everything
   acknowledged. If too few answered, it is the end that the writer acknowledged.
3. It is recorded by compare-and-set in the placement; a sealer that comes second adopts that end.
4. `Settle` to all replicas: what lies past the end is cut. A replica that misses this is settled
   later by its own sidecar, which looks at the placement. Missing replicas are reported to the
   repairers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from cassq.base.clock import attempts, contended
from cassq.errors import BackendError, BackendUnavailableError
from cassq.extents.port import missing
from cassq.extents.protocol.messages import Code, Fence, Fenced, Settle
from cassq.extents.replicas.fleet import fleet_of
from cassq.extents.replicas.shortages import note_shortage
from cassq.extents.sidecar.net.network import CallResult, Patience
from cassq.extents.sidecar.store_context import (
    SEALER_EPOCH,
    StoreContext,
    answered,
    call_of,
    majority,
    refused_as,
)
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarState

logger: logging.Logger = logging.getLogger("cassq")

# How long to wait for the replicas beyond a majority, and for a majority.
FENCE_LAG, FENCE_PATIENCE = 0.1, 2.0


def agreed_end(replies: Sequence[Fenced], replicas: int) -> int | None:
    """The end, from the answers of the fenced replicas out of `replicas`; None when too few of
    them count.

    An unfinished copy does not count, nor does a replica that ends before the acknowledged end that
    any of them knows: it lost data. Every other one has everything acknowledged, and the writer
    cannot have acknowledged more, as that takes all replicas. So any of their ends would do; the
    smallest is covered by all of them.
    """
    acked = max((fenced.acked for fenced in replies), default=0)
    ends = [fenced.end for fenced in replies if not fenced.copying and fenced.end >= acked]
    return min(ends) if len(ends) >= majority(replicas) else None


def sealed_end(context: StoreContext, pipe_id: str, acked: int | None = None) -> int:
    """Seal an extent, if it is not sealed yet; returns its final end. acked: the end that its
    writer acknowledged, given by that writer, which writes no more; None: any other caller.

    Raises ExtentMissingError; without `acked` BackendUnavailableError when too few replicas can be
    fenced. Cost: a read; the first time a request to each replica, side by side, and a conditional
    write.
    """
    placement = context.placement(pipe_id)
    for _ in attempts(context.clock):
        if placement.end is not None:
            return placement.end
        end, missing_at = _fenced_end(context, placement, acked)
        settled = replace(placement, end=end, version=context.ids.version())
        if answered(partial(context.catalog.sidecars.change_placement, placement, settled)):
            _settle(context, placement, end)
            _tell_if_short(context, placement, missing_at)
            return end
        placement = context.placement(pipe_id)
    raise contended(f"the placement of pipe {pipe_id}")


def _settle(context: StoreContext, placement: Placement, end: int) -> None:
    for replica in placement.replicas:
        settle = [Settle(placement.pipe_id, end)]
        context.network.tell(replica.sidecar, replica.generation, settle)


def _tell_if_short(
    context: StoreContext, placement: Placement, missing_at: Collection[ReplicaAt]
) -> None:
    """Note a shortage if the extent, now repairable, needs repair, because the next check of all
    placements may come much later. missing_at: the replicas reported missing. Cost: as
    `SidecarDirectory.rows`; a write if it is short."""
    after_ms = round(context.settings.repair_after * 1000)
    try:
        fleet = fleet_of(context.directory.rows(), context.catalog.now_ms(), after_ms)
        staying = {
            ReplicaAt(row.name, row.generation)
            for row in fleet.sidecars.values()
            if row.state is SidecarState.UP and not fleet.is_lost(row)
        }.intersection(placement.replicas)
        if len(staying.difference(missing_at)) < placement.wanted:
            note_shortage(context.catalog)
    except BackendError as exc:
        logger.debug("cannot note that pipe %s is short of replicas: %s", placement.pipe_id, exc)


def _fenced_end(
    context: StoreContext, placement: Placement, acked: int | None
) -> tuple[int, set[ReplicaAt]]:
    """Fence the replicas; returns the end that covers everything acknowledged, and the replicas
    reported missing by then. acked: as for `sealed_end`."""
    replicas = placement.replicas
    fence = [Fence(placement.pipe_id, SEALER_EPOCH)]
    calls = [call_of(replica, fence) for replica in replicas]
    answers: list[CallResult] = []
    replies: list[Fenced] = []
    missing_at: set[ReplicaAt] = set()
    # One of the quick ones may not count: then the others are needed.
    for enough in (majority(len(replicas)), len(replicas)):
        patience = Patience(min(FENCE_PATIENCE, context.settings.patience), FENCE_LAG, enough)
        answers = context.network.exchange(calls, patience)
        context.health.note(answers, slow=False)
        if not all(answer.done for answer in answers):
            context.directory.outdated()
        replies = [answer.replies[0] for answer in answers if answer.error is None]
        missing_at = {
            replica
            for replica, answer in zip(replicas, answers, strict=True)
            if refused_as(answer.error, Code.UNKNOWN)
        }
        end = agreed_end(replies, len(replicas))
        if end is not None:
            return end, missing_at
        if len(replies) < enough:
            break
    gone = _gone(context, placement, answers)
    end = agreed_end(replies, len(replicas) - gone)
    if end is not None:
        logger.warning("pipe %s is sealed without %d lost replicas", placement.pipe_id, gone)
        return end, missing_at
    error = _too_few(placement, answers, gone)
    if acked is None or gone == len(answers):
        raise error
    logger.info(
        "pipe %s is sealed after the last message that its writer acknowledged: %s",
        placement.pipe_id,
        error,
    )
    return acked, missing_at


def _gone(context: StoreContext, placement: Placement, answers: Sequence[CallResult]) -> int:
    """How many replicas are certainly lost: given up by a user, lost with their directory, or
    dropped. They never come back to make a majority, and each of the others has everything
    acknowledged, too."""
    lost = context.directory.lost(placement.replicas)
    return sum(
        answer.error is not None and (replica in lost or refused_as(answer.error, Code.UNKNOWN))
        for replica, answer in zip(placement.replicas, answers, strict=True)
    )


def _too_few(placement: Placement, answers: Sequence[CallResult], gone: int) -> BackendError:
    if gone == len(answers):
        return missing(placement.pipe_id)
    reasons = "; ".join(
        f"{answer.sidecar}: {answer.error.message if answer.error else _why(answer.replies[0])}"
        for answer in answers
    )
    return BackendUnavailableError(
        f"pipe {placement.pipe_id} cannot be sealed: this needs {majority(len(answers) - gone)} of"
        f" its {len(answers)} replicas ({reasons})",
        hint="start their sidecars again: `cassq sidecar list` shows them",
    )


def _why(fenced: Fenced) -> str:
    return "a copy" if fenced.copying else f"fenced at {fenced.end}, {fenced.acked} acknowledged"
