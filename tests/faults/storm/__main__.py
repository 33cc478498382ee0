"""`python -m tests.faults.storm`: a storm on servers of its own, and its report."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.faults.storm.plan import make_plan
from tests.faults.storm.run import Size, Storm
from tests.servers import cassandra, network, zookeeper


def main() -> int:
    """Run it; 0 when every promise was kept."""
    asked = make_parser().parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if asked.seed is None else asked.seed
    directory = asked.report or Path(tempfile.mkdtemp(prefix="cassq-faults."))
    obstacle = network.obstacle()
    plan = make_plan(seed, asked.minutes * 60, cuts=not obstacle)
    print(f"seed {seed}, {asked.minutes:g} minutes, report in {directory}", flush=True)
    with (
        cassandra.cluster(
            nodes=3, partitions=not obstacle, commitlog_sync=asked.commitlog_sync
        ) as nodes,
        zookeeper.cluster(nodes=3, partitions=not obstacle) as keepers,
    ):
        storm = Storm(nodes, keepers, f"storm_{seed}", directory, Size())
        report = storm.rage(plan, [f"partitions: {obstacle}"] if obstacle else [])
    report.write(directory)
    print(report.as_text())
    return 0 if report.good else 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long; default 30")
    parser.add_argument("--seed", type=int, help="of the nemesis's plan; default: a random one")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="where report.txt, report.json and the clients' journals go; default: a new directory",
    )
    parser.add_argument(
        "--commitlog-sync",
        choices=("group", "batch", "periodic"),
        default="group",
        help="of the nodes; with periodic, nodes killed together may lose what they acknowledged",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
