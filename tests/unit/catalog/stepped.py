"""Clients' calls that stop before each of their requests, so that a test decides on their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Protocol

from tests.integration.deadlines import DEADLINE_SECONDS


class Pausing(Protocol):
    """A session that calls `pause` before each request."""

    pause: Callable[[], None]


class Actor(threading.Thread):
    """A client's call, which stops before each of its requests until it may go on."""

    def __init__(self, session: Pausing, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._session = session
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.result: object = None
        self.over = False
        self.start()

    def run(self) -> None:
        self._go.acquire()
        self._session.pause = self._pause
        try:
            self.result = self._act()
        finally:
            self._session.pause = lambda: None
            self.over = True
            self._stopped.release()

    def _pause(self) -> None:
        self._stopped.release()
        assert self._go.acquire(timeout=DEADLINE_SECONDS)

    def step(self) -> None:
        """Go on until just before the next request, or to the end."""
        if not self.over:
            self._go.release()
            assert self._stopped.acquire(timeout=DEADLINE_SECONDS)


def orders(first: int, second: int) -> Iterator[str]:
    """All orders of the steps of two clients."""
    for places in combinations(range(first + second), first):
        yield "".join("1" if at in places else "2" for at in range(first + second))


def play(order: str, first: Actor, second: Actor) -> None:
    """Let two clients take their steps in this order, and then the rest in turn."""
    for digit in order:
        (first if digit == "1" else second).step()
    while not (first.over and second.over):
        first.step()
        second.step()
