"""The listings of a queue's pipes: hints, written before a pipe's row and removed after it.

The row decides. If an entry's pipe does not exist, or is elsewhere by its own row, the entry is
either ahead of the row or was left by a crash: it is removed when it is old.

The facts in a pipe's row that never change are remembered while its entry is listed: whether it is
a timer pipe, and that it is sealed. Most listings look for pipes that are open, due or unfinished,
and then need not read the rows of all others again.

Entries are ordered by `position`: microseconds of cluster time at which the pipe was added. Below
the `floor` of its slice there are no entries and will never be. A client that removes entries
raises it as far as a horizon allows, see `listing`; one that only lists, to times `SETTLED_US` ago:
a client that has needed half as long to add an entry adds another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from cassq.cassandra.session import Statement
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.known_pipes import QUEUES_MOST, PipeFacts
from cassq.catalog.cassandra.pipes.listing import (
    COVER_ENTRIES,
    DAY_US,
    ENTRIES,
    RAISE_FLOOR,
    SETTLED_US,
    SLICES,
    Listing,
    PipeEntry,
)
from cassq.catalog.cassandra.pipes.write_tables import CassandraWrites
from cassq.model.rows import PipeRow, PipeState

OLD_US = 3_600_000_000
FLOOR_STEP_US = 60_000_000

Slice = tuple[str, int, int]  # the queue, the number, the floor

DROP_SLICES = "DELETE FROM pipe_slices WHERE queue_id = ?"
DROP_SLICE = "DELETE FROM pipe_slices WHERE queue_id = ? AND slice = ?"
DROP_ENTRIES = "DELETE FROM queue_pipes WHERE queue_id = ? AND slice = ?"


class KnownSlices:
    """The slices of the most recently listed queues, as last read, so that their entries need not
    wait for them: a floor only rises, and below it there are no entries. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._floors: OrderedDict[str, dict[int, int]] = OrderedDict()

    def of(self, queue_ids: Iterable[str]) -> list[Slice]:
        """The known slices of several queues."""
        return [
            (queue_id, slice_, floor)
            for queue_id in queue_ids
            for slice_, floor in self._floors.get(queue_id, {}).items()
        ]

    def note(self, queue_ids: Iterable[str], slices: Iterable[Slice]) -> None:
        """Remember all slices of several queues, as just read."""
        floors: dict[str, dict[int, int]] = {queue_id: {} for queue_id in queue_ids}
        for queue_id, slice_, floor in slices:
            floors[queue_id][slice_] = floor
        with self._lock:
            for queue_id, its in floors.items():
                self._floors[queue_id] = its
                self._floors.move_to_end(queue_id)
            while len(self._floors) > QUEUES_MOST:
                self._floors.popitem(last=False)


class PipeLists:
    """The pipes of queues, in listed order. Thread-safe."""

    def __init__(self, rows: CatalogRows, writes: CassandraWrites) -> None:
        self._known = rows.known
        self._cql = rows.keyspace.cql
        self._gaps = rows.keyspace.gaps
        self._listing = Listing(rows.keyspace)
        self._writes = writes
        self._slices = KnownSlices()

    def entries(self, queue_id: str) -> list[PipeEntry]:
        """The entries of a queue's pipes in order. Cost: a round of reads; two for new slices."""
        return self.entries_of([queue_id])[queue_id]

    def entries_of(self, queue_ids: Sequence[str]) -> dict[str, list[PipeEntry]]:
        """`entries` for several queues. Cost: a round of reads: one per queue, and one per slice; a
        second round for slices not read before, and two more while there are unfinished writes."""
        asked_us = self._cql.stamp()
        asked: list[Statement] = [(SLICES, (queue_id,)) for queue_id in queue_ids]
        known = self._slices.of(queue_ids)
        answers = self._cql.read_many([*asked, *((ENTRIES, values) for values in known)])
        listed, there = answers[: len(asked)], answers[len(asked) :]
        found = {each[:2]: rows for each, rows in zip(known, there, strict=True)}
        noted = {
            queue_id: dict(rows[0][2])
            for queue_id, rows in zip(queue_ids, listed, strict=True)
            if rows and rows[0][2]
        }
        if noted and self._writes.help(noted, asked_us):
            listed = self._cql.read_many(asked)
            found.clear()  # they may have entries now that they had not then
        slices = [
            (queue_id, slice_, floor or 0)
            for queue_id, rows in zip(queue_ids, listed, strict=True)
            for slice_, floor, _ in rows
            if slice_ is not None
        ]
        self._slices.note(queue_ids, slices)
        new = [values for values in slices if values[:2] not in found]
        read = self._cql.read_many([(ENTRIES, values) for values in new])
        found |= {each[:2]: rows for each, rows in zip(new, read, strict=True)}
        entries: dict[str, list[PipeEntry]] = {queue_id: [] for queue_id in queue_ids}
        for queue_id, slice_, floor in slices:
            rows = found[queue_id, slice_]
            self._raise_floor(queue_id, slice_, floor, rows[0][0] if rows else None)
            positions = [position for position, _ in rows]
            self._gaps.read(COVER_ENTRIES, (queue_id, slice_), positions, asked_us, int)
            entries[queue_id] += (PipeEntry(*row) for row in rows)
        for queue_id, listed_now in entries.items():
            self._known.keep(queue_id, listed_now)
        return entries

    def _raise_floor(self, queue_id: str, slice_: int, floor: int, first: int | None) -> None:
        """Raise the floor, so that the next reads skip tombstones."""
        settled = self._cql.not_ahead(self._cql.stamp()) - SETTLED_US
        end = (slice_ + 1) * DAY_US
        if first is None and end < settled:
            self._cql.write(DROP_SLICE, (queue_id, slice_))
            return
        reached = settled if first is None else min(first, settled)
        if reached > max(floor, slice_ * DAY_US) + FLOOR_STEP_US:
            self._cql.write(RAISE_FLOOR, (queue_id, slice_, reached))

    # --- rows of listed pipes -------------------------------------------------------------------

    def rows(
        self, listed: Mapping[str, Sequence[PipeEntry]], *, beats: bool = True
    ) -> dict[str, list[PipeRow]]:
        """By queue, the pipes whose rows agree with these entries. beats: with the beats of the
        owners of unsealed ones, without which a ready pipe seems open. Cost: a round of reads: one
        per entry, and with `beats` one more per pipe not known to be sealed."""
        asked: list[Statement] = []
        # A pipe may have several entries, but only one of them agrees with its row.
        owned: set[tuple[str, PipeEntry]] = set()
        for queue_id, entries in listed.items():
            for entry in entries:
                asked.append((cql.PIPE, (entry.pipe_id,)))
                if beats and not self._known.is_sealed(queue_id, entry):
                    owned.add((queue_id, entry))
                    asked.append((cql.BEATS, (entry.pipe_id,)))
        answers = iter(self._cql.read_many(asked))
        found: dict[str, list[PipeRow]] = {}
        for queue_id, entries in listed.items():
            mine = found[queue_id] = list[PipeRow]()
            stale: list[PipeEntry] = []
            for entry in entries:
                rows = next(answers)
                owners = next(answers) if (queue_id, entry) in owned else []
                pipe = cql.pipe_of(entry.pipe_id, rows[0]).row if rows else None
                if pipe is None or (pipe.queue_id, pipe.ordinal) != (queue_id, entry.position):
                    stale.append(entry)
                else:
                    self._known.note(entry, pipe)
                    mine.append(cql.with_beats(pipe, owners))
            self._repair_entries(queue_id, stale)
        return found

    def _repair_entries(self, queue_id: str, stale: Iterable[PipeEntry]) -> None:
        """Remove entries that a crash has left."""
        old = self._cql.not_ahead(self._cql.stamp()) - OLD_US
        for entry in stale:
            if entry.position < old:
                self._listing.unlist(queue_id, entry)

    def live(self, queue_id: str) -> list[PipeRow]:
        """The live pipes of a queue, oldest first. Cost: that of `entries`, a round of reads."""
        return self.live_of(queue_id, self.entries(queue_id))

    def unsealed_in(self, queue_ids: Sequence[str]) -> dict[str, list[PipeRow]]:
        """The unsealed pipes of several queues, without queues that have none. Cost: that of
        `entries_of`, and a round of reads, of the pipes not known to be sealed."""
        return _those(self.rows(self._not_sealed(self.entries_of(queue_ids))), PipeState.SEALED)

    def sealed_in(self, queue_ids: Sequence[str]) -> dict[str, list[tuple[PipeEntry, PipeFacts]]]:
        """The entries of sealed pipes of several queues, with the certain facts about these pipes,
        without queues that have none. Some may be consumed by now. Cost: that of `entries_of`, and
        a round of reads, of the pipes not known to be sealed."""
        listed = self.entries_of(queue_ids)
        self.rows(self._not_sealed(listed), beats=False)
        found: dict[str, list[tuple[PipeEntry, PipeFacts]]] = {}
        for queue_id, entries in listed.items():
            for entry in entries:
                facts = self._known.get(queue_id, entry)
                if facts is not None and facts.end_seq is not None:
                    found.setdefault(queue_id, []).append((entry, facts))
        return found

    def with_live(self, queue_ids: Sequence[str]) -> list[str]:
        """Which of several queues have live pipes. Cost: that of `entries_of`, a round of reads of
        the newest pipe of each queue, and one of the other pipes of queues whose newest pipe is not
        live."""
        listed = self.entries_of(queue_ids)
        newest = {queue_id: entries[-1:] for queue_id, entries in listed.items() if entries}
        live = _those(self.rows(newest, beats=False), PipeState.CONSUMED).keys()
        others = {each: listed[each][:-1] for each in newest if each not in live}
        return [*live, *_those(self.rows(others, beats=False), PipeState.CONSUMED)]

    def _not_sealed(self, listed: Mapping[str, Sequence[PipeEntry]]) -> dict[str, list[PipeEntry]]:
        """The entries of pipes not known to be sealed."""
        return {
            queue_id: [each for each in entries if not self._known.is_sealed(queue_id, each)]
            for queue_id, entries in listed.items()
        }

    def timers(self, queue_id: str) -> list[PipeRow]:
        """The live timer pipes of a queue. Cost: that of `entries`, and a round of reads, of timer
        pipes and of those not read before."""
        left: list[PipeEntry] = []
        for entry in self.entries(queue_id):
            known = self._known.get(queue_id, entry)
            if known is None or known.is_timer:
                left.append(entry)
        return [row for row in self.live_of(queue_id, left) if row.timer_ms is not None]

    def by_priority(
        self, queue_id: str, entries: Sequence[PipeEntry], limit: int
    ) -> Iterable[list[PipeEntry]]:
        """The entries of each priority, in order, the greatest first; all at once if they are no
        more than `limit`. Cost: none, or a round of reads, of the pipes not read before."""
        if len(entries) <= limit:
            return [list(entries)]
        new = [entry for entry in entries if self._known.get(queue_id, entry) is None]
        self.rows({queue_id: new}, beats=False)
        found: dict[int, list[PipeEntry]] = {}
        for entry in entries:
            known = self._known.get(queue_id, entry)
            found.setdefault(known.priority if known else 0, []).append(entry)
        return [found[priority] for priority in sorted(found, reverse=True)]

    def live_of(self, queue_id: str, entries: Sequence[PipeEntry]) -> list[PipeRow]:
        rows = self.rows({queue_id: entries})[queue_id]
        return [row for row in rows if row.state < PipeState.CONSUMED]


def _those(found: Mapping[str, Sequence[PipeRow]], before: PipeState) -> dict[str, list[PipeRow]]:
    """The pipes in a state before that one, without queues that have none."""
    return {
        queue_id: some
        for queue_id, rows in found.items()
        if (some := [row for row in rows if row.state < before])
    }
