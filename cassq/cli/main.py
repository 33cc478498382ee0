"""The command's tree of verbs, and how errors are shown. A verb is loaded when it is called."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from cassq.cli import interrupts
from cassq.cli.lazy import LazyGroup
from cassq.cli.verb import Invocation, options_of_all
from cassq.errors import BrokenInvariantError, CassqError
from cassq.version import __version__

NAME = "cassq"

# Each command has one line here: its name, the file of this folder that defines it under this name,
# and its line in the list of commands.
COMMANDS = {
    "audit": ("ops.audit", "Prove that no message is lost or was invented."),
    "cancel": ("queues.cancel", "Take a delayed message back before it is delivered."),
    "completion": ("completion", "Write a shell's completion script."),
    "dead": ("queues.dead", "List, look at, merge, purge, export and import dead letters."),
    "explain": ("queues.explain", "Show where a message is, and what happens to it next."),
    "gateway": ("gateway.command", "Serve the queues to SQS clients in any language."),
    "group": ("queues.group", "Create, list, change and delete consumer groups."),
    "outbox": ("ops.outbox", "Forward messages written in transactions of your own database."),
    "peek": ("queues.peek", "Look at messages without affecting them."),
    "pipe": ("queues.pipe", "List the pipes of a queue, look for damage, and skip it."),
    "pop": ("queues.pop", "Pop messages and write them to standard output."),
    "push": ("queues.push", "Push lines, or whole files, as messages."),
    "queue": ("queues.queue", "Create, list, show, change, pause, drain, purge and delete queues."),
    "reap": ("ops.reap", "Clean up after stopped clients, once or as a daemon."),
    "rollback": ("ops.reap", "Give back messages that poppers have kept for too long."),
    "schedule": ("queues.schedule", "Push messages at fixed times, as cron does, or at intervals."),
    "schema": ("ops.schema", "Create, inspect and change a Cassandra keyspace."),
    "sidecar": ("ops.sidecar", "Run a storage sidecar, and look after the existing ones."),
    "spark": ("spark.commands", "Run Spark jobs on whole queues."),
    "spill": ("ops.spill", "Look at a local spool, and forward its messages."),
    "stats": ("ops.stats", "Show how many messages are in each state."),
    "task": ("worker.task", "List, look at, signal, retry and cancel calls of tasks."),
    "worker": ("worker.command", "Run a function for every message, in processes and threads."),
    "version": ("version", "Show the versions of cassq and of Python."),
}

# What click raises for a group without a verb; before 8.2 it showed the help itself.
_NO_VERB: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class Root(LazyGroup):
    """The top of the tree: turns errors into two lines, or JSON, and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in arguments[: _end_of_options(arguments)]
        try:
            code = super().main(arguments, NAME, complete_var, standalone_mode=False, **extra)
        except _NO_VERB as exc:
            click.echo(exc.ctx.get_help())
            code = 0
        except (CassqError, click.ClickException, OSError) as exc:
            code = report(exc, as_json=as_json)
        except click.Abort:
            code = _interrupted(as_json=as_json)
        sys.exit(code or 0)

    def invoke(self, ctx: click.Context) -> Any:
        _log_to_stderr()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as exc:
            raise click.Abort from exc  # click itself would write an empty line first


def _end_of_options(arguments: Sequence[str]) -> int:
    with contextlib.suppress(ValueError):
        return arguments.index("--")
    return len(arguments)


def _log_to_stderr() -> None:
    """Send cassq's logs to standard error, in the form of errors."""
    import logging

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("warning: %(message)s"))


def _interrupted(*, as_json: bool) -> int:
    from cassq.cli.ui import output

    output.error(interrupts.MESSAGE, as_json=as_json, kind=KeyboardInterrupt.__name__)
    return interrupts.EXIT_CODE


def report(exc: CassqError | click.ClickException | OSError, *, as_json: bool) -> int:
    """Write an error to standard error; returns its exit code."""
    from cassq.cli.ui import output

    kind = type(exc).__name__
    match exc:
        case CassqError():
            if isinstance(exc, BrokenInvariantError):
                import traceback

                traceback.print_exception(exc)
            output.error(exc.message, exc.hint, as_json=as_json, kind=kind, fields=exc.fields)
            return exc.exit_code
        case click.UsageError():
            path = exc.ctx.command_path if exc.ctx else NAME
            hint = f"see `{path} --help`"
            output.error(exc.format_message(), hint, as_json=as_json, kind="UsageError")
            return exc.exit_code
        case click.ClickException():
            output.error(exc.format_message(), as_json=as_json, kind=kind)
            return exc.exit_code
        case _:
            where = f": {exc.filename}" if exc.filename else ""
            output.error(f"{exc.strerror or exc}{where}", as_json=as_json, kind=kind)
            return 1


@click.group(
    NAME,
    cls=Root,
    commands_later=COMMANDS,
    params=options_of_all(envvar="CASSQ_URL"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
    epilog="""\b
Examples:
  cassq queue create mail
  seq 1000 | cassq push mail
  cassq pop mail --max 10
  cassq stats
\b
Exit codes:
   0  done
   1  it failed for good, or an audit does not balance
   2  the call is wrong: nothing was changed by it
  75  the storage cannot be used at the moment: try again later
""",
)
@click.version_option(__version__, message="%(prog)s %(version)s", help="Show the version.")
@click.pass_context
def main(ctx: click.Context) -> None:
    """A durable queue with no broker.

    Create a queue once; it keeps its messages on disk until every consumer group has acked them.
    Any number of processes may push and pop at the same time, and there is no server to start.
    """
    ctx.ensure_object(Invocation)
