"""The command line (chapter "Command-line options").

The commands are ``webop run``, ``webop cluster`` and ``webop doctor``.
Public: :func:`main`, :class:`CLIControls`, :class:`LogFormatParamType`.
"""

from __future__ import annotations

import click

from webop.cli.cluster import cluster
from webop.cli.controls import CLIControls
from webop.cli.doctor import doctor
from webop.cli.logging import LogFormatParamType
from webop.cli.run import run
from webop.version import __version__

__all__ = ["CLIControls", "LogFormatParamType", "main"]


@click.group(
    name="webop",
    context_settings={"auto_envvar_prefix": "WEBOP", "help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="webop")
def main() -> None:
    """Kubernetes operators in Python, admission webhooks first."""


main.add_command(run)
main.add_command(cluster)
main.add_command(doctor)
