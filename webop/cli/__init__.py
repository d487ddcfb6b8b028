"""The command line (chapter "Command-line options").

Public: :func:`main`, :class:`CLIControls`, :class:`LogFormatParamType`.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from webop.cli.help_layout import SectionGroup
from webop.cli.options import CLIControls, LogFormatParamType
from webop.version import __version__

__all__ = ["CLIControls", "LogFormatParamType", "main"]

_EPILOG = """\b
To get started:
    webop init shop && cd shop                   create an operator
    webop cluster start                          start an API server
    eval "$(webop cluster env)"                  use it
    webop crd apply -m shop.handlers             define its kind
    webop run --all-namespaces -m shop.handlers  run it

\b
To complete with the TAB key, in bash; for others, zsh_source and fish_source:
    eval "$(_WEBOP_COMPLETE=bash_source webop)"

'webop COMMAND --help' shows the options of a command. For ASGI servers, the app is webop.app:app.
"""


_MODULES = {"resume": "freeze", "image": "manifests"}  # the others have the names of the commands


def _load(name: str) -> Any:
    name = name.replace("-", "_")
    return getattr(importlib.import_module(f"{__name__}.commands.{_MODULES.get(name, name)}"), name)


@click.group(
    name="webop",
    cls=SectionGroup,
    sections={
        "Operators": {
            "init": "Create an operator that runs, with its tests.",
            "run": "Run an operator.",
            "plan": "Show what an operator would do, and do nothing.",
            "freeze": "Pause operators.",
            "resume": "End a pause.",
        },
        "Inspection": {
            "handlers": "List the handlers of files and modules.",
            "doctor": "Check an operator in a cluster.",
            "explain": "Explain why nothing happens to an object.",
            "check-kopf": "Report what must change in an operator for Kopf.",
        },
        "Deployment": {
            "crd": "Print, compare and apply the definitions of models.",
            "manifests": "Print the manifests of an operator.",
            "image": "Print a Dockerfile for an operator.",
            "uninstall": "Remove what an operator has left in a cluster.",
        },
        "Tools": {"cluster": "Run a real Kubernetes API server on this machine."},
    },
    load=_load,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.version_option(__version__, prog_name="webop")
def main() -> None:
    """Kubernetes operators in Python, admission webhooks first."""
