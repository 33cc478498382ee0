"""Lanes: every delay has one, and nothing in a lane's pipe is due before the pipe says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cassq.base.arguments import DELAY_MAX_SECONDS
from cassq.model.lanes import LANE_MS, LANES, lane_of, lane_start_ms

delays = st.integers(0, round(DELAY_MAX_SECONDS * 1000))


@given(delays, delays)
def test_a_longer_delay_has_no_lower_lane(one: int, other: int) -> None:
    assert (lane_of(min(one, other)) <= lane_of(max(one, other))) is True
    assert 0 <= lane_of(one) <= LANES


@given(delays, st.integers(0, LANE_MS // 2))
def test_what_took_a_while_to_be_written_is_still_due_after_the_pipe_says(
    delay_ms: int, late_ms: int
) -> None:
    """The pipe is opened when the message is written, `late_ms` after its due time was fixed."""
    now_ms = 1_700_000_000_000
    start_ms = lane_start_ms(lane_of(delay_ms), now_ms + late_ms)
    if lane_of(delay_ms) > 0:
        assert start_ms <= now_ms + delay_ms


def test_near_messages_share_the_first_lane() -> None:
    assert {lane_of(ms) for ms in (0, 1, 1000, LANE_MS - 1)} == {0}
    assert lane_of(LANE_MS) == 1
    assert lane_start_ms(0, 5000) == 5000


def test_far_lanes_wait_to_be_looked_into() -> None:
    year_ms = 365 * 86_400_000
    assert lane_start_ms(lane_of(year_ms), 0) > year_ms / 9
