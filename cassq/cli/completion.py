"""`cassq completion`: the script that teaches a shell to complete the command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb
from cassq.errors import BrokenInvariantError

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Verb,
    connects=False,
    short_help="Write a shell's completion script.",
    examples=[
        'bash:  eval "$(cassq completion bash)"                  in ~/.bashrc',
        'zsh:   eval "$(cassq completion zsh)"                   in ~/.zshrc',
        "fish:  cassq completion fish > ~/.config/fish/completions/cassq.fish",
    ],
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Write the script that completes commands, options and names of queues in a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise BrokenInvariantError(f"there is no completion for {shell}")
    script = kind(ctx.find_root().command, {}, "cassq", "_CASSQ_COMPLETE").source()
    if ctx.ensure_object(Invocation).as_json:
        output.document({"shell": shell, "script": script})
    else:
        output.say(script)
