"""What the hooks of mkdocs do to pages."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import yaml

from tests.kit.pages import DOCS, ROOT
from tools.site.site_hooks import on_page_content, on_page_markdown


@pytest.mark.parametrize(
    ("path", "search"),
    [
        ("howto/handlers.md", None),
        ("bench.md", {"boost": 0.1}),
        ("decisions/0005-simulation.md", {"boost": 0.1}),
    ],
)
def test_pages_of_the_project_come_last_in_the_search(
    path: str, search: dict[str, object] | None
) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={})
    assert on_page_markdown("text", page=page) == "text"
    assert page.meta.get("search") == search
    assert (DOCS / path).exists()


@pytest.mark.parametrize("name", ["crds_wild", "reference/messages", "parity", "wild"])
def test_long_tables_and_generated_pages_are_not_searched(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith("---\nsearch:\n  exclude: true\n---\n# ")


@pytest.mark.parametrize(
    ("html", "broken"),
    [
        (
            "<td><code>networking.error_backoffs</code></td>",
            "<td><code>networking.<wbr>error_<wbr>backoffs</code></td>",
        ),
        ("<td><code>0.25</code></td>", "<td><code>0.25</code></td>"),
        ("<p><code>short_name</code></p>", "<p><code>short_name</code></p>"),
        ("<td>networking.error</td>", "<td>networking.error</td>"),
        ("<td><code>&lt;a.b&gt;</code></td>", "<td><code>&lt;a.<wbr>b&gt;</code></td>"),
    ],
)
def test_names_in_tables_can_break_between_words_only(html: str, broken: str) -> None:
    assert on_page_content(html) == broken


def test_the_search_finds_names_of_code_in_paths_and_in_calls() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("!ENV ", "")
    (search,) = (one["search"] for one in yaml.safe_load(text)["plugins"] if "search" in one)
    # The expression is JavaScript's; Python's engine agrees on it.
    for name, words in {
        "settings.execution.max_workers": ["settings", "execution", "max_workers"],
        "webop.AdmissionError(code=422": ["webop", "AdmissionError", "code", "422"],
        "version 0.25": ["version", "0.25"],
    }.items():
        assert re.split(search["separator"], name) == words
