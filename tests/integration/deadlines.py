"""Waiting in tests: for a condition, with a deadline that fails loudly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from cassq.base.clock import Stopwatch, SystemClock

DEADLINE_SECONDS = 100.0  # long after what any machine needs
# Many conditions are work: between two looks at one, a tenth of the time waited so far.
_PAUSE_MIN_SECONDS, _PAUSE_MAX_SECONDS, _PAUSE_SHARE = 0.003, 0.05, 0.1

T = TypeVar("T")


def eventually(what: str, condition: Callable[[], T], *, seconds: float = DEADLINE_SECONDS) -> T:
    """The first true value of `condition`, which is asked again and again; the test fails, saying
    `what` did not come, when there is none in time."""
    watch, pause = Stopwatch(), threading.Event()
    while True:
        value = condition()
        if value:
            return value
        waited = watch.seconds()
        if waited > seconds:
            pytest.fail(f"waited {seconds} seconds in vain: {what} (last: {value!r})")
        pause.wait(min(max(_PAUSE_MIN_SECONDS, _PAUSE_SHARE * waited), _PAUSE_MAX_SECONDS))


def ticks(ms: int) -> None:
    """Return when the wall clock shows so many milliseconds more."""
    clock = SystemClock()
    start_ms = clock.wall_ms()
    eventually("time passes", lambda: clock.wall_ms() >= start_ms + ms)


def in_threads(
    count: int, work: Callable[[int], object], *, what: str = "a thread of this test"
) -> None:
    """Run `work(0..count)` in as many threads; the first error of theirs is raised here."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as exc:
            errors.append(exc)

    threads = [
        threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(what, thread)
    if errors:
        errors[0].add_note(what)
        raise errors[0]


def joined(what: str, thread: threading.Thread, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait for the end of a thread."""
    thread.join(seconds)
    if thread.is_alive():
        pytest.fail(f"{what} did not end within {seconds} seconds")
