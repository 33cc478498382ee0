"""The retire pass: removes pipes that every group has acked to the end, and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cassq.lifecycle.ports import Ports
from cassq.model.rows import PipeRow, PipeState, QueueRow
from cassq.plurals import counted
from cassq.producer.quota import keeps
from cassq.reaper.actions import DONE, Action, PlannedPass, Scope
from cassq.reaper.sweep import Removal


class Finished(NamedTuple):
    """Sealed pipes that every group seems to have acked to the end, oldest first, and their queues,
    by id."""

    pipes: Sequence[PipeRow]
    queues: Mapping[str, QueueRow | None]


def plan(snapshot: Finished, now_ms: int) -> list[Action]:
    """Retire these pipes, oldest first, unless the policy keeps them for now. No pipe is retired
    before its predecessor.

    The catalog checks each again: its groups, their acks and its predecessor. now_ms: catalog time.
    """
    found: list[Action] = []
    kept: set[str] = set()
    for pipe in snapshot.pipes:
        queue = snapshot.queues.get(pipe.queue_id)
        if queue is None or queue.deleted or pipe.state is not PipeState.SEALED:
            continue
        if keeps(pipe, queue.policy, now_ms) or pipe.predecessor in kept:
            kept.add(pipe.id)
        else:
            found.append(Action("retire", pipe.id, queue.name, row=pipe))
    return found


class Retire(PlannedPass[Finished]):
    """Retires pipes that every group has acked."""

    name = "retire"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._removal = Removal(ports)

    def look(self, scope: Scope) -> Finished:
        """Cost: one query, and one read for each queue in its answer."""
        catalog = self._ports.catalog
        pipes = catalog.pipes.finished(scope.ids)
        queue_ids = sorted({pipe.queue_id for pipe in pipes})
        queues = catalog.queues.by_ids(queue_ids)
        return Finished(pipes, dict(zip(queue_ids, queues, strict=True)))

    def plan(self, snapshot: Finished, now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        """Cost: one read, one synced catalog transaction."""
        pipe: PipeRow = action.row
        current = self._ports.catalog.queues.by_id(pipe.queue_id)
        if current is None or not self._ports.catalog.pipes.retire(pipe.id, current.groups_version):
            return None
        return counted(pipe.end.seq if pipe.end else 0, "message")

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """Retire these pipes; if any were, remove all consumed pipes."""
        outcomes = super().apply_all(actions)
        if any(action.outcome == DONE for action in outcomes):
            self._removal.remove()
        return outcomes
