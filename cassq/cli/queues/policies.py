"""Policies as options: every setting of a queue or a group, with its help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

import click

from cassq.cli.verb import seconds
from cassq.errors import UsageError
from cassq.model.queues import (
    COMPRESSIONS,
    CONSISTENCIES,
    ON_DEADS,
    ORDERS,
    OVERFLOWS,
    GroupPolicy,
    QueuePolicy,
)

F = TypeVar("F", bound=Callable[..., Any])
Kind = type[QueuePolicy] | type[GroupPolicy]

AT_ONCE = "none"  # for an empty schedule
INHERIT = "queue"  # for a group's setting that should follow the queue's
NEVER = "never"  # for the `group_expires` of a group that should stay
NO_LIMIT = "none"  # for a setting that should have no limit
_CLEARED = object()  # stands for None, as an option that was given


def _count(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a whole number") from None


def _share(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share: write a number from 0 to 1") from None


def _times(value: str) -> tuple[float, ...]:
    return () if value == AT_ONCE else tuple(seconds(part) for part in value.split(","))


# For each type of setting, how to read it, and its placeholder in the help.
_CONVERT: dict[Any, tuple[Callable[[str], Any], str]] = {
    float: (seconds, "SECONDS"),
    int: (_count, "COUNT"),
    str: (str, "TEXT"),
    tuple[float, ...]: (_times, "SECONDS,..."),
}

CHOICES: dict[str, tuple[str, ...]] = {
    "consistency": CONSISTENCIES,
    "compression": COMPRESSIONS,
    "overflow": OVERFLOWS,
    "order": ORDERS,
    "on_dead": ON_DEADS,
}

# Settings of groups that have no default in the queue, and the word that clears each.
OWN_WORDS = {"group_expires": NEVER, "limit_per_key": NO_LIMIT, "rate_per_key": NO_LIMIT}

# Options that are not named like their setting.
FLAGS = {"group_expires": "--expires"}

# Numbers that are not seconds.
SHARES = ("retry_jitter",)
RATES = ("rate", "rate_per_key")

QUEUE_HELP = {
    "consistency": "ap: many pipes side by side, order within each. cp: one order for all.",
    "claim_timeout": "How long a popper may keep messages before they are delivered again.",
    "max_deliveries": "Deliveries of a message to a group before it becomes a dead letter.",
    "retry_schedule": "Delays before a failed message is delivered again, one per failure, as in"
    " 10s,100s,1000s; the last one repeats. none: at once, behind waiting messages.",
    "retry_jitter": "Lengthen each of these delays at random, by up to this share of it, 0 to 1.",
    "sick_check": "While nothing in a group succeeds, slow redelivery down and make no dead"
    " letters.",
    "sick_hold": "How long sick_check keeps a failing message, counted from its first failure, in"
    " a group in which nothing has ever succeeded.",
    "max_pop_width": "A popper takes from this many pipes in turn, oldest first; 1 comes closest to"
    " first in, first out.",
    "priority_share": "One in this many claims begins with the lowest priority that has messages"
    " waiting; 0: higher priorities always come first.",
    "min_open_pipes": "Keep at least this many pipes of an ap queue open side by side during"
    " pushes.",
    "max_open_pipes": "Open at most this many pipes side by side, as throughput requires.",
    "key_lanes": "At most this many poppers, each in its own process, work at once for a group with"
    " order=key, each for its own keys. This cannot be changed later.",
    "max_claim_messages": "A popper claims at most this many messages at once.",
    "max_pushes_per_pipe": "A pusher starts its next pipe after this many messages.",
    "max_push_time_of_pipe": "A pusher starts its next pipe when the current one is this old.",
    "max_bytes_per_pipe": "A pusher starts its next pipe after this many bytes.",
    "lease": "Others may seal the pipe of a pusher that shows no sign of life for this long.",
    "idle_seal": "A pusher seals its pipe after this long without a push.",
    "compression": "Compress messages; needs the extra cassq[compression].",
    "message_ttl": "Do not deliver messages older than this, counted from their push or due time.",
    "retain_consumed": "Keep consumed pipes for this long, for groups created later.",
    "retain_unconsumed": "Remove messages that nobody has consumed for this long.",
    "max_length": "The queue is full when its slowest group has this many uncommitted messages.",
    "overflow": "In a full queue, refuse pushes or move the oldest messages to the dead letters.",
    "push_paused": "Refuse pushes; see also `cassq queue pause`.",
    "pop_paused": "Let pops find nothing; see also `cassq queue pause`.",
    "dedup_window": "A push with the same dedup id within this time counts as the first push.",
    "rate": "Deliver at most this many messages to each group, over all processes, as in 500/s, 5/m"
    " or 100/h.",
    "concurrency": "Consumers of each group may have at most this many messages at once, over all"
    " processes.",
    "dead_letters": "Move the dead letters of all groups to this queue; empty: each group has a"
    " queue of its own for them.",
    "attributes": "Attributes that clients of a gateway have set, as JSON; see docs/gateway.md.",
    "owner": "Who is responsible for the queue; alerts are routed by this.",
    "alert_no_consumer": "Alert when messages have waited this long without any consumer.",
    "alert_oldest_age": "Alert when the oldest uncommitted message is this old.",
    "alert_dead_growth": "Alert when this many messages became dead letters within an hour.",
    "alert_stalled": "Alert when there are consumers and messages, but no commit for this long.",
}

GROUP_HELP = {
    "exclusive": "While one popper has messages of a pipe, no other popper gets any from it. Always"
    " on for cp queues.",
    "claim_timeout": "How long a popper may keep messages; `queue`: use the queue's setting.",
    "max_deliveries": "Deliveries before a message becomes a dead letter; `queue`: use the queue's"
    " setting.",
    "retry_schedule": "Delays before a failed message is delivered again, as in 10s,100s,1000s.",
    "retry_jitter": "Lengthen each of these delays at random, by up to this share of it, 0 to 1.",
    "sick_check": "While nothing in the group succeeds, slow redelivery down and make no dead"
    " letters.",
    "sick_hold": "How long sick_check keeps a failing message if nothing in the group has ever"
    " succeeded.",
    "rate": "Deliver at most this many messages to the group, over all processes, as in 500/s.",
    "concurrency": "Consumers of the group may have at most this many messages at once.",
    "order": "With `key`, messages of one key are delivered in order, each once all earlier ones"
    " are settled.",
    "on_dead": "With `hold` and order `key`, a dead letter holds later messages of its key until it"
    " is gone or the key is released.",
    "limit_per_key": "At most this many messages of one key may be unsettled at once.",
    "rate_per_key": "Deliver at most this many messages of one key, as in 10/s, 5/m or 100/h.",
    "fair": "Deliver messages of the key with the least share of work first, so that no backlog of"
    " one key delays the others.",
    "group_expires": "Remove the group, with its position and claims, when it has had no popper for"
    " this long, at least 15s; not for the group `default`.",
}


def queue_options(*, leave_out: tuple[str, ...] = (), defaults: bool) -> Callable[[F], F]:
    """An option for every setting of a queue."""
    return _options(QueuePolicy, QUEUE_HELP, leave_out, defaults=defaults)


def group_options(*, leave_out: tuple[str, ...] = (), defaults: bool) -> Callable[[F], F]:
    """An option for every setting of a group."""
    return _options(GroupPolicy, GROUP_HELP, leave_out, defaults=defaults)


def given(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that the user named, with their values."""
    named = {name: value for name, value in settings.items() if value is not None}
    return {name: None if value is _CLEARED else value for name, value in named.items()}


def given_at_least_one(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings to change. Raises UsageError if there are none."""
    changes = given(settings)
    if not changes:
        raise UsageError("there is nothing to change", hint="name a setting; see --help")
    return changes


def _options(
    kind: Kind, helps: dict[str, str], leave_out: tuple[str, ...], *, defaults: bool
) -> Callable[[F], F]:
    types = get_type_hints(kind)
    absent = NO_LIMIT if kind is QueuePolicy else INHERIT

    def decorate(function: F) -> F:
        for field in reversed(fields(kind)):
            if field.name not in leave_out:
                text = helps.get(field.name, "")
                word = OWN_WORDS.get(field.name, absent)
                if defaults:
                    text += f"  [default: {_shown(field.default, word)}]"
                function = _option(field.name, types[field.name], text, word)(function)
        return function

    return decorate


def _option(name: str, kind: Any, text: str, absent: str) -> Callable[[F], F]:
    flag = FLAGS.get(name) or f"--{name.replace('_', '-')}"
    choices = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    inherited = type(None) in choices
    plain = next(t for t in choices if t is not type(None))
    if plain is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if name in CHOICES:
        return click.option(flag, name, type=click.Choice(CHOICES[name]), help=text)
    convert, metavar = _CONVERT[plain]
    if name in SHARES:
        convert, metavar = _share, "SHARE"
    if name in RATES:
        metavar = "COUNT/s"
    if inherited:
        convert, metavar = _or_absent(convert, absent), f"{metavar}|{absent}"
    return click.option(flag, name, type=convert, metavar=metavar, help=text)


def _shown(default: Any, absent: str) -> str:
    match default:
        case None:
            return absent
        case bool():
            return "yes" if default else "no"
        case float():
            return f"{default:g}"
        case tuple():
            return ",".join(f"{step:g}" for step in default) or AT_ONCE
        case _:
            return str(default)


def _or_absent(convert: Callable[[str], Any], absent: str) -> Callable[[str], Any]:
    """Reads a value, or the word `absent`, which stands for no value."""
    return lambda value: _CLEARED if value == absent else convert(value)
