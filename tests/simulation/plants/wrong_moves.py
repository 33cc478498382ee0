"""Wrong parts of what goes back, or away: merges, purges, cancelling, dedup ids, expiry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from cassq.catalog.sqlite import pipe_tables
from cassq.catalog.sqlite.claim_tables import SqliteClaims
from cassq.catalog.sqlite.pipe_tables import SqlitePipes
from cassq.catalog.sqlite.record_tables import SqliteRecords
from cassq.consumer.claiming.candidates import CandidatePipes
from cassq.consumer.claiming.claimer import Claimer
from cassq.dead_letters import merging
from cassq.lifecycle import cancelling, moves, purging
from cassq.lifecycle.expiry import Expiry, cut_out
from cassq.lifecycle.sealing import seal_pipe
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim, ClaimState, Cursor, Dedup, PipeRow, Reason, Removed
from cassq.producer.dedup import DedupPush
from cassq.reaper.retire import Retire

# --- merging --------------------------------------------------------------------------------


@contextmanager
def finishes_blindly() -> Iterator[None]:
    """Who finishes a merge takes for granted that nothing has arrived."""
    with mock.patch.object(moves, "arrived", lambda ports, moves, ids: []):
        yield


@contextmanager
def trusts_intents() -> Iterator[None]:
    """Who finishes a merge takes an intent for the deed."""
    with mock.patch.object(moves, "arrived", lambda ports, moves, ids: list(moves)):
        yield


@contextmanager
def merges_for_all() -> Iterator[None]:
    """What is merged back is pushed for every group."""
    right = merging.Merging.__init__

    def wrong(self: Any, *args: Any, append: Any, **more: Any) -> None:
        append.__self__._admission._group_id = ""
        right(self, *args, append=append, **more)

    with mock.patch.object(merging.Merging, "__init__", wrong):
        yield


class RepointsClaimed(SqlitePipes):
    """A pipe is pointed back without a look whether somebody has claimed from it."""

    def repoint(self, pipe_id: str, queue_id: str, group_id: str) -> bool:
        with self._db.write(synced=True) as tx:
            tx.execute("DELETE FROM claims WHERE pipe_id = ?", (pipe_id,))
            tx.execute(
                "UPDATE cursors SET chain_seq = start_seq, ack_seq = start_seq WHERE pipe_id = ?",
                (pipe_id,),
            )
        return super().repoint(pipe_id, queue_id, group_id)


@contextmanager
def repoints_unseen() -> Iterator[None]:
    """A merge does not look whether anybody has claimed from a pipe."""

    def wrong(self: merging.Merging, pipe: PipeRow, end: Place) -> bool:
        if seal_pipe(self._catalog, self._ports.store, pipe.id) is None:
            return True
        return self._catalog.pipes.repoint(pipe.id, self._group.queue_id, self._group.id)

    with mock.patch.object(merging.Merging, "_whole", wrong):
        yield


# --- purging, cancelling, expiry ------------------------------------------------------------


class PurgesUnsynced(SqliteClaims):
    """The removal of what was never claimed is not synced."""

    def claim(self, *args: Any, synced: bool = False, **more: Any) -> bool:
        return super().claim(*args, synced=False, **more)


class RemovesUntold(SqliteClaims):
    """What is removed is marked as done, and not written down as removed."""

    def replace(self, *args: Any, removed: Sequence[Removed] = (), **more: Any) -> bool:
        return super().replace(*args, **more)


@contextmanager
def purges_what_is_held() -> Iterator[None]:
    """A purge takes claims away from poppers."""
    right = purging.waiting

    def wrong(cursor: Cursor, rows: Sequence[Claim], end_seq: int, now_ms: int, **_: Any) -> Any:
        return right(cursor, rows, end_seq, now_ms, held=True)

    with mock.patch.object(purging, "waiting", wrong):
        yield


@contextmanager
def purges_every_group() -> Iterator[None]:
    """A purge for one group is one for all of them."""
    right = purging._each

    def wrong(ports: Any, queue: Any, groups: Any, **how: bool) -> dict[str, int]:
        return right(ports, queue, ports.catalog.queues.groups(queue.id), **how)

    with mock.patch.object(purging, "_each", wrong):
        yield


@contextmanager
def cancels_what_was_delivered() -> Iterator[None]:
    """A message that waits to be delivered again can be cancelled."""
    right = cancelling._cancel_for

    def wrong(ports: Any, group: Any, pipe: PipeRow, seq: int) -> bool:
        for row in ports.catalog.claims.rows(group.id, pipe.id, range(seq, seq + 1)):
            if row.state is ClaimState.FREE and row.deliveries:
                return cut_out(ports, row, RangeSet.run(seq, seq + 1), Reason.PURGED)
        return right(ports, group, pipe, seq)

    with mock.patch.object(cancelling, "_cancel_for", wrong):
        yield


@contextmanager
def cancels_for_the_first_group() -> Iterator[None]:
    """A cancel is content when one group does not get the message."""
    right = cancelling._groups
    with mock.patch.object(cancelling, "_groups", lambda *args: right(*args)[:1]):
        yield


@contextmanager
def expires_early() -> Iterator[None]:
    """Messages expire before they are old enough."""
    right = Expiry.before_ms

    def wrong(self: Expiry) -> int | None:
        before_ms = right(self)
        return None if before_ms is None else before_ms + 400

    with mock.patch.object(Expiry, "before_ms", wrong):
        yield


# --- dedup ids ------------------------------------------------------------------------------


@contextmanager
def pushes_over_intents() -> Iterator[None]:
    """Who finds an intent takes it over without a look at what became of it."""
    with mock.patch.object(DedupPush, "_counts", lambda self, row: False):
        yield


@contextmanager
def believes_intents() -> Iterator[None]:
    """Who finds an intent takes it for a message that was pushed."""
    with mock.patch.object(DedupPush, "_counts", lambda self, row: True):
        yield


class DedupsUnsynced(SqliteRecords):
    """The intent of a dedup id is not synced."""

    def dedup_many(self, rows: Sequence[Dedup], instead_of: Mapping[str, Dedup]) -> list[Dedup]:
        with mock.patch.object(self._db, "_durable", False):
            return super().dedup_many(rows, instead_of)


class DedupsBlindly(SqliteRecords):
    """An intent is written over another without compare-and-set."""

    def dedup_many(self, rows: Sequence[Dedup], instead_of: Mapping[str, Dedup]) -> list[Dedup]:
        found = [
            Dedup(*each)
            for row in rows
            for each in self._db.read("SELECT * FROM dedups WHERE dedup_id = ?", (row.dedup_id,))
        ]
        return super().dedup_many(rows, {each.dedup_id: each for each in found})


# --- the ledger and the passes --------------------------------------------------------------


@contextmanager
def counts_no_purges() -> Iterator[None]:
    """The totals of a retired pipe say that what was purged was committed."""
    wrong = pipe_tables.WRITE_TOTALS.replace("'purged', 'cancelled'", "'none'")
    assert wrong != pipe_tables.WRITE_TOTALS
    with mock.patch.object(pipe_tables, "WRITE_TOTALS", wrong):
        yield


@contextmanager
def drops_before_retiring() -> Iterator[None]:
    """The files of pipes are removed before the catalog says that they are retired."""

    def wrong(self: Retire, actions: Any) -> Any:
        self._ports.store.drop([action.subject for action in actions])
        return right(self, actions)

    right = Retire.apply_all
    with mock.patch.object(Retire, "apply_all", wrong):
        yield


@contextmanager
def follows_the_last_only() -> Iterator[None]:
    """On a strict queue it is enough that the pipe before is acked, whatever was done to it."""
    with (
        mock.patch.object(CandidatePipes, "_was_passed_over", lambda self, cursor, end: end == 0),
        mock.patch.object(Claimer, "_is_unacked", lambda self, view: False),
    ):
        yield
