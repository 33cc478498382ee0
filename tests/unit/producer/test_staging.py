"""Staging: when a write is over, by what its row says."""

from __future__ import annotations

import pytest

from cassq.model.rows import WriteRow, WriteState
from cassq.producer.staging import is_over

OPEN, PUBLISHED, ABORTED = WriteState.OPEN, WriteState.PUBLISHED, WriteState.ABORTED


@pytest.mark.parametrize(
    ("number", "state", "over"),
    [
        (5, OPEN, False),
        (5, ABORTED, False),
        (5, PUBLISHED, True),
        (4, PUBLISHED, False),
        (4, OPEN, False),
        (6, OPEN, True),
        (6, ABORTED, True),
    ],
)
def test_a_write_is_over_when_it_or_a_later_one_was_published_or_begun(
    number: int, state: WriteState, over: bool
) -> None:
    row = WriteRow("q", "w", number, 1, state, "d", 0)
    assert is_over(row, 5) is over
