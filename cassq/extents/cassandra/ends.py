"""Ends of sealed extents on Cassandra, which cover everything acknowledged."""

from __future__ import annotations

from typing import NamedTuple

from cassq.cassandra.session import Cql, Row
from cassq.extents.cassandra import statements
from cassq.extents.cassandra.heads import Head
from cassq.extents.cassandra.marks import marks_of
from cassq.extents.cassandra.places import bucket_and_seq, end_place
from cassq.message.frames import Place


class _Bucket(NamedTuple):
    start_seq: int
    push_count: int


def plain_end(cql: Cql, head: Head) -> Place:
    """Walk the gapless frames of a sealed extent, from the last published end on.

    Cost: two reads, one of them of the frames written since that end was published; two more for
    each empty bucket.
    """
    acked = marks_of(cql.read(statements.READ_MARKS, (head.extent,))).acked
    acked_bucket, acked_seq = bucket_and_seq(acked)
    for bucket in range(head.buckets - 1, -1, -1):
        found = _read_bucket(cql, head, bucket)
        if found is None:
            continue  # begun, but empty
        # Older buckets had no gap before this one began.
        seq = max(found.start_seq, acked_seq if bucket == acked_bucket else 0)
        rows = cql.read(statements.WALK_FRAMES, (head.extent, bucket, seq))
        return end_place(bucket, _walk(rows, seq))
    return Place(0, 0)


def _walk(rows: list[Row], seq: int) -> int:
    """The seq after the last of the whole, consecutive frames from `seq` on."""
    at = 0
    while at < len(rows):
        _, part, parts, count, _ = rows[at]
        if part != 0 or parts is None or count is None:
            break
        whole = rows[at : at + parts]
        if len(whole) < parts or any(row[0] != seq or row[4] is None for row in whole):
            break
        seq += count
        at += parts
    return seq


def strict_end(cql: Cql, head: Head) -> Place:
    """Seal the newest bucket of an extent whose head is sealed: every frame was either applied
    before, and is counted in its bucket, or never will be.

    Cost: one conditional write and one read; another read for each empty bucket.
    """
    values = (head.extent, head.buckets - 1)
    # Refused, it was sealed before.
    cql.apply_all([(statements.SEAL_BUCKET, values)], f"pipe {head.pipe_id} is sealed")
    for bucket in range(head.buckets - 1, -1, -1):
        found = _read_bucket(cql, head, bucket, serial=True)
        if found is not None:
            return end_place(bucket, found.push_count)
    return Place(0, 0)


def _read_bucket(cql: Cql, head: Head, bucket: int, *, serial: bool = False) -> _Bucket | None:
    rows = cql.read(statements.READ_BUCKET, (head.extent, bucket), serial=serial)
    if not rows or rows[0][3] is None:
        return None
    return _Bucket(rows[0][2], rows[0][3])
