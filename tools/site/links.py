"""Checks the links of the documentation, of the README and of the examples.

``python -m tools.site.links`` asks each external URL once. It prints those that are broken, and
those whose server does not answer programs (401, 403, 429, 5xx), which count as fine. The exit
code is 1 if there is a broken one. Without a network, nothing is broken. Internal links are checked
by ``test_links.py``.
"""

from __future__ import annotations

import asyncio
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from tests.kit.pages import DOCS, ROOT, find_pages

_GENERATED = DOCS / "reference" / "messages.md"  # only on the site
_TIMEOUT = 15.0  # seconds, for each URL
_AT_ONCE = 4  # requests
_REFUSALS = frozenset({"401", "403", "405", "429"})
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|<(https?://[^>\s]+)>")
_CODE = re.compile(r"^( *)(`{3,}|~{3,}).*?^ *\2 *$|(`+)[^`].*?\3", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_NAME = re.compile(r"^::: (\S+)", re.MULTILINE)  # of the API reference
_ID = re.compile(r"<\w+[^>]*\b(?:id|name)=[\"']([^\"']+)")
_EXAMPLES = re.compile(r"localhost|[\d.]+|.*\bexample\.(?:com|org|net)")


class Link(NamedTuple):
    """A link: the page and the line that it is in, and what it leads to."""

    page: Path
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.target}"


def find_sources() -> list[Path]:
    return [*find_pages(), *sorted((ROOT / "examples").rglob("*.md"))]


def find_links(page: Path) -> Iterator[Link]:
    """Yield the links and the pictures of a page; those in code are not links."""
    text = page.read_text(encoding="utf-8")
    text = _CODE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    for match in _LINK.finditer(text):
        yield Link(page, text.count("\n", 0, match.start()) + 1, match[1] or match[2])


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page: of its headings, as mkdocs builds them, and explicit ones."""
    text = page.read_text(encoding="utf-8")
    without_blocks = re.sub(r"^ *(`{3,}).*?^ *\1 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    anchors: set[str] = {*_ID.findall(without_blocks), *_NAME.findall(without_blocks)}
    for title in _HEADING.findall(without_blocks):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        slug = stem = slugify(plain)
        number = 1
        while slug in anchors:
            slug, number = f"{stem}_{number}", number + 1
        anchors.add(slug)
    return anchors


def slugify(title: str) -> str:
    """Return the anchor of a heading (Python-Markdown, extension "toc")."""
    ascii_only = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def find_broken(page: Path) -> Iterator[str]:
    """Yield the internal links of a page that lead to no file, or to no anchor of a page."""
    for link in find_links(page):
        path, _, anchor = link.target.partition("#")
        if urlsplit(link.target).scheme:
            continue
        target = (page.parent / path) if path else page
        if target.resolve() == _GENERATED:
            continue
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in list_anchors(target):
            yield f"{link}: there is no such heading"


def find_external() -> dict[str, list[Link]]:
    """Return the links by URL, without fragments, examples and URLs of this host."""
    found: dict[str, list[Link]] = {}
    for page in find_sources():
        for link in find_links(page):
            url = urlsplit(link.target)
            if url.scheme in ("http", "https") and not _EXAMPLES.fullmatch(url.hostname or ""):
                found.setdefault(url._replace(fragment="").geturl(), []).append(link)
    return found


async def ask(http: httpx.AsyncClient, url: str) -> str:
    """Return what is wrong with a URL, nothing if it is fine; the body is not read."""
    try:
        async with http.stream("GET", url) as response:
            return "" if response.is_success else str(response.status_code)
    except httpx.HTTPError as exc:
        return f"{type(exc).__name__}: {exc}"


async def ask_all(urls: Iterable[str]) -> dict[str, str]:
    """Ask for some URLs at a time."""
    slots = asyncio.Semaphore(_AT_ONCE)
    async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=True) as http:

        async def take(url: str) -> tuple[str, str]:
            async with slots:
                return url, await ask(http, url)

        return dict(await asyncio.gather(*map(take, urls)))


def main() -> int:
    """Print the report; return the exit code."""
    links = find_external()
    problems = asyncio.run(ask_all(links))
    if links and all(problem and not problem.isdigit() for problem in problems.values()):
        print("There is no network: no external link was checked.")
        return 0
    broken = 0
    for url, problem in problems.items():
        if problem:
            is_refusal = problem in _REFUSALS or problem.startswith("5")
            broken += not is_refusal
            places = ", ".join(f"{link.page.relative_to(ROOT)}:{link.line}" for link in links[url])
            print(f"{'not checked' if is_refusal else 'broken'}: {url} ({problem}), in {places}")
    print(f"{len(links)} external links, {broken} broken.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
