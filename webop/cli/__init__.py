"""The command line (chapter "Command-line options").

Public: :func:`main`, :class:`CLIControls`, :class:`LogFormatParamType`.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from webop.cli.cluster import cluster
from webop.cli.doctor import doctor
from webop.cli.finalizers import finalizers
from webop.cli.layout import SectionGroup
from webop.cli.listing import handlers
from webop.cli.manifests import image, manifests
from webop.cli.migrate import migrate
from webop.cli.options import CLIControls, LogFormatParamType
from webop.cli.peering import freeze, resume
from webop.cli.run import run
from webop.version import __version__

__all__ = ["CLIControls", "LogFormatParamType", "main"]

_EPILOG = """\b
To begin with:
    webop cluster start                     a Kubernetes API server of your own
    eval "$(webop cluster env)"             ... for this shell
    webop run --all-namespaces handlers.py  the operator
    eval "$(webop completion bash)"         completion by the TAB key

'webop COMMAND --help' tells more. ASGI servers run the app webop.app:app.
"""


@click.group(
    name="webop",
    cls=SectionGroup,
    sections={
        "Operators": ("run", "freeze", "resume"),
        "Looking into them": ("handlers", "doctor", "finalizers", "migrate"),
        "Into the cluster": ("manifests", "image"),
        "Around them": ("cluster", "completion"),
    },
    context_settings={"auto_envvar_prefix": "WEBOP", "help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="webop", allow_from_autoenv=False)
def main() -> None:
    """Kubernetes operators in Python, admission webhooks first."""


@main.command(short_help="Print the script that lets a shell complete.")
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
    click.echo(made(ctx.find_root().command, {}, "webop", "_WEBOP_COMPLETE").source())


main.add_command(run)
main.add_command(freeze)
main.add_command(resume)
main.add_command(handlers)
main.add_command(doctor)
main.add_command(finalizers)
main.add_command(migrate)
main.add_command(manifests)
main.add_command(image)
main.add_command(cluster)
