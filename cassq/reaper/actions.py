"""Actions, and the base classes of passes."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from cassq.errors import BackendError, CassqError, CorruptionError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import Driver, PipeRow, QueueRow

logger: logging.Logger = logging.getLogger("cassq")

PLANNED, DONE, VOID, FAILED = "planned", "done", "void", "failed"
# If a pass takes longer, another reaper may run it at the same time, which does no harm.
LEASE_MS = 5000
# How many pipes are retired together, or removed together, before the lease is renewed.
PIPES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a pass. outcome: planned, done, void (another process was faster, or it was no
    longer needed) or failed.

    row: what the pass that planned the action needs to do it.
    """

    verb: str
    subject: str
    queue: str
    outcome: str = PLANNED
    detail: str = ""
    row: Any = field(default=None, compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for users."""
        return {
            "verb": self.verb,
            "subject": self.subject,
            "queue": self.queue,
            "outcome": self.outcome,
            "detail": self.detail,
        }


def concluded(action: Action, detail: str | None) -> Action:
    """A planned action after it was carried out. detail: as from `PlannedPass.apply`."""
    return replace(action, outcome=VOID if detail is None else DONE, detail=detail or "")


class Scope:
    """The queues that a pass covers: some, or all (ids None)."""

    def __init__(self, ports: Ports, queues: Iterable[QueueRow] | None = None) -> None:
        self._ports = ports
        self._names = {queue.id: queue.name for queue in queues or ()}
        self.ids: tuple[str, ...] | None = None if queues is None else tuple(self._names)

    def name(self, queue_id: str) -> str:
        """A queue's name, or its id if it is gone. Cost: one read per queue, cached."""
        name = self._names.get(queue_id)
        if name is None:
            row = self._ports.catalog.queues.by_id(queue_id)
            name = self._names[queue_id] = row.name if row else queue_id
        return name


def is_lapsed(row: PipeRow | Driver, beat: int, since_ms: int, now_ms: int) -> bool:
    """Whether a lease was not renewed for its whole length: its row still has the `beat` that was
    seen at `since_ms`. Times are by the watcher's own boot clock."""
    return row.beat == beat and now_ms - since_ms >= row.lease_ms


S = TypeVar("S")


class Pass(abc.ABC):
    """A pass may run any number of times, concurrently, and stop anywhere: the next one
    continues. stopping: whether to leave the remaining actions to another run."""

    name: ClassVar[str]

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.stopping: Callable[[], bool] = lambda: False

    @abc.abstractmethod
    def run(self, scope: Scope, *, dry_run: bool) -> list[Action]:
        """Look, decide and act; return what was done, or with `dry_run` what would be."""


class PlannedPass(Pass, Generic[S]):
    """Looks for work, decides what to do, and does it by conditional writes.

    rounds: how often it does so in one run, as long as each round gets something done.
    """

    rounds: ClassVar[int] = 1

    def now_ms(self) -> int:
        """The time that `plan` gets."""
        return self._ports.catalog.now_ms()

    @abc.abstractmethod
    def look(self, scope: Scope) -> S:
        """Find possible work. The cost depends on the amount of work, not on how much is stored."""

    @abc.abstractmethod
    def plan(self, snapshot: S, now_ms: int) -> list[Action]:
        """Decide what to do. Pure."""

    @abc.abstractmethod
    def apply(self, action: Action) -> str | None:
        """Do an action, by conditional writes. Returns what was done, or None if it was no longer
        needed."""

    def run(self, scope: Scope, *, dry_run: bool) -> list[Action]:
        done: list[Action] = []
        for _ in range(self.rounds):
            planned = self.plan(self.look(scope), self.now_ms())
            if dry_run:
                return planned
            acted = self.apply_all(planned)
            done += acted
            if not any(action.outcome == DONE for action in acted):
                break
        return done

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """Do them one after another until they are to stop; return each with its outcome."""
        outcomes: list[Action] = []
        for action in actions:
            if self.stopping():
                break
            outcomes.append(self._attempt(action))
        return outcomes

    def _attempt(self, action: Action) -> Action:
        """Do one action. Errors are logged, not raised."""
        try:
            detail = self.apply(action)
        except (BackendError, CorruptionError) as exc:
            what = (action.verb, action.subject, action.queue)
            logger.warning("%s of %s in %s failed: %s", *what, exc)
            return replace(action, outcome=FAILED, detail=str(exc))
        except CassqError as exc:
            return replace(action, outcome=VOID, detail=str(exc))
        return concluded(action, detail)
