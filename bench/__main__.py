"""`python -m bench`: compare cassq with its peers in one run, and write the results down."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click

from bench.contest import Contest
from bench.measuring.machine import described, file_system
from bench.peers.roster import MODULES, USUAL, peer_class
from bench.plan import Plan
from bench.results.floor import unsynced
from bench.results.report import Report
from bench.results.targets import judge
from bench.scenarios.aio import Aio
from bench.scenarios.backlog import Backlog
from bench.scenarios.cassandra.batches import CassandraBatches
from bench.scenarios.cassandra.cp import CassandraCp
from bench.scenarios.cassandra.poppers import CassandraPoppers
from bench.scenarios.cassandra.retired import CassandraRetired
from bench.scenarios.cassandra.single import CassandraSingle
from bench.scenarios.cassandra.through import OnCassandra
from bench.scenarios.cassandra.workers import CassandraWorkers
from bench.scenarios.concurrent import Concurrent
from bench.scenarios.delayed import Delayed
from bench.scenarios.endurance import Endurance
from bench.scenarios.failing import Failing
from bench.scenarios.fair import Fair
from bench.scenarios.frameworks.beside import Frameworks
from bench.scenarios.frameworks.celery import Celery
from bench.scenarios.gateway.scenario import OverSqs
from bench.scenarios.handlers import Handlers
from bench.scenarios.key_lanes import KeyLanes
from bench.scenarios.keys import Keys
from bench.scenarios.latency import Latency
from bench.scenarios.outbox import InOutbox
from bench.scenarios.reap import Reap
from bench.scenarios.scenario import Scenario
from bench.scenarios.sidecars.engine import EngineAlone
from bench.scenarios.sidecars.failover import SidecarFailover
from bench.scenarios.sidecars.through import OnSidecars
from bench.scenarios.single import Single
from bench.scenarios.spark import Spark, SparkOnCassandra
from bench.scenarios.tasks import Tasks
from bench.scenarios.through import Through
from bench.scenarios.workers import Workers

MESSAGES_MIN = 1_000
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "devtmpfs")
RESULTS = Path(__file__).with_name("RESULTS.md")
SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name: scenario
    for scenario in (
        *(Through, Concurrent, Single, Workers, Latency, Backlog, Endurance, Failing, Keys),
        *(KeyLanes, Fair),
        *(Handlers, Aio, Tasks, Celery, Frameworks, InOutbox),
        *(
            Delayed,
            Reap,
            OnCassandra,
            CassandraSingle,
            CassandraCp,
            CassandraBatches,
            CassandraPoppers,
            CassandraWorkers,
        ),
        *(CassandraRetired,),
        *(OverSqs,),
        *(Spark, SparkOnCassandra, EngineAlone, OnSidecars, SidecarFailover),
    )
}
USUAL_SCENARIOS = tuple(SCENARIOS)

SMALL = "small"


def chosen(
    known: Collection[str], usual: Collection[str]
) -> Callable[[click.Context, click.Parameter, str | None], list[str]]:
    """A parser of comma-separated names out of those that are known; `usual` without any."""

    def parse(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str]:
        if text is None:
            return list(usual)
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def planned(quick: bool, rounds: int | None, messages: str | None) -> Plan:
    """The amounts that the options ask for."""
    plan = Plan.quick() if quick else Plan()
    if messages == SMALL:
        plan = plan.small()
    elif messages is not None:
        try:
            plan = replace(plan, messages=int(messages.replace(",", "").replace("_", "")))
        except ValueError:
            raise click.BadParameter(f"{messages!r} is neither a number nor {SMALL!r}") from None
    if plan.messages < MESSAGES_MIN:
        raise click.BadParameter(f"at least {MESSAGES_MIN} messages are needed")
    return plan if rounds is None else replace(plan, rounds=rounds)


def roomy_directory() -> str:
    """Where temporary files live on a disk: in memory, a sync would cost nothing."""
    usual = tempfile.gettempdir()
    return "/var/tmp" if file_system(Path(usual)) in MEMORY_FILE_SYSTEMS else usual


def say(text: str) -> None:
    """Tell whoever waits how far it is."""
    click.echo(text, err=True)


def terminate(_signal: int, _frame: FrameType | None) -> None:
    # As an exception it passes through every `finally`, which is where servers are ended.
    sys.exit(128 + signal.SIGTERM)


@click.command()
@click.option("--peers", callback=chosen(MODULES, USUAL), help=f"Some of {','.join(MODULES)}.")
@click.option(
    "--scenarios",
    callback=chosen(SCENARIOS, USUAL_SCENARIOS),
    help=f"Some of {','.join(SCENARIOS)}.",
)
@click.option("--quick", is_flag=True, help="One round of small amounts: under three minutes.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each scenario.")
@click.option("--messages", help="How many messages of 100 B pass through, or 'small'.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the results are written; bench/RESULTS.md if everything is measured.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where data is kept during the run: the disk that is measured.",
)
def main(
    peers: list[str],
    scenarios: list[str],
    quick: bool,
    rounds: int | None,
    messages: str | None,
    out: Path | None,
    directory: Path | None,
) -> None:
    """Compare cassq with its peers, side by side in one run."""
    plan = planned(quick, rounds, messages)
    everybody, everything = set(USUAL) <= set(peers), set(USUAL_SCENARIOS) <= set(scenarios)
    whole = plan == Plan() and everybody and everything
    if out is None and whole:
        out = RESULTS
    signal.signal(signal.SIGTERM, terminate)
    home = Path(tempfile.mkdtemp(prefix="cassq-bench-", dir=directory or roomy_directory()))
    try:
        # Servers that run as another user must be able to pass through.
        home.chmod(0o711)
        made = [SCENARIOS[name]() for name in scenarios]
        report = compared(home, plan, taking_part(peers, made, plan), made)
    finally:
        shutil.rmtree(home)
    text = report.markdown()
    click.echo(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        say(f"written to {out}")
    there = [name for name in report.peers if name not in report.missing]
    quicker = unsynced(report.scores, [name for name in there if syncs_each(name)])
    # What was measured for next to no time tells nothing of either.
    if quicker and plan.single_s >= Plan.quick().single_s:
        raise click.ClickException("; ".join(quicker))
    if report.scores.failures:
        raise click.ClickException("some measurements failed; they are named above")


def syncs_each(name: str) -> bool:
    """Whether a peer promises that what it has acknowledged is on the disk."""
    return peer_class(name).traits.durable == "disk"


def taking_part(peers: Sequence[str], scenarios: Sequence[Scenario], plan: Plan) -> list[str]:
    """The peers that some scenario measures: for the others no server needs to be started. One
    whose library is missing stays, to be told of."""

    def is_measured(name: str) -> bool:
        try:
            peer = peer_class(name)
        except ImportError:
            return True
        return any(one.takes_part(case, peer) for one in scenarios for case in one.cases(plan))

    return [name for name in peers if is_measured(name)]


def compared(home: Path, plan: Plan, peers: Sequence[str], scenarios: Sequence[Scenario]) -> Report:
    """Run the contest and hand over what goes into the report."""
    with Contest(home, plan, peers, say) as contest:
        for name, reason in contest.missing.items():
            say(f"{name} is skipped: {reason}")
        if contest.missing and os.environ.get("CI") == "true":
            raise click.ClickException("in CI every peer must be there")
        contest.prove()
        for scenario in scenarios:
            contest.run(scenario)
        return Report(
            plan=plan,
            scenarios=scenarios,
            peers=peers,
            missing=contest.missing,
            scores=contest.scores,
            judgements=judge(contest.scores),
            facts=described(home, contest.server_versions(), peers),
        )


if __name__ == "__main__":
    main()
