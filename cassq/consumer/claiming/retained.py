"""Retained messages: keeps failed messages in memory until they are due again.

To redeliver a message, its whole frame must be read, which may be a hundred times larger. The
popper has the message in memory when it fails, so it keeps it there, if there is room and the
message is due soon. That is safe: a stored message never changes, and claim rows alone decide who
may have it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cassq.message.bundles import BundleSlice, RetainedBundle
from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim

KEPT_BYTES_MAX = 16 * 1024 * 1024
KEPT_MS_MAX = 5000


class RetainedMessages:
    """The messages that one popper keeps, by free row. The oldest make room for new ones."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], list[BundleSlice]] = {}
        self._size = 0

    def keep(self, row: Claim, pieces: Sequence[BundleSlice], now_ms: int) -> None:
        """Keep the messages of a free row, if it is due soon. pieces: these messages, perhaps among
        others."""
        if row.due_ms - now_ms > KEPT_MS_MAX:
            return
        left = row.left
        kept: list[BundleSlice] = []
        for piece in pieces:
            first, last = piece.seqs.ranges[0][0], piece.seqs.ranges[-1][1]
            if first < row.end and last > row.start:
                seqs = left if piece.seqs == left else left.within(first, last)
                if seqs:
                    kept.append(piece.kept(seqs))
        self._drop((row.pipe_id, row.start))
        self._kept[row.pipe_id, row.start] = kept
        self._size += _size(kept)
        while self._size > KEPT_BYTES_MAX:
            self._drop(next(iter(self._kept)))

    def take(self, row: Claim) -> list[BundleSlice] | None:
        """The messages left in a row, if exactly those were kept. They are no longer kept then."""
        kept = self._drop((row.pipe_id, row.start))
        if kept is None:
            return None
        # If the row was split or partly acked since, what is left of it must be read.
        same = RangeSet.joined(piece.seqs for piece in kept) == row.left
        return kept if same else None

    def _drop(self, key: tuple[str, int]) -> list[BundleSlice] | None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._size -= _size(kept)
        return kept


def _size(pieces: Sequence[BundleSlice]) -> int:
    return sum(piece.bundle.size for piece in pieces if isinstance(piece.bundle, RetainedBundle))
