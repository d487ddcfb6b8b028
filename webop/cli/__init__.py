"""The command line (chapter "Command-line options").

Public: :func:`main`, :class:`CLIControls`, :class:`LogFormatParamType`.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from webop.cli.commands.cluster import cluster
from webop.cli.commands.doctor import doctor
from webop.cli.commands.finalizers import finalizers
from webop.cli.commands.freeze import freeze, resume
from webop.cli.commands.handlers import handlers
from webop.cli.commands.manifests import image, manifests
from webop.cli.commands.migrate import migrate
from webop.cli.commands.run import run
from webop.cli.commands.webhooks import webhooks
from webop.cli.layout import SectionGroup
from webop.cli.options import CLIControls, LogFormatParamType
from webop.version import __version__

__all__ = ["CLIControls", "LogFormatParamType", "main"]

_EPILOG = """\b
To get started:
    webop cluster start                     start a local Kubernetes API server
    eval "$(webop cluster env)"             use it in this shell
    webop run --all-namespaces handlers.py  run the operator
    eval "$(webop completion bash)"         complete commands with the TAB key

'webop COMMAND --help' shows the options of a command. For ASGI servers, the app is webop.app:app.
"""


@click.group(
    name="webop",
    cls=SectionGroup,
    sections={
        "Operators": ("run", "freeze", "resume"),
        "Inspection": ("handlers", "doctor", "webhooks", "finalizers", "migrate"),
        "Deployment": ("manifests", "image"),
        "Tools": ("cluster", "completion"),
    },
    context_settings={"auto_envvar_prefix": "WEBOP", "help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="webop", allow_from_autoenv=False)
def main() -> None:
    """Kubernetes operators in Python, admission webhooks first."""


@main.command(short_help="Print the script for shell completion.")
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


main.add_command(run)
main.add_command(freeze)
main.add_command(resume)
main.add_command(handlers)
main.add_command(doctor)
main.add_command(webhooks)
main.add_command(finalizers)
main.add_command(migrate)
main.add_command(manifests)
main.add_command(image)
main.add_command(cluster)
