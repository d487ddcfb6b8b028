"""``webop init``: write the files of a new operator, which runs as it is.

Flow: check all arguments → fill in the templates → write the files into a folder beside the target
→ rename that folder, so that there are all files, or none.
"""

from __future__ import annotations

import keyword
import re
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import Path

import click

from webop.cli.manifests.image import is_indexed
from webop.controlplane.versions import parse_wanted
from webop.objects.names import SUBDOMAIN, join_names
from webop.objects.resources import guess_plural, is_protected

_LONGEST = 40  # characters of a name and of a kind: names of other objects are made of them
_is_name = re.compile(rf"[a-z]([-a-z0-9]{{0,{_LONGEST - 2}}}[a-z0-9])?").fullmatch
_is_kind = re.compile(rf"[A-Z][A-Za-z0-9]{{0,{_LONGEST - 1}}}").fullmatch
_LONGEST_GROUP = 150  # characters: Kubernetes limits annotations that begin with it
_RESERVED = {"kopf", "test", "tests", "webop"}
_UNRELEASED = "wheels/*.whl"  # lines of templates until webop is in a package index
_WITH, _WITHOUT = "  # with builtins", "  # without builtins"  # lines of one of two variants

#: The templates by the paths of the files, and what is in them.
_FILES = {
    "{{package}}/__init__.py": ("", ""),
    "{{package}}/models.py": ("models.py", "the kind {{kind}}: its fields and rules"),
    "{{package}}/handlers.py": ("handlers.py", "its handlers and its webhook"),
    "tests/test_models.py": ("test_models.py", "tests that need no cluster"),
    "tests/test_operator.py": ("test_operator.py", "tests on a real API server"),
    "example.yaml": ("example.yaml", "an object"),
    "pyproject.toml": ("pyproject.toml", "the package, its dependencies"),
    "README.md": ("README.md", "the commands: test, run, deploy"),
    ".github/workflows/ci.yml": ("ci.yml", "runs the tests at each push"),
    ".gitignore": ("gitignore", ""),
}


@click.command()
@click.argument("name")
@click.option(
    "--kind",
    metavar="KIND",
    help="The kind of its objects; by default, made of NAME: 'my-shop' becomes MyShop.",
)
@click.option(
    "--group",
    metavar="GROUP",
    help="The API group of the kind, and the prefix of the operator's state on objects; by "
    "default, NAME.example.com.",
)
@click.option(
    "--with-builtins",
    is_flag=True,
    help="Use classes of Kubernetes' own kinds, such as ConfigMap, instead of dicts.",
)
def init(name: str, kind: str | None, group: str | None, with_builtins: bool) -> None:
    """Create an operator in the new folder NAME: a kind, handlers, a webhook, tests.

    It runs as it is.

    \b
        webop init shop --kind Order --group shop.example.com
        cd shop
        pip install -e '.[test]'
        pytest
    """  # noqa: D301  \b keeps click from wrapping the lines
    package = _check_name(name)
    kind = kind or "".join(word.capitalize() for word in name.removesuffix("-operator").split("-"))
    group = group or f"{name}.example.com"
    _check_kind(kind)
    _check_group(group)
    folder = Path(name)
    _check_folder(folder)
    words = {
        "name": name,
        "package": package,
        "kind": kind,
        "plural": guess_plural(kind),
        "group": group,
        "kubernetes": parse_wanted(None),
        "webop": "webop[builtins]" if with_builtins else "webop",
    }
    kept, dropped = (_WITH, _WITHOUT) if with_builtins else (_WITHOUT, _WITH)
    described = {
        _fill(path, words): (_read(template, words, kept, dropped), _fill(text, words))
        for path, (template, text) in _FILES.items()
    }
    _write(folder, {path: content for path, (content, _) in described.items()})
    click.echo(f"Created an operator for objects of the kind {kind} ({group}/v1) in '{folder}':")
    width = max(map(len, described))
    for path, (_, text) in described.items():
        if text:
            click.echo(f"  {path:{width}}  {text}")
    click.echo(f"Next: cd {name} && pip install -e '.[test]' && pytest")


def _check_name(name: str) -> str:
    """Return the name of the package."""
    if not _is_name(name):
        nearest = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789")[:_LONGEST]
        guess = f" Did you mean {nearest.rstrip('-')!r}?" if nearest else ""
        raise click.BadParameter(
            f"NAME must be lowercase letters, digits and '-', {_LONGEST} at most, and begin with a "
            f"letter, got {name!r}.{guess}"
        )
    package = name.replace("-", "_")
    known = {*_RESERVED, *keyword.kwlist, *keyword.softkwlist, *sys.stdlib_module_names}
    if package in known or package in metadata.packages_distributions():
        raise click.BadParameter(
            f"There is a Python module or keyword {package!r} already, so the package of the "
            f"operator cannot have this name. Choose another one, such as '{name}-operator'."
        )
    return package


def _check_kind(kind: str) -> None:
    if not _is_kind(kind) or keyword.iskeyword(kind):
        raise click.BadParameter(
            f"--kind must be letters and digits, {_LONGEST} at most, and begin with a capital "
            f"letter, such as 'Order'; got {kind!r}."
        )


def _check_group(group: str) -> None:
    if not SUBDOMAIN.fullmatch(group) or "." not in group or len(group) > _LONGEST_GROUP:
        raise click.BadParameter(
            f"--group must be a lowercase DNS name with a dot, {_LONGEST_GROUP} characters at most,"
            f" such as 'shop.example.com'; got {group!r}."
        )
    if is_protected(group):
        raise click.BadParameter(
            f"--group: API servers accept kinds in {group!r} only from Kubernetes itself. Choose a "
            "domain of yours."
        )


def _check_folder(folder: Path) -> None:
    """Check that a folder is absent or empty."""
    if folder.is_dir():
        try:
            found = sorted(path.name for path in folder.iterdir())
        except OSError as exc:
            raise click.ClickException(f"Cannot read '{folder}': {exc.strerror}.") from exc
        if found:
            raise click.ClickException(
                f"The folder '{folder}' is not empty: it has {join_names(found, 3)}. Nothing was "
                "changed. Choose another name, or move the folder."
            )
    elif folder.exists() or folder.is_symlink():
        raise click.ClickException(
            f"'{folder}' exists, and is not a folder. Choose another name, or move it."
        )


def _read(template: str, words: Mapping[str, str], kept: str, dropped: str) -> str:
    """Return the content of a file; without a template, it is empty."""
    if not template:
        return ""
    text = resources.files("webop.cli").joinpath(f"templates/{template}.template").read_text()
    unwanted = (dropped, _UNRELEASED) if is_indexed() else (dropped,)
    lines = [line for line in text.splitlines() if not any(mark in line for mark in unwanted)]
    return _fill("".join(f"{line.removesuffix(kept)}\n" for line in lines), words)


def _fill(text: str, words: Mapping[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(f"{{{{{name}}}}}", word)
    return text


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write all files of a folder, or none."""
    target = folder.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as drafts:
            draft = Path(drafts) / target.name
            for path, text in texts.items():
                file = draft / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            draft.rename(target)  # it replaces only an empty folder
    except OSError as exc:
        raise click.ClickException(
            f"Cannot write '{folder}': {exc.strerror}. Nothing was changed."
        ) from exc
