"""Cluster time: measured from servers' clocks, never back, and moved by no wall clock."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from cassq.base.clock import ManualClock
from cassq.cassandra.cluster_time import (
    AHEAD_MS,
    ASK_EVERY_MS,
    ASK_SOON_MS,
    KEPT,
    ROUND_TRIP_MS_MAX,
    STEP_MS,
    ClusterTime,
    Learn,
)

T0 = 1_800_000_000_000


class Server:
    """A server whose clock is `ahead_ms` of `T0` at boot; it answers at once, or when told to."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ahead_ms = 0
        self.asked: list[tuple[int, Learn]] = []
        self.answers_at_once = True

    def ask(self, learn: Learn) -> None:
        self.asked.append((self.clock.boot_ms(), learn))
        if self.answers_at_once:
            learn(self.clock.boot_ms(), self.now_ms())

    def now_ms(self) -> int:
        return T0 + self.clock.boot_ms() + self.ahead_ms


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> Server:
    return Server(clock)


@pytest.fixture
def time(clock: ManualClock, server: Server) -> ClusterTime:
    found = ClusterTime(clock, server.ask)
    for _ in range(KEPT):
        found.learn(clock.boot_ms(), server.now_ms())
    return found


def test_before_anything_is_known_it_is_the_wall_s(clock: ManualClock, server: Server) -> None:
    assert ClusterTime(clock, server.ask).now_ms() == clock.wall_ms()


def test_it_is_the_server_s_time_and_not_the_wall_s(
    clock: ManualClock, server: Server, time: ClusterTime
) -> None:
    assert time.now_ms() == server.now_ms()
    clock.jump_wall(-86400)
    clock.advance(5)
    assert time.now_ms() == server.now_ms()


def test_half_of_the_round_trip_passed_after_the_server_looked(
    clock: ManualClock, server: Server
) -> None:
    time = ClusterTime(clock, server.ask)
    asked_ms, told_ms = clock.boot_ms(), server.now_ms() + 30
    clock.advance(0.06)
    time.learn(asked_ms, told_ms)
    assert time.now_ms() == server.now_ms()


def test_it_asks_again_now_and_then_and_not_while_an_answer_is_on_its_way(
    clock: ManualClock, server: Server, time: ClusterTime
) -> None:
    server.answers_at_once = False
    time.now_ms()
    assert server.asked == []
    clock.advance(ASK_EVERY_MS / 1000)
    for _ in range(3):
        time.now_ms()
    assert len(server.asked) == 1
    clock.advance(ASK_EVERY_MS / 1000)
    time.now_ms()
    assert len(server.asked) == 2, "an answer that never comes stops nothing"


@pytest.mark.parametrize("wrong_ms", [-400, -1, 1, 400, STEP_MS - 1])
def test_a_small_error_is_made_up_for_slowly_and_never_backwards(
    clock: ManualClock, server: Server, time: ClusterTime, wrong_ms: int
) -> None:
    server.ahead_ms = wrong_ms
    readings = []
    for _ in range(120_000 // 50):
        readings.append((clock.boot_ms(), time.now_ms()))
        clock.advance(0.05)
    assert time.now_ms() == server.now_ms()
    for (before_boot, before), (after_boot, after) in pairwise(readings):
        passed = after_boot - before_boot
        assert 0.9 * passed <= after - before <= 1.1 * passed


def test_much_that_is_missing_is_made_up_for_at_once_when_most_servers_say_so(
    clock: ManualClock, server: Server, time: ClusterTime
) -> None:
    """As after a pause of a virtual machine, in which its boot clock stood still."""
    server.ahead_ms = 3_600_000
    for _ in range(KEPT // 2):
        time.learn(clock.boot_ms(), server.now_ms())
    assert time.now_ms() < server.now_ms()
    time.learn(clock.boot_ms(), server.now_ms())
    assert time.now_ms() == server.now_ms()


def test_after_an_odd_answer_it_asks_again_soon(
    clock: ManualClock, server: Server, time: ClusterTime
) -> None:
    server.ahead_ms = 3_600_000
    clock.advance(ASK_EVERY_MS / 1000)
    for _ in range(KEPT):
        time.now_ms()
        clock.advance(ASK_SOON_MS / 1000)
    assert time.now_ms() == server.now_ms()


def test_one_server_with_a_wrong_clock_is_outvoted(
    clock: ManualClock, server: Server, time: ClusterTime
) -> None:
    for number in range(30):
        server.ahead_ms = 86_400_000 if number % 3 == 2 else 0
        clock.advance(ASK_EVERY_MS / 1000)
        time.now_ms()
    server.ahead_ms = 0
    assert time.now_ms() == server.now_ms()


def test_an_answer_that_took_long_does_not_count(
    clock: ManualClock, server: Server, time: ClusterTime
) -> None:
    for _ in range(KEPT):
        asked_ms, told_ms = clock.boot_ms(), server.now_ms()
        clock.advance((ROUND_TRIP_MS_MAX + 1) / 1000)
        time.learn(asked_ms, told_ms)
    clock.advance(60)
    assert time.now_ms() == server.now_ms()


def test_it_never_goes_back_whatever_servers_say(clock: ManualClock, server: Server) -> None:
    chance = random.Random(7)
    time = ClusterTime(clock, server.ask)
    time.learn(clock.boot_ms(), server.now_ms())
    reached = time.now_ms()
    for _ in range(2_000):
        server.ahead_ms = chance.choice((-5_000, -10, 0, 10, 5_000))
        time.learn(clock.boot_ms() - chance.randrange(50), server.now_ms())
        now_ms = time.now_ms()
        assert now_ms >= reached
        reached = now_ms
        clock.advance(chance.random())


def test_the_servers_time_goes_back_with_their_clocks_and_that_is_told_once(
    clock: ManualClock, server: Server, time: ClusterTime, caplog: pytest.LogCaptureFixture
) -> None:
    server.ahead_ms = -3_600_000
    for _ in range(KEPT // 2):
        time.learn(clock.boot_ms(), server.now_ms())
    assert time.servers_ms() == time.now_ms() > server.now_ms(), "one server may be wrong"
    for _ in range(2 * KEPT):
        time.learn(clock.boot_ms(), server.now_ms())
        clock.advance(ASK_SOON_MS / 1000)
    assert time.servers_ms() == server.now_ms()
    assert time.now_ms() > server.now_ms() + 3_500_000
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "were set back by about 3600 s" in caplog.text


def test_a_small_step_back_is_not_told(
    clock: ManualClock, server: Server, time: ClusterTime, caplog: pytest.LogCaptureFixture
) -> None:
    server.ahead_ms = 1 - AHEAD_MS
    for _ in range(KEPT):
        time.learn(clock.boot_ms(), server.now_ms())
    assert time.servers_ms() == server.now_ms()
    assert not caplog.records


def test_before_anything_is_known_the_servers_time_is_the_wall_s(
    clock: ManualClock, server: Server
) -> None:
    assert ClusterTime(clock, server.ask).servers_ms() == clock.wall_ms()
