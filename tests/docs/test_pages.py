"""The prose of the documentation names what exists: commands, options, settings, names, pages."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

import webop
import webop.testing
from tests.kit.pages import ROOT, find_commands, find_pages
from webop.cli import main
from webop.settings.base import list_fields

COMMANDS = list(find_commands())
PROGRAMS = {
    *("cd", "curl", "date", "deploy.sh", "docker", "eval", "export", "gh", "git", "helm", "kind"),
    *("kubectl", "make", "openssl", "pip", "pytest", "python", "rm", "uvicorn"),
}
SECTIONS = list_fields(webop.OperatorSettings)
TEXTS = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in find_pages()
    if page.name != "parity.md"  # made of the checklist, which has its own words
}


@pytest.mark.parametrize(
    ("place", "words"), COMMANDS, ids=[f"{place}-{words[0]}" for place, words in COMMANDS]
)
def test_commands_exist(place: str, words: list[str]) -> None:
    program = Path(words[0]).name
    if program == "webop":
        check_click(main, words[1:])
    elif program == "make":
        targets = re.findall(
            r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        named = [word for word in words[1:] if "=" not in word]
        assert set(named) <= set(targets)
    else:
        assert program in PROGRAMS or (ROOT / words[0]).is_file()


def check_click(command: click.Command, args: list[str]) -> None:
    """Parse without running; what is wrong is a ``click.UsageError``."""
    settings: Any = command.context_settings
    context = click.Context(command, info_name=command.name, **settings)
    rest = command.make_parser(context).parse_args(list(args))[1]
    if isinstance(command, click.Group) and rest:
        inner = command.get_command(context, rest[0])
        assert inner is not None, f"There is no command {rest[0]!r}."
        check_click(inner, rest[1:])


@pytest.mark.parametrize("page", TEXTS)
def test_settings_that_are_named_exist(page: str) -> None:
    for group, name in re.findall(r"\bsettings\.([a-z_]+)\.([a-z_]+)\b", TEXTS[page]):
        assert hasattr(getattr(webop.OperatorSettings(), group), name), f"{group}.{name}"


@pytest.mark.parametrize("page", TEXTS)
def test_public_names_that_are_named_exist(page: str) -> None:
    for name in re.findall(
        r"(?<![\w/.])webop\.(?!dev/)([A-Za-z_]+)\b(?!\.(?:py|dev))", TEXTS[page]
    ):
        if name == "activities" or page == "docs/howto/tracing.md":
            continue  # a logger; attributes of spans
        assert name in webop.__all__ or find_spec(f"webop.{name}"), f"webop.{name}"
    for place in (webop.models, webop.errors):
        for name in re.findall(rf"\b{place.__name__}\.(\w+)", TEXTS[page]):
            assert hasattr(place, name) or find_spec(f"{place.__name__}.{name}"), name
        imports = re.findall(rf"from {place.__name__} import ([\w, ]+)", TEXTS[page])
        assert {*", ".join(imports).split(", ")} <= {*place.__all__, ""}


@pytest.mark.parametrize("page", TEXTS)
def test_files_of_the_repository_that_are_named_exist(page: str) -> None:
    """For example, the tests that a page names as proofs."""
    for name in re.findall(r"`((?:bench|examples|manifests|tests|webop)/[\w./-]*)`", TEXTS[page]):
        assert (ROOT / name).exists(), name
    written = set(re.findall(r'title="(\w+\.py)"', TEXTS[page]))  # by the reader
    for name in {*re.findall(r"`(test_\w+\.py)`", TEXTS[page])} - written:
        assert any((ROOT / "tests").rglob(name)), name
