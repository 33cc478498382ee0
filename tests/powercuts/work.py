"""Work that is recorded: `python -m tests.powercuts.work SEED STEPS ROOT`.

One client after another pushes, pops, fails and removes messages in ROOT/data, and tells by marks
what it is about to do, and what was acknowledged. Each payload is a number of its own.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import cassq
from cassq.extents.files.disk import PAGE
from tests.powercuts.record import Marks

QUEUES: dict[str, dict[str, Any]] = {
    "jobs": {"max_pushes_per_pipe": 24, "max_deliveries": 2, "sick_check": False},
    "line": {"consistency": "cp", "max_pushes_per_pipe": 40, "sick_check": False},
}


class Work:
    """What a user does, at random."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self._root = root
        self._rng = rng
        self._marks = Marks(root)
        self._numbers = count(1)
        self._client = self._open()

    def _open(self) -> cassq.Client:
        client = cassq.connect(f"file://{self._root}/data")
        for name, policy in QUEUES.items():
            client.create_queue(name, **policy)
        self._pushers = {name: client.queue(name).pusher() for name in QUEUES}
        self._poppers = {name: client.queue(name).popper() for name in QUEUES}
        self._tell("opened")
        return client

    def _tell(self, what: str, payloads: list[bytes] | None = None) -> None:
        """A mark, with the pages as they are: nobody calls the system to change them."""
        pages = {}
        for path in (self._root / "data" / "pipes").glob("*.page"):
            pages[str(path.relative_to(self._root))] = path.read_bytes()[:PAGE].hex()
        texts = [payload.decode() for payload in payloads or ()]
        self._marks.tell(what, payloads=texts, pages=pages)

    def step(self) -> None:
        """One thing of those that a user does."""
        verbs: list[tuple[int, Callable[[str], None]]] = [
            (5, self._push_one),
            (5, self._push_many),
            (2, self._push_later),
            (8, self._commit),
            (3, self._fail),
            (3, self._reap),
            (1, self._merge),
            (1, self._again),
        ]
        verb = self._rng.choices([v for _, v in verbs], [weight for weight, _ in verbs])[0]
        verb(self._rng.choice(list(QUEUES)))

    def _fresh(self, how_many: int) -> list[bytes]:
        sizes = [self._rng.choice((0, 0, 0, 900)) for _ in range(how_many)]
        return [b"%d%s" % (next(self._numbers), b" " * size) for size in sizes]

    def _push_one(self, name: str) -> None:
        (payload,) = payloads = self._fresh(1)
        self._tell("pushing", payloads)
        self._pushers[name].push(payload)
        self._tell("pushed", payloads)

    def _push_many(self, name: str) -> None:
        payloads = self._fresh(self._rng.randint(2, 60))
        self._tell("pushing", payloads)
        self._pushers[name].push_many(payloads)
        self._tell("pushed", payloads)

    def _push_later(self, _name: str) -> None:
        payloads = self._fresh(3)
        self._tell("pushing", payloads)
        self._pushers["jobs"].push_many(payloads, delay=self._rng.choice((0.001, 3.0)))
        self._tell("pushed", payloads)

    def _commit(self, name: str) -> None:
        popper = self._poppers[name]
        messages = popper.pop(self._rng.choice((1, 5, 40)))
        payloads = [message.payload for message in messages]
        if payloads:
            self._tell("committing", payloads)
            popper.commit(messages)
            self._tell("committed", payloads)

    def _fail(self, _name: str) -> None:
        """Some become dead letters in the end."""
        for message in self._poppers["jobs"].pop(3):
            message.nack(delay=0, error="planned")
        self._poppers["jobs"].flush()

    def _merge(self, _name: str) -> None:
        if "jobs~default~dead" in [queue.name for queue in self._client.queues()]:
            self._client.queue("jobs").dead_letters().merge()

    def _reap(self, _name: str) -> None:
        self._client.reaper.reap(self._client.ports.catalog.queues.listed())
        self._tell("reaped")

    def _again(self, _name: str) -> None:
        """Another client: what was open is sealed, the catalog's log is written back."""
        self._client.close()
        self._tell("closed")
        self._client = self._open()

    def close(self) -> None:
        self._client.close()
        self._tell("closed")


def main(seed: str, steps: str, root: str) -> None:
    os.environ.pop("LD_PRELOAD", None)
    work = Work(Path(root).resolve(), random.Random(seed))
    for _ in range(int(steps)):
        work.step()
    work.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
