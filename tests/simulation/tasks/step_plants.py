"""Planted bugs of tasks with steps, with the wrong parts they put in; see `plants`."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from cassq.tasks.steps import cancelling as of_calls
from cassq.tasks.steps import moving
from cassq.tasks.steps.records import STEP_PREFIX
from cassq.tasks.steps.run import Run
from tests.simulation.plants.plants import Plant
from tests.simulation.tasks.step_world import StepWorld, draw_steps


@dataclass(frozen=True)
class StepPlant(Plant):
    """Of a world with tasks. cancels: see there."""

    cancels: float = StepWorld.cancels

    def world(self, seed: int, *, planted: bool = True, verbose: bool = False) -> StepWorld:
        drawn = draw_steps(random.Random(f"steps {seed}"))
        world = StepWorld(seed, replace(drawn, **self.shape), verbose=verbose)
        world.cancels = self.cancels
        return world


def steps_unwritten() -> AbstractContextManager[Any]:
    """What a step returned is known to this run alone."""

    def wrong(self: Any, label: str, raw: bytes, seconds: float = 0.0) -> bytes:
        known: bytes = self._rows.setdefault(STEP_PREFIX + label, raw)
        return known

    return mock.patch.object(Run, "_add", wrong)


def own_results() -> AbstractContextManager[Any]:
    """A run that finds the result of another, which was faster, goes on with its own."""
    right = Run.returned

    def wrong(self: Any, label: str, at: int, began_ms: int, value: object) -> Any:
        right(self, label, at, began_ms, value)
        return value

    return mock.patch.object(Run, "returned", wrong)


def claims_unchecked() -> AbstractContextManager[Any]:
    """A worker whose claim is over begins the next step all the same."""
    return mock.patch.object(Run, "_check_claim", lambda self: None)


def awake_at_once() -> AbstractContextManager[Any]:
    """A task that runs again during a sleep goes on."""
    return mock.patch.object(Run, "_is_awake", lambda self, label, record: True)


def intents_believed() -> AbstractContextManager[Any]:
    """A worker that finds the place of a later message takes that for pushed."""
    return mock.patch.object(moving, "settle_move", lambda context, call, place: None)


def not_woken() -> AbstractContextManager[Any]:
    """A signal that comes while the task ends its run does not wake it."""
    return mock.patch.object(moving, "wake", lambda desk, task_id: False)


def cancels_nothing() -> AbstractContextManager[Any]:
    """A call that waits for a worker is said to be cancelled, and stays."""
    return mock.patch.object(of_calls, "withdraw", lambda *arguments: True)


CRASHES: dict[str, Any] = {
    "crash_rate": 0.02, "pause_rate": 0.0, "fault_rate": 0.0, "switches": 500, "cuts": 0,
}  # fmt: skip
KILLED: dict[str, Any] = CRASHES | {"crash_rate": 0.1, "switches": 800, "fuel": (1, 20)}
PAUSES: dict[str, Any] = {
    "pause_rate": 0.05, "pause_ms": (100, 5000), "fault_rate": 0.0, "switches": 600, "cuts": 0,
}  # fmt: skip

STEP_PLANTS = [
    StepPlant("step-unwritten", "what a step returned is not recorded", 10,
              CRASHES, patch=steps_unwritten),
    StepPlant("step-of-its-own", "a run goes on with its own result, not the recorded one", 60,
              PAUSES, patch=own_results),
    StepPlant("step-claim-unchecked", "a step begins though its worker's claim is over", 60,
              PAUSES, patch=claims_unchecked),
    StepPlant("sleep-shortened", "a task that runs again during its sleep goes on", 20,
              CRASHES, patch=awake_at_once),
    StepPlant("move-intent-believed", "who finds the intent of a move takes it for pushed", 20,
              KILLED, patch=intents_believed),
    StepPlant("signal-not-woken", "a signal does not wake the task that waits for it", 10,
              CRASHES, patch=not_woken),
    StepPlant("cancel-untaken", "a call that is cancelled stays for a worker", 20,
              CRASHES, patch=cancels_nothing, cancels=0.5),
]  # fmt: skip
