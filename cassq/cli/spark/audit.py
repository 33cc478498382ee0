"""`cassq spark audit`: the audit of a queue that is too long for one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cassq.cli.ops.audit import tell_findings
from cassq.cli.spark.session import session_of, session_options
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, queue_argument
from cassq.inspect.audit import Audit
from cassq.inspect.stats import LEDGER

if TYPE_CHECKING:
    from cassq.spark.jobs.audit import AuditProgress


@click.command(
    "audit",
    cls=Verb,
    short_help="Prove that no message of a long queue is lost or was invented.",
    examples=[
        "cassq spark audit mail",
        "cassq spark audit mail --master yarn --json | jq .findings",
    ],
)
@queue_argument("queue")
@click.option(
    "--messages-per-task",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    metavar="COUNT",
    help="A task reads at most this many messages of a pipe.",
)
@session_options
@click.pass_context
def audit(
    ctx: click.Context,
    queue: str,
    messages_per_task: int,
    master: str | None,
    settings: dict[str, str],
) -> None:
    """Check that no message of QUEUE is lost or was invented, like `cassq audit`, in many tasks.

    Every stored message is read and its checksum verified. For each group, every message must have
    exactly one state: waiting, pending, committed, dead, expired, purged, merged, lost or skipped.
    Retired pipes count with the totals that were recorded when they were retired.

    If something is wrong, the command says what, and the exit code is 1. The output of --json is
    that of `cassq audit QUEUE --json`.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        client.queue(queue)
    with session_of("audit", master, settings) as session, output.passing_line() as show:
        from cassq.spark.jobs.audit import audit as run

        def progress(state: AuditProgress) -> None:
            show(lambda _: progress_line(state))

        found = run(
            session, client.url, queue, messages_per_task=messages_per_task, progress=progress
        )
    if call.as_json:
        output.document(found.as_dict())
    else:
        output.table(("GROUP", "PUSHED", *map(str.upper, LEDGER), "BALANCED"), _rows(found))
        tell_findings([found])
    if not found.balanced:
        ctx.exit(1)


def progress_line(state: AuditProgress) -> str:
    """How far an audit is."""
    of = output.messages(state.messages_in_all)
    return f"{state.messages:,} of {of} of {state.pipes:,} pipes"


def _rows(found: Audit) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [
        (name, group.pushed, *(getattr(group, fate) for fate in LEDGER), found.balanced)
        for name, group in found.groups.items()
    ]
    return rows or [(None, found.pushed, *([None] * len(LEDGER)), found.balanced)]
