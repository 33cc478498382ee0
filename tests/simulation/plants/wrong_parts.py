"""Wrong parts: what the planted bugs put in the place of the right ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from cassq import reaper
from cassq.catalog.sqlite import pipe_tables
from cassq.catalog.sqlite.claim_tables import (
    _KEY,
    ADD_CLAIM,
    Fence,
    SqliteClaims,
    _claim_values,
)
from cassq.catalog.sqlite.pipe_tables import SqlitePipes
from cassq.catalog.sqlite.queue_tables import SqliteQueues
from cassq.consumer.delivery import Delivery
from cassq.errors import QueueFullError
from cassq.extents.files.pipe_file import SEALED, FileWriter
from cassq.extents.files.store import FilesStore
from cassq.extents.port import Slice
from cassq.lifecycle import timers
from cassq.lifecycle.retries import DeadLetters
from cassq.lifecycle.timers import Run
from cassq.locks.turns import HeldTurn
from cassq.message.batches import Batch, Intend
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState, Cursor, PipeRow
from cassq.pipes import PipeWriter
from cassq.producer.admission import Admission, AppendedPushes, PendingPush, gathered
from cassq.producer.quota import Quota
from cassq.reaper import retire
from tests.simulation.actors import actors
from tests.simulation.actors.client import SteppedClient
from tests.simulation.actors.threads import SimLock
from tests.simulation.worlds.simcatalog import SimConnection, SimLog
from tests.simulation.worlds.simdisk import SimDisk

# --- appends --------------------------------------------------------------------------------


@contextmanager
def acknowledges_all_of_an_append() -> Iterator[None]:
    """What one append wrote counts as a whole when any of it lies below the end of a seal."""
    append, adopt = FileWriter.append, PipeWriter._adopt
    written: dict[str, int] = {}

    def noting(self: FileWriter, frames: Any, end_seq: int) -> Place:
        written[self._name] = end_seq
        return append(self, frames, end_seq)

    def adopts(self: PipeWriter, pipe: Any, base: int, most: int) -> int:
        found = adopt(self, pipe, base, most)
        return written[f"{pipe.row.id}.pipe"] - base if found else 0

    with (
        mock.patch.object(FileWriter, "append", noting),
        mock.patch.object(PipeWriter, "_adopt", adopts),
    ):
        yield


# --- time -----------------------------------------------------------------------------------


@contextmanager
def schedules_what_is_due_sooner_late() -> Iterator[None]:
    """Of delayed messages of one frame those that are due sooner than the one before are taken for
    due with it."""

    def runs(piece: Slice, pos: int) -> Iterator[Run]:
        frame, first, last = piece
        at, due_ms = first, frame.due_ms(first) or 0
        for index in range(first + 1, last if frame.has_due_times else first):
            next_ms = frame.due_ms(index) or 0
            if next_ms > due_ms:
                yield frame.base_seq + at, frame.base_seq + index, pos, due_ms
                at, due_ms = index, next_ms
        yield frame.base_seq + at, frame.base_seq + last, pos, due_ms

    with mock.patch.object(timers, "_runs", runs):
        yield


# --- limits -------------------------------------------------------------------------------------


@contextmanager
def forgets_what_it_let_through() -> Iterator[None]:
    """What the gate has let through since its first look does not count."""
    admit, look = Quota.admit, Quota._look

    def admits(self: Quota, count: int, *, whole: bool) -> int:
        found = admit(self, count, whole=whole)
        self._length -= found
        return found

    def looks(self: Quota) -> None:
        if not self._looked_ms:
            look(self)

    with mock.patch.object(Quota, "admit", admits), mock.patch.object(Quota, "_look", looks):
        yield


@contextmanager
def pushes_what_it_refuses() -> Iterator[None]:
    """A push to a full queue is refused, and one of its messages is there."""
    append = Admission.append

    def appends(self: Admission, entries: list[PendingPush]) -> AppendedPushes:
        try:
            return append(self, entries)
        except QueueFullError:
            assert self._writing is not None
            batch = entries[0].batch or gathered(entries, self._clock.wall_ms())
            self._writing.appenders.of(None).append(batch.only([0]))
            raise

    with mock.patch.object(Admission, "append", appends):
        yield


@contextmanager
def keeps_nothing() -> Iterator[None]:
    """What every group has committed is retired at once, whatever is to be kept."""
    with mock.patch.object(retire, "keeps", lambda pipe, policy, now_ms: False):
        yield


# --- disks ----------------------------------------------------------------------------------


class SyncsTooLate(SimDisk):
    """What an append should have synced is synced by the next."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._owed: set[int] = set()

    def pwritev(self, fd: int, buffers: Sequence[bytes], pos: int) -> int:
        if fd in self._owed:
            super().sync_data(fd)
        return super().pwritev(fd, buffers, pos)

    def sync_data(self, fd: int) -> None:
        self._owed.add(fd)


class NeverSyncsData(SimDisk):
    def sync_data(self, fd: int) -> None:
        self._process.point()


class NeverSyncsDirectories(SimDisk):
    def sync_directory(self, path: Any) -> None:
        self._process.point()


class SyncsAgain(SimDisk):
    """A sync that failed is tried once more: the kernel then calls the pages clean."""

    def sync_data(self, fd: int) -> None:
        try:
            super().sync_data(fd)
        except OSError:
            super().sync_data(fd)


# --- stores ---------------------------------------------------------------------------------


class BlindWords:
    """Shared words in which the seal flag is never seen."""

    def __init__(self, words: Any) -> None:
        self._words = words

    def __getitem__(self, index: int) -> int:
        return 0 if index == SEALED else self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value


class IgnoresSeals(FilesStore):
    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> FileWriter:
        writer = super().create(pipe_id, queue_name)
        assert isinstance(writer, FileWriter)
        writer._words = BlindWords(writer._words)
        return writer


class SealsWithoutWalking(FilesStore):
    def _reader(self, fd: int, pipe_id: str) -> Any:
        reader = super()._reader(fd, pipe_id)
        reader.walk = lambda start: start  # type: ignore[method-assign]
        return reader


class ForgetsFrames(FilesStore):
    """To whoever adopts, every file looks as if nothing had been written to it."""

    adopting = False

    def extents(self, known: Any = ()) -> Any:
        for info in super().extents(known):
            self.adopting = True
            yield info
            self.adopting = False

    def seal(self, pipe_id: str) -> Place:
        end = super().seal(pipe_id)
        return Place(0, 0) if self.adopting else end


# --- catalogs -------------------------------------------------------------------------------


class NeverSyncsCommits(SimConnection):
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        if statement == "PRAGMA synchronous=FULL":
            statement = "PRAGMA synchronous=NORMAL"
        return super().execute(statement, parameters)


class NeverSyncs(SimLog):
    def sync(self) -> None:
        self._process.point()


class ClaimsBlindly(SqliteClaims):
    """A claim without compare-and-set."""

    def claim(self, cursor: Cursor, chain: Place, rows: Sequence[Claim], **_: Any) -> bool:
        with self._db.write(synced=False) as tx:
            tx.execute(
                "UPDATE cursors SET chain_seq = max(chain_seq, ?), chain_pos = max(chain_pos, ?)"
                " WHERE group_id = ? AND pipe_id = ?",
                (*chain, cursor.group_id, cursor.pipe_id),
            )
            blindly = ADD_CLAIM.replace("INSERT", "INSERT OR REPLACE")
            tx.executemany(blindly, map(_claim_values, rows))
            return True


class IgnoresReservations(SqliteClaims):
    """A claim takes what another popper has reserved."""

    def claim(self, cursor: Cursor, chain: Place, rows: Sequence[Claim], **more: Any) -> bool:
        return super().claim(replace(cursor, owner=""), chain, rows, **more)


class TakesOverEarly(SqliteClaims):
    """Claims expire before their deadline."""

    def due(self, group_id: str, now_ms: int, limit: int, **more: Any) -> list[Claim]:
        return super().due(group_id, now_ms + 10_000, limit, **more)


class TakesOverUncounted(SqliteClaims):
    """The delivery of a take-over is not written."""

    def replace(self, old: Claim, new: Sequence[Claim], **more: Any) -> bool:
        if old.state is ClaimState.FREE:
            new = [
                replace(row, deliveries=old.deliveries) if row.state is ClaimState.HELD else row
                for row in new
            ]
        return super().replace(old, new, **more)


class IgnoresVersions(SqliteClaims):
    """An ack or a give-back applies to whatever row is there."""

    def _put(self, tx: Any, old: Claim, new: Any) -> bool:
        row = tx.execute(
            f"SELECT version FROM claims WHERE {_KEY} AND end_seq = ?",
            (old.group_id, old.pipe_id, old.start, old.end),
        ).fetchone()
        return super()._put(tx, replace(old, version=row[0]) if row else old, new)


class IgnoresFences(IgnoresVersions):
    """In exclusive groups an ack applies whoever holds the pipe by now."""

    _exclusive = False

    def _fenced(self, tx: Any, fences: Iterable[Fence]) -> set[Fence]:
        self._exclusive = any(epoch is not None for _, _, epoch in fences)
        return set()

    def _put(self, tx: Any, old: Claim, new: Any) -> bool:
        if not self._exclusive:
            return SqliteClaims._put(self, tx, old, new)
        return super()._put(tx, old, new)


class OverwritesEnds(SqlitePipes):
    """The last to seal a pipe records its end."""

    def record_end(self, pipe_id: str, end: Place) -> Place | None:
        with self._db.write(synced=True) as tx:
            tx.execute(
                "UPDATE pipes SET end_seq = ?, end_pos = ?, state = 2 WHERE id = ? AND state < 3",
                (*end, pipe_id),
            )
            return end


class AcksOverGaps(SqliteClaims):
    """The ack offset goes to the end of the last claim that is done."""

    def _advance(self, tx: Any, group_id: str, pipe_id: str) -> None:
        row = tx.execute(
            "SELECT max(end_seq), pos FROM claims WHERE group_id = ? AND pipe_id = ? AND state = 2",
            (group_id, pipe_id),
        ).fetchone()
        if row[0] is not None:
            tx.execute(
                "DELETE FROM claims WHERE group_id = ? AND pipe_id = ? AND end_seq <= ?",
                (group_id, pipe_id, row[0]),
            )
            tx.execute(
                "UPDATE cursors SET ack_seq = ?, ack_pos = ? WHERE group_id = ? AND pipe_id = ?",
                (*row, group_id, pipe_id),
            )


class ForgetsStarts(SqliteQueues):
    """A group that is to start now starts at the beginning."""

    def create_group(self, row: Any, starts: Any, groups_version: int) -> bool:
        return super().create_group(row, {}, groups_version)


class SucceedsUnsealed(SqlitePipes):
    """On a strict queue the next pipe is opened while the last is still written."""

    def add(self, row: PipeRow) -> bool:
        if not row.predecessor:
            return super().add(row)
        with self._db.write(synced=True) as tx:
            tx.execute("UPDATE queues SET tail = ? WHERE id = ?", (row.id, row.queue_id))
            tx.execute(
                "INSERT INTO pipes (id, queue_id, state, owner, created_ms, lease_ms, predecessor)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (row.id, row.queue_id, row.state, row.owner, row.created_ms, row.lease_ms,
                 row.predecessor),
            )  # fmt: skip
            return True


@contextmanager
def passes_turns_unsealed() -> Iterator[None]:
    with mock.patch.object(PipeWriter, "_pass_turn", return_value=True):
        yield


@contextmanager
def goes_on_behind_a_nack() -> Iterator[None]:
    """A turn takes all that it handed out for acked, once it is settled."""

    def release(turn: HeldTurn) -> None:
        turn.settled = lambda: True
        rightly_release(turn)

    rightly_release = HeldTurn.release
    with mock.patch.object(HeldTurn, "release", release):
        yield


# --- receipts -------------------------------------------------------------------------------


@contextmanager
def takes_any_receipt() -> Iterator[None]:
    """A receipt of an earlier delivery counts for the present one."""

    def is_delivery(claim: Claim, seq: int, holder: str) -> bool:
        held = claim.state is ClaimState.HELD and claim.start <= seq < claim.end
        return held and seq not in claim.acked

    with mock.patch.object(claims, "is_delivery", is_delivery):
        yield


@contextmanager
def dates_neighbours_too() -> Iterator[None]:
    """A deadline that one message gets holds for all of its row."""

    def dated(claim: Claim, _: RangeSet, due_ms: int, version: claims.Version) -> list[Claim]:
        return claims.extended(claim, due_ms, version)

    with mock.patch.object(claims, "dated", dated):
        yield


@contextmanager
def gives_back_what_is_dated() -> Iterator[None]:
    """A popper takes what has a deadline of its own for its own, and gives it back."""

    def is_ours(delivery: Delivery, row: Claim) -> bool:
        return row.state is ClaimState.HELD and row.holder.startswith(delivery.holder)

    with mock.patch.object(Delivery, "_is_ours", is_ours):
        yield


# --- retiring -------------------------------------------------------------------------------


@contextmanager
def retires_what_is_claimed() -> Iterator[None]:
    """Looks at what is waiting, and not at what is pending: the flaw of CassandraQueue."""
    with _retires_by("ack_seq", "chain_seq"):
        yield


@contextmanager
def retires_what_a_keyed_group_claimed() -> Iterator[None]:
    """The same of groups in the order of keys alone."""
    keyed = """CASE WHEN g.policy LIKE '%"order": "key"%' THEN c.chain_seq ELSE c.ack_seq END"""
    with _retires_by("c.ack_seq", keyed):
        yield


@contextmanager
def retires_for_one_group() -> Iterator[None]:
    """One group has acked it all: enough."""
    with _retires_by("WHERE g.queue_id", "WHERE g.name = 'default' AND g.queue_id"):
        yield


@contextmanager
def _retires_by(right: str, wrong: str) -> Iterator[None]:
    """Change the condition, and what finds the pipes to be retired."""
    with ExitStack() as changes:
        for tables, name in (
            (pipe_tables, "UNFINISHED"),
            (pipe_tables, "FINISHED"),
            (pipe_tables, "FINISHED_OF"),
        ):
            statement = getattr(tables, name)
            assert right in statement
            changes.enter_context(mock.patch.object(tables, name, statement.replace(right, wrong)))
        yield


# --- threads --------------------------------------------------------------------------------


class KeepsNobodyOut(SimLock):
    """A lock that several have at once."""

    def acquire(self) -> bool:
        return True


@contextmanager
def lets_threads_into_a_popper() -> Iterator[None]:
    with mock.patch.object(actors, "SimLock", KeepsNobodyOut):
        yield


# --- dead letters ---------------------------------------------------------------------------


class DropsDeadLetters(SteppedClient):
    """The intent is written, the message is not."""

    def _append_to(self, name: str, batch: Batch, intend: Intend) -> None:
        intend(self.ports.ids.new(self.ports.catalog.now_ms()), 0, range(1))


class MarksFirst(DeadLetters):
    """A message is marked done before it is among the dead letters."""

    def add(self, queue: Any, group: Any, claim: Claim) -> bool:
        seq = next(s for s in range(claim.start, claim.end) if s not in claim.acked)
        letter = self._dead_letter(queue, group, claim, seq)
        if not self._catalog.claims.replace(claim, claims.as_dead(claim, self._ports.ids.version)):
            return False
        self._push(queue, group, claim, seq, letter, None)
        return True


def have_dead_letters(client: Any, dead_letters: DeadLetters) -> None:
    """Replace those of a client."""
    online = client.runtime._state
    online.dead_letters = dead_letters
    online.reaper = reaper.Reaper(online.ports, dead_letters.add)


class MarksFirstClient(SteppedClient):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        have_dead_letters(self, MarksFirst(self.ports, self._append_to))


class BuriesTwice(DeadLetters):
    """Whoever finds an intent does not look whether the message arrived."""

    def _arrived(self, move: Any, letter: Batch) -> bool:
        return False


class BuriesTwiceClient(SteppedClient):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        have_dead_letters(self, BuriesTwice(self.ports, self._append_to))
