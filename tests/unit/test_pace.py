"""The pace of a popper: how much it claims ahead, and how long its acks are collected."""

from __future__ import annotations

from cassq.pace import ACK_INTERVAL_MS, ACK_INTERVAL_MS_MAX, PREFETCH_SECONDS_MAX, Pace

HOUR_MS = 3_600_000


def pace_of(rate: int) -> Pace:
    pace = Pace()
    pace.finished(rate, 1_000)
    return pace


def test_nothing_is_claimed_ahead_before_the_rate_is_known() -> None:
    assert (Pace().ahead(), Pace().welcome()) == (1, 1)


def test_where_claims_are_quick_a_tenth_of_a_second_is_claimed_ahead() -> None:
    pace = pace_of(1_000)
    pace.claimed(1)
    assert (pace.ahead(), pace.welcome()) == (100, 100)


def test_where_claims_take_long_more_is_welcome_in_measure() -> None:
    pace = pace_of(1_000)
    pace.claimed(100)
    some = pace.welcome()
    assert pace.ahead() == 100 < some
    pace.claimed(200)
    assert pace.welcome() > some


def test_what_is_claimed_ahead_is_bounded_however_long_claims_take() -> None:
    pace = pace_of(1_000)
    pace.claimed(HOUR_MS)
    assert pace.welcome() == 1_000 * PREFETCH_SECONDS_MAX


def test_acks_are_collected_longer_where_writing_them_takes_long() -> None:
    pace = Pace()
    assert pace.ack_interval_ms(HOUR_MS) == ACK_INTERVAL_MS
    pace.flushed(40)
    assert ACK_INTERVAL_MS < pace.ack_interval_ms(HOUR_MS) < ACK_INTERVAL_MS_MAX
    pace.flushed(HOUR_MS)
    assert pace.ack_interval_ms(HOUR_MS) == ACK_INTERVAL_MS_MAX


def test_acks_do_not_wait_until_the_claim_is_over() -> None:
    pace = Pace()
    pace.flushed(HOUR_MS)
    assert pace.ack_interval_ms(2_000) == 200


def test_no_more_is_claimed_than_is_finished_in_a_third_of_the_timeout() -> None:
    assert pace_of(30).allowed(1_000, 3_000) == 30
    assert Pace().allowed(1_000, 3_000) == 1_000
