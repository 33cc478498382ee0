"""A group that loads each of its commands only when that is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """commands_later: name → (the module below `cassq.cli` that defines the command under this
    name, its line in a list of commands)."""

    def __init__(
        self, *args: Any, commands_later: Mapping[str, tuple[str, str]], **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.commands_later: dict[str, tuple[str, str]] = dict(commands_later)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands_later, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self.commands_later:
            module = import_module(f"cassq.cli.{self.commands_later[cmd_name][0]}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self._lines(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=text)
            for name, text in self._lines(ctx)
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def _lines(self, ctx: click.Context) -> list[tuple[str, str]]:
        """The names of the commands, and what each does, without loading any."""
        lines: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            if name in self.commands_later:
                lines.append((name, self.commands_later[name][1]))
            elif not self.commands[name].hidden:
                lines.append((name, self.commands[name].get_short_help_str(200)))
        return lines
