"""`cassq peek`: look at messages without affecting them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cassq.cli.stopping import StopSignal
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, queue_argument
from cassq.client.queue import PEEK_MAX
from cassq.errors import UsageError
from cassq.inspect.peeking import STATES, Peeked
from cassq.message.decoding import FORMATS, Decoder, decoder
from cassq.settings import State


@click.command(
    cls=Verb,
    short_help="Look at messages without affecting them.",
    examples=[
        "cassq peek mail",
        "cassq peek mail --group archive --max 100 --json",
        "cassq peek mail --state dead --decode json",
        "cassq peek mail --state delayed",
        "cassq peek mail~default~dead",
        "cassq peek orders --decode protobuf:shop.Order --descriptor-set shop.desc",
        "cassq peek mail --raw | head -n 1",
    ],
)
@queue_argument("queue")
@click.option(
    "--group",
    default="default",
    show_default=True,
    help="Show the messages of this consumer group.",
)
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1, PEEK_MAX),
    default=10,
    show_default=True,
    help="Show at most this many messages.",
)
@click.option("--state", type=click.Choice(STATES), help="Show only messages in this state.")
@click.option(
    "--decode",
    metavar="FORMAT",
    help=f"Decode payloads: {', '.join(FORMATS)}. The last two need the extra cassq[decoding].",
)
@click.option(
    "--descriptor-set",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file that describes protobuf's MESSAGE, from protoc's --descriptor_set_out.",
)
@click.option("--raw", is_flag=True, help="Write whole payloads, one per line, as `pop` does.")
@click.pass_obj
def peek(
    call: Invocation,
    queue: str,
    group: str,
    limit: int,
    state: State | None,
    decode: str | None,
    descriptor_set: Path | None,
    raw: bool,
) -> None:
    """Show the next messages a group has not committed, by priority, oldest pipe first.

    The messages are not affected. A message is waiting, pending (a popper has it) or delayed (it is
    not due yet). With --state dead the group's dead letters are shown instead. The table shows the
    beginning of each payload; --json writes one object per line, like `cassq pop --json`, plus the
    state.

    A payload that cannot be decoded is shown as bytes, with the reason.
    """
    if descriptor_set is not None and decode is None:
        raise UsageError("--descriptor-set needs --decode protobuf:MESSAGE")
    if raw and decode is not None:
        raise UsageError("--raw writes payloads as they are: leave --decode out")
    decoding = None if decode is None else decoder(decode, descriptor_set)
    with call.connect() as client:
        found = client.queue(queue).peek(limit, group=group, state=state)
    if call.as_json:
        for message in found:
            output.json_line(_fields(message, decoding))
    elif raw:
        with StopSignal() as stop:
            output.Sink(stop).write(output.message_lines(found, as_json=False))
    else:
        headers = ("ID", "STATE", "ATTEMPTS", "PUSHED", "DUE", "BYTES", "PAYLOAD")
        output.table(headers, [_row(message, decoding) for message in found])


def _fields(message: Peeked, decode: Decoder | None) -> dict[str, Any]:
    due_at = message.due_at.isoformat(timespec="milliseconds") if message.due_at else None
    fields = {**output.message_fields(message), "state": message.state, "due_at": due_at}
    if decode is not None:
        decoded = decode(message.payload)
        fields["decoded"] = decoded.value
        if decoded.error:
            fields["undecodable"] = decoded.error
    return fields


def _row(message: Peeked, decode: Decoder | None) -> tuple[object, ...]:
    return (
        message.id,
        message.state,
        message.attempts,
        output.moment(message.pushed_at),
        output.moment(message.due_at) if message.due_at else None,
        len(message.payload),
        _shown(message.payload, decode),
    )


def _shown(payload: bytes, decode: Decoder | None) -> str:
    if decode is None:
        return output.preview(payload)
    decoded = decode(payload)
    if decoded.error:
        return f"{decoded.error}: {decoded.text}"
    return output.preview(decoded.text.encode())
