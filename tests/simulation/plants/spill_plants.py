"""Planted bugs of spilling, with the wrong parts they put in; see `plants`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from cassq.client import spool
from cassq.client.forwarding import Forwarder
from tests.simulation.plants import wrong_parts as wrong
from tests.simulation.plants.plants import Plant
from tests.simulation.worlds.spill_world import SpillWorld, draw_spilling


@dataclass(frozen=True)
class SpillPlant(Plant):
    """Of a world whose pushers spill."""

    def world(self, seed: int, *, planted: bool = True, verbose: bool = False) -> SpillWorld:
        drawn = draw_spilling(random.Random(f"spilling {seed}"))
        world = SpillWorld(seed, replace(drawn, **self.shape), verbose=verbose)
        if planted:
            for name, part in self.parts.items():
                setattr(world, name, part)
        return world


@contextmanager
def notes_nothing() -> Iterator[None]:
    """Where a push without an answer may have got to is not noted with what is spilled."""
    with mock.patch.object(spool, "notes", lambda *_: None):
        yield


@contextmanager
def commits_first() -> Iterator[None]:
    """What is spilled counts as forwarded before it is."""
    carry = Forwarder._carry

    def committed_first(
        self: Any, spool_row: Any, row: Any, messages: Any, popper: Any, *rest: Any
    ) -> None:
        popper.commit(messages)
        carry(self, spool_row, row, messages, popper, *rest)

    with mock.patch.object(Forwarder, "_carry", committed_first):
        yield


@contextmanager
def looks_nowhere() -> Iterator[None]:
    """What is carried is pushed, whether it is there already or not."""
    with mock.patch("cassq.client.forwarding.ForwardedPush._bears", lambda *_: False):
        yield


LOSSES: dict[str, Any] = {"switches": 1000, "messages": 200, "cuts": 0}
CUTS: dict[str, Any] = {"switches": 600, "cuts": 3, "messages": 200}

SPILL_PLANTS = [
    SpillPlant("spill-unnoted", "a push without an answer is spilled, and not where it may be", 60,
               LOSSES, patch=notes_nothing),
    SpillPlant("spill-committed-first", "what is spilled is acked before it is forwarded", 60,
               LOSSES, patch=commits_first),
    SpillPlant("spill-blind", "who forwards again does not look whether it has arrived", 60,
               LOSSES, patch=looks_nowhere),
    SpillPlant("spill-unsynced", "what is spilled is acknowledged before it is synced", 60,
               CUTS, parts={"spool_disk_class": wrong.SyncsTooLate}),
]  # fmt: skip
