"""Taking over what an earlier holder of a keyed group's lane left unsettled: its claim rows are
freed, read, and taken when they are due.

Not thread-safe, as `cassq.consumer.keyed.lane`, which decides what stands in line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from cassq.consumer.claimer import Claimer
from cassq.consumer.delivery import Acknowledger, Delivery
from cassq.consumer.keyed.segments import Segment
from cassq.consumer.redelivery import read_left
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState, Cursor

# Lock and rows are held for so many claim timeouts, so that what is handed out is kept for one
# whatever its popper does next.
HELD_FOR = 2


def lane_lock(group_id: str) -> str:
    """The name of the lock of a group's lane."""
    return f"lane:{group_id}"


class TakeOver:
    """Frees, reads and takes rows for the popper that has the lane."""

    def __init__(self, ports: Ports, claimer: Claimer, acknowledger: Acknowledger) -> None:
        self._catalog = ports.catalog
        self._ids = ports.ids
        self._claimer = claimer
        self._acknowledger = acknowledger

    def free_rows(self, cursor: Cursor, now_ms: int) -> list[Claim]:
        """The free rows of a fenced pipe, in its order, once those that were held are free too, and
        expired messages are removed. Cost: a query; with held or expired rows a write and a query
        each."""
        if cursor.ack.seq == cursor.chain.seq:
            return []
        key = cursor.group_id, cursor.pipe_id
        rows = self._catalog.claims.rows(*key)
        held = [row for row in rows if row.state is ClaimState.HELD]
        if held:
            self._catalog.claims.replace_many(
                [(row, self._freed(row, now_ms)) for row in held], epoch=cursor.epoch
            )
            rows = self._catalog.claims.rows(*key)
        free = [row for row in rows if row.state is ClaimState.FREE]
        if sum(self._claimer.expired(row, cursor.epoch) for row in free):
            rows = self._catalog.claims.rows(*key)
            free = [row for row in rows if row.state is ClaimState.FREE]
        return free

    def _freed(self, row: Claim, now_ms: int) -> list[Claim]:
        """The successors of a row that an earlier holder had. If that was this popper, its
        consumers may still have what was handed out."""
        rows = self._claimer.freed(row)
        if claims.consumer_of(row.holder) != self._claimer.name:
            return rows
        later_ms = now_ms + self._claimer.rules.claim_timeout_ms
        return [
            replace(each, due_ms=max(each.due_ms, later_ms)) if each.losses > row.losses else each
            for each in rows
        ]

    def segment(self, row: Claim) -> Segment:
        """A row with its messages, which are read. Raises as the store does."""
        reader = self._claimer.window.readers.get(row.pipe_id)
        pieces, _ = read_left(reader, row, row.count, row.count * (1 << 40))
        return Segment(row, pieces)

    def is_due(self, row: Claim, now_ms: int) -> bool:
        """Whether a free row may be taken now, as its messages do not become dead letters."""
        over = claims.is_leaving(row) or self._claimer.is_spent(row)
        return row.due_ms <= now_ms and not over

    def taken(
        self, segments: Sequence[Segment], epochs: Mapping[str, int]
    ) -> dict[Segment, Delivery]:
        """Take free rows that are due; those that were refused are missing. epochs: by pipe."""
        taken: dict[Segment, Delivery] = {}
        now_ms = self._catalog.now_ms()
        due_ms = now_ms + HELD_FOR * self._claimer.rules.claim_timeout_ms
        by_epoch = sorted(segments, key=lambda each: epochs.get(each.row.pipe_id, -1))
        for epoch, some in groupby(by_epoch, lambda each: epochs.get(each.row.pipe_id, -1)):
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
