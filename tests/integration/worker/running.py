"""Workers that run in a thread of a test."""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar

from tests.integration.deadlines import joined


class Runs(Protocol):
    """A worker."""

    def run(self) -> None: ...

    def stop(self) -> None: ...


W = TypeVar("W", bound=Runs)


class Running(Generic[W]):
    """A worker that runs in a thread. error: what its `run` raised."""

    def __init__(self, worker: W) -> None:
        self.worker: W = worker
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as exc:
            self.error = exc

    def join(self) -> None:
        joined("the worker", self._thread)

    def stop(self) -> None:
        self.worker.stop()
        self.join()
        if self.error is not None:
            raise self.error
