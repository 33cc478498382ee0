"""Clocks: the manual one moves only when told to, the machine's one keeps its promises."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cassq.base.clock import AutoResetEvent, Clock, ManualClock, Stopwatch, SystemClock, wait_event

ROOT = Path(__file__).resolve().parents[3]


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(boot_ms=5, wall_ms=1000)
    assert [clock.boot_ms(), clock.wall_ms()] == [5, 1000] == [clock.boot_ms(), clock.wall_ms()]


@pytest.mark.parametrize("pass_time", [ManualClock.advance, ManualClock.sleep])
def test_time_that_passes_passes_on_every_manual_clock(pass_time: object) -> None:
    clock = ManualClock(boot_ms=5, wall_ms=1000)
    pass_time(clock, 1.5)  # type: ignore[operator]
    assert (clock.boot_ms(), clock.wall_ms()) == (1505, 2500)


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_wall_that_jumps_moves_no_boot_time(seconds: float) -> None:
    clock = ManualClock(boot_ms=5, wall_ms=10_000_000)
    clock.jump_wall(seconds)
    assert clock.boot_ms() == 5
    assert clock.wall_ms() == 10_000_000 + round(seconds * 1000)
    clock.advance(1)
    assert clock.wall_ms() == 10_001_000 + round(seconds * 1000)


def test_a_reboot_starts_boot_time_again_under_another_name_and_keeps_the_wall() -> None:
    clock = ManualClock(boot_ms=1_000_000, wall_ms=5_000_000)
    clock.advance(10)
    before = clock.boot_id()
    clock.reboot()
    assert clock.boot_id() != before
    assert clock.boot_ms() < 1_000_000
    assert clock.wall_ms() == 5_010_000
    again = clock.boot_id()
    clock.reboot()
    assert len({before, again, clock.boot_id()}) == 3


def test_the_machine_s_boot_time_does_not_go_back() -> None:
    clock = SystemClock()
    seen = [clock.boot_ms() for _ in range(1000)]
    assert seen == sorted(seen)


def test_sleeping_takes_the_time_it_says_on_the_boot_clock() -> None:
    clock = SystemClock()
    before = clock.boot_ms()
    clock.sleep(0.01)
    assert clock.boot_ms() - before >= 9  # read in whole milliseconds


def test_all_processes_of_a_run_of_the_machine_agree_on_its_name() -> None:
    code = "from cassq.base.clock import SystemClock; print(SystemClock().boot_id(), end='')"
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == SystemClock().boot_id() != ""


def test_both_clocks_are_clocks() -> None:
    assert isinstance(SystemClock(), Clock)
    assert isinstance(ManualClock(), Clock)


def test_a_stopwatch_never_goes_back() -> None:
    watch = Stopwatch()
    seen = [watch.seconds() for _ in range(100)]
    assert seen == sorted(seen)
    assert seen[0] >= 0


def test_waiting_for_an_event_returns_whether_it_came() -> None:
    event = threading.Event()
    assert wait_event(event, 0) is False
    event.set()
    assert wait_event(event, 3600) is True


def test_an_event_wakes_once_however_often_it_is_set() -> None:
    event = AutoResetEvent()
    assert event.wait(0) is False
    event.set()
    event.set()
    assert event.wait(3600) is True
    assert event.wait(-1) is False


def test_an_event_wakes_a_thread_that_waits() -> None:
    event, found = AutoResetEvent(), list[bool]()
    thread = threading.Thread(target=lambda: found.append(event.wait(60)), daemon=True)
    thread.start()
    event.set()
    thread.join(30)
    assert found == [True]
