"""``webop migrate``: what will be different for an operator written for Kopf. Runs nothing."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Report what must change in an operator for Kopf.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.pass_context
def migrate(ctx: click.Context, paths: tuple[Path, ...]) -> None:
    """Read an operator written for Kopf; report what must change, and what will differ.

    PATHS are files and folders: Python code, requirements, images, manifests. Nothing is imported
    or run, and no cluster is needed.

    \b
    Exit codes:
        0  nothing stands in the way
        1  something must change; the lines say what and where
    """  # noqa: D301  \b is for click: what follows is not to be wrapped
    from webop.migration.analysis import examine  # noqa: PLC0415  only now, so that --help is quick

    findings, importing = examine(paths)
    for item in findings:
        place = f"{item.path}:{item.line}: " if item.line else ""
        click.echo(f"{place}{'must change' if item.must_change else 'differs'}: {item.text}")
    if not importing:
        raise click.ClickException(
            "No file imports kopf. Name the folder with the operator's code."
        )
    count = sum(item.must_change for item in findings)
    if count:
        click.echo(f"{count} of these must change.")
    else:
        click.echo("Nothing stands in the way.")
    click.echo(
        f"Files that import kopf: {len(importing)}. Write 'import webop as kopf' there, "
        "or run them as they are: webop run --aliased"
    )
    ctx.exit(min(count, 1))
