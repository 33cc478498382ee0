"""`cassq queue`: make queues, look at their policies, change them, delete them."""

from __future__ import annotations

from typing import Any

import click

from cassq.cli import output
from cassq.cli.policies import given, given_at_least_one, queue_options
from cassq.cli.verb import Invocation, Verb, queue_argument, sure_to_delete
from cassq.queue import Queue
from cassq.queues import as_dict


@click.group()
def queue() -> None:
    """Make, list, show, change and delete queues."""


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
    """Make a queue, with its consumer group `default`.

    NAME is plain, or a path such as /team/name. The directory of the queues is made if it is not
    there. The same queue again is no error; with another policy the differences are named.
    """
    with call.connect_or_create() as client:
        _show(call, client.create_queue(name, **given(settings)))


@queue.command("list", cls=Verb, examples=["cassq queue list", "cassq queue list /shop --json"])
@click.argument("prefix", default="")
@click.pass_obj
def list_(call: Invocation, prefix: str) -> None:
    """List the queues, or those whose names begin with PREFIX.

    A name that ends in ~dead is that of a group's dead letters.
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
@queue_options(leave_out=("consistency",), defaults=False)
@click.pass_obj
def update(call: Invocation, /, name: str, **settings: Any) -> None:
    """Change settings of a queue; those not named stay.

    Running pushers and poppers take them up within one lease. The consistency of a queue cannot be
    changed.
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
    """Delete a queue with all its messages, groups and dead letters, for ever.

    Asks first, and tells how many messages would be lost; without a terminal --yes is needed.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = client.queue(name)
        if not sure_to_delete(_question(found), yes=yes, as_json=call.as_json):
            output.note("nothing was deleted")
            ctx.exit(1)
        client.delete_queue(name)
    if call.as_json:
        output.document({"deleted": name})
    else:
        output.say(f"deleted {name}")


def _question(queue: Queue) -> str:
    groups = queue.stats().groups
    left = max((g.waiting + g.pending for g in groups.values()), default=0)
    return f"Delete {queue.name}, with {output.messages(left)} that some group has not committed?"


def described(queue: Queue) -> dict[str, Any]:
    """A queue as JSON has it."""
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
    # The values are texts, so that none of them is aligned to the right.
    output.table(("queue", queue.name), [(k, _plain(v)) for k, v in settings.items()])


def _plain(value: object) -> str:
    return f"{value:g} s" if isinstance(value, float) else str(value)
