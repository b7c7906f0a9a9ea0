"""``oncebox completion``: the script that teaches a shell to complete ``oncebox``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from service.cli.arguments import Command
from service.cli.output.terminal import put


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  eval "$(oncebox completion bash)"                              # in ~/.bashrc
  eval "$(oncebox completion zsh)"                               # in ~/.zshrc
  oncebox completion fish > ~/.config/fish/completions/oncebox.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for bash, zsh or fish."""
    script = get_completion_class(shell)
    assert script is not None, "click knows these three"
    put(script(ctx.find_root().command, {}, "oncebox", "_ONCEBOX_COMPLETE").source())
