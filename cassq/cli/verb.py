"""A verb: a command of the tree, with the common options, and examples in its help."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from cassq.cli import interrupts
from cassq.errors import CassqError, UsageError

if TYPE_CHECKING:
    from cassq.client.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


class Invocation:
    """The context of one run of the command: where the queues are, and how results are written.

    url: None means CASSQ_URL or the default.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.as_json = False

    def connect(self) -> Client:
        """A client of the queues' existing directory or keyspace."""
        from cassq.client.connecting import connect

        return connect(self.url, create=False)

    def connect_or_create(self) -> Client:
        """A client of the queues' directory or keyspace, created if it does not exist."""
        from cassq.client.connecting import connect

        return connect(self.url)


def _remember_url(ctx: click.Context, _param: click.Parameter, url: str | None) -> None:
    if url is not None:
        ctx.ensure_object(Invocation).url = url


def _remember_json(ctx: click.Context, _param: click.Parameter, as_json: bool) -> None:
    if as_json:
        ctx.ensure_object(Invocation).as_json = True


def options_of_all(*, envvar: str | None = None) -> list[click.Parameter]:
    """--url and --json, which may stand before or after the verb."""
    return [
        click.Option(
            ["--url"],
            envvar=envvar,
            show_envvar=envvar is not None,
            metavar="URL",
            expose_value=False,
            # Eager, so that the completion of a queue's name knows where to look.
            is_eager=True,
            callback=_remember_url,
            help="Where the queues are: file:DIR, file:///DIR or cassandra://HOST/KEYSPACE."
            "  [default: file:cassq-data]",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_remember_json,
            help="Write results, and errors, as JSON.",
        ),
    ]


class Verb(click.Command):
    """A command that does something.

    examples: command lines, shown at the end of its help. connects: whether it opens queues.
    """

    def __init__(
        self, *args: Any, examples: Sequence[str] = (), connects: bool = True, **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.connects = connects
        self.examples: list[str] = list(examples)
        lines = [f"  {line}" for line in self.examples]
        self.epilog: str | None = "\n".join(["\b", "Examples:", *lines])
        self.params.extend(options_of_all())

    def invoke(self, ctx: click.Context) -> Any:
        if self.connects:  # most of what takes time to load, while Ctrl-C ends it at once
            import_module("cassq.client.connecting")
        interrupts.disarm()
        return super().invoke(ctx)


def seconds(value: str) -> float:
    """A length of time in seconds. value: seconds, or with a unit, as in 500ms, 10s, 5m, 1h, 7d."""
    match = _SECONDS.fullmatch(value.strip())
    if match is None or match[2] not in _UNITS:
        raise click.BadParameter(
            f"{value!r} is not a time: write 10, 0.5, 500ms, 10s, 5m, 1h or 7d"
        )
    return float(match[1]) * _UNITS[match[2]]


def complete_queue(ctx: click.Context, _param: object, incomplete: str) -> list[CompletionItem]:
    """The names of the existing queues, for the shell's completion."""
    call = ctx.find_object(Invocation) or Invocation()
    try:
        with call.connect() as client:
            return [CompletionItem(queue.name) for queue in client.queues(incomplete)]
    except CassqError:
        return []  # a completion cannot show an error; the command itself will


def options(*those: Callable[[F], F]) -> Callable[[F], F]:
    """Options that several verbs share, as one decorator; the help lists them in this order."""

    def with_options(command: F) -> F:
        for option in reversed(those):
            command = option(command)
        return command

    return with_options


def queue_argument(name: str = "name", **attributes: Any) -> Callable[[F], F]:
    """The argument QUEUE, completed by the shell."""
    return click.argument(name, metavar="QUEUE", shell_complete=complete_queue, **attributes)


def sure_to(question: str, *, yes: bool, as_json: bool, doing: str = "deleting") -> bool:
    """Ask the user to confirm, unless --yes was given. Raises UsageError if there is no terminal to
    ask on."""
    if yes:
        return True
    if as_json or not sys.stdin.isatty():
        raise UsageError(f"{doing} must be confirmed", hint="add --yes")
    return click.confirm(question, err=True)
