"""Clocks: the only place that reads the time, or waits. And `attempts`: how often, and after which
pauses, a compare-and-set is tried again.

There are three kinds of time. *Boot time* runs evenly, also while the machine sleeps; leases and
deadlines use it. *Wall time* is what people read. *Catalog time* (see `cassq.catalog.port`) is boot
time shifted to the wall clock once a boot, so that a wall clock that jumps moves no deadline.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from random import random

from cassq.errors import BackendTimeoutError

ATTEMPTS_MAX, ATTEMPTS_SECONDS = 50, 10.0
ATTEMPTS_AT_ONCE = 2  # the second follows at once, because the known state may have been old
PAUSE_FIRST, PAUSE_MAX = 0.004, 0.5


def _boot_clock() -> int:
    """The system's clock that runs evenly since boot, also while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux
        return time.CLOCK_BOOTTIME
    if hasattr(time, "CLOCK_UPTIME_RAW"):
        # macOS. There the raw monotonic clock runs on while it sleeps; CLOCK_UPTIME_RAW does not.
        return time.CLOCK_MONOTONIC_RAW
    return time.CLOCK_MONOTONIC


_BOOT_CLOCK = _boot_clock()


class Clock(abc.ABC):
    """The source of time for all code below and above the ports."""

    @abc.abstractmethod
    def boot_ms(self) -> int:
        """Milliseconds since boot, counting time asleep; never goes back."""

    @abc.abstractmethod
    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC by the wall clock; may jump."""

    @abc.abstractmethod
    def sleep(self, seconds: float) -> None:
        """Wait. Cost: the time itself."""

    def pause(self, seconds: float) -> None:
        """Wait for a random part of `seconds`, so that clients do not collide again."""
        self.sleep(random() * seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for an event that another thread sets, at most `seconds`; True when it is set."""
        return wait_event(event, seconds)

    @abc.abstractmethod
    def boot_id(self) -> str:
        """A name of this run of the machine, the same for all its processes."""


class SystemClock(Clock):
    """The machine's clocks."""

    def __init__(self) -> None:
        self._boot_id = _read_boot_id()

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def boot_id(self) -> str:
        return self._boot_id


class ManualClock(Clock):
    """A clock that its user turns: for tests and the simulation."""

    def __init__(self, boot_ms: int = 1_000, wall_ms: int = 1_700_000_000_000) -> None:
        self._boot_ms = boot_ms
        self._wall_offset_ms = wall_ms - boot_ms
        self._boot_id = "manual-1"

    def boot_ms(self) -> int:
        return self._boot_ms

    def wall_ms(self) -> int:
        return self._boot_ms + self._wall_offset_ms

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on every clock."""
        self._boot_ms += round(seconds * 1000)

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back without time passing."""
        self._wall_offset_ms += round(seconds * 1000)

    def reboot(self) -> None:
        """A new run of the machine: boot time starts again from near zero."""
        wall_ms = self.wall_ms()
        self._boot_ms = 1_000
        self._wall_offset_ms = wall_ms - self._boot_ms
        number = int(self._boot_id.rpartition("-")[2])
        self._boot_id = f"manual-{number + 1}"


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        session = _sysctl("kern.bootsessionuuid")  # macOS
    if session:
        return session
    # The moment of boot, to the minute: right as long as nobody sets the wall clock.
    seconds = time.time() - time.clock_gettime(_BOOT_CLOCK)
    return f"boot-{round(seconds / 60)}"


def _sysctl(name: str) -> str:
    """The kernel's text value of that name; empty if it has none."""
    try:
        import ctypes  # slow to load, of no use where there is /proc, and not in every Python

        ask = ctypes.CDLL(None).sysctlbyname
    except (ImportError, OSError, AttributeError):
        return ""
    size = ctypes.c_size_t(256)
    text = ctypes.create_string_buffer(size.value)
    if ask(name.encode(), text, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    return text.value.decode()


class Stopwatch:
    """Seconds of monotonic time since its creation: for waits with a deadline."""

    __slots__ = ("_start_ns",)

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()

    def seconds(self) -> float:
        return (time.monotonic_ns() - self._start_ns) / 1e9


def attempts(
    clock: Clock,
    most: int = ATTEMPTS_MAX,
    *,
    seconds: float = ATTEMPTS_SECONDS,
    pause: float = PAUSE_FIRST,
) -> Iterator[None]:
    """Attempts at a compare-and-set: in each the caller reads, decides, writes if nothing has
    changed since, and leaves the loop if that was applied.

    The second follows at once; each further one follows after a random and ever longer pause, the
    first of at most `pause` seconds. They end after `most`, or after `seconds`: then the caller
    raises `contended`. Not for loops that usually go on after a successful attempt: they would
    pause for nothing.
    """
    at_once = repeat(None, min(most, ATTEMPTS_AT_ONCE))  # no code of ours runs between these
    return chain(at_once, _Later(clock, most - ATTEMPTS_AT_ONCE, seconds, pause))


class _Later:
    """The attempts that follow after pauses. Not a generator, which would cost more if unused."""

    __slots__ = ("_clock", "_left", "_pause", "_seconds", "_waited")

    def __init__(self, clock: Clock, most: int, seconds: float, pause: float) -> None:
        self._clock = clock
        self._left = most
        self._seconds = seconds
        self._pause = pause
        self._waited = Stopwatch()

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        if self._left > 0:
            self._clock.pause(self._pause)
            self._pause = min(2 * self._pause, PAUSE_MAX)
            self._left -= 1
            if self._waited.seconds() <= self._seconds:
                return
        raise StopIteration


def contended(what: str, *, hint: str = "try again") -> BackendTimeoutError:
    """The error after the last attempt, when others were faster each time. what: what they
    change."""
    return BackendTimeoutError(f"other clients keep changing {what}", hint=hint)


class AutoResetEvent:
    """An event that one thread waits for, and that is reset by the wait. If it is set while no
    thread waits, the next wait ends at once; setting it twice has the effect of setting it once.

    Not a `threading.Event`, because an exception from a signal handler in `Event.set` can leave its
    lock taken for ever.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that would."""
        try:
            self._lock.release()
        except RuntimeError:
            return  # it is set already

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most `seconds`; returns whether it was."""
        return self._lock.acquire(timeout=max(0.0, seconds))


def wait_event(event: threading.Event, seconds: float) -> bool:
    """Wait for `event` at most `seconds`; True when it is set."""
    return event.wait(seconds)
