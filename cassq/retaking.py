"""Retaking: reading what is left of claim rows, and handing several of them out together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from cassq.catalog.rows import Claim
from cassq.extents.port import ExtentReader, Slice
from cassq.frames import Place
from cassq.holdings import Holder, Holding

CLAIM_BYTES_MAX = 32 * 1024 * 1024

# What one pop gets: messages that were claimed together, and their frames.
Found = tuple[Holding, list[Slice]]


def read_left(
    reader: ExtentReader, row: Claim, limit: int, room: int = CLAIM_BYTES_MAX
) -> tuple[list[Slice], int]:
    """The first messages of a row that are not acked, at most `limit`; and the seq after the last
    of them, or the row's end when there are no more. Cost: the frames they are in."""
    slices: list[Slice] = []
    pos = row.pos
    base = frame_end = 0  # of the frame read last
    for start, end in row.left.ranges:
        if limit <= 0 or room <= 0:
            return slices, slices[-1].frame.base_seq + slices[-1].last
        if end <= frame_end and end - start <= limit:
            slices.append(Slice(slices[-1].frame, start - base, end - base))
            limit -= end - start
            continue
        place = Place(start, pos)
        found = reader.read(place, end, limit, room)
        seq, pos = reader.place_after(place, found)
        slices += found
        for frame, first, last in found:
            limit -= last - first
            room -= frame.size
        base, frame_end = found[-1].frame.base_seq, found[-1].frame.end_seq
        if seq < end:
            return slices, seq
    return slices, row.end


def into_holdings(
    taken: Iterable[tuple[Claim, list[Slice]]], holder: Holder, now_ms: int
) -> list[Found]:
    """Rows just taken as holdings: one for each pipe and number of deliveries."""
    found: list[Found] = []
    for _, group in groupby(sorted(taken, key=_kind), key=_kind):
        together = list(group)
        holding = Holding(holder, [row for row, _ in together], now_ms, None, None)
        found.append((holding, [piece for _, slices in together for piece in slices]))
    return found


def _kind(taken: tuple[Claim, list[Slice]]) -> tuple[str, int]:
    return taken[0].pipe_id, taken[0].deliveries
