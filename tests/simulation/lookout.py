"""The lookout: what no actor sees. It looks into the catalog after every commit."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.model import NEVER, GroupView, Place, Sent

if TYPE_CHECKING:
    from tests.simulation.world import World


class BrokenPromiseError(Exception):
    """A promise was broken."""


class Lookout:
    """Ends must not change, nothing may be past them, and no pipe may be retired too early.

    founding: (queue, group) → kind of start, tick its creation began, and its time, of groups that
    actors make.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ticks = itertools.count(1)
        self.by_pipe: dict[str, list[tuple[Place, Sent]]] = defaultdict(list)
        self.groups: dict[str, GroupView] = {}
        self.founding: dict[tuple[str, str], tuple[str, int, int]] = {}
        self.ends: dict[str, tuple[int, int]] = {}
        self.seen_to: dict[str, int] = {}  # pipe → the highest seq acknowledged or delivered
        self.consumed: set[str] = set()

    def tick(self) -> int:
        return next(self._ticks)

    def look(self) -> None:
        """Look into the catalog after a commit."""
        for pipe_id, seq, pos in self._rows(
            "SELECT id, end_seq, end_pos FROM pipes WHERE end_seq IS NOT NULL"
        ):
            end = self.ends.get(pipe_id)
            if end is None:
                self.ends[pipe_id] = (seq, pos)
                if self.seen_to.get(pipe_id, -1) >= seq:
                    raise BrokenPromiseError(
                        f"{pipe_id} is sealed at {seq}, below what was acknowledged"
                    )
            elif end != (seq, pos):
                raise BrokenPromiseError(f"the end of {pipe_id} changed from {end} to {(seq, pos)}")
        for (pipe_id,) in self._rows("SELECT id FROM pipes WHERE state = 3"):
            if pipe_id not in self.consumed:
                self.consumed.add(pipe_id)
                self._check_retired(pipe_id)
        groups = self._rows(
            "SELECT g.id, g.name, q.name, q.policy, g.policy FROM groups g"
            " JOIN queues q ON q.id = g.queue_id"
        )
        if len(groups) != sum(view.alive for view in self.groups.values()):
            self._regroup(groups)

    def _regroup(self, rows: list[tuple[str, str, str, str, str]]) -> None:
        for view in self.groups.values():
            view.alive = False
        for id, name, queue, queue_policy, policy in rows:
            if id not in self.groups:
                start, begun, since_ms = self.founding.get((queue, name), ("beginning", 0, 0))
                strict = '"cp"' in queue_policy
                exclusive = strict or '"exclusive": true' in policy
                self.groups[id] = GroupView(
                    id, name, queue, strict, exclusive, start, begun, self.tick(), since_ms,
                    frozenset(self.consumed),
                )  # fmt: skip
            self.groups[id].alive = True

    def _check_retired(self, pipe_id: str) -> None:
        """Of a retired pipe every group has acked all it is owed."""
        for group in self.groups.values():
            if not group.alive:
                continue
            left = [
                sent.id
                for place, sent in self.by_pipe[pipe_id]
                if sent.queue == group.queue
                and sent.acked != NEVER
                and place not in group.settling
                and group.is_owed(sent, place)
            ]
            if left:
                totals = self._rows(
                    "SELECT dead FROM retired WHERE pipe_id = ? AND group_id = ?",
                    (pipe_id, group.id),
                )
                dead = totals[0][0] if totals else 0
                if len(left) > dead:
                    raise BrokenPromiseError(
                        f"{pipe_id} was retired before {group.name} had acked {left};"
                        f" {dead} of it are dead"
                    )

    def _rows(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        return self._world.commits.connection.execute(statement, parameters).fetchall()
