"""The planned death of a popper, at the two moments that matter most.

A queue that forgets a message when it hands it out loses what a dead popper held. A program that
believes that every message comes once counts twice what a dead popper had written. So one
popper of each group stops at such a moment, half way through, and is killed there with SIGKILL.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import NamedTuple

import cassq
from popping import Results


class Moment(StrEnum):
    """When the popper is killed."""

    BEFORE_WRITING = "after the pop, before it wrote any results"
    BEFORE_COMMIT = "after it wrote its results, before the commit"


class Holding(NamedTuple):
    """Said by a popper that stands at its moment: this many messages it holds, uncommitted."""

    messages: int


class Order(StrEnum):
    """What poppers are told."""

    GO_ON = "the kill is over: go on past half way"
    STOP = "everything is committed: finish"


class Doomed:
    """The results of a popper that will be killed: at `until` messages it waits for that."""

    def __init__(self, results: Results, moment: Moment, until: int, link: Connection) -> None:
        self._results = results
        self._moment = moment
        self._until = until
        self._link = link
        self._handled = 0

    def write(self, messages: Sequence[cassq.Message]) -> int:
        self._handled += len(messages)
        last = self._handled >= self._until
        if last and self._moment is Moment.BEFORE_WRITING:
            self._await_the_kill(messages)
        new = self._results.write(messages)
        if last:
            self._await_the_kill(messages)
        return new

    def _await_the_kill(self, messages: Sequence[cassq.Message]) -> None:
        self._link.send(Holding(len(messages)))
        self._link.recv()  # nothing is ever sent to this popper again


class Orders:
    """What the parent wants of a popper.

    Half way, the others wait, holding nothing, until the kill is over: so it falls in the middle
    of the run on a fast machine and on a slow one, and the doomed popper gets its messages.
    """

    def __init__(self, link: Connection, *, wait_at: int | None) -> None:
        self._link = link
        self._wait_at = wait_at
        self.handled = 0

    def go_on(self) -> bool:
        """False when it is time to finish; may wait."""
        while self._link.poll() or self._is_half_way():
            try:
                order = self._link.recv()
            except EOFError:  # the parent is gone
                return False
            if order is Order.STOP:
                return False
            self._wait_at = None
        return True

    def _is_half_way(self) -> bool:
        return self._wait_at is not None and self.handled >= self._wait_at


def half_way(flights: int, poppers: int) -> int:
    """After how many messages of its own a popper is half way."""
    return flights // (2 * poppers)
