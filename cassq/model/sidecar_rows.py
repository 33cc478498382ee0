"""The rows of sidecars and of extents on them. Times are milliseconds of catalog time."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from cassq.frozen import dataclass


class SidecarState(enum.IntEnum):
    """The states of a sidecar::

    up <──> draining ──> gone ──> up   (when it registers with a new generation)
    """

    UP = 0  # takes new extents
    DRAINING = 1  # takes none; its replicas are copied elsewhere, and it is removed when empty
    GONE = 2  # removed by an operator: its replicas count as lost at once


@dataclass(frozen=True, slots=True)
class SidecarRow:
    """A sidecar, as of its last report.

    generation: of its data directory, created with it; a different one means that all its data were
    lost.
    """

    name: str
    address: str  # host:port
    zone: str
    generation: str
    state: SidecarState
    lease_ms: int
    free_bytes: int
    total_bytes: int
    extents: int
    load: int  # bytes a second written recently
    read_only: bool  # its disk is full, or a write failed
    damaged: (
        int  # number of extents known to be damaged, or to lack something: repairs ask for them
    )
    http: str = ""  # host:port of health and metrics
    seen_ms: int = 0

    def alive(self, now_ms: int) -> bool:
        """Whether its lease holds according to its row: a hint, like every lease."""
        return now_ms < self.seen_ms + self.lease_ms


class ReplicaAt(NamedTuple):
    """One replica of an extent: its sidecar, and the generation of that data directory."""

    sidecar: str
    generation: str

    def text(self) -> str:
        """The replica as stored."""
        return f"{self.sidecar} {self.generation}"


def replica_at(text: str) -> ReplicaAt:
    """The inverse of `ReplicaAt.text`."""
    name, _, generation = text.rpartition(" ")
    return ReplicaAt(name, generation)


def replicas_at(texts: Iterable[str]) -> tuple[ReplicaAt, ...]:
    """The inverse of `ReplicaAt.text` for several, each of them once: some placements named one
    twice."""
    return tuple(dict.fromkeys(map(replica_at, texts)))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the extent of a pipe is.

    wanted: how many replicas it should have. end: its end in messages, recorded once.
    version: never used before, see `Ids.version`.
    """

    pipe_id: str
    queue_name: str
    strict: bool
    replicas: tuple[ReplicaAt, ...]
    wanted: int
    version: str
    created_ms: int
    end: int | None = None
