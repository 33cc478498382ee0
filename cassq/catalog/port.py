"""The Catalog port: stores everything but payloads. Its rows are in `cassq.model.rows`.

It has nine roles: queues and groups, pipes, claims, leases, staged writes, sidecars, records,
results of tasks, and steps of tasks. Each role is a class of its own, because it has its own tables
and users: a test, the simulation or a store can replace one and keep the others. `Records` holds
what is too small for a role: each kind is a few rows that are written and read by key.

Unless its docstring says otherwise, an operation is one conditional write or one bounded read. A
conditional write returns whether it took effect. If the backend does not know the outcome, the
write raises BackendError with `outcome_unknown`; the caller then reads the row and never guesses.
Times are milliseconds of catalog time (`now_ms`), which does not jump when a wall clock does.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cassq.catalog.record_port import Records
from cassq.catalog.result_port import Results
from cassq.catalog.sidecar_port import Sidecars
from cassq.catalog.step_port import Steps
from cassq.catalog.write_port import Writes
from cassq.message.frames import Place
from cassq.model import claims
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
    Sample,
)


class Queues(abc.ABC):
    """Queues, and their consumer groups."""

    @abc.abstractmethod
    def create(self, row: QueueRow, default: GroupRow) -> bool:
        """Insert a queue and its first group; False if the name is taken."""

    @abc.abstractmethod
    def named(self, name: str) -> QueueRow | None:
        """The queue with this name; deleted ones are excluded."""

    @abc.abstractmethod
    def by_ids(self, queue_ids: Sequence[str]) -> list[QueueRow | None]:
        """The queues with these ids, in their order, including those being deleted; None for an id
        without a queue. Cost: one round trip on networked catalogs."""

    def by_id(self, queue_id: str) -> QueueRow | None:
        """The queue with this id; see `by_ids`."""
        return self.by_ids([queue_id])[0]

    @abc.abstractmethod
    def listed(self, prefix: str = "", *, deleted: bool = False) -> list[QueueRow]:
        """The queues whose names begin with `prefix`, ordered by name. deleted: those being deleted
        instead of the others."""

    @abc.abstractmethod
    def update(self, queue_id: str, version: int, policy: QueuePolicy) -> bool:
        """Replace the policy if the row still has `version`."""

    @abc.abstractmethod
    def delete(self, queue_id: str) -> list[str]:
        """Durably mark a queue deleted and its pipes consumed; return the ids of its pipes."""

    @abc.abstractmethod
    def forget(self, queue_id: str) -> None:
        """Remove every row of a deleted queue whose pipes are gone."""

    # --- groups -------------------------------------------------------------------------------

    @abc.abstractmethod
    def create_group(self, row: GroupRow, starts: Mapping[str, Place], groups_version: int) -> bool:
        """Insert a group that starts at `starts` in those pipes and at 0 in all others.

        False if the queue no longer has `groups_version`, or the name is taken.
        """

    @abc.abstractmethod
    def groups(self, queue_id: str) -> list[GroupRow]:
        """The groups of a queue, ordered by name."""

    def with_groups(self, queue_id: str) -> tuple[QueueRow | None, list[GroupRow]]:
        """`by_id` and `groups`. Cost: one round trip on networked catalogs."""
        return self.by_id(queue_id), self.groups(queue_id)

    @abc.abstractmethod
    def update_group(self, group_id: str, policy: GroupPolicy) -> bool:
        """Replace a group's policy; False if the group is gone."""

    @abc.abstractmethod
    def delete_group(self, group_id: str) -> bool:
        """Remove a group with everything recorded for it; False if it was already gone."""

    # --- groups that expire -------------------------------------------------------------------

    @abc.abstractmethod
    def poll_group(self, group: GroupRow, at_ms: int) -> bool:
        """Durably note that the group had a popper at this time; False if the group is gone."""

    @abc.abstractmethod
    def expiring(self, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        """The groups of these queues (None: all) that can expire; those of deleted queues too."""

    @abc.abstractmethod
    def expire_group(self, group: GroupRow, removal: Sample) -> bool:
        """`delete_group`, and in the same step add the sample, at its own time or the next free one
        after it. False if the group is gone, or no longer has `group.polled_ms`."""

    # --- candidates for the reaper, whose conditional writes decide ---------------------------

    @abc.abstractmethod
    def limited(self, queue_ids: Collection[str] | None = None) -> list[QueueRow]:
        """The queues among these (None: all) whose messages expire, are limited in number, or are
        deduplicated."""

    @abc.abstractmethod
    def busy(self, queue_ids: Collection[str] | None = None) -> dict[str, list[PipeRow]]:
        """For each of these queues (None: all) that is being pushed to, or should have more than
        one open pipe: its id, and its unsealed pipes, oldest first."""

    @abc.abstractmethod
    def set_desired_pipes(self, queue: QueueRow, pipes: int, at_ms: int) -> bool:
        """Set the number of open pipes the queue should have, if the row still has
        `queue.desired_pipes` and `desired_ms`. Unsynced."""

    @abc.abstractmethod
    def live(self) -> list[str]:
        """The ids of queues that have live pipes."""


class Pipes(abc.ABC):
    """Pipes, from their first row to their totals.

    urgent_added: how many pipes with a priority this object has added, to any queue. After it has
    grown, lists of pipes that were read earlier lack a pipe that comes first.
    """

    urgent_added: int = 0

    @abc.abstractmethod
    def add(self, row: PipeRow) -> bool:
        """Insert a pipe durably. In a strict queue, only if `row.predecessor` is the queue's tail
        and is sealed or gone; the pipe becomes the tail. False if that does not hold, if the queue
        or the pipe's group is gone, or if the pipe already exists; for a staged pipe, also if its
        write is not open or has another epoch.
        """

    @abc.abstractmethod
    def by_id(self, pipe_id: str) -> PipeRow | None:
        """The pipe with this id."""

    @abc.abstractmethod
    def live(self, queue_id: str) -> list[PipeRow]:
        """The live (ready, open, sealed) pipes of a queue, oldest first."""

    @abc.abstractmethod
    def unclaimed(self, group: GroupRow, limit: int, *, unacked: bool = False) -> list[PipeRow]:
        """Live pipes, other than timer pipes, in which the group may have something left to claim
        (unacked: to ack). Those of the greatest priority come first, then the oldest; at most
        `limit` of each priority. For one group, `unacked` is always the same."""

    def newest_urgent(self, queue_id: str) -> int:
        """The ordinal of the newest live pipe with a priority; 0 if there is none, or if finding it
        would take a round trip."""
        return 0

    @abc.abstractmethod
    def timers(self, group: GroupRow, until_ms: int, limit: int) -> list[PipeRow]:
        """Live timer pipes that hold something the group has not scheduled and that may be due
        before `until_ms`, earliest first."""

    @abc.abstractmethod
    def consumed(self) -> list[PipeRow]:
        """Pipes whose frames must be removed."""

    @abc.abstractmethod
    def ids(self) -> set[str]:
        """The ids of all pipe rows."""

    @abc.abstractmethod
    def beat(self, pipe_id: str, owner: str, state: PipeState, rate: int = 0) -> bool:
        """Record that the owner is alive, and set ready or open; False if the pipe is sealed.

        rate: messages a second since the last beat.
        """

    @abc.abstractmethod
    def record_end(self, pipe_id: str, end: Place) -> Place | None:
        """Seal: record the end durably if none is recorded yet; return the recorded one. None: the
        pipe is gone. A staged pipe stays staged."""

    def sealed_ms(self, pipe_ids: Sequence[str]) -> dict[str, int]:
        """When the ends of these pipes were recorded, by the clock of the server that did it, in
        milliseconds since 1970. Pipes for which this is not known are left out.
        Cost: on networked catalogs one round trip."""
        return {}

    @abc.abstractmethod
    def retire(self, pipe_ids: Sequence[str], groups_version: int) -> list[str]:
        """Durably make sealed pipes of a queue consumed, if the queue still has `groups_version`:
        each that every group has acked to its end, that is not the destination of an unsettled
        move, and whose predecessor is consumed, gone or named before it here. Their cursors are
        removed, and their totals written. Returns the ids of those made consumed.
        """

    @abc.abstractmethod
    def repoint(self, pipe_id: str, queue_id: str, group_id: str) -> bool:
        """Durably give a sealed pipe that was never claimed from to one group of another queue; the
        old queue's ledger counts its messages as merged. False if something was claimed from it or
        is being moved to it, or if the pipe, queue or group is gone.
        """

    @abc.abstractmethod
    def forget(self, pipe_ids: Sequence[str]) -> None:
        """Remove the rows of consumed pipes whose frames are gone."""

    # --- candidates for the reaper, whose conditional writes decide ---------------------------

    @abc.abstractmethod
    def unsealed(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        """The pipes of these queues (None: all) that a pusher may be writing, oldest first."""

    @abc.abstractmethod
    def finished(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        """The sealed pipes of these queues (None: all) that every group seems to have acked to
        the end, oldest first."""

    # --- totals of retired pipes --------------------------------------------------------------

    @abc.abstractmethod
    def retired(self, queue_id: str, pipe_id: str = "") -> list[Retired]:
        """The totals of each of a queue's retired pipes, or of one of them."""

    @abc.abstractmethod
    def retired_sums(self, queue_id: str) -> list[RetiredSum]:
        """The totals of a queue's retired pipes added up, for each group and for the queue as a
        whole (group_id ""). Cost: one row each, however many pipes were retired."""


class Claims(abc.ABC):
    """Cursors, claims and moves: how far each group is in each pipe.

    reserves: whether poppers save writes, which take round trips here, by reserving the next
    message before it is pushed.
    """

    reserves: bool = False

    @abc.abstractmethod
    def cursors_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[Cursor | None]:
        """The group's cursors in these pipes, created at 0 where absent; None where the pipe is
        gone. Cost: on networked catalogs, as many round trips as for one cursor."""

    def cursor(self, group_id: str, pipe_id: str) -> Cursor | None:
        """The group's cursor in one pipe; see `cursors_in`."""
        return self.cursors_in(group_id, [pipe_id])[0]

    @abc.abstractmethod
    def cursors(self, group_id: str, pipe_ids: Sequence[str] | None = None) -> list[Cursor]:
        """The cursors that a group has: in these pipes, or all. Creates none."""

    def find_cursor(self, group_id: str, pipe_id: str) -> Cursor | None:
        """The cursor that a group has in one pipe, if any; see `cursors`."""
        return next(iter(self.cursors(group_id, [pipe_id])), None)

    @abc.abstractmethod
    def claim(
        self,
        cursor: Cursor,
        chain: Place,
        rows: Sequence[Claim],
        *,
        removed: Sequence[Removed] = (),
        synced: bool = False,
        reserve: Claim | None = None,
    ) -> bool:
        """Claim `[cursor.chain, chain)`: move the chain if the row still has the cursor's chain and
        epoch, and insert the rows, which cover it. Survives a crash of the process; with `synced`,
        also of the machine.

        reserve: the message at `chain` is reserved in the same step (`claims.reservation`).
        If the cursor holds a reservation, this call turns that into a claim row instead, and
        returns False; only the popper that made the reservation can use it, by passing the cursor
        with an empty owner.
        """

    def turn_into_row(self, cursor: Cursor) -> bool:
        """If a cursor holds a reservation, turn that into a claim row, unless another process was
        faster. Returns whether the cursor holds one. `claim` calls this first for a cursor with an
        owner."""
        theirs = claims.reserved(cursor)
        if theirs is None:
            return False
        self.claim(replace(cursor, owner=""), Place(theirs.end, theirs.pos), [theirs])
        return True

    @abc.abstractmethod
    def fence_all(self, cursors: Sequence[Cursor], owner: str) -> list[Cursor | None]:
        """Raise the epoch of each of these cursors, all of different pipes, if it still has that
        epoch. Returns for each, independently, the new cursor, or None if the epoch has changed.
        Cost: on networked catalogs, as many round trips as for one."""

    def fence(self, cursor: Cursor, owner: str) -> Cursor | None:
        """Raise the epoch if it is still `cursor.epoch`; see `fence_all`."""
        return self.fence_all([cursor], owner)[0]

    @abc.abstractmethod
    def rows(self, group_id: str, pipe_id: str, seqs: range | None = None) -> list[Claim]:
        """The claim rows of a (group, pipe), ordered by start: all, or those that contain some of
        `seqs`. Cost: reads those rows; all of them lie above the ack offset."""

    def rows_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[list[Claim]]:
        """All `rows` of a group in each of these pipes. Cost: on networked catalogs, as many round
        trips as for one pipe."""
        return [self.rows(group_id, pipe_id) for pipe_id in pipe_ids]

    @abc.abstractmethod
    def due(
        self,
        group_id: str,
        now_ms: int,
        limit: int,
        *,
        without: Sequence[str] = (),
        upward: bool = False,
    ) -> list[Claim]:
        """Held claims past their deadline and free ones that are due: those of the greatest
        priority (upward: of the least) first, then the earliest.

        without: pipes to leave out.
        """

    @abc.abstractmethod
    def next_due_ms(self, group_id: str, *, without: Sequence[str] = ()) -> int | None:
        """The time when the next held claim expires or the next free one comes due."""

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
        """Durably replace `old` by `new` if the row still has `old.version` and, when `epoch` is
        given, the cursor has that epoch. `new` covers `old` exactly. In the same step the moves in
        `settle` and `withdraw` are settled or withdrawn, and `removed` is recorded. Done rows at
        the front move the ack offset and are removed.
        """

    @abc.abstractmethod
    def mend(
        self, cursor: Cursor, old: Sequence[Claim], new: Sequence[Claim], chain: Place
    ) -> bool:
        """Durably replace `old`, all rows of a (group, pipe), by `new`, and put the chain's end
        at `chain`, where `new` ends, if cursor and rows have not changed since they were read.
        Raises the cursor's epoch. Done rows at the front move the ack offset and are removed.
        """

    @abc.abstractmethod
    def replace_many(
        self,
        changes: Sequence[tuple[Claim, Sequence[Claim]]],
        *,
        epochs: Sequence[int | None] | None = None,
        synced: bool = True,
    ) -> list[bool]:
        """`replace` several claims with one sync; one result per claim. epochs: for each, the
        `epoch` of `replace`.

        Others may see the result before it is durable, unless a claim with an epoch is among them
        that is not of a keyed group. The claims of a keyed group are durable at the latest when
        another popper has raised the epoch. Unless `synced`, the result survives a crash of the
        process, but maybe not one of the machine.
        """

    def ensure_durable(self) -> None:
        """Make durable those earlier writes with an unknown outcome that reads now show."""

    # --- moves --------------------------------------------------------------------------------

    @abc.abstractmethod
    def intend(
        self, move: Move, instead_of: Move | None = None, *, held: Claim | None = None
    ) -> Move | None:
        """Write an intent durably if there is none (or it equals `instead_of`); return the one that
        is there now.

        held: the mover's claim. If the mover no longer has it, nothing is written: None.
        """

    @abc.abstractmethod
    def intend_many(self, moves: Sequence[Move], held: Claim) -> bool:
        """Write intents durably, replacing any that are there, if the mover still has its claim
        `held`; otherwise write nothing and return False. All lie in that claim."""

    @abc.abstractmethod
    def moves(self, group_id: str, pipe_id: str, seqs: range | None = None) -> list[Move]:
        """The moves out of a pipe, only of `seqs` if given. Cost: a range of the key."""

    def moves_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[list[Move]]:
        """All `moves` of a group out of each of these pipes. Cost: as for `rows_in`."""
        return [self.moves(group_id, pipe_id) for pipe_id in pipe_ids]

    @abc.abstractmethod
    def removed(self, group_id: str, pipe_id: str) -> list[Removed]:
        """What was removed from a pipe for a group, ordered by start."""

    def removed_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[list[Removed]]:
        """`removed` for each of these pipes. Cost: as for `rows_in`."""
        return [self.removed(group_id, pipe_id) for pipe_id in pipe_ids]

    # --- candidates for the reaper, whose conditional writes decide ---------------------------

    @abc.abstractmethod
    def due_groups(self, now_ms: int, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        """The groups of these queues (None: all) for which `due` may return something."""

    @abc.abstractmethod
    def wedged(self, queue_ids: Collection[str] | None = None) -> list[tuple[str, str]]:
        """(group, pipe) of these queues (None: all) whose claim rows seem to have gaps or to
        overlap; see `cassq.catalog.cover`. Cost: reads their cursors in live pipes, and their open
        claims; nothing of retired pipes."""

    @abc.abstractmethod
    def all_overdue(
        self, deliveries: Mapping[str, int], now_ms: int, limit: int
    ) -> dict[str, list[Claim]]:
        """For each group, at most `limit` of the claims that are `due`: those held past their
        deadline, then free ones that were delivered at least `deliveries[group]` times, are doomed
        or are being moved. Cost: one round trip on networked catalogs."""

    def overdue(self, group_id: str, now_ms: int, deliveries: int, limit: int) -> list[Claim]:
        """`all_overdue` for one group."""
        return self.all_overdue({group_id: deliveries}, now_ms, limit)[group_id]


def limit_names(group_id: str) -> tuple[str, str]:
    """The names of two texts that the poppers of a group share: its rate and its permits."""
    return f"rate:{group_id}", f"permits:{group_id}"


def released_name(group_id: str) -> str:
    """The name of the text that says which dead letters of a group no longer hold their keys."""
    return f"released:{group_id}"


def line_name(group_id: str) -> str:
    """The name of the text that says which clients wait for a group's next turn."""
    return f"line:{group_id}"


def pipe_lock(group_id: str, pipe_id: str) -> str:
    """The name of the lock of a pipe in an exclusive group."""
    return f"pop:{group_id}:{pipe_id}"


class Leases(abc.ABC):
    """Leases, for the `lease` locker and the reaper's passes."""

    @abc.abstractmethod
    def take(self, name: str, owner: str, ttl_ms: int) -> int | None:
        """Take a lease for `owner` and return its epoch; None while another owner holds it. Taking
        it again extends it and keeps the epoch."""

    @abc.abstractmethod
    def drop(self, name: str, owner: str) -> None:
        """Release a lease if `owner` holds it."""

    @abc.abstractmethod
    def owner(self, name: str) -> str | None:
        """The owner of a lease, None if it has none. A hint: this may change at any time."""

    # --- what the poppers of a group share ------------------------------------------------------

    @abc.abstractmethod
    def shared(self, name: str) -> str:
        """The text that clients share under a name, which no lease may have; empty if there is no
        text. Cost: one read."""

    @abc.abstractmethod
    def swap(self, name: str, old: str, new: str) -> bool:
        """Put `new` in place of `old`; False if the text is no longer `old`. An empty text means
        that there is none. No other call may write the same `new`. Not durable: a crash of the
        machine may undo it. Cost: one conditional write."""


class Catalog(abc.ABC):
    """One catalog: all its roles, on one connection."""

    queues: Queues
    pipes: Pipes
    claims: Claims
    leases: Leases
    writes: Writes
    sidecars: Sidecars
    records: Records
    results: Results
    steps: Steps

    @abc.abstractmethod
    def now_ms(self) -> int:
        """Catalog time. Cost: does not block."""

    @abc.abstractmethod
    def wall_ms(self) -> int:
        """Wall time, for what follows the calendar: that of the catalog's servers if it has any,
        else that of this machine. It may jump. Cost: does not block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources."""
