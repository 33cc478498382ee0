"""The reaper's passes: what is left over when clients stop, crash or are done.

Each pass decides from a snapshot what to do (`plan_*`, pure) and then does it by conditional
writes, so passes may run any number of times, side by side, and stop anywhere.

- seal: pipes whose owner is gone, or whose lease stood still for its whole length
- rollback: expired claims are freed, cut up if lost twice; spent messages become dead letters
- retire: sealed pipes that every group has acked; their files are removed
- sweep: what a crash left half removed, and files without a row
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from cassq import claims
from cassq.catalog.port import Claim, ClaimState, GroupRow, PipeRow, PipeState, QueueRow
from cassq.errors import BackendError, CassqError, CorruptionError
from cassq.extents.port import ExtentMissingError
from cassq.pipes import seal_pipe
from cassq.ports import Ports
from cassq.retries import Bury

logger = logging.getLogger("cassq")

DUE_LISTED = 256
DUE_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a pass does or has done. `outcome`: planned, done, void or failed."""

    verb: str
    subject: str
    queue: str
    outcome: str = "planned"
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Sightings:
    """When each pipe's lease was first seen as it stands: pipe id → (beat, boot ms)."""

    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def watch(self, pipes: Iterable[PipeRow], now_ms: int) -> None:
        """Take note of the beats; forget pipes that are not there any more."""
        fresh: dict[str, tuple[int, int]] = {}
        for pipe in pipes:
            beat, since_ms = self.seen.get(pipe.id, (-1, 0))
            fresh[pipe.id] = (beat, since_ms) if beat == pipe.beat else (pipe.beat, now_ms)
        self.seen = fresh


def unsealed(pipes: Iterable[PipeRow]) -> list[PipeRow]:
    """Pipes that somebody may be writing."""
    return [pipe for pipe in pipes if pipe.state < PipeState.SEALED]


def plan_seals(
    pipes: Iterable[PipeRow],
    seen: Mapping[str, tuple[int, int]],
    abandoned: Callable[[str], bool],
    now_ms: int,
) -> list[PipeRow]:
    """The pipes to seal: the owner is known to be gone, or its lease stood still all its length.

    now_ms: the watcher's own boot clock, the one `seen` was taken by.
    """
    found = []
    for pipe in unsealed(pipes):
        beat, since_ms = seen.get(pipe.id, (pipe.beat, now_ms))
        still = beat == pipe.beat and now_ms - since_ms >= pipe.lease_ms
        if still or abandoned(pipe.id):
            found.append(pipe)
    return found


def plan_retires(
    pipes: Iterable[PipeRow], acked: Mapping[str, Mapping[str, int]], groups: Iterable[GroupRow]
) -> list[PipeRow]:
    """The sealed pipes every group has acked to the end.

    acked: pipe id → group id → ack offset. A queue without groups retires nothing. pipes: oldest
    first; one that has a predecessor among them is retired only with or after it.
    """
    group_ids = [group.id for group in groups]
    found: list[PipeRow] = []
    kept: set[str] = set()
    for pipe in pipes:
        offsets = acked.get(pipe.id, {})
        done = pipe.end is not None and all(offsets.get(g, 0) >= pipe.end.seq for g in group_ids)
        if done and group_ids and pipe.predecessor not in kept:
            found.append(pipe)
        else:
            kept.add(pipe.id)
    return found


class Reaper:
    """Runs the passes over one queue or all of them."""

    def __init__(self, ports: Ports, bury: Bury) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._store = ports.store
        self._bury = bury
        self._sightings = Sightings()
        self.dry_run = False

    def reap(self, queues: Iterable[QueueRow]) -> list[Action]:
        """Every pass over these queues, then the sweep; what was done."""
        actions: list[Action] = []
        for queue in queues:
            actions += self.seal(queue)
            actions += self.rollback(queue)
            actions += self.retire(queue)
        return actions + self.sweep()

    def candidates(self, queues: Iterable[QueueRow]) -> list[PipeRow]:
        """Unsealed pipes; after a first look at them a lease length has to pass."""
        return [p for queue in queues for p in unsealed(self._catalog.pipes(queue.id))]

    def seal(self, queue: QueueRow) -> list[Action]:
        """Seal abandoned pipes. Cost: one listing, one look into each unsealed pipe's file."""
        pipes = unsealed(self._catalog.pipes(queue.id))
        now_ms = self._ports.clock.boot_ms()
        known = {k: v for k, v in self._sightings.seen.items() if k not in {p.id for p in pipes}}
        mine = Sightings(dict(self._sightings.seen))
        mine.watch(pipes, now_ms)
        self._sightings.seen = known | mine.seen
        planned = plan_seals(pipes, mine.seen, self._store.abandoned, now_ms)
        return [self._do("seal", pipe.id, queue, partial(self._seal, pipe)) for pipe in planned]

    def _seal(self, pipe: PipeRow) -> str:
        end = seal_pipe(self._catalog, self._store, pipe.id)
        return "gone already" if end is None else f"at seq {end.seq}"

    def rollback(self, queue: QueueRow) -> list[Action]:
        """Free expired claims; bury spent messages. Cost: one bounded query a group."""
        actions: list[Action] = []
        for group in self._catalog.groups(queue.id):
            for _ in range(DUE_ROUNDS):
                due = self._due(queue, group)
                done = [
                    self._do("rollback", f"{c.pipe_id}:{c.start}-{c.end}", queue, act)
                    for c, act in due
                ]
                actions += done
                if self.dry_run or not any(action.outcome == "done" for action in done):
                    break
        return actions

    def _due(
        self, queue: QueueRow, group: GroupRow
    ) -> list[tuple[Claim, Callable[[], str | None]]]:
        """Claims to be freed or buried, and how."""
        limit = group.policy.max_deliveries or queue.policy.max_deliveries
        now_ms = self._catalog.now_ms()
        found: list[tuple[Claim, Callable[[], str | None]]] = []
        for claim in self._catalog.due(group.id, now_ms, DUE_LISTED):
            if claim.state is ClaimState.HELD:
                found.append((claim, partial(self._free, claim, now_ms, limit)))
            elif claims.is_spent(claim, limit):
                found.append((claim, partial(self._put_away, queue, group, claim)))
        return found

    def _free(self, claim: Claim, now_ms: int, max_deliveries: int) -> str | None:
        pieces = claims.freed(claim, now_ms, max_deliveries, self._ports.ids.version)
        if not self._catalog.replace(claim, pieces):
            return None
        return f"freed, in {sum(p.state is ClaimState.FREE for p in pieces)} parts"

    def _put_away(self, queue: QueueRow, group: GroupRow, claim: Claim) -> str | None:
        return "to the dead letters" if self._bury(queue, group, claim) else None

    def retire(self, queue: QueueRow) -> list[Action]:
        """Retire what every group has acked, and remove its files."""
        pipes = self._catalog.pipes(queue.id)
        if not any(pipe.state is PipeState.SEALED for pipe in pipes):
            return []
        current = self._catalog.queue_by_id(queue.id)
        if current is None or current.deleted:
            return []
        groups = self._catalog.groups(queue.id)
        acked: dict[str, dict[str, int]] = {}
        for group in groups:
            for cursor in self._catalog.cursors(group.id):
                acked.setdefault(cursor.pipe_id, {})[group.id] = cursor.ack.seq
        planned = plan_retires(pipes, acked, groups)
        actions = [
            self._do("retire", pipe.id, queue, partial(self._retire, pipe)) for pipe in planned
        ]
        self._remove([a.subject for a in actions if a.outcome == "done"])
        return actions

    def _retire(self, pipe: PipeRow) -> str | None:
        current = self._catalog.queue_by_id(pipe.queue_id)
        if current is None or not self._catalog.retire(pipe.id, current.groups_version):
            return None
        return f"{pipe.end.seq if pipe.end else 0} messages"

    def _remove(self, pipe_ids: list[str]) -> None:
        if pipe_ids:
            self._store.drop(pipe_ids)
            self._catalog.forget_pipes(pipe_ids)

    def sweep(self) -> list[Action]:
        """Finish removals that a crash interrupted, of pipes and of deleted queues."""
        consumed = self._catalog.consumed_pipes()
        names = {pipe.queue_id: self._catalog.queue_by_id(pipe.queue_id) for pipe in consumed}
        actions = []
        for pipe in consumed:
            queue = names[pipe.queue_id]
            actions.append(Action("sweep", pipe.id, queue.name if queue else pipe.queue_id))
        if self.dry_run:
            return actions
        self._remove([pipe.id for pipe in consumed])
        for deleted in self._catalog.queues(deleted=True):
            self._catalog.forget_queue(deleted.id)
        return [Action(a.verb, a.subject, a.queue, "done") for a in actions]

    def _do(
        self, verb: str, subject: str, queue: QueueRow, act: Callable[[], str | None]
    ) -> Action:
        """Carry one action out, unless this is a dry run; a failure is told, not raised."""
        if self.dry_run:
            return Action(verb, subject, queue.name)
        try:
            detail = act()
        except (ExtentMissingError, CorruptionError, BackendError) as exc:
            logger.warning("%s of %s in %s failed: %s", verb, subject, queue.name, exc)
            return Action(verb, subject, queue.name, "failed", str(exc))
        except CassqError as exc:
            return Action(verb, subject, queue.name, "void", str(exc))
        return Action(verb, subject, queue.name, "void" if detail is None else "done", detail or "")
