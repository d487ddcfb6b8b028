"""The API reference has all public names, each once; ``dir()`` and ``help()`` show the same."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import Any

import griffe
import pytest

import webop
import webop.testing
from tests.kit.pages import DOCS
from tools.site.api_reference import MODULES, PATHS, Reference, convert
from tools.site.options import FAMILIES, list_options
from webop.handlers import options

PAGES = DOCS / "reference" / "api"
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")}
DOCUMENTED = re.findall(r"^::: (\S+)", "\n".join(TEXTS.values()), re.MULTILINE)
ANCHORS = {*DOCUMENTED, *re.findall(r'<a id="(\S+)"></a>', "".join(TEXTS.values()))}

OLD = {  # names for Kopf's code, of things that have a newer one
    *("webop.AsyncDaemonStopperChecker", "webop.SyncDaemonStopperChecker"),
    "webop.testing.KopfRunner",
}


def find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(MODULES[module], name)


def test_every_public_name_is_in_the_reference_once() -> None:
    assert [path for path, number in Counter(DOCUMENTED).items() if number > 1] == []
    assert set(DOCUMENTED) <= set(PATHS)
    for path in PATHS:
        assert len({path, *find_twins(path)} & set(DOCUMENTED)) == 1, path


def find_twins(path: str) -> set[str]:
    """Return the other names of a function or a class, such as webop.timer of webop.on.timer."""
    thing = find(path)
    if path in OLD or not (inspect.isroutine(thing) or inspect.isclass(thing)):
        return set()
    return {other for other in PATHS if other not in OLD and find(other) is thing}


@pytest.mark.parametrize("name", webop.on.__all__)
def test_every_decorator_has_an_anchor_under_both_names(name: str) -> None:
    assert f"webop.on.{name}" in ANCHORS
    if getattr(webop, name, None) is getattr(webop.on, name):
        assert f"webop.{name}" in ANCHORS


@pytest.mark.parametrize("name", webop.on.__all__)
def test_the_help_of_a_decorator_has_an_example_and_names_its_page(name: str) -> None:
    text = inspect.getdoc(getattr(webop.on, name)) or ""
    assert re.search(rf"::\n\n    @?webop\.|^    .*webop\.(on\.)?{name}\(", text, re.MULTILINE)
    pages = re.findall(r"docs/([\w/]+)\.md", text)
    assert pages
    assert all((DOCS / f"{page}.md").exists() for page in pages)
    assert len(text.splitlines()) < 25


def test_dir_shows_the_decorators_only() -> None:
    assert dir(webop.on) == sorted(webop.on.__all__)
    names: dict[str, Any] = {}
    exec("from webop.on import *\nfrom webop.lifecycles import *", names)
    del names["__builtins__"]
    assert set(names) == {*webop.on.__all__, *webop.lifecycles.__all__}
    for module in ("webop.on", "webop.lifecycles"):
        own = vars(MODULES[module])
        public = {
            name
            for name, value in own.items()
            if inspect.isroutine(value) and value.__module__ == module and name[0] != "_"
        }
        assert public <= set(MODULES[module].__all__)


@pytest.mark.parametrize("path", PATHS)
def test_every_public_function_and_class_has_a_docstring(path: str) -> None:
    found = find(path)
    if inspect.isroutine(found) or inspect.isclass(found):
        assert inspect.getdoc(found)


@pytest.mark.parametrize("name", FAMILIES)
def test_all_options_have_a_meaning(name: str) -> None:
    known = getattr(options, name)
    own, shared = list_options(known)
    assert {row.name for row in (*own, *shared)} == set(known.__annotations__)
    assert all(row.meaning and "Annotated" not in row.kind for row in (*own, *shared))


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("As :func:`again`.", "As [`again`][webop.again]."),
        ("Set ``webop.dev/owner``.", "Set ``webop.dev/owner``."),
        ("See docs/howto/timers.md#errors.", "See [Timers](../../howto/timers.md#errors)."),
        ("Do::\n\n    a = 1\n\nThen.", "Do:\n\n```python\na = 1\n```\n\nThen."),
    ],
)
def test_docstrings_become_markdown(text: str, markdown: str) -> None:
    assert convert(text) == markdown


def test_options_are_tables_before_the_sections() -> None:
    package: Any = griffe.load("webop", extensions=griffe.load_extensions(Reference()))
    timer = package["on.timer"]
    assert [str(parameter.annotation) for parameter in timer.parameters] == ["None", "None"]
    text = timer.docstring.value
    assert text.index("```python") < text.index("| `interval`") < text.index("More options")
    assert text.index("| `labels`") < text.index("More options") < text.index("    | `plural`")
    assert "../arguments.md#handlers-of-objects" in text
    rule = package["handlers.admission_rules.rule"].docstring.value
    assert rule.index("| `cel`") < rule.index("Returns:") < rule.index("Raises:")
    assert "| `propagation`" in package["client.objects.AsyncClient.delete"].docstring.value
