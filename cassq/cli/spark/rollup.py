"""`cassq spark rollup`: the statistics history of queues to Parquet, with hours and days."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cassq.cli.spark.session import session_of, session_options
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, complete_queue

if TYPE_CHECKING:
    from cassq.spark.jobs.rollup import RollupProgress


@click.command(
    "rollup",
    cls=Verb,
    short_help="Write the statistics history of queues to Parquet, by hour and day.",
    examples=[
        "cassq spark rollup /var/lib/history",
        "cassq spark rollup hdfs:///history mail orders --master yarn",
    ],
)
@click.argument("directory", metavar="DIR")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@session_options
@click.pass_obj
def rollup(
    call: Invocation,
    directory: str,
    queues: tuple[str, ...],
    master: str | None,
    settings: dict[str, str],
) -> None:
    """Write the history of the QUEUEs, or of all queues, to Parquet tables under DIR.

    The tables are `samples`, the same as in `cassq stats --history`, and `hours` and `days`, which
    are computed from them: totals and their growth, depths, and the largest and mean depths.

    A day that is over is written once; each run replaces the current day. Minutes are kept for two
    days, so run it once a day: for older days only hours, or days, are left.
    """
    with call.connect() as client:
        for name in queues:
            client.queue(name)
    with session_of("rollup", master, settings) as session, output.passing_line() as show:
        from cassq.spark.jobs.rollup import rollup as run

        def progress(state: RollupProgress) -> None:
            show(lambda _: progress_line(state))

        done = run(session, client.url, directory, queues, progress=progress)
    if call.as_json:
        output.document(done.as_dict())
    else:
        rows = [(each.queue, each.days, each.unfinished, each.samples) for each in done.queues]
        output.table(("QUEUE", "DAYS", "UNFINISHED", "SAMPLES"), rows)


def progress_line(state: RollupProgress) -> str:
    """How far a roll-up is."""
    return f"{state.queues:,} of {state.queues_in_all:,} queues, {state.samples:,} samples"
