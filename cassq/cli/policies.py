"""Policies as options: every setting of a queue or a group, with its help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, get_args, get_type_hints

import click

from cassq.cli.verb import seconds
from cassq.errors import UsageError
from cassq.queues import GroupPolicy, QueuePolicy

F = TypeVar("F", bound=Callable[..., Any])
Kind = type[QueuePolicy] | type[GroupPolicy]

INHERIT = "queue"  # what a group's setting is set to for the queue's value to hold


def _count(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a whole number") from None


# How a setting of each type is read, and what it is called in the help.
_CONVERT: dict[type, tuple[Callable[[str], Any], str]] = {
    float: (seconds, "SECONDS"),
    int: (_count, "COUNT"),
    str: (str, "TEXT"),
}

CHOICES = {"consistency": ("ap", "cp"), "compression": ("none", "zstd", "lz4")}

QUEUE_HELP = {
    "consistency": "ap: many pipes side by side, order within each. cp: one order for all.",
    "claim_timeout": "How long a popper may keep messages before they are delivered again.",
    "max_deliveries": "Deliveries of a message to a group before it becomes a dead letter.",
    "max_pop_width": "How many pipes, oldest first, a popper takes from in turn; 1 is nearest to"
    " first in, first out.",
    "max_claim_messages": "The most messages a popper claims at once.",
    "max_pushes_per_pipe": "A pusher goes on to its next pipe after so many messages in one.",
    "max_push_time_of_pipe": "A pusher goes on to its next pipe when one is so old.",
    "max_bytes_per_pipe": "A pusher goes on to its next pipe after so many bytes in one.",
    "lease": "A pusher that shows no sign of life for so long may be sealed by others.",
    "idle_seal": "A pusher seals its pipe after so long without a push.",
    "compression": "Compress messages; needs the extra cassq[compression].",
}

GROUP_HELP = {
    "exclusive": "While one popper has messages of a pipe, no other gets any of it. Always so on"
    " cp queues.",
    "claim_timeout": "How long a popper may keep messages; `queue`: as the queue says.",
    "max_deliveries": "Deliveries before a message becomes a dead letter; `queue`: as the queue"
    " says.",
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
    return {name: None if value == INHERIT else value for name, value in named.items()}


def given_at_least_one(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings to be changed; UsageError when there is none."""
    changes = given(settings)
    if not changes:
        raise UsageError("nothing is to be changed", hint="name a setting; see --help")
    return changes


def _options(
    kind: Kind, helps: dict[str, str], leave_out: tuple[str, ...], *, defaults: bool
) -> Callable[[F], F]:
    types = get_type_hints(kind)

    def decorate(function: F) -> F:
        for field in reversed(fields(kind)):
            if field.name not in leave_out:
                text = helps.get(field.name, "")
                if defaults:
                    text += f"  [default: {_shown(field.default)}]"
                function = _option(field.name, types[field.name], text)(function)
        return function

    return decorate


def _option(name: str, kind: Any, text: str) -> Callable[[F], F]:
    flag = f"--{name.replace('_', '-')}"
    inherited = type(None) in get_args(kind)
    plain = next(t for t in (get_args(kind) or (kind,)) if t is not type(None))
    if plain is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if name in CHOICES:
        return click.option(flag, name, type=click.Choice(CHOICES[name]), help=text)
    convert, metavar = _CONVERT[plain]
    if inherited:
        convert, metavar = _or_inherit(convert), f"{metavar}|{INHERIT}"
    return click.option(flag, name, type=convert, metavar=metavar, help=text)


def _shown(default: Any) -> str:
    match default:
        case None:
            return INHERIT
        case bool():
            return "yes" if default else "no"
        case float():
            return f"{default:g}"
        case _:
            return str(default)


def _or_inherit(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A value, or the word that stands for the queue's value."""
    return lambda value: value if value == INHERIT else convert(value)
