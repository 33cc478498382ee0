"""What a storm rages over: servers that run, what can be done to them, and what must hold there."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeVar

from cassq.errors import BackendError
from cassq.settings import GroupSettings, QueueSettings
from tests.faults.storm.deeds import Heal, Note
from tests.faults.storm.journal import TICK
from tests.faults.storm.plan import Span, Step

TRIES_MOST = 10

T = TypeVar("T")

STRICT = ("cp",)  # the queues that keep one order
LANES = "lanes"  # the queue whose keyed groups have several lanes each
# The groups, of any queue, that keep the order of keys.
KEYED, FAIR = "keyed", "fair"
KEYED_GROUPS = (KEYED, FAIR)
# What is special about queues, and about groups.
QUEUE_SETTINGS: Mapping[str, QueueSettings] = {
    "ap": {"consistency": "ap"},
    "cp": {"consistency": "cp"},
    LANES: {"consistency": "ap", "key_lanes": 4},
}
# Schedules, by name: their queue, and their interval in seconds. All ticks that are missed count.
SCHEDULES: Mapping[str, tuple[str, float]] = {
    f"{TICK}ap": ("ap", 2.0),
    f"{TICK}cp": ("cp", 5.0),
}
# What all processes together may do in a group, by queue and group.
LIMITS: Mapping[tuple[str, str], GroupSettings] = {
    (LANES, "default"): {"concurrency": 8, "rate": "30/s"},
}
# For how many seconds consumers keep what a pop returned, on average, so that limits are reached.
WORK: Mapping[tuple[str, str], float] = {(LANES, "default"): 0.1}
GROUP_SETTINGS: Mapping[str, GroupSettings] = {
    KEYED: {"order": "key"},
    FAIR: {"order": "key", "fair": True},
}


class Ground(abc.ABC):
    """url: as clients take it. told: what it is, in a line. servers: how many take turns at being
    hurt. troubles: what can be done to them here, and for how long. not_possible: what not, and
    why. groups: queue → groups. kept: those of the queues whose messages stay until the end.
    spaces: clients that live in a network namespace of their own, and which that is. clock_error:
    by how many seconds a client may be wrong about the catalog's time."""

    groups: ClassVar[Mapping[str, list[str]]] = {
        "ap": ["default", "second", KEYED],
        "cp": ["default", "second", KEYED],
        LANES: ["default", KEYED, FAIR],
    }
    kept: ClassVar[frozenset[str]] = frozenset()
    servers: int = 3
    clock_error: float = 0.0

    def __init__(self, url: str) -> None:
        self.url = url
        self.not_possible: list[str] = []
        self.spaces: Mapping[str, str] = {}

    @property
    @abc.abstractmethod
    def description(self) -> str: ...

    @property
    @abc.abstractmethod
    def troubles(self) -> Mapping[str, Span]: ...

    @abc.abstractmethod
    def prepare(self) -> None:
        """What clients need before the first of them connects."""

    @abc.abstractmethod
    def hurt(self, step: Step, note: Note) -> Heal:
        """Do what a step says; the way back from it."""

    @abc.abstractmethod
    def mend(self, note: Note) -> None:
        """Let all servers run and see one another. Raises ServerFailedError."""

    def proofs(self, note: Note) -> list[str]:
        """What is wrong with what the servers hold, when all is mended and clients have ended."""
        return []

    def last_proofs(self, note: Note) -> list[str]:
        """The same when the queues are drained."""
        return []


def patiently(act: Callable[[], T]) -> T:
    """Do it, again while a busy machine is too slow for it; each is none the worse for that."""
    for _ in range(TRIES_MOST - 1):
        try:
            return act()
        except BackendError:
            continue
    return act()
