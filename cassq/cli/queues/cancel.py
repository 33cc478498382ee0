"""`cassq cancel`: take a delayed message back before it is delivered."""

from __future__ import annotations

import click

from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, queue_argument


@click.command(
    cls=Verb,
    short_help="Take a delayed message back before it is delivered.",
    examples=[
        "cassq cancel mail 0197f3a2b4c1d2e3f4a5b6c7:42",
        "cassq cancel mail --dedup-id reminder-7",
    ],
)
@queue_argument("queue")
@click.argument("message_id", required=False, metavar="[MESSAGE_ID]")
@click.option(
    "--dedup-id",
    metavar="ID",
    help="Instead of MESSAGE_ID: the dedup id it was pushed with, within the queue's dedup_window.",
)
@click.pass_context
def cancel(ctx: click.Context, queue: str, message_id: str | None, dedup_id: str | None) -> None:
    """Take a delayed message back: groups that have not received it never will.

    MESSAGE_ID is the id that the push returned. If a group has received the message, the command
    says so, and the exit code is 1; the other groups do not receive it.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        done = client.queue(queue).cancel(message_id, dedup_id=dedup_id)
    if call.as_json:
        output.document({"queue": queue, "cancelled": done})
    else:
        output.say("cancelled" if done else "not cancelled: it was delivered already")
    if not done:
        ctx.exit(1)
