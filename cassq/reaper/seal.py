"""The seal pass: fixes the end of pipes whose pusher is gone.

A pipe is abandoned if the store knows that its writer is gone, or if its lease was not renewed for
its whole length, measured by the watcher's own clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import seal_pipe
from cassq.model.rows import PipeRow, PipeState
from cassq.reaper.actions import Action, PlannedPass, Scope, is_lapsed

# How many writers with an unrenewed lease are checked in one run, at most.
ASKED_MAX = 500


class SeenLease(NamedTuple):
    """A pipe's lease as last seen, since when it has been like that, and when its writer was last
    checked."""

    beat: int
    since_ms: int
    checked_ms: int
    queue_id: str = ""


class LeaseWatch:
    """A watcher's memory of each pipe's lease. Times are by its own boot clock."""

    def __init__(self) -> None:
        self.seen: dict[str, SeenLease] = {}

    def watch(
        self, pipes: Iterable[PipeRow], now_ms: int, gone: Collection[str] = ()
    ) -> list[PipeRow]:
        """Record the beats of pipes, and forget the pipes in `gone`. Returns the pipes whose
        writers should be checked: those never seen before, then those with an unrenewed lease, the
        longest unchecked first."""
        unseen: list[PipeRow] = []
        still: list[tuple[int, PipeRow]] = []
        for pipe_id in gone:
            self.seen.pop(pipe_id, None)
        for pipe in pipes:
            before = self.seen.get(pipe.id)
            if before is None:
                unseen.append(pipe)
                self.seen[pipe.id] = SeenLease(pipe.beat, now_ms, now_ms, pipe.queue_id)
            elif before.beat != pipe.beat:
                self.seen[pipe.id] = SeenLease(
                    pipe.beat, now_ms, now_ms, pipe.queue_id
                )  # its writer is alive
            else:
                still.append((before.checked_ms, pipe))
        still.sort(key=lambda entry: entry[0])
        asked = [pipe for _, pipe in still[:ASKED_MAX]]
        for pipe in asked:
            self.seen[pipe.id] = self.seen[pipe.id]._replace(checked_ms=now_ms)
        return unseen + asked


class Unsealed(NamedTuple):
    """Pipes that may have a writer. gone: those that certainly have none."""

    pipes: Sequence[PipeRow]
    seen: Mapping[str, SeenLease]
    gone: Collection[str]
    names: Mapping[str, str]  # of queues, by id


def plan(snapshot: Unsealed, now_ms: int) -> list[Action]:
    """Seal pipes whose writer is gone, or whose lease was not renewed for its whole length.

    now_ms: by the watcher's own boot clock, like the times in `seen`.
    """
    found = []
    for pipe in snapshot.pipes:
        if pipe.state >= PipeState.SEALED:
            continue
        last = snapshot.seen.get(pipe.id)
        lapsed = last is not None and is_lapsed(pipe, last.beat, last.since_ms, now_ms)
        if lapsed or pipe.id in snapshot.gone:
            queue = snapshot.names.get(pipe.queue_id, pipe.queue_id)
            found.append(Action("seal", pipe.id, queue, row=pipe))
    return found


class Seal(PlannedPass[Unsealed]):
    """Seals abandoned pipes."""

    name = "seal"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._leases = LeaseWatch()

    def now_ms(self) -> int:
        return self._ports.clock.boot_ms()

    def look(self, scope: Scope) -> Unsealed:
        """Cost: one query; a look into the extents of new pipes, and of at most `ASKED_MAX` pipes
        whose leases were not renewed since the last run."""
        pipes = self._ports.catalog.pipes.unsealed(scope.ids)
        seen = self._leases.seen
        scoped = {
            pipe_id
            for pipe_id, last in seen.items()
            if scope.ids is None or last.queue_id in scope.ids
        }
        gone = scoped - {pipe.id for pipe in pipes}
        to_ask = self._leases.watch(pipes, self.now_ms(), gone)
        abandoned = self._ports.store.all_abandoned([pipe.id for pipe in to_ask])
        now_ms = self.now_ms()
        doubtful = [
            pipe
            for pipe in pipes
            if pipe.id in abandoned
            or is_lapsed(pipe, seen[pipe.id].beat, seen[pipe.id].since_ms, now_ms)
        ]
        names = {pipe.queue_id: scope.name(pipe.queue_id) for pipe in doubtful}
        return Unsealed(pipes, seen, abandoned, names)

    def plan(self, snapshot: Unsealed, now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        """Cost: one synced catalog transaction, and a scan from the pipe's last published end."""
        end = seal_pipe(self._ports.catalog, self._ports.store, action.subject)
        self._leases.seen.pop(action.subject, None)
        return "gone already" if end is None else f"at seq {end.seq}"
