"""`cassq peek`: look at messages without any effect on them."""

from __future__ import annotations

import click

from cassq.cli import output
from cassq.cli.stopping import Stop
from cassq.cli.verb import Invocation, Verb, queue_argument
from cassq.peeking import Peeked
from cassq.queue import PEEK_MAX


@click.command(
    cls=Verb,
    short_help="Look at messages, with no effect on them.",
    examples=[
        "cassq peek mail",
        "cassq peek mail --group archive --max 100 --json",
        "cassq peek mail~default~dead",
        "cassq peek mail --raw | head -n 1",
    ],
)
@queue_argument("queue")
@click.option(
    "--group", default="default", show_default=True, help="The consumer group to look for."
)
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1, PEEK_MAX),
    default=10,
    show_default=True,
    help="Show at most so many messages.",
)
@click.option("--raw", is_flag=True, help="Write whole payloads, one a line, as `pop` does.")
@click.pass_obj
def peek(call: Invocation, queue: str, group: str, limit: int, raw: bool) -> None:
    """Show the next messages a group has not committed, oldest pipe first.

    Nothing happens to them. A message is waiting, or pending: some popper has it. The table shows
    the beginning of each payload; --json has one object a line, like `cassq pop --json`, and the
    state.
    """
    with call.connect() as client:
        found = client.queue(queue).peek(limit, group=group)
    if call.as_json:
        for message in found:
            output.json_line({**output.message_fields(message), "state": message.state})
    elif raw:
        with Stop() as stop:
            output.Sink(stop).write(output.message_lines(found, as_json=False))
    else:
        output.table(("ID", "STATE", "ATTEMPTS", "PUSHED", "BYTES", "PAYLOAD"), map(_row, found))


def _row(message: Peeked) -> tuple[object, ...]:
    return (
        message.id,
        message.state,
        message.attempts,
        output.moment(message.pushed_at),
        len(message.payload),
        output.preview(message.payload),
    )
