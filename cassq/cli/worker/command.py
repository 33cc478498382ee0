"""`cassq worker`: run a function for every message, in processes and threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import click

from cassq.base.arguments import split_address
from cassq.cli.options import grace_option, processes_option
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, complete_queue, seconds
from cassq.cli.worker.describing import described, run_until_stopped
from cassq.cli.worker.logs import FORMS, JSON, TEXT, log_tasks
from cassq.client.client import Client
from cassq.client.connecting import DEFAULT_URL, connect
from cassq.client.queue import Queue
from cassq.consumer.dead_poppers import free_dead_popper
from cassq.errors import CassqError, UsageError
from cassq.model.queues import is_dead_letter_name
from cassq.worker.figures import worker_metrics
from cassq.worker.journal import logger
from cassq.worker.loop import CONCURRENCY_MAX, TASKS_MAX, LoopSettings
from cassq.worker.notify import Notices
from cassq.worker.supervisor import Plan, Supervisor

PROCESSES_MAX = 1000
CHILD = "cassq.cli.worker.child"


class SourcePlace(NamedTuple):
    """Where messages are taken from. groups: the group to work for, by queue."""

    url: str
    groups: Mapping[str, str]

    def orders(self) -> list[dict[str, Any]]:
        """The part of the orders that depends on the queue, for each queue."""
        return [
            {"url": self.url, "queue": queue, "group": group}
            for queue, group in self.groups.items()
        ]


@click.command(
    cls=Verb,
    short_help="Run a function for every message, in processes and threads.",
    examples=[
        "cassq worker tasks:send --queue mails",
        "cassq worker mail.tasks:send --queue mails --processes 4 --threads 8",
        "cassq worker mail.tasks:send_async --queue mails --async 200",
        "cassq worker tasks:send --queue mails --time-limit 5m --grace 1m --log json",
        "cassq worker tasks:send --queue mails --reload",
        "cassq worker tasks:send --queue mails --listen 127.0.0.1:9465",
    ],
)
@click.argument("handler", metavar="MODULE:OBJECT")
@click.option(
    "--queue",
    "names",
    metavar="QUEUE",
    multiple=True,
    shell_complete=complete_queue,
    help="The queue to take from; may be given several times.  [default: the only one, or an"
    " app's]",
)
@click.option(
    "--group",
    metavar="GROUP",
    help="The consumer group to work for.  [default: default, or an app's]",
)
@processes_option(PROCESSES_MAX, " for each queue")
@click.option(
    "--threads",
    type=click.IntRange(1, CONCURRENCY_MAX),
    help="How many tasks each process runs at the same time, in threads.  [default: 8]",
)
@click.option(
    "--async",
    "tasks",
    type=click.IntRange(1, CONCURRENCY_MAX),
    metavar="N",
    help="How many async tasks each process runs at the same time.  [default: 100]",
)
@grace_option("tasks")
@click.option(
    "--time-limit",
    type=seconds,
    metavar="TIME",
    help="Fail a task that runs for longer, and replace its process.  [default: no limit]",
)
@click.option(
    "--max-tasks-per-child",
    type=click.IntRange(1, TASKS_MAX),
    metavar="N",
    help="Replace each process after this many tasks.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart when a source file below the current directory changes.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus, and /health; needs the extra cassq[metrics].",
)
@click.option(
    "--log",
    "form",
    type=click.Choice(FORMS),
    help="A line for each task, as text or JSON, or only for failures.  [default: text]",
)
@click.pass_context
def worker(
    ctx: click.Context,
    handler: str,
    names: tuple[str, ...],
    group: str | None,
    processes: int,
    threads: int | None,
    tasks: int | None,
    grace: float,
    time_limit: float | None,
    max_tasks_per_child: int | None,
    reload: bool,
    listen: str | None,
    form: str | None,
) -> None:
    """Call a function for every message of a queue, until SIGTERM or Ctrl-C.

    OBJECT is a function of one argument, the message; if it is async, an event loop runs it. Or
    OBJECT is an app of `cassq.tasks`: then the command runs the tasks in all of its queues, or only
    those in the queues that --queue names, and creates missing queues. MODULE is a module in the
    current directory, or anywhere that Python finds it. When the function returns, the message is
    acked. If it raises, the error is logged, and the message is nacked with this error. If the
    function settles the message itself, for example by message.dead(...), the worker does not
    settle it again.

    Each process takes only as many messages as it can run at once. After SIGTERM or Ctrl-C, running
    tasks may go on for --grace; messages that were not begun go back, which does not count as a
    delivery. Tasks that run even longer are nacked, and the exit code is 1; otherwise it is 0. A
    second Ctrl-C ends the command at once.

    A process that crashes is replaced, and its messages are delivered again, which counts as a
    delivery. If a task runs for longer than --time-limit, its message is nacked, and its process is
    replaced once the other tasks in it have ended.

    If the module cannot be loaded, its traceback is shown, and the exit code is 2.
    """
    call = ctx.ensure_object(Invocation)
    form = form or (JSON if call.as_json else TEXT)
    settings = LoopSettings(None, grace, time_limit, max_tasks_per_child).checked()
    address = None if listen is None else _address(listen)
    orders = {
        "handler": handler,
        "threads": threads,
        "tasks": tasks,
        "settings": settings.as_arguments(),
        "reload": reload,
        "log": form,
    }
    with _placed(call, handler, names, group) as (client, place):
        plan = Plan(
            [sys.executable, "-m", CHILD],
            [{**orders, **each} for each in place.orders() for _ in range(processes)],
            grace,
            time_limit,
            reload,
        )
        log_tasks(form)
        code = _run(client, place, plan, address)
    ctx.exit(code)


def _run(client: Client, place: SourcePlace, plan: Plan, address: tuple[str, int] | None) -> int:
    """Run processes until they are stopped. Returns the exit code."""
    supervisor = Supervisor(plan, partial(_free, client), Notices())
    if address is not None:
        _serve(client, supervisor, address, place)
    return run_until_stopped(supervisor)


def _address(listen: str) -> tuple[str, int]:
    parts = split_address(listen)
    if parts is None:
        raise UsageError(
            f"--listen: {listen!r} is not an address", hint="write HOST:PORT, as in 127.0.0.1:9465"
        )
    return parts


@contextmanager
def _placed(
    call: Invocation, handler: str, names: Sequence[str], group: str | None
) -> Iterator[tuple[Client, SourcePlace]]:
    """Where to take messages from, and a client for that. If the call does not say, the handler may
    be an app that does; then a separate process loads it to find out."""
    url = call.url or os.environ.get("CASSQ_URL")
    if url and names:
        with connect(url, create=False) as client:
            if {each.name for each in client.queues()}.issuperset(names):
                yield client, _place_of(url, map(client.queue, names), group)
                return
    app = described(handler, url, [sys.executable, "-m", CHILD])
    if app is not None:
        missing = [name for name in names if name not in app.groups]
        if missing:
            raise UsageError(
                f"no task of {handler} uses queue {missing[0]!r}",
                hint=f"its tasks use {', '.join(app.groups)}",
            )
        url = app.url
    url = url or DEFAULT_URL
    with connect(url, create=False) as client:
        if app is not None:
            chosen = {name: app.groups[name] for name in app.groups if name in names or not names}
            yield client, SourcePlace(url, {name: group or its for name, its in chosen.items()})
        else:
            queues = [client.queue(name) for name in names] or [_only_queue(client)]
            yield client, _place_of(url, queues, group)


def _place_of(url: str, queues: Iterable[Queue], group: str | None) -> SourcePlace:
    return SourcePlace(url, {queue.name: _group(queue, group) for queue in queues})


def _only_queue(client: Client) -> Queue:
    """The only queue, not counting those of dead letters. Raises UsageError unless it is alone."""
    names = [each.name for each in client.queues() if not is_dead_letter_name(each.name)]
    if len(names) != 1:
        shown = ", ".join(names[:10]) if names else "none"
        raise UsageError(f"--queue is needed: the queues are {shown}", hint="add --queue QUEUE")
    return client.queue(names[0])


def _group(queue: Queue, group: str | None) -> str:
    """The group to work for. Raises GroupNotFoundError if it does not exist."""
    from cassq.tasks.groups import group_of  # it loads asyncio, which other commands do without

    group = group or group_of(queue)
    queue.worker(lambda _: None, group=group)
    return group


def _free(client: Client, orders: Mapping[str, Any], popper: str) -> None:
    """Free the claims of a process that crashed. If that fails, they expire."""
    try:
        row = client.queue(orders["queue"]).row
        rows = client.ports.catalog.queues.groups(row.id)
        group = orders["group"]
        of_group = next((each for each in rows if each.name == group), None)
        if of_group is not None and free_dead_popper(client.ports, row, of_group, popper):
            client.runtime.doorbell(row.id).ring()
    except CassqError as exc:
        logger.warning(
            "messages of a crashed process are delivered again when their claims expire: %s", exc
        )


def _serve(
    client: Client, supervisor: Supervisor, address: tuple[str, int], place: SourcePlace
) -> None:
    host, port = address
    served = client.serve_metrics(
        port,
        host,
        health=supervisor.facts,
        also=lambda: worker_metrics(supervisor.facts(), place.groups),
    )
    at = f"http://{host}:{served.port}"
    output.note(f"metrics at {at}/metrics, health at {at}/health")
