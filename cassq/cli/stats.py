"""`cassq stats`: how many messages are in which state, once or again and again."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import pairwise

import click

from cassq.cli import output
from cassq.cli.stopping import Stop
from cassq.cli.verb import Invocation, Verb, complete_queue, seconds
from cassq.client import Client
from cassq.clock import SystemClock
from cassq.errors import UsageError
from cassq.stats import QueueStats

WATCH_SECONDS = 2.0
WATCH_SECONDS_MIN = 0.1
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

HEADERS = ("QUEUE", "PUSHED", "PIPES", "GROUP", "WAITING", "PENDING", "COMMITTED", "DEAD", "OLDEST")


class Watching(Verb):
    """The verb whose --watch may stand alone before the name of a queue."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        pairs = pairwise([*args, ""])
        return super().parse_args(ctx, [_with_seconds(word, after) for word, after in pairs])


def _with_seconds(word: str, after: str) -> str:
    if word != "--watch":
        return word
    try:
        seconds(after)
    except click.BadParameter:
        return f"--watch={WATCH_SECONDS:g}"
    return word


@click.command(
    cls=Watching,
    short_help="Show how many messages are in which state.",
    examples=[
        "cassq stats",
        "cassq stats mail --json",
        "cassq stats mail --watch",
        "cassq stats --watch 10s --json >> stats.jsonl",
    ],
)
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=complete_queue)
@click.option(
    "--watch",
    type=seconds,
    metavar="[SECONDS]",
    help="Show it again every so many seconds (2 when not given), until Ctrl-C.",
)
@click.pass_obj
def stats(call: Invocation, queue: str | None, watch: float | None) -> None:
    """Show what is in a queue, or in all of them, for each consumer group.

    \b
    PUSHED     messages since the queue was made
    PIPES      the logs they are in, those retired not counted
    WAITING    not claimed by any popper of the group
    PENDING    claimed, and not yet acked
    COMMITTED  acked
    DEAD       moved to the group's dead letters
    OLDEST     the age of the oldest message not committed

    For one queue the pipes are shown by state. With --watch and --json each line is an object.
    """
    if watch is None:
        with call.connect() as client:
            found = _stats(client, queue)
        if call.as_json:
            documents = [s.as_dict() for s in found]
            output.document(documents if queue is None else documents[0])
        else:
            output.say(*_lines(found, queue))
        return
    if watch < WATCH_SECONDS_MIN:
        raise UsageError(f"--watch is at least {WATCH_SECONDS_MIN} seconds, not {watch:g}")
    with Stop() as stop, call.connect() as client:
        _watch(call, client, queue, watch, stop)


def _watch(call: Invocation, client: Client, queue: str | None, every: float, stop: Stop) -> None:
    clock = SystemClock()
    on_terminal = sys.stdout.isatty()
    if on_terminal and not call.as_json:
        click.clear()
    while True:
        found = _stats(client, queue)
        now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        if call.as_json:
            told = [s.as_dict() for s in found]
            at = now.isoformat(timespec="milliseconds")
            output.json_line({"at": at, "queues": told})
        else:
            lines = [output.moment(now), "", *_lines(found, queue)]
            if on_terminal:
                drawn = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
                click.echo(f"{_HOME}{drawn}{_CLEAR_BELOW}", nl=False)
            else:
                output.say(*lines, "")
        if stop.wait(every):
            return


def _stats(client: Client, queue: str | None) -> list[QueueStats]:
    if queue is not None:
        return [client.queue(queue).stats()]
    return [found.stats() for found in client.queues()]


def _lines(found: list[QueueStats], queue: str | None) -> list[str]:
    lines = output.table_lines(HEADERS, [row for stats in found for row in _rows(stats)])
    if queue is not None:
        pipes = ", ".join(f"{count:,} {state}" for state, count in found[0].pipes.items())
        lines += ["", f"pipes: {pipes}; consistency: {found[0].consistency}"]
    return lines


def _rows(stats: QueueStats) -> list[tuple[object, ...]]:
    live = sum(count for state, count in stats.pipes.items() if state != "retired")
    whole = (stats.name, stats.pushed, live)
    rows: list[tuple[object, ...]] = [
        (*whole, name, g.waiting, g.pending, g.committed, g.dead, output.age(g.oldest_age))
        for name, g in stats.groups.items()
    ]
    return rows or [(*whole, None, None, None, None, None, None)]
