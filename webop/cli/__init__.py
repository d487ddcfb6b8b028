"""The command line (chapter "Command-line options").

Public: :func:`main`, :class:`CLIControls`, :class:`LogFormatParamType`.
"""

from __future__ import annotations

import click

from webop.cli.cluster import cluster
from webop.cli.completion import completion
from webop.cli.doctor import doctor
from webop.cli.layout import SectionGroup
from webop.cli.listing import handlers
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
        "Looking into them": ("handlers", "doctor"),
        "Around them": ("cluster", "completion"),
    },
    context_settings={"auto_envvar_prefix": "WEBOP", "help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="webop", allow_from_autoenv=False)
def main() -> None:
    """Kubernetes operators in Python, admission webhooks first."""


main.add_command(run)
main.add_command(freeze)
main.add_command(resume)
main.add_command(handlers)
main.add_command(doctor)
main.add_command(cluster)
main.add_command(completion)
