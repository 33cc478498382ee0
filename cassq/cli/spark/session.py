"""Where, and how, Spark runs for the commands of `cassq spark`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from cassq import extras
from cassq.cli.verb import F, options


def _settings(
    _ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    for each in given:
        if "=" not in each.lstrip("="):
            raise click.BadParameter(f"{each!r} is not NAME=VALUE")
    return dict(each.split("=", 1) for each in given)


def session_options(command: F) -> F:
    """Where, and how, Spark runs."""
    return options(
        click.option(
            "--master",
            metavar="URL",
            help="Where Spark runs: local[2], spark://HOST:PORT, yarn; default: Spark's own"
            " configuration, else local[*].",
        ),
        click.option(
            "--conf",
            "settings",
            metavar="NAME=VALUE",
            multiple=True,
            callback=_settings,
            help="A Spark setting, such as spark.driver.memory=4g; may be given several times.",
        ),
    )(command)


@contextmanager
def session_of(name: str, master: str | None, settings: dict[str, str]) -> Iterator[Any]:
    """The session of a job; loads what the job needs. Raises MissingExtraError."""
    with extras.wanted("Spark jobs need", "pyspark and pyarrow", "spark"):
        import pyarrow  # noqa: F401

        from cassq.spark.jobs.sessions import session
    with session(f"cassq spark {name}", master, settings) as found:
        yield found
