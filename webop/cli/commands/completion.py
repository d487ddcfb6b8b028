"""``webop completion``: print the script for shell completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options and files.

    For bash (4.4 or newer), add this line to ~/.bashrc:

    \b
        eval "$(webop completion bash)"

    For zsh, add it to ~/.zshrc:

    \b
        eval "$(webop completion zsh)"

    For fish, run this once:

    \b
        webop completion fish > ~/.config/fish/completions/webop.fish
    """  # noqa: D301  \b keeps click from wrapping the lines
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.ClickException(f"The installed version of click does not support {shell}.")
    complete = completion_class(ctx.find_root().command, {}, "webop", "_WEBOP_COMPLETE")
    click.echo(complete.source())
