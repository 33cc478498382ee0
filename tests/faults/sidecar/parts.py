"""The parts of actors that push to sidecars and pop from them, while those are in trouble.

What they risk they tell before, and what was acknowledged after, as in `tests.faults.parts`.
"""

from __future__ import annotations

import contextlib

import cassq
from cassq.base.clock import Stopwatch, SystemClock
from cassq.errors import BackendError, OwnershipError
from tests.faults.parts import Stage, commit_telling


def push(
    stage: Stage, url: str, queue: str, name: str, size: int, pause_seconds: float = 0.0
) -> None:
    """Push one message after the other until told to stop; of each that is acknowledged, how many
    seconds it took."""
    clock = SystemClock()
    with cassq.connect(url) as client, client.queue(queue).pusher() as pusher:
        stage.tell("ready")
        number = 0
        while not stage.over():
            stage.tell("try", name, number, number + 1)
            watch = Stopwatch()
            try:
                pusher.push(payload(name, number, size))
            except (BackendError, OwnershipError) as error:
                stage.tell("trouble", name, repr(error))
            else:
                stage.tell("ok", name, number, number + 1)
                stage.tell("took", watch.seconds())
            number += 1
            if pause_seconds:
                clock.sleep(pause_seconds)
    stage.tell("done")


def payload(name: str, number: int, size: int) -> bytes:
    """`name:number`, and what makes it so long."""
    return b"%s:%d" % (name.encode(), number) + b"." * max(0, size)


def pop(stage: Stage, url: str, queue: str, group: str) -> None:
    """Pop, tell and commit until told to stop."""
    with cassq.connect(url) as client, client.queue(queue).popper(group) as popper:
        while not stage.over():
            try:
                messages = popper.pop(100, wait=0.2)
            except BackendError as error:
                stage.tell("trouble", group, repr(error))
                continue
            stage.tell("got", group, [m.payload for m in messages])
            with contextlib.suppress(OwnershipError, BackendError):  # it comes again
                commit_telling(stage, popper, group, messages)
    stage.tell("done")
