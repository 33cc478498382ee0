"""`cassq schedule`: create, list, show, update, pause, resume, run and delete schedules."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, BinaryIO, TypeVar, cast, get_args

import click
from click.shell_completion import CompletionItem

from cassq.cli.queues.push import header, header_option
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, complete_queue, seconds, sure_to
from cassq.client.backends.rebuilt import without_schedules
from cassq.client.schedule import (
    NEXT_MAX,
    Schedule,
    ScheduleInfo,
    Tick,
    begun,
    upcoming,
    wanted_schedule,
)
from cassq.errors import CassqError, UsageError
from cassq.message.decoding import text_or_base64
from cassq.settings import Missed, Overlap, ScheduleSettings

NEXT = 5
F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def schedule() -> None:
    """Push messages at fixed times, as cron does, or at intervals.

    Running clients with a pusher or popper do this, and so does `cassq reap`; each tick still
    becomes only one message. Nothing else needs to run.
    """


def _complete_schedule(ctx: click.Context, _param: object, incomplete: str) -> list[CompletionItem]:
    """The names of the schedules, for the shell's completion."""
    call = ctx.find_object(Invocation) or Invocation()
    try:
        with call.connect() as client:
            names = [each.name for each in client.schedules()]
    except CassqError:
        return []  # a completion cannot show an error; the command itself will
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


_named = click.argument("name", shell_complete=_complete_schedule)
_next = click.option(
    "--next",
    "count",
    type=click.IntRange(1, NEXT_MAX),
    metavar="COUNT",
    help="Also show the next COUNT ticks.",
)


def _settings(*, defaults: bool) -> Callable[[F], F]:
    """The options that `create` and `update` share. defaults: whether an option that is not given
    has its default; otherwise it is left out."""

    def chosen(default: object) -> dict[str, Any]:
        return {"default": default, "show_default": True} if defaults else {}

    options = [
        click.option(
            "--cron",
            metavar="SPEC",
            help="Five fields: minute, hour, day of month, month, day of week; or @hourly, @daily,"
            " @weekly, @monthly, @yearly, or @every 5m.",
        ),
        click.option(
            "--every", type=seconds, help="Instead of --cron: an interval, as in 30s, 5m or 1h."
        ),
        click.option("--tz", metavar="ZONE", help="The time zone.", **chosen("UTC")),
        click.option("--payload", metavar="TEXT", help="The payload of each message."),
        click.option(
            "--payload-file",
            type=click.File("rb"),
            metavar="FILE",
            help="Instead of --payload: a file with the payload; - is standard input.",
        ),
        click.option("--key", help="The key of each message."),
        click.option(
            "--priority",
            type=int,
            metavar="N",
            help="The priority of each message, from 0 to 9; 9 is the most urgent. Not for cp"
            " queues.",
            **chosen(0),
        ),
        click.option(
            "--missed",
            type=click.Choice(get_args(Missed)),
            help="Of ticks that were not pushed within a minute, push the last one, all, or none.",
            **chosen("once"),
        ),
        click.option(
            "--overlap",
            type=click.Choice(get_args(Overlap)),
            help="skip: leave out a tick while a group is not done with the message of the previous"
            " tick.",
            **chosen("allow"),
        ),
    ]

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _payload(payload: str | None, payload_file: BinaryIO | None) -> bytes | None:
    if payload is not None and payload_file is not None:
        raise UsageError("--payload and --payload-file exclude each other", hint="give one of them")
    if payload_file is not None:
        return payload_file.read()
    return None if payload is None else os.fsencode(payload)


def _key(key: str | None) -> bytes | None:
    return None if key is None else os.fsencode(key)


@schedule.command(
    "create",
    cls=Verb,
    examples=[
        'cassq schedule create nightly --queue mail --cron "0 3 * * *" --tz Europe/Vienna',
        "cassq schedule create poll --queue mail --every 5m --missed skip --overlap skip",
        'cassq schedule create nightly --queue mail --cron "30 2 * * *" --dry-run --next 10',
    ],
)
@click.argument("name")
@click.option(
    "--queue",
    required=True,
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="The queue that gets the messages.",
)
@_settings(defaults=True)
@header_option
@_next
@click.option("--dry-run", is_flag=True, help="Check, show the next ticks, and create nothing.")
@click.pass_obj
def create(
    call: Invocation,
    /,
    name: str,
    queue: str,
    payload: str | None,
    payload_file: BinaryIO | None,
    headers: tuple[tuple[str, str], ...],
    key: str | None,
    count: int | None,
    dry_run: bool,
    **settings: Any,
) -> None:
    """Create a schedule: at each tick, one message is pushed to the queue.

    One of the clients and reapers that are running at that time pushes it. SPEC has the syntax of
    Debian's cron, and its rules for daylight saving time: a time that the change to summer time
    leaves out runs right after the change, a time that comes twice runs once, and a SPEC with * in
    the minutes or hours keeps its pace. If the schedule exists with the same settings, nothing
    happens; with other settings the command fails and names the differences: `cassq schedule
    update` changes it.
    """
    settings |= {
        "payload": _payload(payload, payload_file) or b"",
        "headers": dict(headers),
        "key": _key(key),
    }
    with call.connect() as client:
        if dry_run:
            row = wanted_schedule(name, **settings)
            client.queue(queue)
            now_ms = client.ports.catalog.wall_ms()
            _show_next(call, name, upcoming(begun(row, now_ms), now_ms, count or NEXT))
        else:
            _show(call, client.create_schedule(name, queue, **settings), count)


@schedule.command(
    "list", cls=Verb, examples=["cassq schedule list", "cassq schedule list --queue mail --json"]
)
@click.option(
    "--queue", metavar="QUEUE", shell_complete=complete_queue, help="Only those of this queue."
)
@click.pass_obj
def list_(call: Invocation, queue: str | None) -> None:
    """List the schedules, with the next tick and the last one."""
    with call.connect() as client:
        found = [each.info() for each in client.schedules(queue)]
        rebuilt = None if found or client.schedules() else client.rebuilt_at()
    if rebuilt is not None:
        output.note(without_schedules(rebuilt))
    if call.as_json:
        output.document([_described(info) for info in found])
        return
    output.table(
        ("SCHEDULE", "QUEUE", "PRIORITY", "CRON", "TZ", "NEXT", "LAST"),
        [
            (
                info.name,
                info.queue,
                str(info.priority),
                info.cron,
                info.tz,
                "paused" if info.paused else _time(info.next_at),
                _time(info.last.at if info.last else None),
            )
            for info in found
        ],
    )


@schedule.command(
    "show",
    cls=Verb,
    examples=["cassq schedule show nightly", "cassq schedule show nightly --next 5 --json"],
)
@_named
@_next
@click.pass_obj
def show(call: Invocation, name: str, count: int | None) -> None:
    """Show a schedule: its settings, its last and next ticks, what was skipped."""
    with call.connect() as client:
        _show(call, client.schedule(name), count)


@schedule.command(
    "update",
    cls=Verb,
    examples=[
        'cassq schedule update nightly --cron "0 4 * * *" --next 3',
        "cassq schedule update poll --queue urgent --priority 9 --no-key",
    ],
)
@_named
@click.option(
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="The queue that gets the next messages.",
)
@_settings(defaults=False)
@click.option(
    "--header",
    "headers",
    type=header,
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of each message; replaces all its headers; may be given several times.",
)
@click.option("--no-headers", is_flag=True, help="Remove all headers.")
@click.option("--no-key", is_flag=True, help="Remove the key.")
@_next
@click.pass_obj
def update(
    call: Invocation,
    /,
    name: str,
    payload: str | None,
    payload_file: BinaryIO | None,
    headers: tuple[tuple[str, str], ...],
    no_headers: bool,
    key: str | None,
    no_key: bool,
    count: int | None,
    **settings: Any,
) -> None:
    """Change settings of a schedule; the others stay as they are.

    After a change of SPEC, interval or time zone, the next tick is the first one from now on by the
    new times. A tick that is due and not pushed yet stays due, and is pushed with the new settings.
    """
    if (headers and no_headers) or (key is not None and no_key):
        one = "header" if headers and no_headers else "key"
        all_of = "--no-headers" if one == "header" else "--no-key"
        raise UsageError(f"--{one} and {all_of} exclude each other", hint="give one of them")
    settings["payload"] = _payload(payload, payload_file)
    changes = {name: value for name, value in settings.items() if value is not None}
    if headers or no_headers:
        changes["headers"] = dict(headers)
    if key is not None or no_key:
        changes["key"] = _key(key)
    if not changes:
        raise UsageError("there is nothing to change", hint="name a setting; see --help")
    with call.connect() as client:
        found = client.schedule(name)
        found.update(**cast(ScheduleSettings, changes))
        _show(call, found, count)


@schedule.command("pause", cls=Verb, examples=["cassq schedule pause nightly"])
@_named
@click.pass_obj
def pause(call: Invocation, name: str) -> None:
    """Push no ticks until `cassq schedule resume`.

    Ticks that come during the pause are never pushed.
    """
    with call.connect() as client:
        found = client.schedule(name)
        found.pause()
        _show(call, found, None)


@schedule.command("resume", cls=Verb, examples=["cassq schedule resume nightly"])
@_named
@click.pass_obj
def resume(call: Invocation, name: str) -> None:
    """End a pause; the next tick is the first one from now on."""
    with call.connect() as client:
        found = client.schedule(name)
        found.resume()
        _show(call, found, None)


@schedule.command("run", cls=Verb, examples=["cassq schedule run nightly"])
@_named
@click.pass_obj
def run(call: Invocation, name: str) -> None:
    """Push the message of a schedule now, in addition to its ticks, and write its id."""
    with call.connect() as client:
        message_id = client.schedule(name).run()
    if call.as_json:
        output.document({"schedule": name, "id": message_id})
    else:
        output.say(message_id)


@schedule.command(
    "delete", cls=Verb, examples=["cassq schedule delete nightly", "cassq schedule delete poll -y"]
)
@_named
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def delete(ctx: click.Context, name: str, yes: bool) -> None:
    """Delete a schedule; its messages stay in the queue. Asks first; without a terminal --yes is
    needed."""
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = client.schedule(name)
        question = f"Delete schedule {name} of queue {found.queue}?"
        if not sure_to(question, yes=yes, as_json=call.as_json):
            output.note("nothing was deleted")
            ctx.exit(1)
        found.delete()
    if call.as_json:
        output.document({"deleted": name})
    else:
        output.say(f"deleted {name}")


# --- as shown -------------------------------------------------------------------------------------


def _time(when: datetime | None) -> str:
    return "-" if when is None else when.isoformat(sep=" ", timespec="seconds")


def _iso(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat(timespec="milliseconds")


def _described(info: ScheduleInfo, ticks: Iterable[datetime] | None = None) -> dict[str, Any]:
    """A schedule, for JSON."""
    return {
        "name": info.name,
        "queue": info.queue,
        "cron": info.cron,
        "tz": info.tz,
        **text_or_base64("payload", info.payload),
        "headers": dict(info.headers),
        **text_or_base64("key", info.key),
        "priority": info.priority,
        "missed": info.missed,
        "overlap": info.overlap,
        "paused": info.paused,
        "created_at": _iso(info.created_at),
        "next_at": _iso(info.next_at),
        "last": _tick(info.last),
        "pushing": _tick(info.pushing),
        "skipped_at": _iso(info.skipped_at),
        "skipped_why": info.skipped_why,
        "unsettled": list(info.unsettled),
        **({} if ticks is None else {"next": [_iso(tick) for tick in ticks]}),
    }


def _tick(tick: Tick | None) -> dict[str, str] | None:
    return None if tick is None else {"at": cast(str, _iso(tick.at)), "id": tick.message_id}


def _show(call: Invocation, found: Schedule, count: int | None) -> None:
    info = found.info()
    ticks = None if count is None else found.next(count)
    if call.as_json:
        output.document(_described(info, ticks))
        return
    output.table(("schedule", info.name), _lines(info))
    for tick in ticks or ():
        output.say(f"  {_time(tick)}")


def _lines(info: ScheduleInfo) -> list[tuple[str, str]]:
    lines = [
        ("queue", info.queue),
        ("cron", info.cron),
        ("tz", info.tz),
        ("payload", output.preview(info.payload)),
        ("headers", ", ".join(f"{name}={value}" for name, value in info.headers.items())),
        ("key", "-" if info.key is None else output.preview(info.key)),
        ("priority", str(info.priority)),
        ("missed", info.missed),
        ("overlap", info.overlap),
        ("next", "paused" if info.paused else _time(info.next_at)),
        ("last", f"{_time(info.last.at)} as {info.last.message_id}" if info.last else "-"),
    ]
    if info.unsettled:
        effect = "; the next tick is skipped while this is so" if info.overlap == "skip" else ""
        lines.append(("not done with it", f"{', '.join(info.unsettled)}{effect}"))
    if info.pushing is not None:
        lines.append(("being pushed", f"{_time(info.pushing.at)} as {info.pushing.message_id}"))
    if info.skipped_at is not None:
        why = {
            "missed": "it was not pushed in time",
            "overlap": "the previous message was not done",
        }[info.skipped_why]
        lines.append(("last skipped", f"{_time(info.skipped_at)}: {why}"))
    return lines


def _show_next(call: Invocation, name: str, ticks: Iterable[datetime]) -> None:
    if call.as_json:
        output.document({"name": name, "next": [_iso(tick) for tick in ticks]})
        return
    for tick in ticks:
        output.say(_time(tick))
