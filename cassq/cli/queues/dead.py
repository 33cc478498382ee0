"""`cassq dead`: look at dead letters, merge them back, delete, export and import them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from cassq.cli.queues.push import header
from cassq.cli.stopping import StopSignal
from cassq.cli.ui import output
from cassq.cli.verb import (
    Invocation,
    Verb,
    complete_queue,
    options,
    queue_argument,
    seconds,
    sure_to,
)
from cassq.client.client import Client
from cassq.client.queue import Queue
from cassq.dead_letters.bulk_job import BulkOutcome, Watch
from cassq.dead_letters.letters import DEATH_REASONS, Filter, Letter, letters_of
from cassq.dead_letters.queue import DeadLetterQueue
from cassq.errors import CassqError, QueueNotFoundError
from cassq.lifecycle.retries import all_letters
from cassq.model.queues import OWN, is_dead_letter_name, origin_of
from cassq.plurals import counted

LINES_AT_ONCE = 256


def _rate(value: str) -> float:
    """A number of messages a second: 100, or 100/s."""
    try:
        return float(value.removesuffix("/s"))
    except ValueError as exc:
        raise click.BadParameter(f"{value!r} is not a rate: write 100, or 100/s") from exc


_GROUP = click.option(
    "--group", default="default", show_default=True, help="Use the dead letters of this group."
)
_FILTERS = [
    click.option(
        "--reason",
        type=click.Choice(DEATH_REASONS),
        help="Only letters that died for this reason (delivery_limit, rejected, maxlen), or that"
        " last failed for it (rejected, expired).",
    ),
    click.option(
        "--older-than", type=seconds, help="Only letters that died at least this long ago."
    ),
    click.option("--newer-than", type=seconds, help="Only letters that died within this time."),
    click.option(
        "--header",
        "headers",
        type=header,
        multiple=True,
        metavar="NAME=VALUE",
        help="Only letters with this header; if given several times, with all of them.",
    ),
    click.option("--text", help="Only letters with this text in the payload or the error."),
    click.option(
        "--id",
        "ids",
        multiple=True,
        metavar="ID",
        help="Only the letter with this id; may be given several times.",
    ),
]
_PACE = [
    click.option(
        "--limit", type=click.IntRange(1), metavar="COUNT", help="At most this many letters."
    ),
    click.option("--rate", type=_rate, metavar="COUNT/s", help="At most this many a second."),
    click.option("--dry-run", is_flag=True, help="Count the letters, and do nothing."),
]


def _pace(settings: dict[str, Any]) -> dict[str, Any]:
    """The options of `_PACE`, removed from `settings`."""
    return {name: settings.pop(name) for name in ("limit", "rate", "dry_run")}


def _where(settings: dict[str, Any]) -> dict[str, Any]:
    """The filter: only the options that were given."""
    where = {**settings, "headers": dict(settings["headers"])}
    return {name: value for name, value in where.items() if value not in (None, {}, ())}


@click.group()
def dead() -> None:
    """List, look at, merge, purge, export and import dead letters."""


@dead.command("list", cls=Verb, examples=["cassq dead list", "cassq dead list mail --json"])
@click.argument("prefix", default="", metavar="[QUEUE]", shell_complete=complete_queue)
@click.pass_obj
def list_(call: Invocation, prefix: str) -> None:
    """List the groups that have dead letters, in all queues or in one QUEUE."""
    found: list[dict[str, Any]] = []
    with call.connect() as client:
        if prefix:
            client.queue(prefix)  # a wrong name is an error
        for queue in client.queues(f"{prefix}{OWN}" if prefix else ""):
            if not is_dead_letter_name(queue.name):
                continue
            name, group = origin_of(queue.name)
            try:
                stats = queue.stats().groups.get("default")
            except QueueNotFoundError:
                continue  # deleted since they were listed
            left = (stats.waiting, stats.pending) if stats else (0, 0)
            found.append(
                {
                    "queue": name,
                    "group": group,
                    "letters": sum(left),
                    "pending": left[1],
                    "oldest_age": stats.oldest_age if stats else None,
                    "name": queue.name,
                }
            )
        found += _in_named_queues(client, [client.queue(prefix)] if prefix else client.queues())
    if call.as_json:
        output.document(found)
        return
    output.table(
        ("QUEUE", "GROUP", "LETTERS", "IN HAND", "OLDEST"),
        [
            (f["queue"], f["group"], f["letters"], f["pending"], output.age(f["oldest_age"]))
            for f in found
        ],
    )


def _in_named_queues(client: Client, queues: Sequence[Queue]) -> list[dict[str, Any]]:
    """The groups of these queues with dead letters in the queue that their setting `dead_letters`
    names. Leaves out pipes that cannot be read. Cost: reads every letter there."""
    sources = {queue.name for queue in queues}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name in sorted({queue.policy.dead_letters for queue in queues} - {""}):
        place = all_letters(client.ports, name)
        for letter in letters_of(client.ports, place.row, Filter(), {}) if place else ():
            queue, group = letter.death.get("queue"), letter.death.get("group")
            if queue not in sources or queue == name:
                continue
            start = {"queue": queue, "group": group, "letters": 0, "pending": 0, "oldest_age": 0.0}
            row = found.setdefault((name, queue, group), {**start, "name": name})
            row["letters"] += 1
            row["pending"] += letter.state == "pending"
            age = client.ports.clock.wall_ms() / 1000 - letter.pushed_at.timestamp()
            row["oldest_age"] = max(row["oldest_age"], age)
    return list(found.values())


@dead.command(
    "peek",
    cls=Verb,
    examples=[
        "cassq dead peek mail",
        "cassq dead peek mail --group billing --reason rejected --limit 100",
        "cassq dead peek mail --text 'no such customer' --older-than 1h --json",
    ],
)
@queue_argument("queue")
@options(_GROUP, *_FILTERS)
@click.option(
    "--limit", type=click.IntRange(1), default=10, show_default=True, help="Show at most this many."
)
@click.pass_obj
def peek(call: Invocation, /, queue: str, group: str, limit: int, **settings: Any) -> None:
    """Show dead letters and why they died, without affecting them."""
    with call.connect() as client:
        found = client.queue(queue).dead_letters(group).peek(limit, **_where(settings))
    if call.as_json:
        for letter in found:
            output.say(letter.to_json())
        return
    output.table(("ID", "DIED", "REASON", "ERROR", "TRIES", "PAYLOAD"), map(_row, found))


def _row(letter: Letter) -> tuple[object, ...]:
    return (
        letter.id,
        output.moment(letter.died_at),
        letter.death.get("reason"),
        output.preview(str(letter.death.get("error", "")).encode()) or None,
        letter.death.get("deliveries"),
        output.preview(letter.payload),
    )


@dead.command(
    "merge",
    cls=Verb,
    examples=[
        "cassq dead merge mail",
        "cassq dead merge mail --header kind=invoice --rate 100/s",
        "cassq dead merge mail --group billing --older-than 1d --dry-run",
    ],
)
@queue_argument("queue")
@options(_GROUP, *_FILTERS, *_PACE)
@click.pass_context
def merge(
    ctx: click.Context,
    /,
    queue: str,
    group: str,
    **settings: Any,
) -> None:
    """Return dead letters to the group in which they died, and only to it.

    They keep their ids and death records; their attempts are counted from zero again. Letters that
    a consumer of the dead letters holds are not merged. Ctrl-C or a crash neither loses nor
    duplicates anything: run it again to merge the rest.
    """
    call, pace = ctx.ensure_object(Invocation), _pace(settings)
    with StopSignal() as stop, call.connect() as client:
        letters = client.queue(queue).dead_letters(group)
        with _watching(stop, "merged") as watch:
            outcome = letters.merge(watch=watch, **pace, **_where(settings))
    _conclude(ctx, call, letters, "merged", outcome, stop)


@dead.command(
    "purge",
    cls=Verb,
    examples=[
        "cassq dead purge mail --older-than 30d",
        "cassq dead purge mail --reason rejected --dry-run",
        "cassq dead purge mail --group billing --yes",
    ],
)
@queue_argument("queue")
@options(_GROUP, *_FILTERS, *_PACE)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def purge(
    ctx: click.Context,
    /,
    queue: str,
    group: str,
    yes: bool,
    **settings: Any,
) -> None:
    """Delete dead letters permanently: all of them, or those that match a filter.

    Shows how many there are and asks first; without a terminal --yes is needed.
    """
    call = ctx.ensure_object(Invocation)
    pace = _pace(settings)
    where = _where(settings)
    with StopSignal() as stop, call.connect() as client:
        letters = client.queue(queue).dead_letters(group)
        if not pace["dry_run"] and not yes:
            count = letters.purge(**{**pace, "dry_run": True}, **where).messages
            which = "that match the filter" if where else "(all of them)"
            question = f"Delete {_letters(count)} {which} of queue {queue}, group {group}?"
            if not sure_to(question, yes=yes, as_json=call.as_json, doing="purging"):
                output.note("nothing was deleted")
                ctx.exit(1)
        with _watching(stop, "purged") as watch:
            outcome = letters.purge(everything=not where, watch=watch, **pace, **where)
    _conclude(ctx, call, letters, "purged", outcome, stop)


def _letters(count: int) -> str:
    return counted(count, "dead letter")


@contextmanager
def _watching(stop: StopSignal, done: str) -> Iterator[Watch]:
    """Ends the work on a signal; shows the progress in a line on a terminal."""
    with output.passing_line() as show:

        def look(outcome: BulkOutcome) -> bool:
            show(lambda _: f"{done} {_letters(outcome.messages)}")
            return stop.wanted

        yield look


def _conclude(
    ctx: click.Context,
    call: Invocation,
    letters: DeadLetterQueue,
    done: str,
    outcome: BulkOutcome,
    stop: StopSignal,
) -> None:
    if call.as_json:
        fields = outcome.as_dict()
        output.document({"letters": letters.name, done: fields.pop("messages"), **fields})
    else:
        would = "would be " if outcome.dry_run else ""
        whole = f", {counted(outcome.pipes, 'pipe')} whole" if outcome.pipes else ""
        output.say(f"{_letters(outcome.messages)} {would}{done}{whole}")
        if outcome.held:
            output.note(
                f"{_letters(outcome.held)} left: another consumer or merge has claimed them"
            )
        for pipe_id, why in outcome.broken.items():
            output.note(f"pipe {pipe_id} is left: {why}")
    if stop.wanted:
        ctx.exit(stop.exit_code)
    if outcome.broken:
        ctx.exit(1)


@dead.command(
    "export",
    cls=Verb,
    examples=[
        "cassq dead export mail > letters.jsonl",
        "cassq dead export mail --reason rejected | jq .death.error",
    ],
)
@queue_argument("queue")
@options(_GROUP, *_FILTERS)
@click.pass_context
def export(ctx: click.Context, /, queue: str, group: str, **settings: Any) -> None:
    """Write dead letters as JSON, one per line, without affecting them.

    `cassq dead import` reads them back.
    """
    call = ctx.ensure_object(Invocation)
    broken: dict[str, CassqError] = {}
    lines: list[bytes] = []
    with StopSignal() as stop, call.connect() as client:
        sink = output.Sink(stop)
        letters = client.queue(queue).dead_letters(group)
        for letter in letters.export(broken=broken, **_where(settings)):
            lines.append(letter.to_json().encode() + b"\n")
            if len(lines) >= LINES_AT_ONCE:
                sink.write(b"".join(lines))
                lines.clear()
            if stop.wanted:
                break
        sink.write(b"".join(lines))
        sink.flush()
    for pipe_id, exc in broken.items():
        output.note(f"pipe {pipe_id} is left out: {exc}")
    if stop.wanted:
        ctx.exit(stop.exit_code)
    if broken:
        ctx.exit(1)


@dead.command(
    "import",
    cls=Verb,
    examples=[
        "cassq dead import mail letters.jsonl",
        "cassq dead import mail letters.jsonl --to-queue",
    ],
)
@queue_argument("queue")
@click.argument(
    "file",
    default="-",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
)
@_GROUP
@click.option(
    "--to-queue", is_flag=True, help="Push them to the group itself, not to its dead letters."
)
@click.pass_obj
def import_(call: Invocation, queue: str, file: str, group: str, to_queue: bool) -> None:
    """Push the letters of a FILE that `cassq dead export` wrote, with their ids.

    Without a FILE, or for `-`, standard input is read. A letter whose id is already there is
    skipped, so an import that failed may be repeated. If any line is wrong, nothing is imported.
    """
    with call.connect() as client, click.open_file(file, "rb") as lines:
        letters = client.queue(queue).dead_letters(group)
        done = letters.import_(lines, to_queue=to_queue)
    if call.as_json:
        output.document({"imported": done.messages, "skipped": done.skipped})
        return
    output.say(f"imported {_letters(done.messages)}")
    if done.skipped:
        output.note(f"{_letters(done.skipped)} skipped: they are there already")
