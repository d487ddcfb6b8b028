"""``webop migrate``: report what to change in an operator for Kopf. Runs no code of it."""

from __future__ import annotations

from pathlib import Path

import click

from webop.cli.migration.analysis import examine


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.pass_context
def migrate(ctx: click.Context, paths: tuple[Path, ...]) -> None:
    """Read an operator written for Kopf; report what must change and what behaves differently.

    PATHS are files and folders: Python code, requirements, Dockerfiles, manifests. The command
    imports and runs none of them, and needs no cluster.

    \b
    Exit codes:
        0  Nothing must change.
        1  Something must change. Each line says what and where.
    """  # noqa: D301  \b keeps click from wrapping the lines
    findings, importing = examine(paths)
    for item in findings:
        place = f"{item.path}:{item.line}: " if item.line else ""
        label = "must change" if item.must_change else "differs"
        click.echo(f"{place}{label}: {item.text}")
    if not importing:
        raise click.ClickException(
            "No file imports kopf. Name the folder with the code of the operator."
        )
    count = sum(item.must_change for item in findings)
    if count:
        click.echo(f"{count} of these must change.")
    else:
        click.echo("Nothing must change.")
    click.echo(
        f"Files that import kopf: {len(importing)}. Write 'import webop as kopf' there, "
        "or run them unchanged: webop run --aliased"
    )
    ctx.exit(min(count, 1))
