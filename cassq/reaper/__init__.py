"""The reaper's passes: they clean up what clients leave behind when they stop or crash.

Each pass looks for work, decides (`plan`, pure) and acts by conditional writes, so passes may run
any number of times, concurrently, and stop anywhere: the next run continues. Each pass has a file
of its own in this package:

- seal: seals pipes whose pusher is gone, or whose lease was not renewed for its whole length
- schedule: pushes the ticks of schedules that are due
- mend: repairs groups whose claim rows have gaps, or overlap
- rollback: frees expired claims, and splits those that expired before; makes dead letters of spent
  messages
- disband: removes groups that have had no popper for too long
- retire: removes sealed pipes that every group has acked, and their files
- expire: removes messages that are too old or too many, from queues that are not in use
- scale: decides how many pipes of a queue should be open at once
- rollup: records samples of each queue by minute, hour and day
- unstage: removes staged pipes of writes whose driver is gone, or that were aborted
- sweep: finishes removals that a crash interrupted
- repair: replaces replicas of extents that are lost, damaged or missing
- alert: notifies targets of problems, and when they are over

A pass over all queues runs under a lease of its own, so that several reapers share the work; the
lease of a dead reaper lapses. Leases only save work; the passes are correct without them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from cassq.alerts.targets import AlertTarget
from cassq.consumer.presence import GONE_MS
from cassq.errors import UsageError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn
from cassq.model.rows import QueueRow, WriteState
from cassq.producer.tick_push import PushTo
from cassq.reaper.actions import DONE, FAILED, LEASE_MS, PLANNED, VOID, Action, Pass, Scope
from cassq.reaper.alert import Alert
from cassq.reaper.disband import Disband
from cassq.reaper.expire import Expire
from cassq.reaper.mend import Mend
from cassq.reaper.repair import Repair
from cassq.reaper.retire import Retire
from cassq.reaper.rollback import Rollback
from cassq.reaper.rollup import Rollup
from cassq.reaper.scale import Scale
from cassq.reaper.schedule import PushTicks
from cassq.reaper.seal import Seal
from cassq.reaper.sweep import Sweep
from cassq.reaper.unstage import Unstage, known_drivers

__all__ = ["DONE", "FAILED", "LEASE_MS", "PLANNED", "VOID", "Action", "Reaper"]


class Candidate(NamedTuple):
    """Something that its owner, or its poppers, may have abandoned. beat: grows while it is in use.
    noun: what it is, for users."""

    id: str
    beat: int
    lease_ms: int
    noun: str = "pipe"


class Reaper:
    """Runs the passes over some queues or all of them. Thread-safe: one pass at a time.

    push_to: pushes the messages of schedules; None leaves them to other reapers. dry_run: True
    makes every call a dry run. targets: where alerts go; initially none. patience: seconds after
    which one pass over very many queues leaves the rest to the next run. stopping: asked before
    each pass and most actions; once it is True, what remains is left to the next run.
    """

    def __init__(
        self, ports: Ports, dead_letter: DeadLetterFn, push_to: PushTo | None = None
    ) -> None:
        self.ports = ports
        self._mutex = threading.Lock()
        self._disband = Disband(ports)
        self._repair = Repair(ports, lambda: self.patience)
        passes: list[Pass] = [
            Seal(ports),
            PushTicks(ports, dead_letter, push_to, lambda: self.patience),
            Mend(ports),
            Rollback(ports, dead_letter),
            self._disband,
            Retire(ports),
            Expire(ports, dead_letter),
            Scale(ports),
            Rollup(ports, lambda: self.patience),
            Unstage(ports),
            Sweep(ports),
            self._repair,
            Alert(ports, lambda: self.targets, lambda: self.patience),
        ]
        self._passes = {each.name: each for each in passes}
        self.dry_run = False
        self.targets: Sequence[AlertTarget] = ()
        self.patience: float = 0.2
        self.stopping: Callable[[], bool] = lambda: False
        self._goes_on: Callable[[], bool] = lambda: True  # of the pass that is running
        for each in passes:
            each.stopping = self._is_stopping
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the passes, in the order in which they run."""
        return tuple(self._passes)

    def reap(
        self,
        queues: Iterable[QueueRow] | None = None,
        *,
        only: Collection[str] | None = None,
        dry_run: bool = False,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> list[Action]:
        """Run every pass (or those in `only`) over these queues, or all; return what was done.
        goes_on: asked as `stopping` is, in this run only; once it is False, the rest is left out.

        A pass over all queues is skipped while another reaper runs it. Cost with nothing to do: one
        query per pass, for any number of queues; a look at each pipe that may have a pusher.
        """
        scope = Scope(self.ports, queues)
        actions: list[Action] = []
        for name in self.names if only is None else only:
            if self.stopping() or not goes_on():
                break
            actions += self.run(name, scope, dry_run=dry_run, goes_on=goes_on) or []
        return actions

    def run(
        self,
        name: str,
        scope: Scope,
        *,
        dry_run: bool = False,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> list[Action] | None:
        """Run one pass; None if another reaper is running it. goes_on: asked before most
        actions."""
        found = self._passes.get(name)
        if found is None:
            raise UsageError(
                f"there is no pass {name!r}", hint=f"the passes are {', '.join(self._passes)}"
            )
        with self._mutex:
            self._goes_on = goes_on
            if dry_run or self.dry_run:
                return found.run(scope, dry_run=True)
            if scope.ids is not None:
                return self._run(found, scope)
            lease, owner = f"reaper:{name}", self.ports.ids.client
            if self.ports.catalog.leases.take(lease, owner, LEASE_MS) is None:
                return None
            try:
                return self._run(found, scope)
            finally:
                self.ports.catalog.leases.drop(lease, owner)

    def _run(self, found: Pass, scope: Scope) -> list[Action]:
        actions = found.run(scope, dry_run=False)
        self._counts.update((action.verb, action.outcome) for action in actions)
        return actions

    def _is_stopping(self) -> bool:
        return self.stopping() or not self._goes_on()

    @property
    def repairs(self) -> bool:
        """Whether the last repair pass left work that can continue at once."""
        return self._repair.unfinished

    def counts(self) -> dict[tuple[str, str], int]:
        """The number of actions since this reaper was created, by (pass, outcome)."""
        return dict(self._counts)

    def candidates(self, queues: Iterable[QueueRow] | None = None) -> list[Candidate]:
        """Unsealed pipes, open writes, and groups (by name) that may expire. Each is found to be
        abandoned no sooner than a lease length after it was first seen."""
        scope, catalog = Scope(self.ports, queues), self.ports.catalog
        ids = scope.ids
        found = [Candidate(p.id, p.beat, p.lease_ms) for p in catalog.pipes.unsealed(ids)]
        writes = [row for row in catalog.writes.unfinished(ids) if row.state is WriteState.OPEN]
        drivers = known_drivers(self.ports, {row.driver for row in writes})
        for row in writes:
            driver = drivers[row.driver]
            found.append(Candidate(row.id, driver.beat, driver.lease_ms))
        for _, group in self._disband.idle(scope):
            found.append(Candidate(group.name, group.polled_ms, GONE_MS, "group"))
        return found
