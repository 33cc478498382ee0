"""The rows of sidecars and of extents on them. Times are milliseconds of catalog time."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class SidecarState(enum.IntEnum):
    """What a sidecar is to be::

    up <──> draining ──> gone ──> up   (when it registers with a new generation)
    """

    UP = 0  # takes new extents
    DRAINING = 1  # takes none; its replicas are copied elsewhere, and it is removed when empty
    GONE = 2  # given up by a person: its replicas count as lost at once


@dataclass(frozen=True, slots=True)
class SidecarRow:
    """A sidecar, as it last told.

    generation: of its data directory, made with it; another one means that all was lost.
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
    load: int  # bytes a second written of late
    read_only: bool  # for want of space, or after a failed write
    damaged: int  # extents that it knows to be damaged
    http: str = ""  # host:port of health and metrics
    seen_ms: int = 0

    def alive(self, now_ms: int) -> bool:
        """Whether its lease holds, as far as its row tells: a hint, as every lease."""
        return now_ms < self.seen_ms + self.lease_ms


class ReplicaAt(NamedTuple):
    """One replica of an extent: on which sidecar, and which data directory of it."""

    sidecar: str
    generation: str

    def told(self) -> str:
        """As it is stored."""
        return f"{self.sidecar} {self.generation}"


def replica_at(told: str) -> ReplicaAt:
    """A replica as it was stored."""
    name, _, generation = told.rpartition(" ")
    return ReplicaAt(name, generation)


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
