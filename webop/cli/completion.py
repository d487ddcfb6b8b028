"""``webop completion``: the scripts by which shells complete commands, options and files.

The work is that of click, which the scripts ask by the variable ``_WEBOP_COMPLETE``.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_PROGRAM = "webop"
_VARIABLE = "_WEBOP_COMPLETE"


@click.command(short_help="Print the script that lets a shell complete.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete commands, options and files.

    For bash (4.4 or newer), this line goes into ~/.bashrc:

    \b
        eval "$(webop completion bash)"

    For zsh, into ~/.zshrc:

    \b
        eval "$(webop completion zsh)"

    For fish, once:

    \b
        webop completion fish > ~/.config/fish/completions/webop.fish
    """  # noqa: D301  \b is for click: what follows is not to be wrapped
    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"This version of click does not know {shell}.")
    click.echo(made(ctx.find_root().command, {}, _PROGRAM, _VARIABLE).source())
