"""The housekeeper: a client's thread for periodic work.

It renews leases, seals idle pipes, writes collected acks, extends claims, and runs the reaper's
passes. It sleeps until the next task is due. Each client has a second one, which only reads
settings again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from cassq.base.clock import AutoResetEvent, Clock
from cassq.errors import CassqError

logger: logging.Logger = logging.getLogger("cassq")

# Does what is due; returns the seconds until its next call.
Maintain = Callable[[], float]


class Housekeeper:
    """Calls each of its tasks when it is due."""

    def __init__(self, clock: Clock, name: str = "housekeeper") -> None:
        self._clock = clock
        self._name = f"cassq-{name}"
        self._mutex = threading.Lock()
        self._event = AutoResetEvent()
        self._due: dict[Maintain, float] = {}
        self._urgent: deque[Maintain] = deque()
        self._failing: dict[Maintain, str] = {}  # failing tasks → the error that was logged
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._stopped = False

    def add(self, maintain: Maintain, first: float) -> None:
        """Add a task, first called in `first` seconds or sooner."""
        self._schedule(maintain, first, only_known=False)
        with self._mutex:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def run_within(self, maintain: Maintain, seconds: float) -> None:
        """Call a task in `seconds` or sooner."""
        self._schedule(maintain, seconds, only_known=True)

    def call_soon(self, maintain: Maintain) -> None:
        """Call a task now. Takes no lock, so that a signal handler may call this."""
        self._urgent.append(maintain)
        self._event.set()

    def remove(self, maintain: Maintain) -> None:
        """Remove a task."""
        with self._mutex:
            self._due.pop(maintain, None)
            self._failing.pop(maintain, None)

    def _schedule(self, maintain: Maintain, seconds: float, *, only_known: bool) -> None:
        due = self._clock.boot_ms() / 1000 + seconds
        with self._mutex:
            known = self._due.get(maintain)
            if (known is None and only_known) or (known is not None and known <= due):
                return
            self._due[maintain] = due
            earlier = due < self._next
        if earlier:
            self._event.set()

    def _run(self) -> None:
        while not self._stopped:
            now = self._clock.boot_ms() / 1000
            urgent = {self._urgent.popleft() for _ in range(len(self._urgent))}
            with self._mutex:
                ready = [t for t, due in self._due.items() if due <= now or t in urgent]
                for maintain in ready:
                    self._due[maintain] = now + 3600.0
            for maintain in ready:
                self._call(maintain)
            with self._mutex:
                self._next = min(self._due.values(), default=now + 3600.0)
                pause = self._next - self._clock.boot_ms() / 1000
            self._event.wait(pause)

    def _call(self, maintain: Maintain) -> None:
        try:
            again = maintain()
        except CassqError as exc:
            # The user gets the same error from the next call; here the task is retried.
            logger.log(
                self._level(maintain, str(exc)),
                "housekeeping failed, trying again every second: %s",
                exc,
            )
            self._failing[maintain] = str(exc)
            again = 1.0
        except Exception:
            logger.exception("housekeeping failed unexpectedly; it tries again in ten seconds")
            again = 10.0
        else:
            self._failing.pop(maintain, None)
        self._schedule(maintain, again, only_known=True)

    def _level(self, maintain: Maintain, text: str) -> int:
        """How an error is logged: as a warning once, however many tasks it affects, and not every
        second of an outage."""
        if text in self._failing.values():
            return logging.DEBUG
        return logging.INFO if maintain in self._failing else logging.WARNING

    def stop(self) -> None:
        """End the thread; no task is called after it returns."""
        self._stopped = True
        self._event.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
