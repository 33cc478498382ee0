"""`cassq stats`: how many messages are in each state, how fast they move, and their history."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click

from cassq.base.clock import SystemClock
from cassq.base.counters import REQUESTS
from cassq.cli.ops import history as past
from cassq.cli.options import A_FILE
from cassq.cli.stopping import StopSignal
from cassq.cli.ui import output
from cassq.cli.ui.chart import number
from cassq.cli.verb import Invocation, Verb, complete_queue, seconds
from cassq.client.client import Client
from cassq.errors import UsageError
from cassq.inspect.degradation import TROUBLES
from cassq.inspect.history import STEPS, WINDOWS_MS, Rates, Windows
from cassq.inspect.stats import STUCK_SECONDS, QueueStats
from cassq.plurals import counted
from cassq.settings import Step

WATCH_SECONDS = 2.0
WATCH_SECONDS_MIN = 0.1
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

RATE_HEADERS = ("MESSAGES A SECOND", "", *WINDOWS_MS)
HEADERS = ("QUEUE", "PUSHED", "PIPES", "GROUP", "WAITING", "PENDING", "COMMITTED", "DEAD")
# Shown if a group in the table has any. Together with the four before they add up to PUSHED.
SELDOM = ("expired", "purged", "merged", "lost", "skipped")


class Watching(Verb):
    """The verb. Its --watch may stand without a value before the name of a queue."""

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
    short_help="Show how many messages are in each state.",
    examples=[
        "cassq stats",
        "cassq stats mail --json",
        "cassq stats mail --watch",
        "cassq stats --watch 10s --json >> stats.jsonl",
        "cassq stats mail --history",
        "cassq stats mail --history --step hour --since 7d --image mail.png",
    ],
)
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=complete_queue)
@click.option(
    "--watch",
    type=seconds,
    metavar="[SECONDS]",
    help="Show it again every N seconds (default: 2), until Ctrl-C.",
)
@click.option("--history", is_flag=True, help="Show the past, as charts (or JSON).")
@click.option(
    "--step",
    type=click.Choice(list(STEPS)),
    help="With --history: the time that each point covers.  [default: minute]",
)
@click.option(
    "--since",
    type=seconds,
    help="With --history: how far back, as in 2h or 30d.  [default: 3h, 3d or 90d, by the step]",
)
@click.option("--group", metavar="GROUP", help="With --history: only this group.")
@click.option(
    "--image",
    type=A_FILE,
    help="With --history: draw it to FILE (.png, .svg, .pdf); needs the extra cassq[plots].",
)
@click.pass_obj
def stats(
    call: Invocation,
    /,
    queue: str | None,
    watch: float | None,
    history: bool,
    **past_options: Any,
) -> None:
    """Show what is in a queue, or in all queues, for each consumer group.

    \b
    PUSHED     messages for the group since the queue was made: the sum of WAITING to SKIPPED
    PIPES      the logs that hold them, without retired ones
    WAITING    not claimed by any popper of the group
    PENDING    claimed, and not yet acked
    COMMITTED  acked
    DEAD       moved to the group's dead letters
    EXPIRED    removed as too old; this column and the next four are shown if needed
    PURGED     purged or cancelled
    MERGED     dead letters that are back in their queue
    LOST       damaged, and given up by `cassq pipe skip`
    SKIPPED    pushed before the group's start
    OLDEST     the age of the oldest uncommitted message

    For one queue it also shows the pipes by state; the rates of messages pushed, popped, committed
    and dead over the last 1, 5 and 15 minutes; the number of waiting messages of each priority, if
    there are priorities other than 0; and how often waiting and pending messages were delivered. It
    also shows the troubles of the last two days: messages that were spilled, carried over, perhaps
    written twice, and so on; and, of all queues together, requests to Cassandra that were sent
    again, refused by an overloaded server, or not answered. Groups that expired in the last 60 days
    are counted. With --watch and --json each line is an object.

    --history shows the records of each minute in which a client or `cassq reap` ran: minutes are
    kept for 2 days, hours for 60 days, days for 5 years.
    """
    if history:
        if queue is None or watch is not None:
            raise UsageError("--history needs the name of one queue, and no --watch")
        with call.connect() as client:
            _show_history(call, client, queue, **past_options)
        return
    given = [name for name, value in past_options.items() if value is not None]
    if given:
        raise UsageError(f"--{given[0]} needs --history")
    if watch is None:
        with call.connect() as client:
            found = _stats(client, queue)
        if call.as_json:
            documents = [each.as_dict() for each in found]
            output.document(documents if queue is None else documents[0])
        else:
            output.say(*_lines(found, queue))
        return
    if watch < WATCH_SECONDS_MIN:
        raise UsageError(f"--watch must be at least {WATCH_SECONDS_MIN} seconds, not {watch:g}")
    with StopSignal() as stop, call.connect() as client:
        _watch(call, client, queue, watch, stop)


def _show_history(
    call: Invocation,
    client: Client,
    name: str,
    step: Step | None,
    since: float | None,
    group: str | None,
    image: Path | None,
) -> None:
    queue = client.queue(name)
    chosen: Step = step or "minute"
    found = past.look_back(queue, group, chosen, since)
    if image is not None:
        past.write_image(queue, chosen, found, image)
    if call.as_json:
        output.document(past.document(queue, chosen, found))
    elif image is not None:
        output.say(f"wrote {image}")
    else:
        past.show(queue, chosen, found)


def _watch(
    call: Invocation, client: Client, queue: str | None, every: float, stop: StopSignal
) -> None:
    clock = SystemClock()
    on_terminal = sys.stdout.isatty()
    if on_terminal and not call.as_json:
        click.clear()
    while True:
        found = _stats(client, queue)
        now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        if call.as_json:
            documents = [each.as_dict() for each in found]
            at = now.isoformat(timespec="milliseconds")
            output.json_line({"at": at, "queues": documents})
        else:
            lines = [output.moment(now), "", *_lines(found, queue)]
            if on_terminal:
                drawn = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
                click.echo(f"{_HOME}{drawn}{_CLEAR_BELOW}", nl=False)
            else:
                output.say(*lines, "")
        if stop.wait(every):
            return


class QueueReport(NamedTuple):
    """What is shown about a queue."""

    stats: QueueStats
    rates: Rates

    def as_dict(self) -> dict[str, Any]:
        return {**self.stats.as_dict(), "rates": self.rates.as_dict()}


def _stats(client: Client, name: str | None) -> list[QueueReport]:
    queues = client.queues() if name is None else [client.queue(name)]
    return [QueueReport(*queue.stats_and_rates()) for queue in queues]


def _lines(found: list[QueueReport], queue: str | None) -> list[str]:
    lines = _table([each.stats for each in found])
    if queue is not None:
        stats, rates = found[0]
        pipes = ", ".join(f"{count:,} {state}" for state, count in stats.pipes.items())
        lines += ["", f"pipes: {pipes}; consistency: {stats.consistency}", ""]
        lines += output.table_lines(RATE_HEADERS, _rate_rows(rates))
        lines += _priority_lines(stats) + _delivery_lines(stats)
        lines += _trouble_lines(stats) + _limit_lines(stats) + _held_lines(stats)
        lines += _expired_lines(stats)
    return lines


def _rate_rows(rates: Rates) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("pushed", "", *_shown(rates.pushed))]
    for name, verbs in rates.groups.items():
        rows += [(v, name, *_shown(windows)) for v, windows in verbs.items() if v != "pushed"]
    return rows


def _shown(windows: Windows) -> list[object]:
    return [None if rate is None else number(rate) for rate in windows.values()]


def _priority_lines(stats: QueueStats) -> list[str]:
    """How many messages of each priority are waiting, if there are priorities other than 0."""
    rows = [
        (name, priority, count)
        for name, group in stats.groups.items()
        for priority, count in group.priorities.items()
    ]
    return ["", *output.table_lines(("GROUP", "PRIORITY", "WAITING"), rows)] if rows else []


def _delivery_lines(stats: QueueStats) -> list[str]:
    """How often waiting and pending messages were delivered."""
    rows = [
        (name, "never" if times == 0 else f"{times} time{'' if times == 1 else 's'}", count)
        for name, group in stats.groups.items()
        for times, count in sorted(group.deliveries.items())
    ]
    return ["", *output.table_lines(("GROUP", "DELIVERED", "MESSAGES"), rows)] if rows else []


def _trouble_lines(stats: QueueStats) -> list[str]:
    """What happened to messages, and to requests, while storage or consumers failed."""
    lines: list[str] = []
    rows = [(count, TROUBLES[name]) for name, count in stats.troubles.items()]
    asked = [(count, REQUESTS[name]) for name, count in stats.requests.items()]
    if rows:
        lines += ["", *output.table_lines(("MESSAGES", "IN THE LAST 2 DAYS"), rows)]
    if asked:
        headers = ("REQUESTS", "OF ALL QUEUES, IN THE LAST 2 DAYS")
        lines += ["", *output.table_lines(headers, asked)]
    return lines


def _limit_lines(stats: QueueStats) -> list[str]:
    """How much of their concurrency its groups use."""
    lines = [
        f"consumers of group {name} have {group.permits or 0:,} of the {group.concurrency:,}"
        " messages that they may have at once (concurrency)"
        for name, group in stats.groups.items()
        if group.concurrency is not None
    ]
    return ["", *lines] if lines else []


def _held_lines(stats: QueueStats) -> list[str]:
    """How many keys of its groups are held: by dead letters, by messages that keep failing, or by
    messages that have been in hand for long."""
    lines: list[str] = []
    for name, group in stats.groups.items():
        listed = f"`cassq group keys {stats.name} {name}` lists them"
        if group.held_keys:
            keys = counted(group.held_keys, "key")
            lines.append(f"dead letters hold {keys} of group {name}; {listed}")
        if group.stuck_keys:
            failed = f"{output.messages(group.stuck_keys)} of group {name} failed for more than"
            lines.append(f"{failed} {STUCK_SECONDS // 60} minutes, and hold their keys; {listed}")
        if group.stuck_in_hand:
            kept = output.messages(group.stuck_in_hand)
            was = "has" if group.stuck_in_hand == 1 else "have"
            lines.append(
                f"{kept} of group {name} {was} been in hand for more than"
                f" {STUCK_SECONDS // 60} minutes; {listed}"
            )
    return ["", *lines] if lines else []


def _expired_lines(stats: QueueStats) -> list[str]:
    """How many groups expired, and how many uncommitted messages they had."""
    gone = stats.expired_groups
    if not gone:
        return []
    groups, left = counted(gone["groups"], "group"), output.messages(gone["uncommitted"])
    where = f"`cassq group list {stats.name} --expired` lists them"
    return ["", f"{groups} expired in the last 60 days, with {left} not committed; {where}"]


def _table(found: list[QueueStats]) -> list[str]:
    """One line per group. PUSHED is the sum of its columns."""
    groups = [group for stats in found for group in stats.groups.values()]
    seldom = [name for name in SELDOM if any(getattr(group, name) for group in groups)]
    headers = (*HEADERS, *map(str.upper, seldom), "OLDEST")
    rows: list[tuple[object, ...]] = []
    for stats in found:
        live = sum(count for state, count in stats.pipes.items() if state != "retired")
        for name, g in stats.groups.items():
            counts = (g.waiting, g.pending, g.committed, g.dead, *(getattr(g, n) for n in seldom))
            rows.append((stats.name, g.pushed, live, name, *counts, output.age(g.oldest_age)))
        if not stats.groups:
            none = [None] * (len(headers) - 3)
            rows.append((stats.name, stats.pushed, live, *none))
    return output.table_lines(headers, rows)
