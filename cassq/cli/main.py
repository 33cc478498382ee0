"""The command's entry: its tree of verbs, and what becomes of errors."""

from __future__ import annotations

import contextlib
import logging
import platform
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from cassq.cli import output
from cassq.cli.audit import audit
from cassq.cli.completion import completion
from cassq.cli.dead import dead
from cassq.cli.explain import explain
from cassq.cli.group import group
from cassq.cli.peek import peek
from cassq.cli.pop import pop
from cassq.cli.push import push
from cassq.cli.queue import queue
from cassq.cli.reap import reap, rollback
from cassq.cli.schema import schema
from cassq.cli.sidecar import sidecar
from cassq.cli.sidecar_leave import drain, forget
from cassq.cli.sidecars import check, list_, show
from cassq.cli.spark import spark
from cassq.cli.spill import spill
from cassq.cli.stats import stats
from cassq.cli.verb import Invocation, Verb, options_of_all
from cassq.errors import BrokenInvariantError, CassqError
from cassq.version import __version__

NAME = "cassq"
INTERRUPTED = 130


class Root(click.Group):
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
        _log_to_stderr()
        try:
            code = super().main(arguments, NAME, complete_var, standalone_mode=False, **extra)
        except (CassqError, click.ClickException, OSError) as exc:
            code = told(exc, as_json=as_json)
        except click.Abort:
            code = INTERRUPTED
        sys.exit(code or 0)


def _end_of_options(arguments: Sequence[str]) -> int:
    with contextlib.suppress(ValueError):
        return arguments.index("--")
    return len(arguments)


def _log_to_stderr() -> None:
    """What cassq logs goes where errors go, in one form."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter("warning: %(message)s"))


def told(exc: CassqError | click.ClickException | OSError, *, as_json: bool) -> int:
    """Write an error to standard error; the exit code that goes with it."""
    kind = type(exc).__name__
    match exc:
        case CassqError():
            if isinstance(exc, BrokenInvariantError):
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
   1  it failed, or an audit does not balance
   2  the call is wrong: nothing was changed by it
  75  the storage cannot be used at the moment: try again later
""",
)
@click.version_option(__version__, message="%(prog)s %(version)s", help="Show the version.")
@click.pass_context
def main(ctx: click.Context) -> None:
    """A durable queue with no broker.

    A queue is made once and keeps its messages on disk until every consumer group has acked them.
    Any number of processes may push and pop at once; there is no server to start.
    """
    ctx.ensure_object(Invocation)


@click.command(cls=Verb, examples=["cassq version", "cassq version --json"])
@click.pass_obj
def version(call: Invocation) -> None:
    """Show the versions of cassq and of Python."""
    if call.as_json:
        output.document({"cassq": __version__, "python": platform.python_version()})
    else:
        output.say(f"cassq {__version__}, Python {platform.python_version()}")


for _verb in (list_, show, check, drain, forget):
    sidecar.add_command(_verb)
for _command in (
    *(queue, group, push, pop, peek, dead, explain, stats, audit, reap, rollback),
    *(schema, sidecar, spark, spill, completion, version),
):
    main.add_command(_command)
