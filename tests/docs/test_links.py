"""Internal links lead to files and headings that exist; external ones: ``tools.site.links``."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.kit.pages import DOCS, ROOT
from tools.site import links

SOURCES = links.find_sources()


@pytest.mark.parametrize("page", SOURCES, ids=lambda page: str(page.relative_to(ROOT)))
def test_internal_links_lead_somewhere(page: Path) -> None:
    assert list(links.find_broken(page)) == []


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A `title`, twice\n\n## A title, twice\n\n`[code](none.md)`\n\n"
        "```md\n# Not a heading\n[code](none.md)\n```\n\n"
        "[a](#a-title-twice) [b](page.md#a-title-twice_1) [c](#not-a-heading)\n"
        "[d](none.md) ![e](none.svg)\n",
        encoding="utf-8",
    )
    assert [problem.partition(": ")[2] for problem in links.find_broken(page)] == [
        "#not-a-heading: there is no such heading",
        "none.md: there is no such file",
        "none.svg: there is no such file",
    ]


def test_external_links_are_those_of_other_hosts() -> None:
    found = links.find_external()
    assert found
    assert not [url for url in found if "localhost" in url or "example.com" in url]
    assert all(link.page.is_relative_to(DOCS.parent) for links in found.values() for link in links)


async def test_urls_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/lost":
            raise httpx.ConnectError("no route")
        return httpx.Response(404 if request.url.path == "/gone" else 200)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        assert await links.ask(http, "https://one.test/here") == ""
        assert await links.ask(http, "https://one.test/gone") == "404"
        assert await links.ask(http, "https://one.test/lost") == "ConnectError: no route"
