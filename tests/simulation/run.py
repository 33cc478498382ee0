"""One seed's run, and what is told of its failure."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.simulation.plants.plants import Plant
from tests.simulation.worlds.world import World

FRAMES_SHOWN = 6
EVENTS_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that failed: why, and what happened last."""

    seed: int
    reason: str
    trace: list[str]
    plant: str = ""
    option: str = ""

    def __str__(self) -> str:
        """The reason, the last events, and the command that shows it again."""
        planted = f" --plant {self.plant}" if self.plant else self.option
        return "\n".join(
            (
                f"SEED {self.seed} FAILED: {self.reason}",
                *(f"    {line}" for line in self.trace[-EVENTS_SHOWN:]),
                f"  again: python -m tests.simulation --seeds 1 --from {self.seed}{planted}",
            )
        )


def run_seed(
    seed: int, plant: Plant | None = None, *, verbose: bool = False, kind: type[World] = World
) -> Failure | None:
    """Run one seed, of this kind of world; what went wrong, if anything. With a plant, its bug is
    there, and the world is the plant's."""
    if plant is None:
        return run_world(kind(seed, verbose=verbose))
    with plant.patch():
        failure = run_world(plant.world(seed, verbose=verbose))
    return failure and replace(failure, plant=plant.name)


def run_world(world: World) -> Failure | None:
    """Run a world to its end; what went wrong, if anything."""
    try:
        with _kept_quiet():
            world.run()
    except Exception as exc:
        last = traceback.extract_tb(exc.__traceback__)[-FRAMES_SHOWN:]
        reason = f"{type(exc).__name__}: {exc}\n{''.join(traceback.format_list(last))}"
        trace = list(world.scheduler.trace)
        return Failure(world.seed, reason, trace, option=world.option)
    finally:
        world.end()
    return None


@contextmanager
def _kept_quiet() -> Iterator[None]:
    """Log nothing of a run, whose mishaps are many, and wanted. Only of a run: tests of what is
    logged share the process."""
    log = logging.getLogger("cassq")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
