"""`cassq group`: make, list, change and delete the consumer groups of a queue."""

from __future__ import annotations

from datetime import datetime
from typing import Any, get_args

import click

from cassq.cli.queues.policies import (
    INHERIT,
    NEVER,
    given,
    given_at_least_one,
    group_options,
)
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, queue_argument, sure_to
from cassq.client.queue import Group
from cassq.errors import GroupNotFoundError
from cassq.inspect.expired_groups import ExpiredGroup
from cassq.model.queues import FIXED_SETTINGS
from cassq.plurals import counted
from cassq.settings import Start

STARTS: tuple[Start, ...] = get_args(Start)


def start_of(value: str) -> Start | datetime:
    """Where a group starts: beginning, now, or a time."""
    for word in STARTS:
        if value == word:
            return word
    try:
        start = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither 'beginning' nor 'now' nor a time like 2026-01-31T12:00:00Z"
        ) from None
    if start.tzinfo is None:
        raise click.BadParameter(
            f"{value!r} has no time zone: add Z for UTC, or an offset like +02:00"
        )
    return start


@click.group()
def group() -> None:
    """Create, list, change and delete consumer groups.

    Every group sees every message of its queue; the poppers of one group share them.
    """


@group.command(
    "create",
    cls=Verb,
    examples=[
        "cassq group create mail archive",
        "cassq group create mail alerts --start now --max-deliveries 3",
        "cassq group create mail today --start 2026-01-31T00:00:00+01:00",
        "cassq group create mail screen-7 --start now --expires 60",
    ],
)
@queue_argument("queue")
@click.argument("name")
@click.option(
    "--start",
    type=start_of,
    default="beginning",
    show_default=True,
    metavar="beginning|now|TIME",
    help="The first message the group gets: the oldest not yet retired, the next one pushed, or"
    " the first pushed at or after a time, in ISO form with its time zone.",
)
@group_options(defaults=True)
@click.pass_obj
def create(
    call: Invocation, /, queue: str, name: str, start: Start | datetime, **settings: Any
) -> None:
    """Create a consumer group for a queue.

    If the group exists with the same settings, nothing happens; with other settings the command
    fails and names the differences.
    """
    with call.connect() as client:
        made = client.queue(queue).create_group(name, start=start, **given(settings))
    _show(call, [made], queue)


@group.command(
    "list", cls=Verb, examples=["cassq group list mail", "cassq group list mail --expired"]
)
@queue_argument("queue")
@click.option(
    "--expired",
    is_flag=True,
    help="List the groups that expired in the last 60 days instead, and what they had then.",
)
@click.pass_obj
def list_(call: Invocation, queue: str, expired: bool) -> None:
    """List the groups of a queue, with their settings."""
    with call.connect() as client:
        if expired:
            _show_expired(call, client.queue(queue).expired_groups(), queue)
            return
        found = client.queue(queue).groups()
    if call.as_json:
        output.document([group.as_dict() for group in found])
    else:
        _show(call, found, queue)


@group.command(
    "update",
    cls=Verb,
    examples=[
        "cassq group update mail archive --claim-timeout 10m",
        "cassq group update mail archive --claim-timeout queue",
    ],
)
@queue_argument("queue")
@click.argument("name")
@group_options(leave_out=FIXED_SETTINGS, defaults=False)
@click.pass_obj
def update(call: Invocation, /, queue: str, name: str, **settings: Any) -> None:
    """Change settings of a group; the others stay as they are.

    Running poppers adopt them within a second.
    """
    changes = given_at_least_one(settings)
    with call.connect() as client:
        changed = client.queue(queue).update_group(name, **changes)
    _show(call, [changed], queue)


@group.command("delete", cls=Verb, examples=["cassq group delete mail archive --yes"])
@queue_argument("queue")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def delete(ctx: click.Context, queue: str, name: str, yes: bool) -> None:
    """Delete a group and its position in the queue: nothing more is delivered to it.

    Its dead letters stay, as their own queue. Asks first; without a terminal --yes is needed.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = client.queue(queue)
        stats = found.stats().groups.get(name)
        if stats is None:
            raise GroupNotFoundError(f"queue {queue!r} has no group {name!r}")
        left = output.messages(stats.waiting + stats.pending)
        question = f"Delete group {name} of {queue}, with {left} not committed?"
        if not sure_to(question, yes=yes, as_json=call.as_json):
            output.note("nothing was deleted")
            ctx.exit(1)
        found.delete_group(name)
    if call.as_json:
        output.document({"queue": queue, "deleted": name})
    else:
        output.say(f"deleted group {name} of {queue}")


@group.command(
    "keys",
    cls=Verb,
    examples=["cassq group keys mail ordered", "cassq group keys mail ordered --limit 100 --json"],
)
@queue_argument("queue")
@click.argument("name")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="COUNT",
    help="Show at most this many keys.",
)
@click.pass_context
def keys(ctx: click.Context, queue: str, name: str, limit: int) -> None:
    """Show the keys of a keyed group that wait for a failed, held or dead message.

    Keys with the most messages waiting come first. Only messages that a popper has claimed count.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = client.queue(queue).held_keys(name, limit)
    if call.as_json:
        output.document([held.as_dict() for held in found])
        return
    headers = ("KEY", "BEHIND", "STATE", "ATTEMPTS", "UNTIL", "ERROR", "MESSAGE")
    rows = [
        (
            *(held.as_dict()["key"], held.behind, held.state, held.attempts),
            *(held.due_at and output.moment(held.due_at), held.error, held.message_id),
        )
        for held in found
    ]
    output.table(headers, rows)


@group.command(
    "release-key",
    cls=Verb,
    examples=[
        "cassq group release-key mail ordered customer-7",
        "cassq group release-key mail ordered customer-7 --give-up",
    ],
)
@queue_argument("queue")
@click.argument("name")
@click.argument("key")
@click.option(
    "--give-up",
    is_flag=True,
    help="If a failed message holds the key, make it a dead letter now.",
)
@click.pass_obj
def release_key(call: Invocation, queue: str, name: str, key: str, give_up: bool) -> None:
    """Release a key that dead letters hold, in a group with --on-dead hold.

    Later messages of the key go on, and the dead letters stay. Merging or purging the letters also
    releases their keys. `cassq group keys` shows which keys are held, and by what.
    """
    with call.connect() as client:
        letters = client.queue(queue).release_key(name, key.encode(), give_up=give_up)
    if call.as_json:
        output.document({"queue": queue, "group": name, "key": key, "letters": letters})
    elif letters:
        noun = "message" if give_up else "dead letter"
        output.say(f"released key {key}, which {counted(letters, noun)} held")
    elif give_up:
        output.say(f"no dead letter or failed message holds key {key}")
    else:
        output.say(f"no dead letter holds key {key}")


def _show_expired(call: Invocation, groups: list[ExpiredGroup], queue: str) -> None:
    if call.as_json:
        output.document([group.as_dict() for group in groups])
        return
    parts = ("committed", "waiting", "pending", "dead")
    headers = ("QUEUE", "GROUP", "REMOVED", "NO POPPER FOR", "PUSHED", *map(str.upper, parts))
    rows = [
        (
            *(queue, each.name, output.moment(each.at), f"{each.expires:g} s", each.pushed),
            *(each.counts[part] for part in parts),
        )
        for each in groups
    ]
    output.table(headers, rows)


def _show(call: Invocation, groups: list[Group], queue: str) -> None:
    if call.as_json:
        output.document(groups[0].as_dict())
        return
    rows = [
        (
            queue,
            group.name,
            group.policy.exclusive,
            group.policy.order,
            INHERIT if group.policy.claim_timeout is None else f"{group.policy.claim_timeout:g} s",
            INHERIT if group.policy.max_deliveries is None else str(group.policy.max_deliveries),
            NEVER if group.policy.group_expires is None else f"{group.policy.group_expires:g} s",
        )
        for group in groups
    ]
    headers = ("QUEUE", "GROUP", "EXCLUSIVE", "ORDER", "CLAIM TIMEOUT", "MAX DELIVERIES", "EXPIRES")
    output.table(headers, rows)
