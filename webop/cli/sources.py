"""Where the handlers come from, for all commands that import them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def module_option(**attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what adds ``-m/--module`` to a command.

    Args:
        attributes: more of those of ``click.option``, such as ``envvar``.
    """
    return click.option(
        "-m",
        "--module",
        "modules",
        multiple=True,
        metavar="MODULE",
        help="Import a module with handlers, as in 'python -m'; repeatable.",
        **attributes,
    )
