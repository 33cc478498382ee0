"""Taking over what an earlier holder of a keyed group's lane left unsettled: its claim rows are
freed, read, and taken when they are due.

Not thread-safe, as `cassq.consumer.keyed.lane`, which decides what stands in line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.claiming.redelivery import read_left
from cassq.consumer.delivery import Acknowledger, Delivery
from cassq.consumer.keyed.segments import Segment
from cassq.consumer.settling import TRIES_MAX, contended
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState, Cursor, PipeRow

# Lock and rows are held for so many claim timeouts, so that what is handed out is kept for one
# whatever its popper does next.
HELD_FOR = 2


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


class TakeOver:
    """Frees, reads and takes rows for the popper that has the lane."""

    def __init__(self, ports: Ports, claimer: Claimer, acknowledger: Acknowledger) -> None:
        self._catalog = ports.catalog
        self._ids = ports.ids
        self._claimer = claimer
        self._acknowledger = acknowledger

    def free_rows(self, cursor: Cursor, now_ms: int) -> list[Claim]:
        """The rows of a fenced pipe that wait, in its order: those that are free, once those that
        were held are free too, and expired messages are removed; and those that keep a deadline of
        their own. Cost: a query; with held or expired rows a write and a query each."""
        if cursor.ack.seq == cursor.chain.seq:
            return []
        rows = self._without_held(cursor, now_ms)
        free = [row for row in rows if row.state is ClaimState.FREE]
        if sum(self._claimer.expired(row, cursor.epoch) for row in free):
            rows = self._catalog.claims.rows(cursor.group_id, cursor.pipe_id)
        return [row for row in rows if row.state is ClaimState.FREE or _is_kept(row, now_ms)]

    def _without_held(self, cursor: Cursor, now_ms: int) -> list[Claim]:
        """The rows of a pipe once those that an earlier holder of the lane had are free: again and
        again, as receipts may change them meanwhile."""
        for _ in range(TRIES_MAX):
            rows = self._catalog.claims.rows(cursor.group_id, cursor.pipe_id)
            held = [row for row in rows if row.state is ClaimState.HELD]
            held = [row for row in held if not _is_kept(row, now_ms)]
            if not held:
                return rows
            done = self._catalog.claims.replace_many(
                [(row, self._freed(row, now_ms)) for row in held], epoch=cursor.epoch
            )
            if not all(done):
                now = self._catalog.claims.find_cursor(cursor.group_id, cursor.pipe_id)
                if now is None or now.epoch != cursor.epoch:
                    return rows  # another popper has the lane: what is written next is refused
        raise contended(cursor.pipe_id)

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
        synced transaction for those of each epoch."""
        free: list[Segment] = []
        changed: list[Segment] = []
        for epoch, some in _by_epoch(segments, epochs):
            changes = [(each, self._claimer.freed(each.row)) for each in some]
            done = self._catalog.claims.replace_many(
                [(segment.row, rows) for segment, rows in changes], epoch=epoch
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
        called before each write; False ends this, as the lane was lost."""
        taken: dict[Segment, Delivery] = {}
        now_ms = self._catalog.now_ms()
        due_ms = now_ms + HELD_FOR * self._claimer.rules.claim_timeout_ms
        for epoch, some in _by_epoch(segments, epochs):
            if not stays():
                break
            changes: list[tuple[Segment, Claim, list[Claim]]] = []
            for segment in some:
                row = segment.row
                until = Place(row.end, row.pos)
                holder = self._claimer.new_holder()
                mine, rows = claims.taken(
                    row, until, holder, due_ms, self._ids.version, tried=EMPTY
                )
                changes.append((segment, mine, rows))
            done = self._catalog.claims.replace_many(
                [(segment.row, rows) for segment, _, rows in changes], epoch=epoch
            )
            for (segment, mine, _), ok in zip(changes, done, strict=True):
                if ok:
                    taken[segment] = Delivery(self._acknowledger, [mine], now_ms, None, epoch)
        return taken


def _is_kept(row: Claim, now_ms: int) -> bool:
    """Whether a message has a deadline of its own, which does not depend on who has the lane."""
    return claims.is_dated(row) and row.due_ms > now_ms


def _by_epoch(
    segments: Iterable[Segment], epochs: Mapping[str, int]
) -> Iterator[tuple[int, Iterator[Segment]]]:
    """Segments whose rows can be written together. epochs: by pipe."""

    def epoch(segment: Segment) -> int:
        return epochs.get(segment.row.pipe_id, -1)

    return groupby(sorted(segments, key=epoch), epoch)
