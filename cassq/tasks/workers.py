"""Workers of several queues in one process: each in its own thread, and one thread that watches."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cassq.worker.choosing import AnyWorker
from cassq.worker.wakeup import Stopper, Wakeup, handled

LOOK_SECONDS = 60.0


class Workers:
    """Runs workers until all have ended; `App.worker` makes it."""

    def __init__(self, workers: Sequence[AnyWorker]) -> None:
        self._workers = workers
        self._ended: list[AnyWorker] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Run all workers, as `Worker.run` does. If one fails, all are stopped, and its error is
        raised."""
        if len(self._workers) == 1:
            self._workers[0].run()
            return
        with Wakeup() as wakeup, handled(wakeup, Stopper(self.stop)):
            threads = [
                threading.Thread(target=self._run, args=(worker, wakeup), daemon=True)
                for worker in self._workers
            ]
            for thread in threads:
                thread.start()
            while len(self._ended) < len(threads):
                wakeup.wait(LOOK_SECONDS)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Have `run` return when what is in hand is done. Safe in a signal handler, and from any
        thread."""
        for each in self._workers:
            each.stop()

    def _run(self, worker: AnyWorker, wakeup: Wakeup) -> None:
        try:
            worker.run()
        except BaseException as exc:
            self._failure = self._failure or exc
            self.stop()
        finally:
            self._ended.append(worker)  # not `is_alive`: a thread lives on a little after this
            wakeup.give()
