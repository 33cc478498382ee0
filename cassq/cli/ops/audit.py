"""`cassq audit`: prove from the data itself that every message is accounted for."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cassq.base.printing import printable
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, complete_queue
from cassq.inspect.audit import Audit

HEADERS = (
    *("QUEUE", "PUSHED", "GROUP", "WAITING", "PENDING", "COMMITTED", "DEAD", "SKIPPED"),
    "BALANCED",
)


@click.command(
    cls=Verb,
    short_help="Prove that no message is lost or was invented.",
    examples=["cassq audit", "cassq audit mail", "cassq audit mail --json | jq .balanced"],
)
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@click.pass_context
def audit(ctx: click.Context, queues: tuple[str, ...]) -> None:
    """Check that no message of the QUEUEs, or of any queue, is lost or was invented.

    Every stored message is read and its checksum verified. Then, for each group: pushed = waiting +
    pending + committed + dead + expired + purged + merged + lost + skipped. Lost are damaged
    messages that `cassq pipe skip` gave up; skipped are those that were pushed before the group's
    start. No counter is trusted except the totals that were written once when a pipe was retired.
    It also checks that each claimed message has the priority with which it was pushed; that
    messages with keys are in the pipes of their key lanes; that poppers do not share more permits
    than `concurrency` allows (they may for a while after it was lowered, and that is reported too);
    and that no push of a schedule's tick has been unfinished for more than a minute.

    If something is wrong, the command says what, and the exit code is 1. While others push and pop,
    numbers change during the audit: if a queue then does not balance, audit it again at a quiet
    moment. With --json, one QUEUE gives one object; several, or none, give a list.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = [client.queue(name) for name in queues] or client.queues()
        audits = [queue.audit() for queue in found]
    if call.as_json:
        documents = [audit.as_dict() for audit in audits]
        output.document(documents[0] if len(queues) == 1 else documents)
    else:
        _show(audits)
    if not all(audit.balanced for audit in audits):
        ctx.exit(1)


def _show(audits: list[Audit]) -> None:
    output.table(HEADERS, [row for audit in audits for row in _rows(audit)])
    tell_findings(audits)


def tell_findings(audits: Sequence[Audit]) -> None:
    """Show the findings; raises an error if there are any."""
    wrong = [audit for audit in audits if not audit.balanced]
    for audit in wrong:
        output.say("", *(f"{audit.queue}: {printable(what)}" for what in audit.findings))
    if wrong:
        names = ", ".join(audit.queue for audit in wrong)
        output.error(
            f"the audit of {names} does not balance",
            "was the queue in use? then audit it again at a quiet moment; otherwise keep a copy of"
            " the data",
        )


def _rows(audit: Audit) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [
        (
            *(audit.queue, audit.pushed, name),
            *(g.waiting, g.pending, g.committed, g.dead, g.skipped),
            audit.balanced,
        )
        for name, g in audit.groups.items()
    ]
    return rows or [(audit.queue, audit.pushed, *([None] * 6), audit.balanced)]
