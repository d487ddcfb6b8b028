"""``webop check-kopf``: report what to change in an operator for Kopf. Runs no code of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import click

from webop.cli.kopf_code import Finding
from webop.cli.kopf_code.code import CodeReader
from webop.cli.kopf_code.deployment import read_deployment

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


@click.command(name="check-kopf")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.pass_context
def check_kopf(ctx: click.Context, paths: tuple[Path, ...]) -> None:
    """Read an operator written for Kopf; report what must change and what behaves differently.

    PATHS are files and folders: Python code, requirements, Dockerfiles, manifests. The command
    imports and runs none of them, and needs no cluster.

    \b
    Exit codes:
        0  Nothing must change.
        1  Something must change. Each line says what and where.
    """  # noqa: D301  \b keeps click from wrapping the lines
    findings, importing = _examine(paths)
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


def _examine(paths: Iterable[Path]) -> tuple[list[Finding], set[Path]]:
    """Return the findings, file by file, and the files that import Kopf.

    Only regular files are read: broken links and pipes are skipped.
    """
    reader = CodeReader()
    files = chain.from_iterable((path,) if path.is_file() else _list_files(path) for path in paths)
    for path in filter(Path.is_file, files):
        try:
            if path.suffix == ".py":
                reader.read(path)
            reader.findings += read_deployment(path)
        except OSError as exc:
            text = f"Cannot read this file: {exc.strerror}"
            reader.findings.append(Finding(path, 1, text, must_change=False))
    if reader.importing and not reader.sets_event_loggers:
        text = (
            "webop posts log messages of handlers as Events; Kopf does so only with "
            "settings.posting.loggers. Set settings.posting.loggers = False to disable it."
        )
        reader.findings.append(Finding(Path(), 0, text, must_change=False))
    return reader.findings, reader.importing


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those in it, in order; skip virtual environments."""
    for place, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name[0] != "." and name not in _SKIPPED)
        if "pyvenv.cfg" in files:
            names.clear()
            continue
        yield from (Path(place, file) for file in sorted(files) if file[0] != ".")
