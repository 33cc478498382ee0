"""Advancing: how what was read is dealt to poppers that claim together."""

from __future__ import annotations

import pytest

from cassq.consumer.claiming.new_claims import dealt
from cassq.extents.port import Slice
from cassq.message.frames import Extras, Frame, decode, encode


def a_frame(base_seq: int, count: int) -> Frame:
    return decode(b"".join(encode(base_seq, [b"x"] * count, Extras(0))))


SLICES = [Slice(a_frame(0, 4), 1, 4), Slice(a_frame(4, 5), 0, 5), Slice(a_frame(9, 2), 0, 1)]


def seqs(part: list[Slice]) -> list[int]:
    return [frame.base_seq + at for frame, first, last in part for at in range(first, last)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([100], [[1, 2, 3, 4, 5, 6, 7, 8, 9]]),
        ([2, 3, 4], [[1, 2], [3, 4, 5], [6, 7, 8, 9]]),
        ([3, 5], [[1, 2, 3], [4, 5, 6, 7, 8]]),
        ([1, 1, 1], [[1], [2], [3]]),
        ([8, 5, 5], [[1, 2, 3, 4, 5, 6, 7, 8], [9]]),
    ],
)
def test_each_gets_what_follows_the_share_before(
    sizes: list[int], expected: list[list[int]]
) -> None:
    assert [seqs(part) for part in dealt(SLICES, sizes)] == expected
