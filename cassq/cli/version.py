"""`cassq version`: the versions of cassq and of Python."""

from __future__ import annotations

import platform

import click

from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb
from cassq.version import __version__


@click.command(cls=Verb, connects=False, examples=["cassq version", "cassq version --json"])
@click.pass_obj
def version(call: Invocation) -> None:
    """Show the versions of cassq and of Python."""
    if call.as_json:
        output.document({"cassq": __version__, "python": platform.python_version()})
    else:
        output.say(f"cassq {__version__}, Python {platform.python_version()}")
