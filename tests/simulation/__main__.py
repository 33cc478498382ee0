"""The command: `python -m tests.simulation --seeds N --from S [--plant NAME] [--verbose]`."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.plants import PLANTS, plant_named
from tests.simulation.run import run_seed


def main() -> int:
    """Run the seeds; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="how many")
    parser.add_argument("--from", type=int, default=0, metavar="S", dest="first", help="the first")
    parser.add_argument(
        "--plant", choices=[plant.name for plant in PLANTS], help="with this bug planted"
    )
    parser.add_argument("--verbose", action="store_true", help="show every event")
    parser.add_argument("--stop", action="store_true", help="end with the first failure")
    arguments = parser.parse_args()
    plant = plant_named(arguments.plant) if arguments.plant else None
    failed = 0
    for done, seed in enumerate(range(arguments.first, arguments.first + arguments.seeds), 1):
        failure = run_seed(seed, plant, verbose=arguments.verbose)
        if failure is not None:
            failed += 1
            print(f"\n{failure}\n", flush=True)
            if arguments.stop:
                break
        if done % 50 == 0:
            print(f"... {done} seeds, {failed} failed", flush=True)
    print(f"{done - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of what a seed determines.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main())
