"""`cassq pipe`: list the pipes of a queue, find what cannot be read, and skip it."""

from __future__ import annotations

import click

from cassq.base.printing import printable
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, queue_argument, sure_to
from cassq.lifecycle.damage import PipeDamage, PipeInfo


@click.group()
def pipe() -> None:
    """List the pipes of a queue, look for damage, and skip it.

    A pipe is the log that one pusher writes. A message that cannot be read stops its pipe for every
    consumer; other pipes continue.
    """


@pipe.command(
    "list",
    cls=Verb,
    examples=[
        "cassq pipe list mail",
        "cassq pipe list mail --damaged",
        "cassq pipe list mail --json",
    ],
)
@queue_argument("queue")
@click.option("--damaged", is_flag=True, help="Read every message, and list only damaged pipes.")
@click.pass_context
def list_(ctx: click.Context, queue: str, damaged: bool) -> None:
    """List the pipes of a queue that are not retired, oldest first.

    LEFT counts the messages that the slowest consumer group has not committed, LOST those that
    `cassq pipe skip` gave up. The messages of a pipe are counted only after it is sealed. With
    --damaged every message is read, and the exit code is 1 if any pipe is damaged.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = client.queue(queue)
        pipes = found.pipes()
        looked = [found.look_into_pipe(each.id) for each in pipes] if damaged else []
    bad = {each.pipe_id: each for each in looked if each.is_damaged}
    if damaged:
        pipes = [each for each in pipes if each.id in bad]
    if call.as_json:
        output.document([{**each.as_dict(), **_damage(bad.get(each.id))} for each in pipes])
    else:
        headers = ("PIPE", "STATE", "OPENED", "MESSAGES", "LEFT", "LOST", "DAMAGED")
        output.table(headers if damaged else headers[:-1], [_row(each, bad) for each in pipes])
    if bad:
        ctx.exit(1)


def _damage(found: PipeDamage | None) -> dict[str, object]:
    return {} if found is None else {"unreadable": found.unreadable}


def _row(info: PipeInfo, bad: dict[str, PipeDamage]) -> tuple[object, ...]:
    state = f"{info.state}, delayed" if info.delayed else info.state
    state += f", priority {info.priority}" if info.priority else ""
    left = max(info.left.values(), default=0) if info.messages is not None else None
    row = (
        *(info.id, state, output.moment(info.opened_at), info.messages, left),
        max(info.lost.values(), default=0),
    )
    return (*row, bad[info.id].unreadable) if info.id in bad else row


@pipe.command("show", cls=Verb, examples=["cassq pipe show 018bcfe5680001a2b3c4d5e6"])
@click.argument("pipe_id", metavar="PIPE")
@click.pass_context
def show(ctx: click.Context, pipe_id: str) -> None:
    """Read a whole pipe, and show its damage and the cost of skipping it.

    For each consumer group, LOST counts the messages that `cassq pipe skip` would give up, HELD the
    unreadable messages that a consumer holds, and READABLE the messages that the group can still
    get. The exit code is 1 if the pipe is damaged.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = client.queue_of_pipe(pipe_id).look_into_pipe(pipe_id)
    if call.as_json:
        output.document(found.as_dict())
    else:
        _show(found)
    if found.is_damaged:
        ctx.exit(1)


@pipe.command(
    "skip",
    cls=Verb,
    examples=[
        "cassq pipe skip 018bcfe5680001a2b3c4d5e6 --dry-run",
        "cassq pipe skip 018bcfe5680001a2b3c4d5e6 --yes",
    ],
)
@click.argument("pipe_id", metavar="PIPE")
@click.option("--dry-run", is_flag=True, help="Show the cost, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def skip(ctx: click.Context, pipe_id: str, dry_run: bool, yes: bool) -> None:
    """Skip the damage in a pipe: give up unreadable messages, and deliver the rest.

    Unreadable messages are recorded as lost, permanently, for each existing consumer group that has
    not received them; stats, audit, explain and an alert count them. Shows the cost and asks first;
    without a terminal --yes is needed. A pipe that is still being written is sealed; its pusher
    continues in another. Consumers keep the messages that they hold: skip the pipe again when they
    have finished these.

    If the damage can be undone (a file or sidecar that is only unavailable, a backup), do that
    instead: messages that were given up stay lost.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        queue = client.queue_of_pipe(pipe_id)
        if dry_run or not yes:
            found = queue.skip_damage(pipe_id, dry_run=True)
            if dry_run:
                _write(call, found)
                return
            if not found.is_damaged:
                _write(call, found)
                return
            if not call.as_json:
                _show(found)
            lost = output.messages(found.lost)
            question = f"Give up {lost} of {queue.name} permanently, and deliver the rest?"
            if not sure_to(question, yes=yes, as_json=call.as_json, doing="giving up"):
                output.note("nothing was given up")
                ctx.exit(1)
        done = queue.skip_damage(pipe_id)
    if call.as_json:
        output.document(done.as_dict())
    elif not done.skipped:
        output.say(f"pipe {pipe_id} is not damaged: nothing was done")
    else:
        output.say(f"gave up {output.messages(done.lost)} of pipe {pipe_id}")
        if done.header and not done.lost:
            output.note("its header was rewritten")
        held = sum(group.held for group in done.groups.values())
        if held:
            output.note(f"{output.messages(held)} held by consumers: skip it again later")


def _write(call: Invocation, found: PipeDamage) -> None:
    if call.as_json:
        output.document(found.as_dict())
    else:
        _show(found)


def _show(found: PipeDamage) -> None:
    """What was found, for people."""
    output.say(
        f"pipe {found.pipe_id} of {found.queue} is {found.state} and holds"
        f" {output.messages(found.messages)}"
    )
    if found.header:
        output.say(f"it cannot be opened, but its messages can be read: {found.header}")
    if not found.damaged:
        output.say("every message can be read")
        return
    output.say(f"{output.messages(found.unreadable)} cannot be read:")
    for start, end, why in found.damaged:
        span = f"seq {start}" if end == start + 1 else f"seqs {start} to {end - 1}"
        output.say(f"  {span}: {printable(why)}")
    rows = [(name, each.lost, each.held, each.readable) for name, each in found.groups.items()]
    output.table(("GROUP", "LOST", "HELD", "READABLE"), rows)
