"""What the hooks of mkdocs do to pages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.kit.pages import DOCS
from tools.site.site_hooks import on_page_content, on_page_markdown


def test_the_home_page_has_parts_of_the_readme_with_links_from_its_folder() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"), meta={})
    text = on_page_markdown((DOCS / "index.md").read_text(encoding="utf-8"), page=page)
    assert "](howto/cluster.md#where-the-binaries-come-from)" in text
    assert "@webop.reconcile(Website" in text
    assert "](docs/" not in text


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<td><code>a_b.c</code></td>", "<td><code>a_<wbr>b.<wbr>c</code></td>"),
        ("<td><code>0.25</code></td>", "<td><code>0.25</code></td>"),
        ("<td><code>&lt;a.b&gt;</code></td>", "<td><code>&lt;a.<wbr>b&gt;</code></td>"),
        ("<p><code>short_name</code></p>", "<p><code>short_name</code></p>"),
        (
            "<table><th>A</th><th>B</th><th></th><tr><td>1</td><td>2</td><td></td></tr></table>",
            (
                "<table><th>A</th><th>B</th><th></th>"
                '<tr><td>1</td><td data-title="B">2</td><td></td></tr></table>'
            ),
        ),
    ],
)
def test_cells_have_the_titles_of_their_columns_and_names_break_between_words(
    html: str, expected: str
) -> None:
    assert on_page_content(html) == expected
