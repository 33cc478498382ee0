"""The command: `python -m tests.simulation --seeds N --from S [--only KIND] [--plant NAME]`."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.plants.plants import PLANTS
from tests.simulation.plants.schedule_plants import SCHEDULE_PLANTS
from tests.simulation.plants.sidecar_plants import SIDECAR_PLANTS
from tests.simulation.plants.spill_plants import SPILL_PLANTS
from tests.simulation.run import run_seed
from tests.simulation.tasks.step_plants import STEP_PLANTS
from tests.simulation.tasks.step_world import StepWorld
from tests.simulation.worlds.keyed_world import KeyedWorld
from tests.simulation.worlds.schedule_world import ScheduleWorld
from tests.simulation.worlds.sidecar_world import SidecarWorld
from tests.simulation.worlds.spill_world import SpillWorld
from tests.simulation.worlds.world import World

# Each kind of world, and of how many seeds there is one of it.
KINDS: dict[str, tuple[type[World], int]] = {
    "plain": (World, 1),
    "sidecars": (SidecarWorld, 5),  # whose pipes are on them
    "keys": (KeyedWorld, 3),  # where a group limits each key
    "spilling": (SpillWorld, 10),  # whose pushers are cut off now and then
    "schedules": (ScheduleWorld, 10),  # where nothing but a schedule's ticks is pushed
    "steps": (StepWorld, 10),  # where there are tasks with steps, and nothing else
}


def main() -> int:
    """Run the seeds; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="how many")
    parser.add_argument("--from", type=int, default=0, metavar="S", dest="first", help="the first")
    everybody = (*PLANTS, *SIDECAR_PLANTS, *SPILL_PLANTS, *SCHEDULE_PLANTS, *STEP_PLANTS)
    plants = {plant.name: plant for plant in everybody}
    parser.add_argument("--plant", choices=list(plants), help="with this bug planted")
    parser.add_argument("--only", choices=list(KINDS), help="worlds of one kind, of each seed")
    parser.add_argument("--verbose", action="store_true", help="show every event")
    parser.add_argument("--stop", action="store_true", help="end with the first failure")
    arguments = parser.parse_args()
    plant = plants[arguments.plant] if arguments.plant else None
    only = arguments.only or (plant and "plain")
    runs = [
        (seed, kind)
        for seed in range(arguments.first, arguments.first + arguments.seeds)
        for name, (kind, each) in KINDS.items()
        if (name == only if only else seed % each == 0)
    ]
    failed = 0
    for done, (seed, kind) in enumerate(runs, 1):
        failure = run_seed(seed, plant, verbose=arguments.verbose, kind=kind)
        if failure is not None:
            failed += 1
            print(f"\n{failure}\n", flush=True)
            if arguments.stop:
                break
        if done % 50 == 0:
            print(f"... {done} runs, {failed} failed", flush=True)
    print(f"{done - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of what a seed determines.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
