"""`cassq spill`: show what clients of a cluster have put into a local spool, and forward it."""

from __future__ import annotations

import click

from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb
from cassq.client.connecting import open_spool
from cassq.client.spool import Spilled
from cassq.errors import ConfigError

URL = "'cassandra://db1/cassq?spill=/var/lib/cassq-spool'"
HEADERS = ("QUEUE", "SPILLED", "FORWARDED", "WAITING")


@click.group()
def spill() -> None:
    """Look at a local spool, and forward its messages.

    A spool is the directory that `spill=` names in the URL of a Cassandra keyspace. While no quorum
    answers, clients write pushes to ap queues there; when a quorum answers again, they forward
    them.
    """


@spill.command(
    "status",
    cls=Verb,
    short_help="Show how many messages are, and were, in a spool.",
    examples=[f"cassq spill status --url {URL}", f"cassq spill status --json --url {URL}"],
)
@click.pass_obj
def status(call: Invocation) -> None:
    """Show how many messages were spilled for each queue, and how many wait to be forwarded.

    No server is contacted.
    """
    spool = open_spool(call.url)
    try:
        found = spool.contents()
    finally:
        spool.close(quietly=True)
    _show(call, found)


@spill.command(
    "forward",
    cls=Verb,
    short_help="Forward the messages in a spool to their queues.",
    examples=[f"cassq spill forward --url {URL}"],
)
@click.pass_context
def forward(ctx: click.Context) -> None:
    """Forward the messages waiting in a spool, for example after the client that spilled them has
    ended.

    Any number of processes may do so at the same time: each message goes to its queue once, and a
    process leaves out messages that another one is forwarding. The exit code is 75 while no quorum
    answers, and 1 if something cannot be forwarded because its queue was deleted or is paused.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        if client.spool is None:
            raise ConfigError("the URL names no spool", hint=f"write {URL}")
        done = client.spool.forward()
        found = client.spool.contents()
    for why in done.stuck.values():
        output.note(f"note: {why}")
    _show(call, found)
    if done.stuck:
        ctx.exit(1)


def _show(call: Invocation, found: list[Spilled]) -> None:
    if call.as_json:
        output.document([each.as_dict() for each in found])
    else:
        rows = [(each.queue, each.spilled, each.forwarded, each.waiting) for each in found]
        output.table(HEADERS, rows)
