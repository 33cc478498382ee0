"""`cassq explain`: where a message is for every group, and what happens to it next."""

from __future__ import annotations

import click

from cassq.base.printing import printable
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb


@click.command(
    cls=Verb,
    short_help="Show where a message is, and what happens to it next.",
    examples=[
        "cassq explain 0197f3a2b4c1d2e3f4a5b6c7:42",
        "cassq explain 0197f3a2b4c1d2e3f4a5b6c7:42 --json",
    ],
)
@click.argument("message_id", metavar="MESSAGE_ID")
@click.pass_obj
def explain(call: Invocation, message_id: str) -> None:
    """Show where a message is for every consumer group: which popper holds it and until when, what
    happened to it before, and what will happen next and when. Also show its priority, and the
    greater priorities whose messages go before it.

    MESSAGE_ID is the id that the push returned; `cassq pop --json` and `cassq peek` show it too. It
    stays the same when a message becomes a dead letter and when it is merged back. The message is
    not affected.
    """
    with call.connect() as client:
        explanation = client.explain(message_id)
    if call.as_json:
        output.document(explanation.as_dict())
    else:
        output.say(*map(printable, explanation.sentences()))
