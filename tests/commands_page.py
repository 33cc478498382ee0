"""docs/commands.md, made from the commands' own help: `python -m tests.commands_page` writes it.

A test compares the page with what this makes, so it cannot fall behind.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from cassq.cli.main import NAME, main
from cassq.cli.verb import Verb, options_of_all

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"

INTRODUCTION = """\
# The command

`cassq` does from a shell what the library does from Python: it makes queues, pushes, pops, shows
and audits them, and runs the reaper. It comes with `pip install cassq`; `python -m cassq` is the
same. This page collects what `cassq --help` and `cassq COMMAND --help` say.

## For all commands

**Where the queues are**: `--url`, before or after the command, else the environment variable
`CASSQ_URL`, else `file:cassq-data` in the current directory. Only `cassq queue create`,
`cassq gateway`, and `cassq worker` with an app of tasks make that directory; all others fail if it
does not exist. If the directory has lost its `catalog.sqlite`, any command rebuilds this file from
the pipe files, and warns which messages are delivered again. `cassq schema apply` makes the tables
of a keyspace in Cassandra, `cassandra://HOST1,HOST2/KEYSPACE`.

**Help**: `--help`, or `-h`; without a command `cassq`, `cassq queue` and the like show it too.
`cassq --version` shows the version.

**Output** is plain text for people, or JSON with `--json`, before or after the command: one object
per line for messages (`pop`, `peek`) and for commands that run until they are stopped (`stats
--watch`, `reap --every`), one document for everything else.

**Errors** are two lines on standard error, `error: …` and `hint: …` with what to do next. With
`--json` they are one object there: `error`, `hint`, `kind` (the name of the exception in
`cassq.errors`), and further fields such as `pushed`.

**Exit codes**:

| code | meaning |
|---|---|
| 0 | done |
| 1 | it failed for good, an audit does not balance, or the reader of the output went away |
| 2 | the call is wrong (`UsageError`): it changed nothing |
| 75 | the storage cannot be used now, or the queue is paused (`BackendError`): try again later |
| 128 + n | ended by signal n: 130 after Ctrl-C, 143 after SIGTERM |

`pop --follow`, `stats --watch`, `reap --every` and `rollback --every` are meant to be ended by a
signal, and then exit with 0. A second signal ends any command at once, and so does the first while
the command is starting.

`pop` exits with 0 even when the queue is empty: its output shows that. If it finds nothing more
because popping is paused, it says so and exits with 75. If the reader of its output goes away, it
exits with 141.

**Times** (`SECONDS`) are seconds, or have a unit: `500ms`, `10s`, `5m`, `1h`, `7d`.

**Bytes** are not changed. A pushed line becomes a payload, without its newline; a popped payload is
written as is, with a newline after it. In JSON a payload, or key, that is UTF-8 text is a string
under `payload` (`key`); any other is base64 under `payload_base64` (`key_base64`).

## The commands
"""


def page() -> str:
    """The whole page."""
    with click.Context(main, info_name=NAME) as ctx:
        leaves = list(verbs(main, ctx))
        parts = [INTRODUCTION, *_contents(leaves)]
        for leaf in leaves:
            parts += ["", *_section(leaf)]
    return "\n".join(parts) + "\n"


def verbs(command: click.Command, ctx: click.Context) -> Iterator[click.Context]:
    """The contexts of all commands that do something, by name."""
    if not isinstance(command, click.Group):
        yield ctx
        return
    for name in command.list_commands(ctx):
        child = command.get_command(ctx, name)
        assert child is not None
        yield from verbs(child, click.Context(child, info_name=name, parent=ctx))


def _contents(leaves: list[click.Context]) -> Iterator[str]:
    yield "| command | what it does |"
    yield "|---|---|"
    for leaf in leaves:
        anchor = leaf.command_path.replace(" ", "-")
        yield f"| [`{leaf.command_path}`](#{anchor}) | {leaf.command.get_short_help_str(200)} |"


def _section(leaf: click.Context) -> Iterator[str]:
    verb = leaf.command
    assert isinstance(verb, Verb)
    usage = " ".join([leaf.command_path, *verb.collect_usage_pieces(leaf)])
    yield from (f"### {leaf.command_path}", "", "```text", usage, "```")
    for paragraph in inspect.cleandoc(verb.help or "").split("\n\n"):
        yield ""
        if paragraph.startswith("\b\n"):
            yield from ("```text", paragraph.removeprefix("\b\n").rstrip(), "```")
        else:
            yield paragraph
    if options(verb):
        yield from ("", "| option | meaning |", "|---|---|")
    for option in options(verb):
        yield f"| {_names(option)} | {_cell(_meaning(option, leaf))} |"
    yield from ("", "```text", *verb.examples, "```")


def options(verb: click.Command) -> list[click.Option]:
    """The options of a command, without those that all commands have."""
    general = {option.name for option in options_of_all()}
    found = [p for p in verb.params if isinstance(p, click.Option)]
    return [option for option in found if option.name not in general]


def _names(option: click.Option) -> str:
    names = [*option.opts, *option.secondary_opts]
    if not option.is_flag and option.metavar:
        names[-1] += f" {option.metavar}"
    elif isinstance(option.type, click.Choice):
        names[-1] += f" {'|'.join(option.type.choices)}"
    elif not option.is_flag and isinstance(option.type, click.types.IntParamType):
        names[-1] += " COUNT"
    elif not option.is_flag:
        names[-1] += f" {option.type.name.upper()}"
    return ", ".join(f"`{_cell(name)}`" for name in names)


def _meaning(option: click.Option, leaf: click.Context) -> str:
    text = " ".join((option.help or "").split())
    if not option.show_default:
        return text
    default = option.get_default(leaf)
    if isinstance(default, bool):
        names = option.opts if default else option.secondary_opts
        return f"{text} [default: {names[0].lstrip('-')}]"
    return f"{text} [default: {default}]"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
