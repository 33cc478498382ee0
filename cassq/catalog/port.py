"""The Catalog port: where everything but payloads lives, and what its rows are.

Every verb is one conditional write or one bounded read. A conditional write answers whether it
took effect; one whose outcome the backend cannot tell raises BackendError with
`outcome_unknown`, and is read back, never guessed. Times are milliseconds of catalog time
(`now_ms`), which no jump of a wall clock moves.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cassq.frames import Place
from cassq.queues import GroupPolicy, QueuePolicy
from cassq.ranges import EMPTY, RangeSet


class PipeState(enum.IntEnum):
    """The states of a pipe::

    ready ──> open ──> sealed ──> consumed ──> (row gone)
      └────────────────^
    """

    READY = 0  # opened ahead by a pusher; no frame yet
    OPEN = 1  # its owner appends
    SEALED = 2  # its end is fixed for ever
    CONSUMED = 3  # retired: its frames may be removed


class ClaimState(enum.IntEnum):
    """The states of a claim row::

    held ──> done
      └──> free ──> held
    """

    HELD = 0  # a popper has it until `due_ms`
    FREE = 1  # given back or expired: anybody may take it from `due_ms` on
    DONE = 2  # every message is committed or dead


@dataclass(frozen=True, slots=True)
class QueueRow:
    id: str
    name: str
    policy: QueuePolicy
    version: int  # grows with every change of the policy
    groups_version: int  # grows when a group comes or goes, and when a pipe retires
    tail: str = ""  # cp: the newest pipe, the one that the next must succeed
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class GroupRow:
    id: str
    queue_id: str
    name: str
    policy: GroupPolicy
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class PipeRow:
    id: str
    queue_id: str
    state: PipeState
    owner: str  # which pusher
    created_ms: int
    lease_ms: int
    beat: int = 0  # the owner raises it to show that it lives
    end: Place | None = None  # recorded once, by whoever sealed it first
    predecessor: str = ""  # cp: the pipe before it
    ordinal: int = 0  # the order of creation in the queue


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a group stands in a pipe: below `ack` all is done, from `chain` on nothing is claimed.

    epoch and owner fence: an exclusive popper raises the epoch before its first claim.
    """

    group_id: str
    pipe_id: str
    ack: Place
    chain: Place
    epoch: int = 0
    owner: str = ""
    start: int = 0  # the group was created after what lies below: never delivered to it


@dataclass(frozen=True, slots=True)
class Claim:
    """The messages `[start, end)` of a pipe for a group, and what has become of them.

    The rows of a (group, pipe) are disjoint and cover `[ack, chain)` of its cursor. `version`
    changes with every write of the row, and is what the next conditional write names.
    """

    group_id: str
    pipe_id: str
    start: int
    end: int
    pos: int  # of the frame that holds `start`, or an earlier one
    state: ClaimState
    due_ms: int
    deliveries: int  # how often these messages were handed to a popper, this claim included
    losses: int = 0  # how often their claim expired
    holder: str = ""
    version: str = ""
    acked: RangeSet = field(default=EMPTY)
    failure: str = ""  # JSON: the last failure's reason, error, consumer and times

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Move:
    """An intent to put a message elsewhere: the key of the ledger's dead.

    key: (group, pipe, seq). It is written before the message is pushed to `dest`; the message is
    there if the frame at `dest` bears its id. `settled` is set by the write that marks the
    message done in its old place.
    """

    group_id: str
    pipe_id: str
    seq: int
    reason: str
    dest_pipe: str
    dest_seq: int
    at_ms: int
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Retired:
    """The totals of a retired pipe for one group, written once."""

    pipe_id: str
    group_id: str
    queue_id: str
    start: int  # the group was created after what lies below
    pushed: int
    dead: int


class Catalog(abc.ABC):
    """Queues, groups, pipes, cursors, claims, moves and leases."""

    @abc.abstractmethod
    def now_ms(self) -> int:
        """Catalog time. Cost: none that blocks."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is held."""

    # --- queues and groups ------------------------------------------------------------------

    @abc.abstractmethod
    def create_queue(self, row: QueueRow, default: GroupRow) -> bool:
        """Insert a queue and its first group; False when the name is taken."""

    @abc.abstractmethod
    def queue(self, name: str) -> QueueRow | None:
        """The queue of that name, deleted ones excluded."""

    @abc.abstractmethod
    def queue_by_id(self, queue_id: str) -> QueueRow | None:
        """The queue of that id, also while it is being deleted."""

    @abc.abstractmethod
    def queues(self, prefix: str = "", *, deleted: bool = False) -> list[QueueRow]:
        """Queues by name."""

    @abc.abstractmethod
    def update_queue(self, queue_id: str, version: int, policy: QueuePolicy) -> bool:
        """Replace the policy if `version` is still the row's."""

    @abc.abstractmethod
    def delete_queue(self, queue_id: str) -> list[str]:
        """Mark a queue deleted and its pipes consumed, durably; the ids of its pipes."""

    @abc.abstractmethod
    def forget_queue(self, queue_id: str) -> None:
        """Remove every row of a deleted queue whose pipes are gone."""

    @abc.abstractmethod
    def create_group(self, row: GroupRow, starts: Mapping[str, Place], groups_version: int) -> bool:
        """Insert a group that starts at `starts` in those pipes and at 0 in any other.

        False when `groups_version` is not the queue's any more, or the name is taken.
        """

    @abc.abstractmethod
    def groups(self, queue_id: str) -> list[GroupRow]:
        """The groups of a queue by name."""

    @abc.abstractmethod
    def update_group(self, group_id: str, policy: GroupPolicy) -> bool:
        """Replace a group's policy; False when it is gone."""

    @abc.abstractmethod
    def delete_group(self, group_id: str) -> bool:
        """Remove a group with its cursors and claims; False when it was gone."""

    # --- pipes ------------------------------------------------------------------------------

    @abc.abstractmethod
    def add_pipe(self, row: PipeRow) -> bool:
        """Insert a pipe durably. With a strict queue only if `row.predecessor` is the queue's
        tail and is sealed or gone; the pipe becomes the tail. False when that, or the queue, is
        no more, or the pipe is there already.
        """

    @abc.abstractmethod
    def pipe(self, pipe_id: str) -> PipeRow | None:
        """One pipe."""

    @abc.abstractmethod
    def pipes(self, queue_id: str) -> list[PipeRow]:
        """The live (ready, open, sealed) pipes of a queue, oldest first."""

    @abc.abstractmethod
    def unclaimed_pipes(
        self, group: GroupRow, limit: int, *, unacked: bool = False
    ) -> list[PipeRow]:
        """Live pipes in which the group may have something left to claim (unacked: to ack),
        oldest first. A group is always asked about in the same way."""

    @abc.abstractmethod
    def consumed_pipes(self) -> list[PipeRow]:
        """Pipes whose frames are to be removed."""

    @abc.abstractmethod
    def pipe_ids(self) -> set[str]:
        """The ids of all pipe rows there are."""

    @abc.abstractmethod
    def beat(self, pipe_id: str, owner: str, state: PipeState) -> bool:
        """Show that the owner lives, and set ready or open; False when it is sealed."""

    @abc.abstractmethod
    def record_end(self, pipe_id: str, end: Place) -> Place | None:
        """Seal: record the end durably if none is recorded yet; the one that is. None: gone."""

    @abc.abstractmethod
    def retire(self, pipe_id: str, groups_version: int) -> bool:
        """Make a sealed pipe consumed, durably, if every group has acked all of it, nothing is
        being moved there, its predecessor is consumed or gone, and `groups_version` is the
        queue's; its cursors go, its totals are written.
        """

    @abc.abstractmethod
    def forget_pipes(self, pipe_ids: Sequence[str]) -> None:
        """Remove the rows of consumed pipes whose frames are gone."""

    # --- claims -----------------------------------------------------------------------------

    @abc.abstractmethod
    def cursor(self, group_id: str, pipe_id: str) -> Cursor | None:
        """The group's cursor in a pipe, created at 0 when absent; None when the pipe is gone."""

    @abc.abstractmethod
    def cursors(self, group_id: str) -> list[Cursor]:
        """All cursors of a group."""

    @abc.abstractmethod
    def claim(self, cursor: Cursor, chain: Place, claim: Claim, *, synced: bool = False) -> bool:
        """Claim `[cursor.chain, chain)`: move the chain if cursor's chain and epoch are still
        the row's, and insert the claim. Durable against process death; `synced` also against
        the machine's.
        """

    @abc.abstractmethod
    def fence(self, cursor: Cursor, owner: str) -> Cursor | None:
        """Raise the epoch if it is still `cursor.epoch`; the new cursor, or None."""

    @abc.abstractmethod
    def claims(self, group_id: str, pipe_id: str) -> list[Claim]:
        """The claim rows of a (group, pipe) by start. Cost: the rows from the ack offset on."""

    @abc.abstractmethod
    def due(
        self, group_id: str, now_ms: int, limit: int, *, without: Sequence[str] = ()
    ) -> list[Claim]:
        """Held claims past their deadline and free ones whose time has come, earliest first.

        without: pipes to be left out.
        """

    @abc.abstractmethod
    def next_due_ms(self, group_id: str, *, without: Sequence[str] = ()) -> int | None:
        """When the next held claim expires or free one comes due."""

    @abc.abstractmethod
    def replace(
        self,
        old: Claim,
        new: Sequence[Claim],
        *,
        epoch: int | None = None,
        settle: Sequence[Move] = (),
    ) -> bool:
        """Put `new` in the place of `old`, durably, if `old.version` is still the row's, and the
        cursor's epoch is `epoch` when given. `new` covers `old` exactly. Moves named are settled
        with it. Done rows at the front move the ack offset and are removed.
        """

    @abc.abstractmethod
    def replace_many(
        self, changes: Sequence[tuple[Claim, Sequence[Claim]]], *, epoch: int | None = None
    ) -> list[bool]:
        """`replace` for several claims with one sync; each answers for itself."""

    # --- moves ------------------------------------------------------------------------------

    @abc.abstractmethod
    def intend(
        self, move: Move, instead_of: Move | None = None, *, held: Claim | None = None
    ) -> Move | None:
        """Write an intent durably if none is there (or it equals `instead_of`); the one there.

        held: the mover's claim; None, and nothing written, when it is not his any more.
        """

    @abc.abstractmethod
    def moves(self, group_id: str, pipe_id: str) -> list[Move]:
        """The moves out of a pipe."""

    @abc.abstractmethod
    def retired(self, queue_id: str) -> list[Retired]:
        """The totals of a queue's retired pipes."""

    # --- leases (for the `lease` locker and the reaper's passes) ------------------------------

    @abc.abstractmethod
    def take_lease(self, name: str, owner: str, ttl_ms: int) -> int | None:
        """The epoch of a lease now held by `owner`; None while another holds it. Taking one's
        own again extends it and keeps the epoch."""

    @abc.abstractmethod
    def drop_lease(self, name: str, owner: str) -> None:
        """Give a lease back if `owner` holds it."""
