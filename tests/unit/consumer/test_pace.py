"""The pace of a popper: how much it claims ahead, and how long its acks are collected."""

from __future__ import annotations

import pytest

from cassq.consumer.pace import (
    ACK_INTERVAL_MS,
    ACK_INTERVAL_MS_MAX,
    PREFETCH_SECONDS_MAX,
    PopperPace,
)

HOUR_MS = 3_600_000


def pace_of(rate: int) -> PopperPace:
    pace = PopperPace()
    pace.finished.append((rate, 1_000))
    return pace


def test_nothing_is_claimed_ahead_before_the_rate_is_known() -> None:
    assert (PopperPace().ahead(), PopperPace().prefetch_limit(0)) == (1, 1)


def test_where_claims_are_quick_a_tenth_of_a_second_is_claimed_ahead() -> None:
    pace = pace_of(1_000)
    pace.claimed.append(1)
    assert (pace.ahead(), pace.prefetch_limit(7)) == (100, 100)


def test_where_claims_take_long_more_is_welcome_in_measure() -> None:
    pace = pace_of(1_000)
    pace.claimed.append(100)
    some = pace.prefetch_limit(0)
    assert pace.ahead() == 100 < some
    pace.claimed.append(200)
    assert pace.prefetch_limit(0) > some


def test_what_is_claimed_ahead_is_bounded_however_long_claims_take() -> None:
    pace = pace_of(1_000)
    pace.claimed.append(HOUR_MS)
    found = [pace.prefetch_limit(now_ms) / 1_000 for now_ms in range(0, 10_000, 10)]
    assert sum(found) / len(found) == pytest.approx(PREFETCH_SECONDS_MAX, rel=0.01)
    assert max(found) <= 1.5 * PREFETCH_SECONDS_MAX


def test_acks_are_collected_longer_where_writing_them_takes_long() -> None:
    pace = PopperPace()
    assert pace.ack_wait_ms(HOUR_MS, 0) == ACK_INTERVAL_MS
    pace.flushed(40)
    assert ACK_INTERVAL_MS < pace.ack_wait_ms(HOUR_MS, 0) < ACK_INTERVAL_MS_MAX
    pace.flushed(HOUR_MS)
    assert pace.ack_wait_ms(HOUR_MS, 0) == ACK_INTERVAL_MS_MAX


def test_acks_do_not_wait_until_the_claim_is_over() -> None:
    pace = PopperPace()
    pace.flushed(HOUR_MS)
    assert max(pace.ack_wait_ms(2_600, now_ms) for now_ms in range(2_000)) == 250
    assert max(pace.ack_wait_ms(500, now_ms) for now_ms in range(2_000)) == ACK_INTERVAL_MS


def test_poppers_of_one_client_write_in_time_with_each_other_however_slow_they_are() -> None:
    client = 123_456_789
    slow, quick, another = PopperPace(client), PopperPace(client), PopperPace(client + 60)
    slow.flushed(HOUR_MS)
    for pace in (quick, another):
        pace.flushed(20)

    def beats(pace: PopperPace) -> set[int]:
        return {now_ms + pace.ack_wait_ms(HOUR_MS, now_ms) for now_ms in range(4_000)}

    assert len(beats(slow)) == 5 < len(beats(quick))
    assert beats(slow) - {max(beats(slow))} <= beats(quick)
    assert not beats(slow) & beats(another)


def test_what_poppers_of_one_client_claim_ahead_is_done_on_the_same_beat() -> None:
    client, ends = 123_456_789, set[int]()
    for rate, claim_ms in ((1_000, 30), (500, 40), (200, HOUR_MS)):
        pace = PopperPace(client)
        pace.finished.append((rate, 1_000))
        pace.claimed.append(claim_ms)
        for now_ms in range(0, 2_000, 50):
            done_ms = now_ms + pace.prefetch_limit(now_ms) * 1_000 / rate
            ends.add(round((done_ms + client) / 125) * 125 - round(done_ms + client))
    assert max(map(abs, ends)) <= 5  # a message takes so long


def test_no_more_is_claimed_than_is_finished_in_a_third_of_the_timeout() -> None:
    assert pace_of(30).allowed(1_000, 3_000) == 30
    assert PopperPace().allowed(1_000, 3_000) == 1_000
