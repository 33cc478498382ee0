"""The end that sealed replicas agree on: it covers all that was acknowledged."""

from __future__ import annotations

import pytest

from cassq.extents.protocol.messages import Fenced
from cassq.extents.sidecar.sealing import agreed_end


def fenced(end: int, acked: int = 0, copying: bool = False) -> Fenced:
    return Fenced(end, acked, copying)


@pytest.mark.parametrize(
    ("answers", "replicas", "end"),
    [
        ([fenced(7), fenced(7), fenced(7)], 3, 7),
        ([fenced(9), fenced(7), fenced(8)], 3, 7),
        ([fenced(9), fenced(7)], 3, 7),
        ([fenced(9)], 3, None),
        ([fenced(9)], 1, 9),
        ([], 1, None),
        # One has less than another was told to be acknowledged: it lost it.
        ([fenced(9, 8), fenced(5, 5), fenced(9, 4)], 3, 9),
        ([fenced(9, 8), fenced(5, 5)], 3, None),
        # A copy that is not whole may lack anything, and may be ahead of nobody.
        ([fenced(9), fenced(3, copying=True), fenced(8)], 3, 8),
        ([fenced(9), fenced(9, copying=True)], 3, None),
        ([fenced(9), fenced(12, copying=True)], 3, None),
        # What a copy was told to be acknowledged is so all the same.
        ([fenced(9), fenced(3, 9, copying=True), fenced(8)], 3, None),
    ],
)
def test_the_smallest_end_of_a_majority_that_counts(
    answers: list[Fenced], replicas: int, end: int | None
) -> None:
    assert agreed_end(answers, replicas) == end
