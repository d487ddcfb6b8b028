"""What is meant when options exclude each other: what is on the command line, if anything is."""

from __future__ import annotations

import click
from click.core import ParameterSource

DEV_PRIORITY = 666  # the manual's, "Development mode"


def choose_scope(
    ctx: click.Context, clusterwide: bool, namespaces: tuple[str, ...]
) -> tuple[bool, tuple[str, ...]]:
    """Return which of two scopes is meant: that of the command line, not of the environment.

    Raises:
        click.UsageError: both are given in the same place.
    """
    if not all(pattern.strip() for pattern in namespaces):
        raise click.UsageError("-n/--namespace is empty. Name a namespace, or say -A for all.")
    if not clusterwide or not namespaces:
        return clusterwide, namespaces
    if _is_on_command_line(ctx, "clusterwide") == _is_on_command_line(ctx, "namespaces"):
        raise click.UsageError("-n/--namespace and -A/--all-namespaces exclude each other.")
    clusterwide = _is_on_command_line(ctx, "clusterwide")
    return clusterwide, () if clusterwide else namespaces


def choose_priority(ctx: click.Context, dev: bool, priority: int | None) -> int | None:
    """Return the priority, which the development mode sets unless one is given more explicitly."""
    is_stronger = _is_on_command_line(ctx, "priority") and not _is_on_command_line(ctx, "dev")
    return priority if is_stronger or not dev else DEV_PRIORITY


def _is_on_command_line(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
