"""Plans the writes of a claim, an ack or a take-over from cached rows. Pure.

A plan is one conditional batch on one partition. It is conditional on every version it replaces,
and on the facts that it relies on without replacing them:

1. Done rows at the front are removed by the batch that completes them; it is conditional on the ack
   offset, and on the next row not being done.
2. A batch that completes a row further back is conditional on the ack offset being below that row.

So whatever other clients do meanwhile, no done row is left at the front, where it would not be
noticed again. Done rows further back are joined as far as they are cached. Done rows of several
poppers may be adjacent; if there are many, a writer that has them cached joins some in passing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from cassq.cassandra.session import Row, Statement
from cassq.catalog.cassandra.partition import claim_rows as cql
from cassq.catalog.cassandra.partition.partition_cache import PartitionCache
from cassq.message.frames import Place
from cassq.model.claims import as_owner
from cassq.model.rows import Claim, ClaimState, Cursor, Move, Removed

TOUCHING_MAX = 16  # adjacent done rows, before some are joined in passing
JOINED_MOST = 100  # rows joined at once
CHANGES_MAX = 500  # in one batch

Change = tuple[Claim, Sequence[Claim]]


@dataclass(slots=True)
class ConditionalBatch:
    """One conditional batch on a partition. sets, conditions: of the static columns."""

    key: cql.Key
    sets: list[tuple[str, object]] = field(default_factory=list)
    conditions: list[tuple[str, object]] = field(default_factory=list)
    rows: list[Statement] = field(default_factory=list)

    def statements(self, writer: int, token: str) -> list[Statement]:
        """Its statements, with the writer's mark."""
        terms = " AND ".join(f"{term} ?" for term, _ in self.conditions)
        wanted = f" IF {terms}" if terms else ""
        given = [value for _, value in self.conditions]
        mark = (token, *self.key, writer)
        if not self.sets:
            return [(cql.PUT_MARK + wanted, (*mark, *given)), *self.rows]
        names = ", ".join(f"{name} = ?" for name, _ in self.sets)
        text = f"UPDATE claims SET {names} WHERE group_id = ? AND pipe_id = ?{wanted}"
        values: Row = (*(value for _, value in self.sets), *self.key, *given)
        return [(text, values), (cql.PUT_MARK, mark), *self.rows]


@dataclass(slots=True)
class PlannedBatch:
    """A plan: the batch (None: nothing to write), and what the caller gets and the cache holds once
    it is applied.

    sure: its results without a batch, or for single changes, do not rely on a stale cache.
    final: a refusal is final; reading again would not help.
    """

    batch: ConditionalBatch | None
    results: list[bool]
    cursor: Cursor | None = None
    gone: Sequence[int] = ()
    put: Sequence[Claim] = ()
    sure: bool = True
    final: bool = False


class Edit:
    """Changes to the rows of one partition, on top of its cache."""

    def __init__(self, known: PartitionCache, cursor: Cursor) -> None:
        self._known = known
        self.cursor: Cursor = cursor
        self.batch: ConditionalBatch = ConditionalBatch(known.key)
        self.gone: dict[int, Claim] = {}  # cached rows that change or are removed
        self.put: dict[int, Claim] = {}

    def at(self, start: int) -> Claim | None:
        """The row that begins at a seq."""
        found = self.put.get(start)
        if found is None and start not in self.gone:
            found = self._known.rows.get(start)
        return found

    def remove(self, row: Claim) -> None:
        self.put.pop(row.start, None)
        known = self._known.rows.get(row.start)
        if known is not None:
            self.gone[row.start] = known

    def replace(self, old: Claim, new: Sequence[Claim]) -> None:
        self.remove(old)
        for row in new:
            self.put[row.start] = row

    def finish(self) -> bool:
        """Join done rows, advance the ack offset, and decide what to write; False if too little is
        cached for that."""
        for start in sorted(self.put):
            row = self.put.get(start)
            if row is not None and row.state is ClaimState.DONE:
                self._join(row)
        if not self._advance():
            return False
        for start, row in self.gone.items():
            after = self.put.get(start)
            if after is None:
                values = (*self._known.key, start, row.version)
                self.batch.rows.append((cql.DROP_CLAIM, values))
            else:
                columns = cql.claim_columns(after)
                values = (*columns, *self._known.key, start, row.version)
                self.batch.rows.append((cql.CHANGE_CLAIM, values))
        self._cover_tombstones()
        for start, row in self.put.items():
            if start not in self.gone:
                values = (*self._known.key, start, *cql.claim_columns(row))
                self.batch.rows.append((cql.PUT_CLAIM, values))
        return True

    def _cover_tombstones(self) -> None:
        """Replace the tombstones of all rows joined into a done row, now and earlier, by one range
        tombstone: otherwise reads pass them until everything in front is done."""
        gone = sorted(self.gone)
        for start, row in self.put.items():
            took_in = bisect_right(gone, start) < bisect_left(gone, row.end)
            if row.state is ClaimState.DONE and took_in:
                self.batch.rows.append((cql.DROP_BETWEEN, (*self._known.key, start, row.end)))

    def step(self, results: list[bool]) -> PlannedBatch:
        return PlannedBatch(
            self.batch, results, self.cursor, list(self.gone), list(self.put.values())
        )

    def tidy_up(self) -> None:
        """Join some adjacent done rows."""
        known = self._known
        if known.touching < TOUCHING_MAX or len(self.put) >= TOUCHING_MAX:
            return
        last: Claim | None = None
        for start in list(known.starts):
            row = self.at(start)
            if row is not None and last is not None and cql.touches(last, row):
                self._join(row)
                if len(self.gone) >= JOINED_MOST:
                    return
            last = self.at(start) or last

    def _join(self, piece: Claim) -> None:
        """Join a done row with done neighbours, so that there are as many rows as gaps, not as many
        as claims."""
        start, end = piece.start, piece.end
        if start == end:
            self.remove(piece)  # it is empty
            return
        while (right := self.at(end)) is not None and right.state is ClaimState.DONE:
            self.remove(right)
            end = right.end
        while (left := self._before(start)) is not None and left.end == start:
            if left.state is not ClaimState.DONE:
                break
            self.remove(left)
            start = left.start
        if (start, end) != (piece.start, piece.end):
            self.remove(piece)
            self.put[start] = replace(piece, start=start, end=end)

    def _before(self, start: int) -> Claim | None:
        """The last row that begins before a seq."""
        known = self._known.before(start)
        while known is not None and known.start in self.gone:
            known = self._known.before(known.start)
        own = max((at for at in self.put if at < start), default=-1)
        if known is None or own >= known.start:
            known = self.put.get(own)
        return known

    def _advance(self) -> bool:
        """Advance the ack offset over a done row at the front, or require that none is there."""
        ack = self.cursor.ack.seq
        done = [row for row in self.put.values() if row.state is ClaimState.DONE]
        if not done:
            return True
        front = self.put.get(ack)
        if front is None or front.state is not ClaimState.DONE:
            self.batch.conditions.append(("ack_seq <", min(row.start for row in done)))
            return True
        pos = self._pos(front.end)
        if pos is None:
            return False
        self.batch.conditions.append(("ack_seq =", ack))
        self.batch.sets += [("ack_seq", front.end), ("ack_pos", pos)]
        if self.gone:  # else the row at the front was never written
            self.batch.rows.append((cql.DROP_BELOW, (*self._known.key, front.end)))
        if front.end not in self.put and not self._is_new(front.end):
            self.batch.rows.append((cql.CHECK_OPEN, (*self._known.key, front.end)))
        del self.put[ack]
        self.cursor = replace(self.cursor, ack=Place(front.end, pos))
        return True

    def _pos(self, seq: int) -> int | None:
        """The position of a seq at which a row begins or will begin."""
        row = self.at(seq)
        if row is not None:
            return row.pos
        chain = self.cursor.chain
        return chain.pos if chain.seq == seq else self._known.places.get(seq)

    def _is_new(self, seq: int) -> bool:
        """Whether this batch makes `seq` the chain's end, so that nothing follows it."""
        return ("chain_seq", seq) in self.batch.sets


def plan_claim(
    known: PartitionCache,
    cursor: Cursor,
    chain: Place,
    rows: Sequence[Claim],
    removed: Sequence[Removed],
    reserve: Claim | None = None,
    *,
    fresh: bool,
) -> PlannedBatch | None:
    """Move the chain, and insert the rows that cover it. None: more must be read first. reserve: a
    reservation of the message at the chain's new end. fresh: `known` was just read."""
    here = known.cursor
    if here is not None and (here.chain.seq > cursor.chain.seq or here.epoch > cursor.epoch):
        return PlannedBatch(None, [False])  # chain and epoch only grow
    done = any(row.state is ClaimState.DONE for row in rows)
    if done and (here is None or (here.chain.seq, here.epoch) != (cursor.chain.seq, cursor.epoch)):
        return None if not fresh else PlannedBatch(None, [False])
    ack = cursor.ack if here is None else max(here.ack, cursor.ack)
    after = replace(cursor, ack=ack, chain=chain)
    sets: list[tuple[str, object]] = [("chain_seq", chain.seq), ("chain_pos", chain.pos)]
    if reserve is not None:
        after = replace(after, epoch=cursor.epoch + 1, owner=as_owner(reserve))
        sets += [("epoch", after.epoch), ("owner", after.owner)]
    edit = Edit(known, after)
    edit.batch.sets += sets
    edit.batch.conditions += [("chain_seq =", cursor.chain.seq), ("epoch =", cursor.epoch)]
    for row in rows:
        edit.put[row.start] = row
    if not edit.finish():
        return None
    edit.batch.rows += map(cql.put_removed, removed)
    step = edit.step([True])
    step.final = not done
    return step


def plan_mend(
    known: PartitionCache, cursor: Cursor, old: Sequence[Claim], new: Sequence[Claim], chain: Place
) -> PlannedBatch | None:
    """Replace all rows by new ones, if cursor and rows are unchanged since they were read. Only
    changed rows are written. None: old and new rows do not match."""
    here = known.cursor
    if here is None or here != cursor:
        return PlannedBatch(None, [False])
    rows = cql.joined(known.rows[start] for start in known.starts)
    if [(row.start, row.version) for row in rows] != [(row.start, row.version) for row in old]:
        return PlannedBatch(None, [False])
    stay = {row.start: row.version for row in new}
    edit = Edit(known, replace(cursor, chain=chain, epoch=cursor.epoch + 1))
    edit.batch.sets += [("chain_seq", chain.seq), ("chain_pos", chain.pos)]
    edit.batch.sets.append(("epoch", cursor.epoch + 1))
    edit.batch.conditions += [("epoch =", cursor.epoch), ("chain_seq =", cursor.chain.seq)]
    for start, row in list(known.rows.items()):
        if stay.get(start) != row.version:
            edit.remove(row)
    for row in new:
        there = known.rows.get(row.start)
        if there is None or there != row:  # joined done rows have the version of the first
            if there is not None:
                edit.remove(there)
            edit.put[row.start] = row
    if not edit.finish():
        return None
    if not any(term.startswith("ack_seq") for term, _ in edit.batch.conditions):
        edit.batch.conditions.append(("ack_seq =", cursor.ack.seq))
    return edit.step([True])


def plan_fence(known: PartitionCache, cursor: Cursor, owner: str) -> PlannedBatch:
    """Raise the epoch, if the cursor is as cached; but not that of a closed one, whose owner is the
    mark by which it is reopened."""
    here = known.cursor
    if here is None or here.epoch != cursor.epoch or here.chain.seq == cql.CLOSED:
        return PlannedBatch(None, [False], sure=here is not None and here.epoch > cursor.epoch)
    batch = ConditionalBatch(known.key)
    batch.sets += [("epoch", here.epoch + 1), ("owner", owner)]
    batch.conditions += [
        ("epoch =", here.epoch), ("chain_seq =", here.chain.seq), ("ack_seq =", here.ack.seq),
    ]  # fmt: skip
    return PlannedBatch(batch, [True], replace(here, epoch=here.epoch + 1, owner=owner))


@dataclass(frozen=True, slots=True)
class SettledFacts:
    """Facts written together with a replacement."""

    settle: Sequence[Move] = ()
    withdraw: Sequence[Move] = ()
    removed: Sequence[Removed] = ()

    def statements(self) -> list[Statement]:
        settled = {move.seq for move in self.settle}
        return [
            *map(cql.put_removed, self.removed),
            *((cql.SETTLE, _move_key(move)) for move in self.settle),
            *((cql.WITHDRAW, _move_key(m)) for m in self.withdraw if m.seq not in settled),
        ]


def plan_replace(
    known: PartitionCache,
    changes: Sequence[Change],
    epoch: int | None,
    facts: SettledFacts | None = None,
) -> PlannedBatch | None:
    """Replace old rows that still exist by new ones. None: more must be read first."""
    cursor = known.cursor
    if cursor is None or (epoch is not None and cursor.epoch != epoch):
        sure = cursor is not None and epoch is not None and cursor.epoch > epoch
        return PlannedBatch(None, [False] * len(changes), sure=sure)
    edit = Edit(known, cursor)
    results: list[bool] = []
    for old, new in changes:
        row = edit.at(old.start)
        fits = row is not None and row.version == old.version
        if fits:
            edit.replace(old, new)
        results.append(fits)
    if not any(results):
        return PlannedBatch(None, results, sure=False)
    edit.tidy_up()
    if not edit.finish():
        return None
    if epoch is not None:
        edit.batch.conditions.append(("epoch =", epoch))
    if facts is not None:
        edit.batch.rows += facts.statements()
    step = edit.step(results)
    step.sure = all(results)
    return step


def _move_key(move: Move) -> Row:
    return move.group_id, move.pipe_id, move.seq


@dataclass(slots=True)
class PartitionChanges:
    """Changes that one conditional batch makes. numbers: their indexes among all changes."""

    key: cql.Key
    epoch: int | None
    numbers: list[int] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def plan(self, known: PartitionCache, fresh: bool) -> PlannedBatch | None:
        """What to write; None if the partition must be read again for that."""
        step = plan_replace(known, self.changes, self.epoch)
        return step if step is None or fresh or step.sure else None


def in_rounds(
    changes: Sequence[Change], epochs: Sequence[int | None]
) -> Iterator[list[PartitionChanges]]:
    """Divide changes into batches, each of at most `CHANGES_MAX` changes with one epoch, and the
    batches into rounds. Each batch of a round is for another partition, so a round is written
    concurrently."""
    of_key: dict[cql.Key, list[PartitionChanges]] = {}
    for number, (change, epoch) in enumerate(zip(changes, epochs, strict=True)):
        key = (change[0].group_id, change[0].pipe_id)
        parts = of_key.setdefault(key, [])
        part = next((p for p in parts if p.epoch == epoch and len(p.numbers) < CHANGES_MAX), None)
        if part is None:
            parts.append(part := PartitionChanges(key, epoch))
        part.numbers.append(number)
        part.changes.append(change)
    for together in zip_longest(*of_key.values()):
        yield [part for part in together if part is not None]
