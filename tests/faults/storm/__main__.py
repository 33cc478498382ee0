"""`python -m tests.faults.storm`: a storm on servers of its own, and its report."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.storm.ground import Ground
from tests.faults.storm.on_cassandra import OnCassandra, prepare_keyspace
from tests.faults.storm.on_sidecars import DISK_BYTES, OPTIONS, SIDECARS, OnSidecars
from tests.faults.storm.plan import make_plan
from tests.faults.storm.run import Size, Storm
from tests.servers.kinds import cassandra, sidecar, zookeeper
from tests.servers.parts import disk, network


def main() -> int:
    """Run it; 0 when every promise was kept."""
    asked = make_parser().parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if asked.seed is None else asked.seed
    directory = asked.report or Path(tempfile.mkdtemp(prefix="cassq-faults."))
    print(f"seed {seed}, {asked.minutes:g} minutes, report in {directory}", flush=True)
    with _ground(asked, f"storm_{seed}") as ground:
        plan = make_plan(seed, asked.minutes * 60, ground.troubles, ground.servers)
        report = Storm(ground, directory, Size(), lambda line: print(line, flush=True)).rage(plan)
    report.write(directory)
    print(report.as_text())
    return 0 if report.good else 1


@contextmanager
def _ground(asked: argparse.Namespace, keyspace: str) -> Iterator[Ground]:
    """The servers, started."""
    uncut = network.obstacle()
    sync = asked.commitlog_sync
    if asked.on == "cassandra":
        with (
            cassandra.cluster(nodes=3, partitions=not uncut, commitlog_sync=sync) as nodes,
            zookeeper.cluster(nodes=3, partitions=not uncut) as keepers,
        ):
            yield OnCassandra(nodes, keepers, keyspace, uncut)
        return
    settings = {"disk_bytes": 0 if disk.obstacle() else DISK_BYTES, "options": OPTIONS}
    if asked.catalog == "embedded":
        with sidecar.cluster(nodes=SIDECARS, partitions=not uncut, **settings) as sidecars:
            yield OnSidecars(sidecars, None)
        return
    with cassandra.cluster(nodes=3, partitions=not uncut, commitlog_sync=sync) as nodes:
        prepare_keyspace(nodes.url(keyspace))
        beside = None if uncut else nodes
        with sidecar.cluster(
            nodes=SIDECARS, catalog=nodes.url(keyspace), beside=beside, **settings
        ) as sidecars:
            yield OnSidecars(sidecars, nodes)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long; default 30")
    parser.add_argument("--seed", type=int, help="of the nemesis's plan; default: a random one")
    parser.add_argument(
        "--on",
        choices=("cassandra", "sidecars"),
        default="cassandra",
        help="what keeps the messages: three Cassandra nodes (the default), or four sidecars",
    )
    parser.add_argument(
        "--catalog",
        choices=("embedded", "cassandra"),
        default="embedded",
        help="of the sidecars: one directory (the default), or three Cassandra nodes",
    )
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
