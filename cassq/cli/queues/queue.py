"""`cassq queue`: make queues, look at and change their policies, pause, drain, purge, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from cassq.cli.options import time_option
from cassq.cli.queues.policies import NO_LIMIT, SHARES, given, given_at_least_one, queue_options
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, options, queue_argument, sure_to
from cassq.client.queue import Queue
from cassq.model.queues import FIXED_QUEUE_SETTINGS, as_dict
from cassq.plurals import counted

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def queue() -> None:
    """Create, list, show, change, pause, drain, purge and delete queues."""


@queue.command(
    "create",
    cls=Verb,
    examples=[
        "cassq queue create mail",
        "cassq queue create /shop/orders --consistency cp --claim-timeout 5m",
        "cassq --url file:///var/lib/cassq queue create mail",
    ],
)
@click.argument("name")
@queue_options(defaults=True)
@click.pass_obj
def create(call: Invocation, /, name: str, **settings: Any) -> None:
    """Create a queue, with its consumer group `default`.

    NAME is plain, or a path such as /team/name. The directory of the queues is created if it does
    not exist. If the queue exists with the same settings, nothing happens; with other settings the
    command fails and names the differences.
    """
    with call.connect_or_create() as client:
        _show(call, client.create_queue(name, **given(settings)))


@queue.command("list", cls=Verb, examples=["cassq queue list", "cassq queue list /shop --json"])
@click.argument("prefix", default="")
@click.pass_obj
def list_(call: Invocation, prefix: str) -> None:
    """List the queues, or those whose names begin with PREFIX.

    A name that ends in ~dead belongs to a group's dead letters.
    """
    with call.connect() as client:
        found = [described(queue) for queue in client.queues(prefix)]
    if call.as_json:
        output.document(found)
        return
    output.table(
        ("QUEUE", "CONSISTENCY", "GROUPS"),
        [
            (q["name"], q["policy"]["consistency"], ", ".join(g["name"] for g in q["groups"]))
            for q in found
        ],
    )


@queue.command("show", cls=Verb, examples=["cassq queue show mail", "cassq queue show mail --json"])
@queue_argument()
@click.pass_obj
def show(call: Invocation, name: str) -> None:
    """Show a queue's policy and its groups."""
    with call.connect() as client:
        _show(call, client.queue(name))


@queue.command(
    "update",
    cls=Verb,
    examples=["cassq queue update mail --claim-timeout 2m --max-deliveries 5"],
)
@queue_argument()
@queue_options(leave_out=FIXED_QUEUE_SETTINGS, defaults=False)
@click.pass_obj
def update(call: Invocation, /, name: str, **settings: Any) -> None:
    """Change settings of a queue; the others stay as they are.

    Running pushers and poppers adopt them within two seconds. The consistency and the key lanes of
    a queue cannot be changed.
    """
    changes = given_at_least_one(settings)
    with call.connect() as client:
        found = client.queue(name)
        found.update(**changes)
        _show(call, found)


@queue.command(
    "delete", cls=Verb, examples=["cassq queue delete mail", "cassq queue delete mail --yes"]
)
@queue_argument()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def delete(ctx: click.Context, name: str, yes: bool) -> None:
    """Delete a queue for good: messages, groups, dead letters and schedules.

    Shows how many messages and schedules would be lost and asks first; without a terminal --yes is
    needed.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = client.queue(name)
        if not sure_to(
            _question(found, len(client.schedules(name))), yes=yes, as_json=call.as_json
        ):
            output.note("nothing was deleted")
            ctx.exit(1)
        client.delete_queue(name)
    if call.as_json:
        output.document({"deleted": name})
    else:
        output.say(f"deleted {name}")


_paused_options = options(
    click.option("--push", is_flag=True, help="Only pushing."),
    click.option("--pop", is_flag=True, help="Only popping."),
)


@queue.command(
    "pause", cls=Verb, examples=["cassq queue pause mail", "cassq queue pause mail --pop"]
)
@queue_argument()
@_paused_options
@click.pass_obj
def pause(call: Invocation, name: str, push: bool, pop: bool) -> None:
    """Pause pushing and popping, or one of them.

    Pushes are refused and pops find nothing until `cassq queue resume`; running clients notice
    within two seconds. Poppers may still commit the messages that they hold.
    """
    both = push == pop
    with call.connect() as client:
        found = client.queue(name)
        found.pause(push=push or both, pop=pop or both)
        _show_paused(call, found)


@queue.command("resume", cls=Verb, examples=["cassq queue resume mail"])
@queue_argument()
@_paused_options
@click.pass_obj
def resume(call: Invocation, name: str, push: bool, pop: bool) -> None:
    """End a pause of pushing and popping, or of one of them."""
    both = push == pop
    with call.connect() as client:
        found = client.queue(name)
        found.resume(push=push or both, pop=pop or both)
        _show_paused(call, found)


def _show_paused(call: Invocation, queue: Queue) -> None:
    policy = queue.policy
    paused = {"push": policy.push_paused, "pop": policy.pop_paused}
    if call.as_json:
        output.document({"queue": queue.name, "paused": paused})
    else:
        verbs = [f"{verb} is {'paused' if value else 'open'}" for verb, value in paused.items()]
        output.say(f"{queue.name}: {', '.join(verbs)}")


@queue.command("drain", cls=Verb, examples=["cassq queue drain mail --timeout 5m"])
@queue_argument()
@time_option("--timeout", "60s", "Wait at most this long.")
@click.pass_context
def drain(ctx: click.Context, name: str, timeout: float) -> None:
    """Pause pushing, and wait until everything is consumed. Pushing stays paused. The exit code is
    1 if a group has messages left.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        left = client.queue(name).drain(timeout)
    if call.as_json:
        output.document({"queue": name, "left": left})
    else:
        output.say(f"{name} has {output.messages(left)} left" if left else f"{name} is drained")
    if left:
        ctx.exit(1)


@queue.command(
    "purge",
    cls=Verb,
    examples=[
        "cassq queue purge mail --group billing",
        "cassq queue purge mail --yes",
        "cassq queue purge mail --held --yes",
    ],
)
@queue_argument()
@click.option(
    "--group",
    metavar="GROUP",
    help="Delete only messages that wait for this group.  [default: all]",
)
@click.option(
    "--held",
    is_flag=True,
    help="Also delete the messages that poppers hold: their acks and nacks then have no effect.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def purge(ctx: click.Context, name: str, group: str | None, held: bool, yes: bool) -> None:
    """Delete the messages waiting in a queue permanently; the queue stays.

    Delayed messages are deleted too; without --held, poppers keep the messages that they hold.
    Messages that are pushed meanwhile stay. Shows how many messages each group would lose and asks
    first; without a terminal --yes is needed.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = client.queue(name)
        counts = found.count_waiting(group, held=held)
        listed = ", ".join(f"{output.messages(n)} of group {g}" for g, n in counts.items())
        question = f"Purge from {name}: {listed or 'nothing, it has no groups'}?"
        if not sure_to(question, yes=yes, as_json=call.as_json, doing="purging"):
            output.note("nothing was purged")
            ctx.exit(1)
        purged = found.purge(group, held=held)
    if call.as_json:
        output.document({"queue": name, "purged": purged})
        return
    for of_group, count in purged.items():
        output.say(f"purged {output.messages(count)} of group {of_group}")


def _question(queue: Queue, schedules: int) -> str:
    groups = queue.stats().groups
    left = max((g.waiting + g.pending for g in groups.values()), default=0)
    too = f" and {counted(schedules, 'schedule')}" if schedules else ""
    messages = output.messages(left)
    return f"Delete {queue.name}, with {messages} that some group has not committed{too}?"


def described(queue: Queue) -> dict[str, Any]:
    """A queue, for JSON."""
    return {
        "name": queue.name,
        "policy": as_dict(queue.policy),
        "groups": [group.as_dict() for group in queue.groups()],
    }


def _show(call: Invocation, queue: Queue) -> None:
    shown = described(queue)
    if call.as_json:
        output.document(shown)
        return
    settings = {**shown["policy"], "groups": ", ".join(g["name"] for g in shown["groups"])}
    # The values are strings, so that none is aligned to the right.
    output.table(("queue", queue.name), [(k, _plain(k, v)) for k, v in settings.items()])


def _plain(name: str, value: object) -> str:
    if value is None:
        return NO_LIMIT
    if name in SHARES:
        return f"{value:g}"
    return f"{value:g} s" if isinstance(value, float) else str(value)
