"""Entries: which pushes may share an append."""

from __future__ import annotations

import pytest

from cassq.message.batches import Batch
from cassq.producer.admission import PendingPush


def an_entry(
    lane: int | None = None, batch: Batch | None = None, dedup_id: str | None = None
) -> PendingPush:
    entry = PendingPush(b"x", None, None, batch)
    entry.lane = lane
    entry.dedup_ids = None if dedup_id is None else [dedup_id]
    return entry


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (an_entry(), an_entry(), True),
        (an_entry(2), an_entry(2), True),
        (an_entry(), an_entry(0), False),
        (an_entry(0), an_entry(1), False),
        (an_entry(batch=Batch([b"x"], 0)), an_entry(), False),
        (an_entry(dedup_id="a"), an_entry(dedup_id="b"), True),
        (an_entry(dedup_id="a"), an_entry(), False),
    ],
)
def test_single_pushes_of_one_lane_go_together(
    one: PendingPush, other: PendingPush, together: bool
) -> None:
    """What is delayed lies in other pipes than what is not; a batch goes alone; and what has a
    dedup id costs a sync more than what has none."""
    assert one.goes_with(other) is together
    assert other.goes_with(one) is together
