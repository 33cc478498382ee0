"""Taking over what an earlier holder of a keyed group's lane left unsettled: its claim rows are
freed, read, and taken when they are due.

Not thread-safe, as `cassq.consumer.keyed.lane`, which decides what stands in line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import NamedTuple

from cassq.base.clock import attempts, contended
from cassq.consumer.claiming.candidates import UNREADABLE, PipeView
from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.claiming.new_claims import ClaimRequest
from cassq.consumer.claiming.redelivery import read_left
from cassq.consumer.delivery import Acknowledger, Delivery
from cassq.consumer.keyed.segments import Segment
from cassq.lifecycle.ports import Ports
from cassq.locks.port import Lock
from cassq.message.bundles import BundleSlice
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState, Cursor, PipeRow

# Lock and rows are held for this many claim timeouts, so that what is handed out is kept for one
# whatever its popper does next.
HELD_FOR = 2
PIPES_TOGETHER, ROWS_TOGETHER = 64, 256  # in one write
BYTES_TOGETHER = 16 * 1024 * 1024  # of messages that are read at once


class FencedPipe(NamedTuple):
    """A pipe whose epoch was raised, with its rows, of which none is an earlier holder's."""

    cursor: Cursor
    rows: list[Claim]


LaterRows = Sequence[tuple[str, list[Claim]]]


class Adopted(NamedTuple):
    """What is unsettled in pipes that were fenced. ahead: rows that may be read later, with their
    chains. left: the pipes that could not be read, and those behind them in their chains, which
    they hold up. epochs: by pipe, of all others."""

    segments: list[Segment]
    ahead: LaterRows
    epochs: dict[str, int]
    left: list[PipeRow]
    held_up: set[str]


def lane_lock(group_id: str, number: int = 0) -> str:
    """The name of the lock of a group's lane. number: which, in a queue with `key_lanes`."""
    return f"lane:{group_id}/{number}" if number else f"lane:{group_id}"


def lane_locks(group_id: str, key_lanes: int) -> list[str]:
    """The names of the locks of all lanes of a group."""
    return [lane_lock(group_id, number) for number in range(key_lanes)]


class RowsAhead:
    """Rows of which nobody was given anything, as an earlier holder of the lane had claimed them
    ahead. They may be many, and a lane changes hands often: so they are read and taken only once
    they are needed. chains: the rows of each, in order. pipes: how many are in each."""

    def __init__(self) -> None:
        self.chains: OrderedDict[str, deque[Claim]] = OrderedDict()
        self.pipes: Counter[str] = Counter()

    def add(self, chain: str, rows: Sequence[Claim]) -> None:
        """Add rows at the end of a chain."""
        if rows:
            self.chains.setdefault(chain, deque()).extend(rows)
            self.pipes.update(row.pipe_id for row in rows)

    def first(self, out: Collection[str], messages: int) -> list[tuple[str, Claim]]:
        """The first rows of chains, and these, until they have `messages` messages;
        `PIPES_TOGETHER` at most. out: pipes that cannot be read now, nor what comes after them."""
        found: list[tuple[str, Claim]] = []
        for chain, rows in self.chains.items():
            for row in rows:
                if row.pipe_id in out:
                    break
                if messages <= 0 or len(found) == PIPES_TOGETHER:
                    return found
                found.append((chain, row))
                messages -= row.count
        return found

    def remove(self, chain: str) -> None:
        """The first row of a chain is here no more."""
        rows = self.chains[chain]
        pipe_id = rows.popleft().pipe_id
        self.pipes[pipe_id] -= 1
        if not self.pipes[pipe_id]:
            del self.pipes[pipe_id]
        if not rows:
            del self.chains[chain]

    def clear(self) -> None:
        """There are none."""
        self.chains.clear()
        self.pipes.clear()


class TakeOver:
    """Frees, reads and takes rows for the popper that has the lane.

    strict: whether the queue is a cp one. ahead: the rows that are not read yet.
    """

    def __init__(
        self, ports: Ports, claimer: Claimer, acknowledger: Acknowledger, *, strict: bool
    ) -> None:
        self._catalog, self._clock = ports.catalog, ports.clock
        self._claims = ports.catalog.claims
        self._ids = ports.ids
        self._claimer = claimer
        self._acknowledger = acknowledger
        self.ahead: RowsAhead = RowsAhead()
        self._strict = strict
        self._next: dict[str, PipeRow] = {}  # by chain, the first pipe not claimed to its end

    def chain_of(self, pipe: PipeRow) -> str:
        """What names the pipes that are claimed from one after the other."""
        if pipe.timer_ms is not None:
            return pipe.id
        return "" if self._strict else pipe.owner

    def begun(self, group_id: str, pipes: Sequence[PipeRow]) -> list[PipeRow]:
        """Which pipes have unsettled messages. Notes which one comes next in each chain: an earlier
        holder of the lane may be about to claim the rest of it. pipes: oldest first. Cost: a read.
        """
        cursors = self._claims.cursors(group_id, [pipe.id for pipe in pipes])
        by_pipe = {each.pipe_id: each for each in cursors}
        found: list[PipeRow] = []
        self._next.clear()
        for pipe in pipes:
            cursor = by_pipe.get(pipe.id)
            claimed_seq = 0 if cursor is None else cursor.chain.seq
            if cursor is not None and cursor.ack.seq < claimed_seq:
                found.append(pipe)
            if pipe.end is None or claimed_seq < pipe.end.seq:
                self._next.setdefault(self.chain_of(pipe), pipe)
        return found

    def unseen_before(self, pipe: PipeRow, epochs: Mapping[str, int]) -> list[PipeRow]:
        """The pipes from that which came next in the chain of `pipe`, when the lane was taken over,
        up to it, which were not adopted: an earlier holder has claimed the rest of them since. Told
        once. pipe: the first of its chain that is claimed from. epochs: of adopted pipes. Cost: a
        read, if there may be any."""
        chain = self.chain_of(pipe)
        first = self._next.pop(chain, pipe)
        if first.id == pipe.id:
            return []
        return [
            each
            for each in self._catalog.pipes.live(pipe.queue_id)
            if first.ordinal <= each.ordinal < pipe.ordinal
            and self.chain_of(each) == chain
            and each.id not in epochs
        ]

    def adopt(self, group_id: str, pipes: Sequence[PipeRow], stays: Callable[[], bool]) -> Adopted:
        """Fence pipes, and read what is unsettled in them, but for what may be read later. While
        one cannot be read, the later ones of its chain wait: their messages may be of the same
        keys. stays: called before every `fence`, and before each pipe is read; False ends this, as
        the lane was lost. Cost: `fence` for every `PIPES_TOGETHER`, and what `unsettled` costs for
        what is read."""
        window = self._claimer.window
        done: dict[str, int | None] = {}  # by pipe, its epoch; none if it is gone, or not ours
        found: list[Segment] = []
        later: list[tuple[str, list[Claim]]] = []
        held_up: set[str] = set()
        ready = self._ready(pipes, window.left_alone(), held_up)
        while (some := list(islice(ready, PIPES_TOGETHER))) and stays():
            fenced = self.fence(group_id, [pipe.id for pipe in some])
            for pipe in some:
                chain = self.chain_of(pipe)
                if pipe.id not in fenced:
                    done[pipe.id] = None
                elif chain not in held_up and stays():
                    cursor, rows = fenced[pipe.id]
                    timed = pipe.timer_ms is not None
                    now, ahead = (rows, []) if timed else self._parted(chain, rows)
                    try:
                        found += self.unsettled(FencedPipe(cursor, now), timed=timed)
                        done[pipe.id] = cursor.epoch
                        later.append((chain, ahead))
                    except UNREADABLE as exc:
                        window.pass_over(pipe.id, exc)
                        held_up.add(chain)
        left = [pipe for pipe in pipes if pipe.id not in done]
        epochs = {pipe_id: epoch for pipe_id, epoch in done.items() if epoch is not None}
        return Adopted(found, later, epochs, left, {self.chain_of(pipe) for pipe in left})

    def _ready(
        self, pipes: Iterable[PipeRow], out: Collection[str], held_up: set[str]
    ) -> Iterator[PipeRow]:
        """The pipes that none of their chain holds up. out: those that cannot be read now, whose
        chains are added to `held_up`."""
        for pipe in pipes:
            if pipe.id in out:
                held_up.add(self.chain_of(pipe))
            elif self.chain_of(pipe) not in held_up:
                yield pipe

    def _parted(self, chain: str, rows: Iterable[Claim]) -> tuple[list[Claim], list[Claim]]:
        """The rows of a pipe that are read now, and those that may be read later: nobody was given
        anything of these, so that they hold no key, and count for none; or they are behind others
        of their chain that are read later, and no consumer has them."""
        behind = chain in self.ahead.chains
        now: list[Claim] = []
        ahead: list[Claim] = []
        for row in rows:
            unused = behind or not (row.deliveries or row.priority)
            unused = unused and not claims.is_away(row)
            (ahead if unused and row.state is ClaimState.FREE else now).append(row)
        return now, ahead

    def more(
        self, epochs: Mapping[str, int], messages: int, stays: Callable[[], bool]
    ) -> list[Segment] | None:
        """The next rows of `ahead`, until they have `messages` messages: `PIPES_TOGETHER` at most.
        While one cannot be read, the later ones of its chain stay there. None if all of them do.
        epochs: by pipe. stays: called before each is read; False ends this, as the lane was lost.
        Cost: a read of all these rows, and what `segment` costs for each."""
        window = self._claimer.window
        rows = self.ahead.first(window.left_alone(), messages)
        now = self._now(rows)
        held_up: set[str] = set()
        found: list[Segment] = []
        size, gone = 0, False
        for chain, row in rows:
            if chain in held_up:
                continue
            if size >= BYTES_TOGETHER or not stays():
                break
            epoch = epochs[row.pipe_id]
            try:
                left = [part for each in now(row) for part in self._unexpired(each, epoch)]
                segments = [self.segment(each) for each in left if each.state is ClaimState.FREE]
            except UNREADABLE as exc:
                window.pass_over(row.pipe_id, exc)
                held_up.add(chain)
                continue
            self.ahead.remove(chain)
            gone = True
            found += segments
            size += sum(piece.share for segment in segments for piece in segment.pieces)
        return found if gone else None

    def _now(self, rows: Sequence[tuple[str, Claim]]) -> Callable[[Claim], list[Claim]]:
        """Reads rows again; returns what finds for each of them what there is of it now, and is
        free."""
        pipe_ids = list(dict.fromkeys(row.pipe_id for _, row in rows))
        group_id = rows[0][1].group_id if rows else ""
        if len(pipe_ids) == 1:
            seqs = range(rows[0][1].start, rows[-1][1].end)
            listed = [self._claims.rows(group_id, pipe_ids[0], seqs)]
        else:
            listed = self._claims.rows_in(group_id, pipe_ids) if pipe_ids else []
        found = dict(zip(pipe_ids, listed, strict=True))
        starts = {pipe_id: [row.start for row in its] for pipe_id, its in found.items()}

        def free_at(row: Claim) -> list[Claim]:
            at, each = bisect_left(starts[row.pipe_id], row.start), found[row.pipe_id]
            within = takewhile(lambda one: one.start < row.end, each[at:])
            return [one for one in within if one.state is ClaimState.FREE]

        return free_at

    def fence(
        self, group_id: str, pipe_ids: Sequence[str], *, seen: Cursor | None = None
    ) -> dict[str, FencedPipe]:
        """Raise the epochs of pipes, and free what an earlier holder had of them: those that are
        there, and whose epochs nobody else raised meanwhile. seen: the cursor of the only pipe, as
        it was a while ago. Cost: for all together, two round trips, or one if the cursor is as it
        was; with unsettled rows one more, with held ones three."""
        cursors = self._fenced([] if seen is None else [seen])
        if not cursors:
            cursors = self._fenced(self._claims.cursors_in(group_id, pipe_ids))
        rows = self._freed_rows(cursors, self._catalog.now_ms())
        return {each.pipe_id: FencedPipe(each, rows.get(each.pipe_id, [])) for each in cursors}

    def _fenced(self, cursors: Iterable[Cursor | None]) -> list[Cursor]:
        """The cursors whose epochs were raised."""
        found = [each for each in cursors if each is not None]
        fenced = self._claims.fence_all(found, self._claimer.name) if found else []
        return [each for each in fenced if each is not None]

    def unsettled(self, fenced: FencedPipe, *, timed: bool) -> list[Segment]:
        """The messages of a fenced pipe that wait, in its order: those of free rows, once expired
        ones are removed, and those that keep a deadline of their own. timed: of a timer pipe, what
        is due, or was handed out before: the rest has no order. Raises as the store does. Cost:
        what `segment` costs for each row; with expired rows a write and a read each."""
        epoch = fenced.cursor.epoch
        rows = [left for row in fenced.rows for left in self._unexpired(row, epoch)]
        # Also those whose deadline ended meanwhile, as they hold their keys.
        rows = [row for row in rows if row.state is ClaimState.FREE or claims.is_dated(row)]
        if timed:
            now_ms = self._catalog.now_ms()
            rows = [row for row in rows if row.due_ms <= now_ms or row.deliveries]
        return [self.segment(row) for row in rows]

    def _unexpired(self, row: Claim, epoch: int) -> list[Claim]:
        """What is left of a row once what is expired of it is removed, if it is free."""
        if row.state is not ClaimState.FREE or not self._claimer.expired(row, epoch):
            return [row]
        return self._claims.rows(row.group_id, row.pipe_id, range(row.start, row.end))

    def _freed_rows(self, cursors: Sequence[Cursor], now_ms: int) -> dict[str, list[Claim]]:
        """By pipe, the rows of fenced pipes once those that an earlier holder of the lane had are
        free: again and again, as receipts may change them meanwhile."""
        found: dict[str, list[Claim]] = {}
        left = {each.pipe_id: each for each in cursors if each.ack.seq < each.chain.seq}
        if not left:
            return found
        for _ in attempts(self._clock):
            rows = self._claims.rows_in(cursors[0].group_id, list(left))
            found.update(zip(left, rows, strict=True))
            left = self._free(left, found, now_ms)
            if not left:
                return found
        raise contended(f"the claims of pipe {next(iter(left))}")

    def _free(
        self, cursors: Mapping[str, Cursor], rows: Mapping[str, list[Claim]], now_ms: int
    ) -> dict[str, Cursor]:
        """Free the held rows of pipes; returns the pipes whose rows are to be read again: but not
        those of which another popper has the lane, as what is written next is refused there."""
        held = [
            row
            for pipe_id in cursors
            for row in rows[pipe_id]
            if row.state is ClaimState.HELD and not _is_kept(row, now_ms)
        ]
        if not held:
            return {}
        done = self._claims.replace_many(
            [(row, self._freed(row, now_ms)) for row in held],
            epochs=[cursors[row.pipe_id].epoch for row in held],
        )
        again = {row.pipe_id for row in held}
        refused = {row.pipe_id for row, ok in zip(held, done, strict=True) if not ok}
        if refused:
            now = self._claims.cursors(held[0].group_id, sorted(refused))
            ours = {each.pipe_id for each in now if each.epoch == cursors[each.pipe_id].epoch}
            again -= refused - ours
        return {pipe_id: cursors[pipe_id] for pipe_id in again}

    def _freed(self, row: Claim, now_ms: int) -> list[Claim]:
        """The successors of a row that an earlier holder had. If that was this popper, its
        consumers may still have what was handed out."""
        rows = self._claimer.freed(row)
        if claims.consumer_of(row.holder) != self._claimer.name or claims.is_dated(row):
            return rows
        name, later_ms = self._claimer.name, now_ms + self._claimer.rules.claim_timeout_ms
        return [
            claims.kept_away(each, name, later_ms) if each.losses > row.losses else each
            for each in rows
        ]

    def freed(
        self, segments: Iterable[Segment], epochs: Mapping[str, int]
    ) -> tuple[list[Segment], list[Segment]]:
        """Free what was kept until now by deadlines of messages' own. Returns the segments that are
        free, with their rows of now, and those whose rows others changed. epochs: by pipe. Cost: a
        synced transaction."""
        free: list[Segment] = []
        changed: list[Segment] = []
        changes = [(each, self._claimer.freed(each.row)) for each in segments]
        done = self._claims.replace_many(
            [(segment.row, rows) for segment, rows in changes],
            epochs=[_epoch(segment, epochs) for segment, _ in changes],
        )
        for (segment, rows), ok in zip(changes, done, strict=True):
            if ok and len(rows) == 1:
                segment.row = rows[0]
                free.append(segment)
            else:
                changed.append(segment)
        return free, changed

    def segment(self, row: Claim) -> Segment:
        """A row with its messages, which are read. Raises as the store does."""
        reader = self._claimer.window.readers.get(row.pipe_id)
        pieces, _ = read_left(reader, row, row.count, row.count * (1 << 40))
        return Segment(row, pieces)

    def claimed(
        self, view: PipeView, lock: Lock, messages: int
    ) -> tuple[Delivery, list[BundleSlice]] | None:
        """Claim the next run of a pipe, `messages` at most; None if there is none. lock: of
        the lane. Cost: a claim, and its frames."""
        rules = self._claimer.rules
        rules = replace(rules, claim_timeout_ms=HELD_FOR * rules.claim_timeout_ms)
        holder = self._claimer.new_holder()
        request = ClaimRequest(holder, self._acknowledger, rules, messages, tried=EMPTY)
        self._claimer.new_claims.claim_for([request], view, lock)
        return request.found

    def is_due(self, row: Claim, now_ms: int) -> bool:
        """Whether a free row may be taken now, as its messages do not become dead letters."""
        over = claims.is_leaving(row) or self._claimer.is_spent(row)
        return row.state is ClaimState.FREE and row.due_ms <= now_ms and not over

    def taken(
        self,
        segments: Sequence[Segment],
        epochs: Mapping[str, int],
        stays: Callable[[], bool] = lambda: True,
    ) -> dict[Segment, Delivery]:
        """Take free rows that are due; those that were refused are missing. epochs: by pipe. stays:
        called before each write; False ends this, as the lane was lost. Cost: a synced transaction
        for every `ROWS_TOGETHER`."""
        taken: dict[Segment, Delivery] = {}
        now_ms = self._catalog.now_ms()
        due_ms = now_ms + HELD_FOR * self._claimer.rules.claim_timeout_ms
        left = iter(segments)
        while (some := list(islice(left, ROWS_TOGETHER))) and stays():
            changes = [self._taking(segment.row, due_ms) for segment in some]
            done = self._claims.replace_many(
                [(segment.row, rows) for segment, (_, rows) in zip(some, changes, strict=True)],
                epochs=[_epoch(segment, epochs) for segment in some],
            )
            for segment, (mine, _), ok in zip(some, changes, done, strict=True):
                if ok:
                    segment.away = False
                    epoch = _epoch(segment, epochs)
                    taken[segment] = Delivery(self._acknowledger, [mine], now_ms, None, epoch)
        return taken

    def _taking(self, row: Claim, due_ms: int) -> tuple[Claim, list[Claim]]:
        """A row as ours, and what is to replace it."""
        until, holder = Place(row.end, row.pos), self._claimer.new_holder()
        return claims.taken(row, until, holder, due_ms, self._ids.version, tried=EMPTY)


def _is_kept(row: Claim, now_ms: int) -> bool:
    """Whether a message has a deadline of its own, which does not depend on who has the lane."""
    return claims.is_dated(row) and row.due_ms > now_ms


def _epoch(segment: Segment, epochs: Mapping[str, int]) -> int:
    """What a segment's pipe's epoch was raised to; none is -1."""
    return epochs.get(segment.row.pipe_id, -1)
