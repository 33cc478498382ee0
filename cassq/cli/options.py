"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cassq.cli.verb import seconds

F = TypeVar("F", bound=Callable[..., Any])

A_FILE = click.Path(path_type=Path, dir_okay=False)  # it need not exist


def time_option(name: str, default: str, help_text: str, **attributes: Any) -> Callable[[F], F]:
    """An option that takes a length of time; the help shows its default."""
    return click.option(
        name, type=seconds, default=default, show_default=True, help=help_text, **attributes
    )


def grace_option(what: str) -> Callable[[F], F]:
    """The option --grace of a command that runs until it is stopped. what: what may go on then."""
    return time_option("--grace", "30s", f"How long {what} may go on after SIGTERM or Ctrl-C.")


def processes_option(processes_max: int, how_many: str) -> Callable[[F], F]:
    """The option --processes of a command that runs its work in processes."""
    return click.option(
        "--processes",
        type=click.IntRange(1, processes_max),
        default=1,
        show_default=True,
        help=f"How many processes to run{how_many}.",
    )
