"""Plants known bugs one at a time, and runs the tests that should see each: all must be caught.

`python -m tests.mutants` ends with 1 when one survives, or does not fit the source any more.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from cassq.base.clock import Stopwatch
from tests.mutants.mutant import Mutant, Simulated
from tests.mutants.roster import MUTANTS, SIMULATED
from tests.mutants.run import CAUGHT, FAILED, PASSED, SKIPPED, Copy, Verdict, baseline

_ROW = "{:<30} {:<34} {:<44} {:<9} {:>6}"


def chosen(names: Sequence[str], *, simulated: bool) -> list[Mutant | Simulated]:
    """The mutants of these names, or all. Raises SystemExit for a name that there is not."""
    everybody: list[Mutant | Simulated] = [*MUTANTS]
    if simulated or names:
        everybody += SIMULATED
    if not names:
        return everybody
    unknown = set(names) - {mutant.name for mutant in everybody}
    if unknown:
        raise SystemExit(f"there is no mutant {', '.join(sorted(unknown))}; --list names them")
    return [mutant for mutant in everybody if mutant.name in names]


def show(verdict: Verdict) -> None:
    """One line of the table; what was printed too, unless all is well."""
    mutant = verdict.mutant
    row = (mutant.name, mutant.place.removeprefix("cassq/"), _short(mutant.tests), verdict.result)
    print(_ROW.format(*row, f"{verdict.seconds:.1f}"), flush=True)
    if not verdict.is_good:
        print(f"    {mutant.what}")
        print("\n".join(f"    {line}" for line in verdict.output.splitlines()[-15:]), flush=True)


def _short(tests: str) -> str:
    return tests if len(tests) <= 44 else tests[:43] + "…"


def run(mutants: Sequence[Mutant | Simulated], jobs: int) -> list[Verdict]:
    """Judge them, several side by side, each in a copy of its own."""
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="cassq-mutants-") as name:
        trees = [Copy(Path(name) / f"tree-{number}") for number in range(jobs)]
        copies: SimpleQueue[Copy] = SimpleQueue()
        for copy in trees:
            assert copy.where_cassq_is().is_relative_to(Path(name).resolve()), "another is imported"
            copies.put(copy)
        failed = baseline(trees, mutants)
        if failed:
            print(failed)
            raise SystemExit("tests fail without any bug: what they say of mutants tells nothing")

        def judge(mutant: Mutant | Simulated) -> Verdict:
            copy = copies.get()
            try:
                return copy.judge(mutant)
            finally:
                copies.put(copy)

        print(_ROW.format("name", "file", "tests", "result", "s"))
        with ThreadPoolExecutor(jobs) as pool:
            for verdict in pool.map(judge, mutants):
                show(verdict)
                verdicts.append(verdict)
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="this one")
    parser.add_argument("--list", action="store_true", help="name them, and run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="side by side")
    parser.add_argument(
        "--source-only", action="store_true", help="without those of the simulation's own"
    )
    given = parser.parse_args()
    mutants = chosen(given.only, simulated=not given.source_only)
    if given.list:
        for mutant in mutants:
            print(f"{mutant.name:<30} {mutant.place:<40} {mutant.what}")
        return PASSED
    watch = Stopwatch()
    verdicts = run(mutants, max(1, given.jobs))
    caught = sum(verdict.result == CAUGHT for verdict in verdicts)
    skipped = sum(verdict.result == SKIPPED for verdict in verdicts)
    ci = os.environ.get("CI") == "true"  # where nothing may be missing
    bad = [v.mutant.name for v in verdicts if not v.is_good or (ci and v.result == SKIPPED)]
    print(f"\n{caught} of {len(verdicts)} caught, {skipped} skipped, {watch.seconds():.0f} s")
    if bad:
        print(f"not caught: {', '.join(bad)}")
    return FAILED if bad else PASSED


if __name__ == "__main__":
    sys.exit(main())
