"""The command: `python -m tests.simulation --seeds N --from S [--sidecars] [--plant NAME]`."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.plants import PLANTS
from tests.simulation.run import run_seed
from tests.simulation.sidecar_plants import SIDECAR_PLANTS

# Of every so many seeds there is a world whose pipes are on sidecars as well.
SIDECARS_EACH = 5


def main() -> int:
    """Run the seeds; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="how many")
    parser.add_argument("--from", type=int, default=0, metavar="S", dest="first", help="the first")
    plants = {plant.name: plant for plant in (*PLANTS, *SIDECAR_PLANTS)}
    parser.add_argument("--plant", choices=list(plants), help="with this bug planted")
    parser.add_argument("--sidecars", action="store_true", help="only worlds with sidecars")
    parser.add_argument("--verbose", action="store_true", help="show every event")
    parser.add_argument("--stop", action="store_true", help="end with the first failure")
    arguments = parser.parse_args()
    plant = plants[arguments.plant] if arguments.plant else None
    runs = [
        (seed, sidecars)
        for seed in range(arguments.first, arguments.first + arguments.seeds)
        for sidecars in (False, True)
        if sidecars is arguments.sidecars or (not plant and sidecars and seed % SIDECARS_EACH == 0)
    ]
    failed = 0
    for done, (seed, sidecars) in enumerate(runs, 1):
        failure = run_seed(seed, plant, verbose=arguments.verbose, sidecars=sidecars)
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
