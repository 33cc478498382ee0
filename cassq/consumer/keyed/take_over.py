"""Taking over what an earlier holder of a keyed group's lane left unsettled: its claim rows are
freed, read, and taken when they are due.

Not thread-safe, as `cassq.consumer.keyed.lane`, which decides what stands in line.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from cassq.base.clock import attempts, contended
from cassq.consumer.claiming.candidates import UNREADABLE
from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.claiming.redelivery import read_left
from cassq.consumer.delivery import Acknowledger, Delivery
from cassq.consumer.keyed.segments import Segment
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState, Cursor, PipeRow

# Lock and rows are held for this many claim timeouts, so that what is handed out is kept for one
# whatever its popper does next.
HELD_FOR = 2
PIPES_TOGETHER, ROWS_TOGETHER = 64, 256  # in one write


class FencedPipe(NamedTuple):
    """A pipe whose epoch was raised, with its rows, of which none is an earlier holder's."""

    cursor: Cursor
    rows: list[Claim]


class Adopted(NamedTuple):
    """What is unsettled in pipes that were fenced, but for what is in `TakeOver.ahead`. left: those
    that could not be read, and those behind them in their chains, which they hold up. epochs: by
    pipe, of all others."""

    segments: list[Segment]
    epochs: dict[str, int]
    left: list[PipeRow]
    held_up: set[str]


def lane_lock(group_id: str, number: int = 0) -> str:
    """The name of the lock of a group's lane. number: which, in a queue with `key_lanes`."""
    return f"lane:{group_id}/{number}" if number else f"lane:{group_id}"


def lane_locks(group_id: str, key_lanes: int) -> list[str]:
    """The names of the locks of all lanes of a group."""
    return [lane_lock(group_id, number) for number in range(key_lanes)]


def chain_of(pipe: PipeRow, strict: bool) -> str:
    """What names the pipes that are claimed from one after the other. strict: of a cp queue."""
    if pipe.timer_ms is not None:
        return pipe.id
    return "" if strict else pipe.owner


class RowsAhead:
    """Free rows of which nobody was given anything, in order, as an earlier holder of the lane had
    claimed them ahead. They may be many, and a lane changes hands often: so they are read and taken
    only once they are needed. pipes, chains: how many are in each."""

    def __init__(self) -> None:
        self.rows: deque[tuple[str, Claim]] = deque()  # with their chains
        self.pipes: Counter[str] = Counter()
        self.chains: Counter[str] = Counter()

    def add(self, chain: str, rows: Sequence[Claim]) -> None:
        """Add the rows of a pipe."""
        self.rows.extend((chain, row) for row in rows)
        if rows:
            self.pipes[rows[0].pipe_id] += len(rows)
            self.chains[chain] += len(rows)

    def removed(self, chain: str, row: Claim) -> None:
        """One of them is in `rows` no more."""
        for counts, name in ((self.pipes, row.pipe_id), (self.chains, chain)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    def clear(self) -> None:
        """There are none."""
        self.rows.clear()
        self.pipes.clear()
        self.chains.clear()


class TakeOver:
    """Frees, reads and takes rows for the popper that has the lane. ahead: those that are not read
    yet."""

    def __init__(self, ports: Ports, claimer: Claimer, acknowledger: Acknowledger) -> None:
        self._catalog, self._clock = ports.catalog, ports.clock
        self._claims = ports.catalog.claims
        self._ids = ports.ids
        self._claimer = claimer
        self._acknowledger = acknowledger
        self.ahead: RowsAhead = RowsAhead()

    def needed(self, group_id: str, pipes: Sequence[PipeRow], *, strict: bool) -> list[PipeRow]:
        """Which pipes to adopt before any message is handed out: those with unsettled messages; and
        where others follow it in its chain, the first that is not claimed to its end, as an earlier
        holder of the lane may be about to claim the rest. pipes: oldest first. Cost: a read."""
        cursors = self._claims.cursors(group_id, [pipe.id for pipe in pipes])
        by_pipe = {each.pipe_id: each for each in cursors}
        lengths = Counter(chain_of(pipe, strict) for pipe in pipes)
        found: list[PipeRow] = []
        begun: set[str] = set()  # the chains whose first unclaimed pipe was found
        for pipe in pipes:
            cursor, chain = by_pipe.get(pipe.id), chain_of(pipe, strict)
            claimed_seq = 0 if cursor is None else cursor.chain.seq
            comes_next = chain not in begun and (pipe.end is None or claimed_seq < pipe.end.seq)
            if comes_next:
                begun.add(chain)
            unsettled = cursor is not None and cursor.ack.seq < claimed_seq
            if unsettled or (comes_next and lengths[chain] > 1):
                found.append(pipe)
        return found

    def adopt(
        self,
        group_id: str,
        pipes: Sequence[PipeRow],
        stays: Callable[[], bool],
        *,
        strict: bool,
    ) -> Adopted:
        """Fence pipes, and read what is unsettled in them, but for what goes to `ahead`. While one
        cannot be read, the later ones of its chain wait: their messages may be of the same keys.
        stays: called before every `fence`, and before each pipe is read; False ends this, as the
        lane was lost. Cost: `fence` for every `PIPES_TOGETHER`, and what `unsettled` costs for
        what is read."""
        window = self._claimer.window
        done: dict[str, int | None] = {}  # by pipe, its epoch; none if it is gone, or not ours
        found: list[Segment] = []
        held_up: set[str] = set()
        ready = _ready(pipes, window.left_alone(), held_up, strict=strict)
        while (some := list(islice(ready, PIPES_TOGETHER))) and stays():
            fenced = self.fence(group_id, [pipe.id for pipe in some])
            for pipe in some:
                if pipe.id not in fenced:
                    done[pipe.id] = None
                elif chain_of(pipe, strict) not in held_up and stays():
                    timed = pipe.timer_ms is not None
                    (cursor, rows), ahead = fenced[pipe.id], list[Claim]()
                    if not timed:
                        ahead, rows = self._parted(rows)
                    try:
                        found += self.unsettled(FencedPipe(cursor, rows), timed=timed)
                        done[pipe.id] = cursor.epoch
                        self.ahead.add(chain_of(pipe, strict), ahead)
                    except UNREADABLE as exc:
                        window.pass_over(pipe.id, exc)
                        held_up.add(chain_of(pipe, strict))
        left = [pipe for pipe in pipes if pipe.id not in done]
        epochs = {pipe_id: epoch for pipe_id, epoch in done.items() if epoch is not None}
        return Adopted(found, epochs, left, {chain_of(pipe, strict) for pipe in left})

    def _parted(self, rows: Iterable[Claim]) -> tuple[list[Claim], list[Claim]]:
        """Rows that may be read later, and the others. What was handed out once holds its key, or
        counts for it, before what comes after it is."""
        now_ms = self._catalog.now_ms()
        ahead: list[Claim] = []
        others: list[Claim] = []
        for row in rows:
            later = self.is_due(row, now_ms) and not (row.deliveries or row.priority)
            (ahead if later else others).append(row)
        return ahead, others

    def more(self, epochs: Mapping[str, int], messages: int) -> list[Segment]:
        """The next rows of `ahead`, until they have `messages` messages: `ROWS_TOGETHER` at most.
        While one cannot be read, the later ones of its chain stay there. epochs: by pipe. Raises as
        the store does, if nothing may pass what cannot be read; `ahead` is as it was then."""
        window, rows = self._claimer.window, self.ahead.rows
        out, held_up = window.left_alone(), set[str]()
        found: list[Segment] = []
        stay: list[tuple[str, Claim]] = []
        try:
            while rows and messages > 0 and len(found) < ROWS_TOGETHER:
                chain, row = rows[0]
                if row.pipe_id not in out and chain not in held_up:
                    try:
                        left = self._unexpired(row, epochs[row.pipe_id])
                        found += [
                            self.segment(each) for each in left if each.state is ClaimState.FREE
                        ]
                        messages -= row.count
                        self.ahead.removed(*rows.popleft())
                        continue
                    except UNREADABLE as exc:
                        if found:
                            break  # the next call begins with it
                        window.pass_over(row.pipe_id, exc)
                held_up.add(chain)
                stay.append(rows.popleft())
        finally:
            rows.extendleft(reversed(stay))
        return found

    def fence(self, group_id: str, pipe_ids: Sequence[str]) -> dict[str, FencedPipe]:
        """Raise the epochs of pipes, and free what an earlier holder had of them: those that are
        there, and whose epochs nobody else raised meanwhile. Cost: for all together, two round
        trips; with unsettled rows one more, with held ones three."""
        found = [each for each in self._claims.cursors_in(group_id, pipe_ids) if each is not None]
        fenced = self._claims.fence_all(found, self._claimer.name)
        cursors = [each for each in fenced if each is not None]
        rows = self._freed_rows(cursors, self._catalog.now_ms())
        return {each.pipe_id: FencedPipe(each, rows.get(each.pipe_id, [])) for each in cursors}

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
        for _ in attempts(self._clock):
            if not left:
                return found
            rows = self._claims.rows_in(cursors[0].group_id, list(left))
            found.update(zip(left, rows, strict=True))
            left = self._free(left, found, now_ms)
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
        later_ms = now_ms + self._claimer.rules.claim_timeout_ms
        return [
            replace(each, due_ms=max(each.due_ms, later_ms)) if each.losses > row.losses else each
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
                    epoch = _epoch(segment, epochs)
                    taken[segment] = Delivery(self._acknowledger, [mine], now_ms, None, epoch)
        return taken

    def _taking(self, row: Claim, due_ms: int) -> tuple[Claim, list[Claim]]:
        """A row as ours, and what is to replace it."""
        until, holder = Place(row.end, row.pos), self._claimer.new_holder()
        return claims.taken(row, until, holder, due_ms, self._ids.version, tried=EMPTY)


def _ready(
    pipes: Iterable[PipeRow], out: Collection[str], held_up: set[str], *, strict: bool
) -> Iterator[PipeRow]:
    """The pipes that none of their chain holds up. out: those that cannot be read now, whose chains
    are added to `held_up`."""
    for pipe in pipes:
        if pipe.id in out:
            held_up.add(chain_of(pipe, strict))
        elif chain_of(pipe, strict) not in held_up:
            yield pipe


def _is_kept(row: Claim, now_ms: int) -> bool:
    """Whether a message has a deadline of its own, which does not depend on who has the lane."""
    return claims.is_dated(row) and row.due_ms > now_ms


def _epoch(segment: Segment, epochs: Mapping[str, int]) -> int:
    """What a segment's pipe's epoch was raised to; none is -1."""
    return epochs.get(segment.row.pipe_id, -1)
