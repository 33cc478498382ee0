"""The part of a relay, for actors: it tells each step, and stands still at one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import cassq
from cassq.outbox.database import OutboxDatabase, database_of
from cassq.outbox.relay import Relay
from cassq.outbox.table import LandingPlace
from tests.faults.parts import Stage


class Halting(OutboxDatabase):
    """A database whose user stops, before or after a step, until it is told to go on.

    at: the step, and which time it is reached.
    """

    def __init__(self, stage: Stage, path: str, at: tuple[str, int]) -> None:
        super().__init__(database_of(path)._session, "sqlite")
        self._stage = stage
        self._step, self._left = at

    def lead(self) -> int:
        found = super().lead()
        self._reached("led")
        return found

    def note(self, epoch: int, place: LandingPlace) -> None:
        self._reached("noting")
        super().note(epoch, place)
        self._reached("noted")

    def done(self, epoch: int, rows: Sequence[int], places: Sequence[LandingPlace]) -> None:
        self._reached("pushed")
        super().done(epoch, rows, places)
        self._reached("deleted")

    def _reached(self, step: str) -> None:
        self._left -= step == self._step
        if step == self._step and self._left == 0:
            self._stage.tell("reached", step)
            os.kill(os.getpid(), signal.SIGSTOP)


def relay(stage: Stage, url: str, path: str, at: tuple[str, int]) -> None:
    """Forward what there is; tells how much that was, and whether it leads."""
    with cassq.connect(url) as client, Relay(client, Halting(stage, path, at)) as forwarding:
        done = forwarding.forward()
        stage.tell("done", done.forwarded, done.leads)
