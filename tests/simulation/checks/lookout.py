"""The lookout: what no actor sees. It looks into the catalog after every commit."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cassq.model.queues import group_policy
from tests.simulation.checks.ledger import BrokenPromiseError, Ledger
from tests.simulation.checks.model import GroupView

if TYPE_CHECKING:
    from tests.simulation.worlds.world import World


class Lookout(Ledger):
    """Ends must not change, nothing may be past them, and no pipe may be retired too early.

    founding: (queue, group) → kind of start, tick its creation began, and its time, of groups that
    actors make.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._ticks = itertools.count(1)
        self.founding: dict[tuple[str, str], tuple[str, int, int]] = {}
        self.ends: dict[str, tuple[int, int]] = {}
        # The latest catalog time. A boot may begin ahead of the end of the one before, by a
        # reaper's lease, and the next one behind it, if what it had written was not synced.
        self.reached_ms = 0
        self.seen_to: dict[str, int] = {}  # pipe → the highest seq acknowledged or delivered

    def tick(self) -> int:
        return next(self._ticks)

    def look(self) -> None:
        """Look into the catalog after a commit."""
        groups = self._rows(
            "SELECT g.id, g.name, q.name, q.id, q.policy, g.policy FROM groups g"
            " JOIN queues q ON q.id = g.queue_id"
        )
        if len(groups) != sum(view.alive for view in self.groups.values()):
            self._regroup(groups)
        if self._world.commits.recorded:
            self.look_at_books()
        if self._world.scenario.prompt:
            self._look_at_holders()
        if self._world.scenario.dedup or self._world.cuts_left:
            self.reached_ms = max(self.reached_ms, self.catalog_ms())
        for pipe_id, seq, pos, *home in self._rows(
            "SELECT id, end_seq, end_pos, queue_id, group_id FROM pipes"
            " WHERE end_seq IS NOT NULL OR group_id <> ''"
        ):
            self.look_at_home(pipe_id, (home[0], home[1]), seq)
            if seq is not None:
                self._look_at_end(pipe_id, seq, pos)
        for pipe_id, stage in self._rows("SELECT id, stage FROM pipes WHERE state = 3"):
            if stage:
                self.unpublished.add(pipe_id)
            elif pipe_id not in self.consumed:
                self.consumed.add(pipe_id)
                self.retired(pipe_id)

    def _look_at_holders(self) -> None:
        now_ms = self._world.scheduler.clock.boot_ms()
        held = {id for (id,) in self._rows("SELECT DISTINCT group_id FROM claims WHERE state = 0")}
        # Reservations: a process has no thread that gives them back while it is busy.
        reserved = "SELECT group_id FROM cursors WHERE owner LIKE 'next ' || chain_seq || ' %'"
        held |= {id for (id,) in self._rows(reserved)}
        for view in self.groups.values():
            if view.id not in held:
                if view.held_ms is not None:
                    view.held_ms, view.quiet_ms = None, now_ms
            elif view.held_ms is None:
                view.held_ms = now_ms

    def check_unpublished(self) -> None:
        """Nobody has got anything of a pipe that was removed while it was staged."""
        for place, sent in self.at.items():
            if place[0] in self.unpublished:
                raise BrokenPromiseError(f"{place} was never published: {sent.payload!r}")

    def _look_at_end(self, pipe_id: str, seq: int, pos: int) -> None:
        end = self.ends.get(pipe_id)
        if end is None:
            self.ends[pipe_id] = (seq, pos)
            if self.seen_to.get(pipe_id, -1) >= seq:
                raise BrokenPromiseError(
                    f"{pipe_id} is sealed at {seq}, below what was acknowledged"
                )
        elif end != (seq, pos):
            raise BrokenPromiseError(f"the end of {pipe_id} changed from {end} to {(seq, pos)}")

    def _regroup(self, rows: list[tuple[str, str, str, str, str, str]]) -> None:
        for view in self.groups.values():
            view.alive = False
        for id, name, queue, queue_id, queue_policy, policy in rows:
            if id not in self.groups:
                start, begun, since_ms = self.founding.get((queue, name), ("beginning", 0, 0))
                strict = '"cp"' in queue_policy
                own = group_policy(policy)
                exclusive = (strict or own.exclusive) and not own.keyed
                ordered = own.order == "key"
                self.groups[id] = GroupView(
                    id, name, queue, strict and not own.keyed, exclusive, own.keyed, ordered,
                    own.limit_per_key or int(ordered), own.interval_per_key_ms, queue_id, start,
                    begun, self.tick(), since_ms, frozenset(self.consumed),
                )  # fmt: skip
            self.groups[id].alive = True
