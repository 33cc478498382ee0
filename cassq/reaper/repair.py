"""The repair pass: copies extents whose replicas were lost or are damaged; see `Upkeep`.

It decides by what sidecars report in the catalog: `cassq.extents.replicas.fleet` defines when a
sidecar is lost, and what an extent needs. Placements are compared with what the sidecars hold only
when there is a reason, some of them in each run; sidecars report damaged replicas themselves. A
copy counts once it is verified and its placement was changed by compare-and-set; so several reapers
may repair at once, and stop anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from cassq.extents.replicas.fleet import Fleet, Need
from cassq.extents.replicas.upkeep import RepairOutcome, Upkeep
from cassq.inspect.placements.rounds import Round
from cassq.inspect.placements.walk import PAGE, Walk
from cassq.lifecycle.ports import Ports
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarState
from cassq.reaper.actions import DONE, FAILED, VOID, Action, Pass, Scope

VERB = "repair"


class RepairSnapshot(NamedTuple):
    """The sidecars, the placements of extents, and the damaged and missing replicas, by pipe."""

    fleet: Fleet
    placements: Iterable[Placement]
    damaged: Mapping[str, Sequence[ReplicaAt]]
    missing: Mapping[str, Sequence[ReplicaAt]]


def plan(snapshot: RepairSnapshot) -> list[Action]:
    """Decide what these extents need; those with the fewest good replicas come first. Pure."""
    fleet, placements, damaged, missing = snapshot
    states = [
        fleet.state_of(each, damaged.get(each.pipe_id, ()), missing.get(each.pipe_id, ()))
        for each in placements
    ]
    return planned([state.need for state in states if state.need is not None])


def planned(needs: Sequence[Need]) -> list[Action]:
    """Actions for these needs, the most urgent first. Pure."""
    return [
        Action(VERB, need.placement.pipe_id, need.placement.queue_name, detail=need.why, row=need)
        for need in sorted(needs, key=lambda need: (need.good, need.placement.pipe_id))
    ]


class Repair(Pass):
    """Replaces lost and damaged replicas of all queues; does nothing if given only some queues.

    patience: returns the time limit of a run, in seconds. unfinished: whether there is more to do
    at once.
    """

    name = VERB

    def __init__(self, ports: Ports, patience: Callable[[], float]) -> None:
        super().__init__(ports)
        self._patience = patience
        self._walk = Walk(ports)
        self.unfinished: bool = False

    def run(self, scope: Scope, *, dry_run: bool) -> list[Action]:
        """Cost: none if the store has no replicas. Otherwise a read of the sidecars, sometimes one
        of the last round, pages of placements if there is a reason, and that of `Upkeep.mend`."""
        upkeep, self.unfinished = self._ports.upkeep, False
        if upkeep is None or scope.ids is not None:
            return []
        fleet = upkeep.fleet()
        if not fleet.sidecars:
            return []
        if dry_run:
            return plan(self._kept(upkeep, fleet))
        until_ms = self._ports.clock.boot_ms() + round(self._patience() * 1000)
        if self._walk.look_time(fleet):
            self._walk.add_damaged(fleet, upkeep.damaged(fleet))
            self._walk.begin_if_due(fleet)
        made = self._walk.go_on(upkeep, fleet, until_ms)
        return self._mend(upkeep, fleet, until_ms) + emptied(made, fleet)

    def _kept(self, upkeep: Upkeep, fleet: Fleet) -> RepairSnapshot:
        """All placements, for a dry run."""
        kept, missing = list[Placement](), dict[str, Sequence[ReplicaAt]]()
        pages = self._ports.catalog.sidecars.placements()
        while page := list(islice(pages, PAGE)):
            kept += page
            missing |= upkeep.missing(fleet, page)
        return RepairSnapshot(fleet, kept, upkeep.damaged(fleet), missing)

    def _mend(self, upkeep: Upkeep, fleet: Fleet, until_ms: int) -> list[Action]:
        actions = planned(self._walk.needs(fleet))
        if not actions:
            self.unfinished = self._walk.going
            return []
        seconds = max(0, until_ms - self._ports.clock.boot_ms()) / 1000
        mended = upkeep.mend([action.row for action in actions], seconds)
        done = [self._settle(upkeep, fleet, each) for each in mended]
        self.unfinished = self._walk.going or bool(self._walk.needs(fleet))
        return done

    def _settle(self, upkeep: Upkeep, fleet: Fleet, mended: RepairOutcome) -> Action:
        """Report what was done about a need, and look up what the extent needs next."""
        (action,) = planned([mended.need])
        pipe_id = action.subject
        if mended.error:
            self._walk.leave(pipe_id)
            return replace(action, outcome=FAILED, detail=mended.error)
        if not mended.done:
            return replace(action, detail=mended.detail)
        self._walk.settle(upkeep, fleet, pipe_id, mended.need.in_place)
        outcome = DONE if mended.detail else VOID
        return replace(action, outcome=outcome, detail=mended.detail)


def emptied(made: Round | None, fleet: Fleet) -> list[Action]:
    """The draining sidecars that are empty now, according to a round. Pure."""
    return [
        Action(VERB, row.name, "", DONE, "drained: it holds no extent that is still needed")
        for row in fleet.sidecars.values()
        if made is not None and row.state is SidecarState.DRAINING and not made.left.get(row.name)
    ]
