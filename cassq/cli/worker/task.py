"""`cassq task`: list, show, signal, retry and cancel calls of tasks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import click

from cassq.base.printing import printable
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, complete_queue
from cassq.errors import UsageError
from cassq.settings import TaskState

if TYPE_CHECKING:
    from cassq.tasks.steps.listing import TaskShown

LISTED_MAX = 10_000

EXAMPLE_ID = "0197f3a2b4c1d2e3f4a5b6c7:42"

_id_argument = click.argument("task_id", metavar="ID")


@click.group()
def task() -> None:
    """List, look at, signal, retry and cancel calls of tasks.

    ID is what `push` returned as the handle's `id`; it stays the same when a task sleeps, waits,
    becomes a dead letter, and is tried again.
    """


@task.command(
    "list",
    cls=Verb,
    short_help="List calls that are not done, and what they wait for.",
    examples=["cassq task list", "cassq task list orders --state signal --json"],
)
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=complete_queue)
@click.option("--state", type=click.Choice(get_args(TaskState)), help="Only calls in this state.")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(1, LISTED_MAX),
    default=20,
    show_default=True,
    help="List at most this many calls.",
)
@click.pass_obj
def list_tasks(call: Invocation, queue: str | None, state: TaskState | None, limit: int) -> None:
    """List calls of tasks that are not done, in one queue or in all.

    States: waiting for a worker, delayed, running, sleeping, waiting for a signal, and dead. The
    command reads at most 10,000 messages of each queue.
    """
    from cassq.tasks.steps import listing

    with call.connect() as client:
        found = listing.listed(client, queue, state, limit)
    if call.as_json:
        output.document([row.as_dict() for row in found])
        return
    headers = ("ID", "QUEUE", "TASK", "STATE", "ATTEMPTS", "WAITS FOR", "DUE")
    output.table(
        headers,
        (
            (
                row.id,
                row.queue,
                row.task,
                row.state,
                row.attempts,
                row.waits_for,
                "" if row.due_at is None else output.moment(row.due_at),
            )
            for row in found
        ),
    )


@task.command(
    "show",
    cls=Verb,
    short_help="Show a call: arguments, attempts, steps, result and error.",
    examples=[f"cassq task show {EXAMPLE_ID}", f"cassq task show {EXAMPLE_ID} --json"],
)
@_id_argument
@click.pass_obj
def show(call: Invocation, task_id: str) -> None:
    """Show a call: its arguments, its state and attempts, each step with its times and its result,
    what it waits for, and its own result or error."""
    from cassq.tasks.steps import listing

    with call.connect() as client:
        found = listing.shown(client, task_id)
    if call.as_json:
        output.document(found.as_dict())
    else:
        output.say(*map(printable, _lines(found)))


def _lines(found: TaskShown) -> list[str]:
    called = "a task, whose message is not stored any more"
    if found.call is not None:
        given = [repr(each) for each in found.call.args]
        given += [f"{name}={value!r}" for name, value in found.call.kwargs.items()]
        called = f"{found.call.task}({', '.join(given)})"
    waits = f" ({found.waits_for})" if found.waits_for else ""
    lines = [f"{called} in queue {found.queue}", f"State: {found.state}{waits}"]
    lines += [f"  {sentence}" for sentence in found.sentences]
    lines += ["Steps:"] if found.steps else []
    for step in found.steps:
        until = "" if step.until is None else f", until {output.moment(step.until)}"
        ended = "" if step.ended_at is None else f", ended {output.moment(step.ended_at)}"
        value = "" if step.ended_at is None or step.kind == "sleep" else f": {step.value!r}"
        error = f": {step.error}" if step.error else ""
        began = output.moment(step.began_at)
        lines.append(f"  {step.kind} {step.name}, began {began}{until}{ended}{error or value}")
    lines += [f"Signals that came: {', '.join(found.signals)}"] if found.signals else []
    lines += [f"Result: {found.result!r}"] if found.result is not None else []
    lines += [f"Error: {found.error}"] if found.error else []
    return lines


@task.command(
    "signal",
    cls=Verb,
    short_help="Send a signal that a task waits for, or will wait for.",
    examples=[
        f"cassq task signal {EXAMPLE_ID} approved",
        f"""cassq task signal {EXAMPLE_ID} approved '{{"by": "Ann"}}'""",
    ],
)
@_id_argument
@click.argument("name")
@click.argument("value", required=False, metavar="[JSON]", default="true")
@click.pass_context
def signal(ctx: click.Context, task_id: str, name: str, value: str) -> None:
    """Send a signal: the task's `ctx.wait(NAME)` returns its value, by default true. A signal that
    comes before the task waits counts too. If the task is over, the exit code is 1."""
    try:
        read: Any = json.loads(value)
    except ValueError as exc:
        raise UsageError(
            f"the value of a signal must be JSON: {exc}", hint="a string needs quotes: '\"yes\"'"
        ) from exc
    from cassq.tasks.steps import listing

    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        sent = listing.signal(client, task_id, name, read)
    _tell(ctx, call, task_id, "signalled", sent, "not sent: the task is over")


@task.command(
    "retry",
    cls=Verb,
    short_help="Run a dead call again.",
    examples=[f"cassq task retry {EXAMPLE_ID}"],
)
@_id_argument
@click.pass_context
def retry(ctx: click.Context, task_id: str) -> None:
    """Run a dead call again, that is, one that became a dead letter. Its attempts are counted from
    the beginning; steps that returned do not run again. If the call is not dead, the exit code is
    1."""
    from cassq.tasks.steps import listing

    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        done = listing.retry(client, task_id)
    _tell(ctx, call, task_id, "retried", done, "not retried: it is not a dead letter")


@task.command(
    "cancel",
    cls=Verb,
    short_help="Cancel a call that no worker has.",
    examples=[f"cassq task cancel {EXAMPLE_ID}"],
)
@_id_argument
@click.pass_context
def cancel(ctx: click.Context, task_id: str) -> None:
    """Cancel a call. A call that is delayed, or waits for a worker or a retry, will never run; one
    that sleeps or waits for a signal will never continue. If a worker has the call, or the call is
    over, it is too late: the output says so, and the exit code is 1."""
    from cassq.tasks.steps import listing

    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        state = listing.cancel(client, task_id)
    found = "a worker has it" if state == "running" else f"it is {state}"
    _tell(ctx, call, task_id, "cancelled", state == "cancelled", f"not cancelled: {found}")


def _tell(
    ctx: click.Context, call: Invocation, task_id: str, what: str, done: bool, otherwise: str
) -> None:
    if call.as_json:
        output.document({"id": task_id, what: done})
    else:
        output.say(what if done else otherwise)
    if not done:
        ctx.exit(1)
