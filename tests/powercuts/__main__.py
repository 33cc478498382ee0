"""Power cuts at random for longer: `python -m tests.powercuts [--runs 20] [--images 100]`.

Each run records some work of a seed, and looks into states that power cuts may leave. It ends with
1, and tells the seed, when a promise was broken.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.powercuts.judge import cuts, told_of
from tests.powercuts.record import compiled, recorded


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.powercuts", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="pieces of work that are recorded")
    parser.add_argument("--images", type=int, default=100, help="moments of each, and half more")
    parser.add_argument("--steps", type=int, default=60, help="what each does")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    looked = failed = 0
    with tempfile.TemporaryDirectory(prefix="cassq-powercuts-") as name:
        directory = Path(name)
        library = compiled(directory)
        for seed in range(given.seed, given.seed + given.runs):
            root = directory / f"root-{seed}"
            root.mkdir()
            work = ["-m", "tests.powercuts.work", str(seed), str(given.steps)]
            events = recorded(library, root, work)
            count, wrong = cuts(events, given.images, f"seed {seed}", directory / "image")
            looked, failed = looked + count, failed + len(wrong)
            print(f"seed {seed}: {len(events)} calls, {count} states, {len(wrong)} bad", flush=True)
            for cut in wrong:
                print(told_of(cut, events))
    print(f"{looked} states of {given.runs} runs, {failed} bad")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
