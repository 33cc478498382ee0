"""Several threads of one simulated process: greenlets that share its ports and its fate.

The locks at which real threads would stop are such that a greenlet gives way there; those that no
point lies within stay as they are, since nobody can come between.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import greenlet

from cassq.lifecycle.ports import Lifecycle
from tests.simulation.worlds.scheduler import Process


class Thread(Process):
    """A further thread of a process."""

    def __init__(self, owner: Process, number: int, role: Callable[[Process], None]) -> None:
        super().__init__(owner.scheduler, f"{owner.name}+{number}", role)
        self.owner = owner
        self.wake_ms = owner.scheduler.clock.boot_ms()
        owner.threads.append(self)
        owner.scheduler.processes.append(self)


class SimLock:
    """A lock of threads of one process: who has to wait lets others go on."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._holder: Any = None

    def acquire(self) -> bool:
        while self._holder is not None:
            self._process.sleep(0.0)
        self._holder = greenlet.getcurrent()
        return True

    def release(self) -> None:
        self._holder = None

    def locked(self) -> bool:
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._holder is greenlet.getcurrent()


class _Mine:
    """What one thread does with a client: of greenlets, one each."""

    def __init__(self) -> None:
        self._calling: Any = weakref.WeakKeyDictionary()
        self._waiting: Any = weakref.WeakKeyDictionary()

    @property
    def calling(self) -> Any:
        return self._calling.setdefault(greenlet.getcurrent(), threading.Lock())

    @property
    def waiting(self) -> Any:
        return self._waiting.setdefault(greenlet.getcurrent(), threading.Lock())


class SimLife(Lifecycle):
    """Of a client that greenlets use as threads do."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self.mine = _Mine()  # type: ignore[assignment]

    def parked(self) -> Any:
        lock = SimLock(self._process)
        lock.acquire()
        return lock
