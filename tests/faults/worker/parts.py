"""The part of a worker, for actors."""

from __future__ import annotations

import threading

import cassq
from cassq.worker.loop import Hooks
from tests.faults.parts import Stage


def work(stage: Stage, url: str, concurrency: int) -> None:
    """Run until SIGTERM; tells each delivery that its handler had."""
    mutex = threading.Lock()  # a connection is not made for several threads

    def tell(*what: object) -> None:
        with mutex:
            stage.tell(*what)

    with cassq.connect(url) as client:
        worker = client.queue("jobs").worker(
            lambda message: tell("ran", message.payload, message.attempts), concurrency=concurrency
        )
        worker.hooks = Hooks(ready=lambda _: tell("ready"))
        worker.run()
    tell("ended")
