"""The directory of a run: made, or found as an earlier run left it, and given up at the end."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click


def take_place(directory: Path | None, check_only: bool, result: Callable[[Path], Path]) -> Path:
    """The directory of the run: a new one, or for a check one with an earlier run in it.

    result: the file in it that a run which came to its end has left.
    """
    if directory is None:
        if check_only:
            raise click.UsageError("--check needs the --dir of an earlier run")
        return Path(tempfile.mkdtemp(prefix="cassq-flights-"))
    if check_only:
        if not result(directory).exists():
            raise click.UsageError(f"{directory} holds no earlier run")
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty: name another, or use --check")
    return directory


def leave(place: Path, *, kept: bool, passed: bool) -> NoReturn:
    """End the command; a directory of its own goes, unless it shows what is wrong."""
    if not kept and passed:
        shutil.rmtree(place)
    elif not passed:
        click.echo(f"what the run left is in {place}", err=True)
    sys.exit(0 if passed else 1)
