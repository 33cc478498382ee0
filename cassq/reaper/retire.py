"""The retire pass: removes pipes that every group has acked to the end, and their files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cassq.errors import CassqError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import PipeRow, PipeState, QueueRow
from cassq.plurals import counted
from cassq.producer.quota import keeps
from cassq.reaper.actions import DONE, PIPES_AT_ONCE, Action, PlannedPass, Scope, concluded
from cassq.reaper.sweep import Removal

logger = logging.getLogger(__name__)


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
        (detail,) = self._retired([action])
        return detail

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """Retire these pipes, some of a queue at a time; if any were, remove all consumed pipes.
        After an error those are tried one by one, so that one pipe does not stop others."""
        of_queues: dict[str, list[Action]] = {}
        for action in actions:
            of_queues.setdefault(action.row.queue_id, []).append(action)
        outcomes: list[Action] = []
        for mine in of_queues.values():
            for at in range(0, len(mine), PIPES_AT_ONCE):
                outcomes += self._attempt_together(mine[at : at + PIPES_AT_ONCE])
        if any(action.outcome == DONE for action in outcomes):
            self._removal.remove()
        return outcomes

    def _attempt_together(self, actions: Sequence[Action]) -> list[Action]:
        if self.stopping():
            return []
        try:
            details = self._retired(actions)
        except CassqError as exc:
            what = (counted(len(actions), "pipe"), actions[0].queue)
            logger.info("retiring %s of %s one by one, after: %s", *what, exc)
            return super().apply_all(actions)
        return [concluded(*each) for each in zip(actions, details, strict=True)]

    def _retired(self, actions: Sequence[Action]) -> list[str | None]:
        """Retire pipes of a queue; for each what was done, or None. Cost: one read, one synced
        catalog transaction."""
        current = self._ports.catalog.queues.by_id(actions[0].row.queue_id)
        if current is None:
            return [None for _ in actions]
        pipe_ids = [action.subject for action in actions]
        retired = self._ports.catalog.pipes.retire(pipe_ids, current.groups_version)
        return [
            counted(action.row.end.seq if action.row.end else 0, "message")
            if action.subject in retired
            else None
            for action in actions
        ]
