"""`cassq outbox`: forward messages that were written in transactions of a user's database."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import click

from cassq.cli.options import time_option
from cassq.cli.stopping import StopSignal
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb
from cassq.outbox.database import database_of
from cassq.outbox.relay import EVERY_SECONDS, Relay
from cassq.plurals import counted

HEADERS = ("QUEUE", "WAITING", "OLDEST")
_METAVAR = "DSN"
_from = click.option(
    "--from",
    "dsn",
    required=True,
    metavar=_METAVAR,
    help="The database: a path, sqlite:///PATH or postgresql://HOST/DATABASE.",
)


@click.group()
def outbox() -> None:
    """Forward messages written in transactions of your own database.

    `cassq.Outbox(connection).push(...)` writes a message into a table, in the transaction of the
    connection: it exists if the transaction commits, and not otherwise. The relay moves messages
    from there to their queues.
    """


@outbox.command(
    "create",
    cls=Verb,
    connects=False,
    short_help="Make the tables of an outbox in a database.",
    examples=["cassq outbox create --in app.db", "cassq outbox create --in postgresql:///app"],
)
@click.option(
    "--in",
    "dsn",
    required=True,
    metavar=_METAVAR,
    help="The database: a path, sqlite:///PATH or postgresql://HOST/DATABASE.",
)
@click.pass_obj
def create(call: Invocation, dsn: str) -> None:
    """Make the three tables of an outbox, where they do not exist.

    `cassq.Outbox.ddl("postgresql")` is their SQL, for a migration.
    """
    with closing(database_of(dsn)) as database:
        database.create()
        name = database.outbox()
    if call.as_json:
        output.document({"outbox": name})
    else:
        output.say(f"outbox {name}")


@outbox.command(
    "relay",
    cls=Verb,
    short_help="Forward the messages of an outbox to their queues.",
    examples=[
        "cassq outbox relay --from app.db",
        "cassq outbox relay --from postgresql:///app --once",
    ],
)
@_from
@click.option("--once", is_flag=True, help="End when nothing is left that can be forwarded.")
@time_option(
    "--every", f"{EVERY_SECONDS:g}s", "How often to look at an empty outbox.", metavar="TIME"
)
@click.pass_context
def relay(ctx: click.Context, dsn: str, once: bool, every: float) -> None:
    """Forward messages, each once and in the order of their queue, until SIGTERM or Ctrl-C.

    Any number of relays may run: one works, and if it dies, another takes over within ten seconds.
    If a queue does not exist, is paused or is full, its messages wait, and those of other queues go
    on. The exit code is 75 if the database or the queues cannot be reached at the start, or with
    --once at any time; with --once it is 1 if messages had to be left.
    """
    call = ctx.ensure_object(Invocation)
    with StopSignal() as stop, call.connect() as client:
        with Relay(client, dsn, every=every) as forwarding:
            done = forwarding.forward(lambda: not stop.wanted)
            if not once:
                forwarding.run(stop.wait)
    if once or call.as_json:
        facts = {"forwarded": done.forwarded, "found": done.found, "stuck": done.stuck}
        if call.as_json:
            output.document({**facts, "leads": done.leads})
        else:
            output.say(f"forwarded {counted(done.forwarded, 'message')}")
    if once and not done.leads:
        output.note("note: another relay of this outbox is at work")
    if once and stop.wanted:
        ctx.exit(stop.exit_code)
    if once and done.stuck:
        ctx.exit(1)


@outbox.command(
    "status",
    cls=Verb,
    connects=False,
    short_help="Show how many messages wait in an outbox.",
    examples=["cassq outbox status --from app.db"],
)
@_from
@click.pass_obj
def status(call: Invocation, dsn: str) -> None:
    """Show how many messages wait for each queue, and since when. No queue is contacted."""
    with closing(database_of(dsn)) as database:
        found = database.waiting()
    times = [datetime.fromtimestamp(each.oldest_ms / 1000, UTC).isoformat() for each in found]
    rows = [(each.queue, each.waiting, at) for each, at in zip(found, times, strict=True)]
    if call.as_json:
        names = ("queue", "waiting", "oldest")
        output.document([dict(zip(names, row, strict=True)) for row in rows])
    else:
        output.table(HEADERS, rows)
