"""The Catalog port: where everything but payloads lives. `cassq.model.rows` has its rows.

It is made of roles: queues and groups, pipes, claims, leases, staged writes, sidecars, and records.
Every verb is one conditional write or one bounded read. A conditional write answers whether it
took effect; one whose outcome the backend cannot tell raises BackendError with
`outcome_unknown`, and is read back, never guessed. Times are milliseconds of catalog time
(`now_ms`), which no jump of a wall clock moves.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence

from cassq.catalog.record_port import Records
from cassq.catalog.sidecar_port import Sidecars
from cassq.catalog.write_port import Writes
from cassq.message.frames import Place
from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.model.rows import (
    Claim,
    Cursor,
    GroupRow,
    Move,
    PipeRow,
    PipeState,
    QueueRow,
    Removed,
    Retired,
    RetiredSum,
)


class Queues(abc.ABC):
    """Queues, and their consumer groups."""

    @abc.abstractmethod
    def create(self, row: QueueRow, default: GroupRow) -> bool:
        """Insert a queue and its first group; False when the name is taken."""

    @abc.abstractmethod
    def named(self, name: str) -> QueueRow | None:
        """The queue of that name, deleted ones excluded."""

    @abc.abstractmethod
    def by_ids(self, queue_ids: Sequence[str]) -> list[QueueRow | None]:
        """The queues of these ids, also while they are being deleted. Cost: on networked catalogs
        one waits once."""

    def by_id(self, queue_id: str) -> QueueRow | None:
        """One of them."""
        return self.by_ids([queue_id])[0]

    @abc.abstractmethod
    def listed(self, prefix: str = "", *, deleted: bool = False) -> list[QueueRow]:
        """Queues by name."""

    @abc.abstractmethod
    def update(self, queue_id: str, version: int, policy: QueuePolicy) -> bool:
        """Replace the policy if `version` is still the row's."""

    @abc.abstractmethod
    def delete(self, queue_id: str) -> list[str]:
        """Mark a queue deleted and its pipes consumed, durably; the ids of its pipes."""

    @abc.abstractmethod
    def forget(self, queue_id: str) -> None:
        """Remove every row of a deleted queue whose pipes are gone."""

    # --- groups -------------------------------------------------------------------------------

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

    # --- candidates for the reaper, whose conditional writes decide ---------------------------

    @abc.abstractmethod
    def limited(self, queue_ids: Collection[str] | None = None) -> list[QueueRow]:
        """Those of these queues (None: of all) whose messages expire, are limited in number, or
        are deduplicated."""

    @abc.abstractmethod
    def busy(self, queue_ids: Collection[str] | None = None) -> list[str]:
        """The ids of those of these queues (None: of all) that are pushed to, or for which more
        than one open pipe is wished."""

    @abc.abstractmethod
    def wish_pipes(self, queue: QueueRow, pipes: int, at_ms: int) -> bool:
        """Say how many pipes are wished for, if `queue.wished_pipes` and `wished_ms` are still
        the row's. Unsynced."""

    @abc.abstractmethod
    def live(self) -> list[str]:
        """The ids of queues that have live pipes."""


class Pipes(abc.ABC):
    """Pipes from their first row to their totals."""

    @abc.abstractmethod
    def add(self, row: PipeRow) -> bool:
        """Insert a pipe durably. With a strict queue only if `row.predecessor` is the queue's
        tail and is sealed or gone; the pipe becomes the tail. False when that, the queue or the
        pipe's group is no more, or the pipe is there already; for a staged one, when its write
        is not open, or of another epoch.
        """

    @abc.abstractmethod
    def by_id(self, pipe_id: str) -> PipeRow | None:
        """One pipe."""

    @abc.abstractmethod
    def live(self, queue_id: str) -> list[PipeRow]:
        """The live (ready, open, sealed) pipes of a queue, oldest first."""

    @abc.abstractmethod
    def unclaimed(self, group: GroupRow, limit: int, *, unacked: bool = False) -> list[PipeRow]:
        """Live pipes in which the group may have something left to claim (unacked: to ack),
        oldest first, without timer pipes. A group is always asked about in the same way."""

    @abc.abstractmethod
    def timers(self, group: GroupRow, until_ms: int, limit: int) -> list[PipeRow]:
        """Live timer pipes with something in them that the group has not scheduled, and that may
        be due before `until_ms`, earliest first."""

    @abc.abstractmethod
    def consumed(self) -> list[PipeRow]:
        """Pipes whose frames are to be removed."""

    @abc.abstractmethod
    def ids(self) -> set[str]:
        """The ids of all pipe rows there are."""

    @abc.abstractmethod
    def beat(self, pipe_id: str, owner: str, state: PipeState, rate: int = 0) -> bool:
        """Show that the owner lives, and set ready or open; False when it is sealed.

        rate: messages a second since its last beat.
        """

    @abc.abstractmethod
    def record_end(self, pipe_id: str, end: Place) -> Place | None:
        """Seal: record the end durably if none is recorded yet; the one that is. None: gone.
        A staged pipe stays staged."""

    @abc.abstractmethod
    def retire(self, pipe_id: str, groups_version: int) -> bool:
        """Make a sealed pipe consumed, durably, if every group has acked all of it, nothing is
        being moved there, its predecessor is consumed or gone, and `groups_version` is the
        queue's; its cursors go, its totals are written.
        """

    @abc.abstractmethod
    def repoint(self, pipe_id: str, queue_id: str, group_id: str) -> bool:
        """Give a sealed pipe that nobody ever claimed from to another queue, for one group of it,
        durably; in the old queue's ledger its messages are merged. False when somebody has
        claimed, something is being moved there, or the pipe, queue or group is gone.
        """

    @abc.abstractmethod
    def forget(self, pipe_ids: Sequence[str]) -> None:
        """Remove the rows of consumed pipes whose frames are gone."""

    # --- candidates for the reaper, whose conditional writes decide ---------------------------

    @abc.abstractmethod
    def unsealed(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        """The pipes of these queues (None: of all) that somebody may be writing, oldest first."""

    @abc.abstractmethod
    def finished(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        """The sealed pipes of these queues (None: of all) that every group seems to have acked to
        the end, oldest first."""

    # --- totals of retired pipes --------------------------------------------------------------

    @abc.abstractmethod
    def retired(self, queue_id: str, pipe_id: str = "") -> list[Retired]:
        """The totals of a queue's retired pipes, or of one of them."""

    @abc.abstractmethod
    def retired_sums(self, queue_id: str) -> list[RetiredSum]:
        """The totals of a queue's retired pipes added up, for each group and for the queue as a
        whole (group_id ""). Cost: a row for each, however many pipes were retired."""


class Claims(abc.ABC):
    """Cursors, claims and moves: what each group has of each pipe."""

    @abc.abstractmethod
    def cursors_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[Cursor | None]:
        """The group's cursors in these pipes, created at 0 where absent; None where the pipe is
        gone. Cost: on networked catalogs as often one waits as for a single one."""

    def cursor(self, group_id: str, pipe_id: str) -> Cursor | None:
        """One of them."""
        return self.cursors_in(group_id, [pipe_id])[0]

    @abc.abstractmethod
    def cursors(self, group_id: str) -> list[Cursor]:
        """All cursors of a group."""

    @abc.abstractmethod
    def claim(
        self,
        cursor: Cursor,
        chain: Place,
        rows: Sequence[Claim],
        *,
        removed: Sequence[Removed] = (),
        synced: bool = False,
    ) -> bool:
        """Claim `[cursor.chain, chain)`: move the chain if cursor's chain and epoch are still
        the row's, and insert the rows, which cover it. Durable against process death; `synced`
        also against the machine's.
        """

    @abc.abstractmethod
    def fence(self, cursor: Cursor, owner: str) -> Cursor | None:
        """Raise the epoch if it is still `cursor.epoch`; the new cursor, or None."""

    @abc.abstractmethod
    def rows(self, group_id: str, pipe_id: str, seqs: range | None = None) -> list[Claim]:
        """The claim rows of a (group, pipe) by start: all, or those with some of `seqs`. Cost:
        those rows, from the ack offset on."""

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
        withdraw: Sequence[Move] = (),
        removed: Sequence[Removed] = (),
    ) -> bool:
        """Put `new` in the place of `old`, durably, if `old.version` is still the row's, and the
        cursor's epoch is `epoch` when given. `new` covers `old` exactly. Moves named are settled,
        or withdrawn, with it, and removals noted. Done rows at the front move the ack offset and
        are removed.
        """

    @abc.abstractmethod
    def mend(
        self, cursor: Cursor, old: Sequence[Claim], new: Sequence[Claim], chain: Place
    ) -> bool:
        """Put `new` in the place of `old`, which are all the rows of a (group, pipe), durably, and
        the chain's end where `new` ends; if cursor and rows are still as they were read. Raises the
        cursor's epoch. Done rows at the front move the ack offset and are removed.
        """

    @abc.abstractmethod
    def replace_many(
        self, changes: Sequence[tuple[Claim, Sequence[Claim]]], *, epoch: int | None = None
    ) -> list[bool]:
        """`replace` for several claims with one sync; each answers for itself."""

    # --- moves --------------------------------------------------------------------------------

    @abc.abstractmethod
    def intend(
        self, move: Move, instead_of: Move | None = None, *, held: Claim | None = None
    ) -> Move | None:
        """Write an intent durably if none is there (or it equals `instead_of`); the one there.

        held: the mover's claim; None, and nothing written, when it is not his any more.
        """

    @abc.abstractmethod
    def intend_many(self, moves: Sequence[Move], held: Claim) -> bool:
        """Write intents durably, in the place of any that are there, if the mover's claim is
        still his; False, and nothing written, when it is not. All lie in that claim."""

    @abc.abstractmethod
    def moves(self, group_id: str, pipe_id: str, seqs: range | None = None) -> list[Move]:
        """The moves out of a pipe, of these seqs if any are named. Cost: a range of the key."""

    @abc.abstractmethod
    def removed(self, group_id: str, pipe_id: str) -> list[Removed]:
        """What was removed from a pipe for a group, by start."""

    # --- candidates for the reaper, whose conditional writes decide ---------------------------

    @abc.abstractmethod
    def due_groups(self, now_ms: int, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        """The groups of these queues (None: of all) for which `due` may give something."""

    @abc.abstractmethod
    def wedged(self, queue_ids: Collection[str] | None = None) -> list[tuple[str, str]]:
        """(group, pipe) of these queues (None: of all) whose claim rows seem to have gaps, or to
        overlap, see `cassq.catalog.cover`. Cost: their cursors in live pipes, and their open
        claims; nothing of retired pipes."""

    @abc.abstractmethod
    def all_overdue(
        self, deliveries: Mapping[str, int], now_ms: int, limit: int
    ) -> dict[str, list[Claim]]:
        """For each group of what is `due`: claims held past their deadline, then free ones that
        were delivered that many times, are doomed or are being moved. Cost: on networked catalogs
        one waits once."""

    def overdue(self, group_id: str, now_ms: int, deliveries: int, limit: int) -> list[Claim]:
        """The same of one group."""
        return self.all_overdue({group_id: deliveries}, now_ms, limit)[group_id]


class Leases(abc.ABC):
    """Leases, for the `lease` locker and the reaper's passes."""

    @abc.abstractmethod
    def take(self, name: str, owner: str, ttl_ms: int) -> int | None:
        """The epoch of a lease now held by `owner`; None while another holds it. Taking one's
        own again extends it and keeps the epoch."""

    @abc.abstractmethod
    def drop(self, name: str, owner: str) -> None:
        """Give a lease back if `owner` holds it."""


class Catalog(abc.ABC):
    """One catalog: its roles, on one connection."""

    queues: Queues
    pipes: Pipes
    claims: Claims
    leases: Leases
    writes: Writes
    sidecars: Sidecars
    records: Records

    @abc.abstractmethod
    def now_ms(self) -> int:
        """Catalog time. Cost: none that blocks."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is held."""
