"""Rows as the catalog's suites write them: short to say, and complete."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from cassq.catalog.port import Catalog
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.model.rows import (
    Claim,
    ClaimState,
    Cursor,
    GroupRow,
    Move,
    PipeRow,
    PipeState,
    QueueRow,
)

DUE_MS = 5_000
BYTES_PER_MESSAGE = 10

_versions = count(1)


def version() -> str:
    """A version of a row that was never used before."""
    return f"v{next(_versions)}"


def queue_row(name: str = "q", queue_id: str = "", **policy: Any) -> QueueRow:
    return QueueRow(queue_id or f"id of {name}", name, QueuePolicy(**policy), 1, 1)


def group_row(name: str = "default", queue: str = "q", **policy: Any) -> GroupRow:
    return GroupRow(f"{queue}/{name}", f"id of {queue}", name, GroupPolicy(**policy), 7)


def pipe_row(pipe_id: str, queue: str = "q", **changes: Any) -> PipeRow:
    row = PipeRow(pipe_id, f"id of {queue}", PipeState.OPEN, "owner", created_ms=5, lease_ms=9)
    return replace(row, **changes)


def place(seq: int) -> Place:
    """Where message `seq` stands when each message takes ten bytes."""
    return Place(seq, 4096 + BYTES_PER_MESSAGE * seq)


def make_queue(catalog: Catalog, name: str = "q", **policy: Any) -> QueueRow:
    row = queue_row(name, **policy)
    assert catalog.queues.create(row, group_row("default", name))
    return row


def make_group(catalog: Catalog, name: str, queue: str = "q", **starts: Place) -> GroupRow:
    row = group_row(name, queue)
    assert catalog.queues.create_group(row, starts, groups_version(catalog, queue))
    return row


def groups_version(catalog: Catalog, queue: str = "q") -> int:
    row = catalog.queues.by_id(f"id of {queue}")
    assert row is not None
    return row.groups_version


def move_row(seq: int, dest_seq: int, **changes: Any) -> Move:
    row = Move("q/default", "p", seq, "delivery_limit", "dead", dest_seq, at_ms=50)
    return replace(row, **changes)


class Consumer:
    """A consumer of one pipe for one group: does to the catalog what a popper does."""

    def __init__(self, catalog: Catalog, group: str = "q/default", pipe_id: str = "p") -> None:
        self.catalog = catalog
        self.group = group
        self.pipe_id = pipe_id

    @property
    def cursor(self) -> Cursor:
        cursor = self.catalog.claims.cursor(self.group, self.pipe_id)
        assert cursor is not None
        return cursor

    @property
    def rows(self) -> list[Claim]:
        return self.catalog.claims.rows(self.group, self.pipe_id)

    @property
    def states(self) -> list[tuple[int, int, ClaimState]]:
        return [(row.start, row.end, row.state) for row in self.rows]

    def claim(self, count: int, *, due_ms: int = DUE_MS, holder: str = "me") -> Claim:
        """Claim the next `count` messages."""
        cursor = self.cursor
        chain = place(cursor.chain.seq + count)
        row = claims.first(cursor, chain, holder, due_ms, version)
        assert self.catalog.claims.claim(cursor, chain, [row])
        return row

    def finish(self, row: Claim, *, epoch: int | None = None) -> bool:
        """Ack all of a claim."""
        return self.catalog.claims.replace(row, self.acked(row, row.start, row.end), epoch=epoch)

    def acked(self, row: Claim, start: int, end: int) -> list[Claim]:
        """The rows that take a claim's place when `[start, end)` is acked."""
        return claims.resolved(row, RangeSet([(start, end)]), [], version)

    def freed(self, row: Claim, now_ms: int = DUE_MS) -> list[Claim]:
        """The rows that take a claim's place when it is taken away."""
        return claims.freed(row, now_ms, now_ms, 10, version)

    def assert_covered(self) -> RangeSet:
        """The rows cover `[ack, chain)` without a gap or an overlap, no two done rows touch, and
        none is left in front; what is done."""
        cursor, rows = self.cursor, self.rows
        at = cursor.ack.seq
        done = RangeSet([(0, at)])
        before_done = True
        for row in rows:
            assert row.start == at < row.end
            is_done = row.state is ClaimState.DONE
            assert not (is_done and before_done), "done rows merge, and leave at the front"
            done |= RangeSet([(row.start, row.end)]) if is_done else EMPTY
            at, before_done = row.end, is_done
        assert at == cursor.chain.seq
        assert cursor.ack.pos <= place(cursor.ack.seq).pos
        return done
