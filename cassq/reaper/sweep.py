"""The sweep: finishes removals that a crash interrupted, of pipes and of deleted queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cassq.catalog.rows import PipeRow
from cassq.reaper.actions import DONE, Action, PlannedPass, Scope


class Leftovers(NamedTuple):
    """Pipes whose rows say that their files are to be removed."""

    consumed: Sequence[PipeRow]
    names: Mapping[str, str]  # of queues, by id


def plan(snapshot: Leftovers, now_ms: int) -> list[Action]:
    """Remove them all."""
    return [
        Action("sweep", pipe.id, snapshot.names.get(pipe.queue_id, pipe.queue_id))
        for pipe in snapshot.consumed
    ]


class Sweep(PlannedPass[Leftovers]):
    """Removes files and rows that are nobody's any more, of all queues whatever the scope."""

    name = "sweep"

    def look(self, scope: Scope) -> Leftovers:
        """Cost: one query of a partial index."""
        consumed = self._ports.catalog.consumed_pipes()
        return Leftovers(consumed, {pipe.queue_id: scope.name(pipe.queue_id) for pipe in consumed})

    def plan(self, snapshot: Leftovers, now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        self._remove([action.subject])
        return ""

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """All of them with one sync; then the rows of deleted queues whose pipes are gone."""
        self._remove([action.subject for action in actions])
        for deleted in self._ports.catalog.queues(deleted=True):
            self._ports.catalog.forget_queue(deleted.id)
        return [replace(action, outcome=DONE) for action in actions]

    def _remove(self, pipe_ids: list[str]) -> None:
        if pipe_ids:
            self._ports.store.drop(pipe_ids)
            self._ports.catalog.forget_pipes(pipe_ids)
