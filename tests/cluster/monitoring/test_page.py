"""The status page in a browser: what it shows is what an operator on a real API server does.

``STATUS_SCREENSHOTS=docs/images`` lets the last test write the screenshots of the docs.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

import webop
from tests.cluster.monitoring.shown_operator import Outage, Shown, operate_visibly
from tests.kit.leases import hold_lease
from tests.kit.operators import (
    Kind,
    Objects,
    RunOperator,
    build_settings,
    connect,
    define_kinds,
    operate,
)
from tests.kit.reviews import post_review
from webop.controlplane.cluster_client import find_free_port
from webop.testing import LocalCluster

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page

    from webop.client.api import Client

api = pytest.importorskip(
    "playwright.async_api", reason="no Playwright: the status page is not tried in a browser"
)

pytestmark = [pytest.mark.journey, pytest.mark.asyncio(loop_scope="module")]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_DESKTOP, _PHONE = {"width": 1080, "height": 800}, {"width": 375, "height": 812}

# The contrast of each text with what is behind it (WCAG 2, "relative luminance").
_CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const shine = (text) => parse(text).slice(0, 3)
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (node) => {
    const color = getComputedStyle(node).backgroundColor;
    return parse(color)[3] === 0 && node.parentElement ? behind(node.parentElement) : color;
  };
  const texts = [...document.querySelectorAll("body *")].filter(
    (node) => node.checkVisibility() && [...node.childNodes].some((child) => child.data?.trim()),
  );
  return texts.map((node) => {
    const colors = [getComputedStyle(node).color, behind(node)].map(shine);
    const contrast = (Math.max(...colors) + 0.05) / (Math.min(...colors) + 0.05);
    return [node.textContent.trim(), contrast];
  });
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """The one browser of this module: Debian's, or that of Playwright."""
    async with api.async_playwright() as playwright:
        own = playwright.chromium.executable_path
        command = next(filter(None, map(shutil.which, (*_NAMES, own))), None)
        if command is None:
            pytest.skip("no Chromium on PATH: the status page is not tried in a browser")
        options = ["--disable-gpu", "--disable-dev-shm-usage", "--disable-lcd-text"]
        launched = await playwright.chromium.launch(executable_path=command, args=options)
        yield launched
        await launched.close()


@pytest_asyncio.fixture(loop_scope="module")
async def client(webop_cluster: LocalCluster) -> AsyncIterator[Client]:
    async with connect(webop_cluster) as connected:
        yield connected


async def visit(browser: Browser, shown: Shown, **options: Any) -> Page:
    """Open the page in a window of its own, and wait until it shows something."""
    context = await browser.new_context(**{"viewport": _DESKTOP, **options})
    context.set_default_timeout(20_000)
    page = await context.new_page()
    await page.goto(f"{shown.url}/ui")
    await api.expect(page.locator("#state")).to_have_text("Ready")
    return page


def find_row(page: Page, table: str, name: str) -> Locator:
    row = page.locator(f"#{table}").get_by_role("row")
    return row.filter(has=page.get_by_role("rowheader", name=name, exact=True))


async def test_what_is_focused_typed_and_read_stays_while_the_page_is_refreshed(
    run_operator: RunOperator, objects: Objects, browser: Browser
) -> None:
    Outage()
    async with operate_visibly(run_operator, objects) as shown:
        page = await visit(browser, shown)
        for name in ("orders", "users"):
            await objects.create(name, {})
        orders, users = (find_row(page, "objects", name) for name in ("orders", "users"))
        await api.expect(orders).to_be_visible()
        await page.keyboard.press("Tab")
        await page.keyboard.type("orders")
        await api.expect(users).to_have_count(0)
        await api.expect(page.locator("#objects-title")).to_have_text("Objects in progress 1 of 2")
        node, time = await orders.element_handle(), await page.locator("#updated").text_content()
        assert node is not None
        await api.expect(page.locator("#updated")).not_to_have_text(time)
        assert await node.evaluate("(row) => row.isConnected")
        await api.expect(page.locator("#filter")).to_be_focused()
        await api.expect(page.locator("#filter")).to_have_value("orders")
        places = []
        for _ in range(7):
            await page.keyboard.press("Tab")
            places.append(
                await page.evaluate(
                    "document.activeElement.id || document.activeElement.textContent"
                )
            )
        await page.locator("#filter").fill("")
        await page.locator("#failing").press("Space")
        await api.expect(find_row(page, "handlers", "create_database")).to_be_visible()
        await api.expect(find_row(page, "handlers", "slow")).to_have_count(0)
    tables = ["objects", "Copy", "failed", "handlers", "webhooks", "kinds"]
    assert places == ["failing", *tables]


async def test_the_page_says_that_the_operator_is_gone(
    run_operator: RunOperator, objects: Objects, browser: Browser
) -> None:
    Outage()
    async with operate_visibly(run_operator, objects) as shown:
        page = await visit(browser, shown)
        await api.expect(find_row(page, "handlers", "create_database")).to_be_visible()
        await api.expect(page.locator("#objects")).to_contain_text("No objects in progress.")
    await api.expect(page.get_by_role("status")).to_have_text("Not connected")
    await api.expect(page.locator("#updated")).to_contain_text("Last update: ")
    await api.expect(find_row(page, "handlers", "create_database")).to_be_visible()


async def test_the_page_says_why_the_operator_is_not_ready(
    registry: webop.OperatorRegistry, browser: Browser
) -> None:
    webop.on.create("widgets", id="create")(lambda **_: None)
    nobody = webop.ConnectionInfo(server=f"http://127.0.0.1:{find_free_port()}")
    url = f"http://127.0.0.1:{find_free_port()}"
    options: Any = {"liveness_endpoint": f"{url}/healthz", "clusterwide": True, "beside": True}
    async with operate(nobody, registry, **options):
        page = await browser.new_page()
        await page.goto(f"{url}/ui")
        await api.expect(page.get_by_role("status")).to_have_text("Not ready")
        said = "the resources of the cluster are not discovered yet"
        await api.expect(page.get_by_role("list")).to_contain_text(said)


@pytest.fixture(scope="session")
def databases(webop_cluster: LocalCluster) -> Kind:
    """A kind that looks well in the screenshots."""
    kind = Kind("shop.example.com", "databases", "Database", has_status=True)
    return next(define_kinds(webop_cluster, [kind]))


def declare_load() -> None:
    @webop.on.create("databases.shop.example.com", id="create_database")
    async def create(name: str, **_: Any) -> None:
        await asyncio.sleep(random.uniform(0.01, 0.1))
        if name.startswith("billing"):
            raise webop.TemporaryError("it is away", delay=0.5) from ConnectionRefusedError(name)
        if name == "archive":
            await asyncio.sleep(60)
        if name == "broken":
            raise webop.PermanentError("no such tier")

    @webop.timer("databases.shop.example.com", id="back_up", interval=1)
    def back_up(name: str, **_: Any) -> None:
        if name == "orders-2":
            raise webop.TemporaryError("not now", delay=0.2) from PermissionError(name)

    @webop.daemon("databases.shop.example.com", id="follow_load")
    async def follow(stopped: Any, **_: Any) -> None:
        await stopped.wait()

    @webop.on.validate("databases.shop.example.com", id="check_size")
    async def check(spec: Any, **_: Any) -> None:
        await asyncio.sleep(random.choice((0, 0, 0.002, 0.004, 0.015, 0.03, 0.07)))
        if spec.get("size", 0) > 9:
            raise webop.AdmissionError("too large")

    @webop.on.mutate("databases.shop.example.com", id="set_tier")
    async def set_tier(patch: Any, **_: Any) -> None:
        patch.spec["tier"] = "small"


async def test_under_load_the_page_is_right_at_a_desk_and_on_a_phone_by_day_and_by_night(
    run_operator: RunOperator,
    client: Client,
    databases: Kind,
    webop_namespace: str,
    browser: Browser,
    tmp_path: Path,
) -> None:
    @webop.on.startup(id="configure")
    def configure(**_: Any) -> None:
        declare_load()

    objects = Objects(client, databases, webop_namespace)
    async with operate_visibly(run_operator, objects) as shown:
        for name in ("orders", "billing", "users"):
            for number in (1, 2):
                await objects.create(f"{name}-{number}", {})
        for name in ("archive", "broken"):
            await objects.create(name, {})
        for path in ("check_size", "set_tier"):
            specs = [{"size": size % 11} for size in range(33)]
            posts = [post_review(shown.hook, spec, path, databases.resource) for spec in specs]
            await asyncio.gather(*posts)
        page = await visit(browser, shown, device_scale_factor=0.8)
        foreign: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda request: foreign.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        await page.reload()
        for title, count, denied in (
            ("check_size", "33 (+33)", "3 (+3)"),
            ("set_tier", "33 (+33)", ""),
        ):
            cells = find_row(page, "webhooks", title).get_by_role("cell")
            await api.expect(cells.nth(0)).to_have_text(count)
            await api.expect(cells.nth(2)).to_have_text(denied)
        await api.expect(page.locator("#facts")).to_contain_text(
            f"leading by the lease {webop_namespace}/leader"
        )
        await api.expect(page.locator("#objects-title .count")).to_have_text("4", timeout=30_000)
        failed = find_row(page, "handlers", "create_database").get_by_role("cell").nth(4)
        await api.expect(failed).to_have_text("1 (+1)")
        broken = find_row(page, "failed", "broken")
        await api.expect(broken).to_contain_text("create_databasePermanentError")
        await api.expect(page.locator("#facts")).to_contain_text("handlers 0 of ")
        for row in (broken, find_row(page, "kinds", "databases.shop.example.com")):
            command = await row.locator("code").text_content()
            await row.get_by_role("button", name=f"Copy {command}").click()
            await api.expect(row.get_by_role("button")).to_have_text("Copied")
            pasted = await page.evaluate("getSelection().toString()")
            assert pasted == command
        await api.expect(find_row(page, "objects", "billing-1")).to_contain_text(
            re.compile(r"retry in \d+ (ms|s)")
        )
        await api.expect(find_row(page, "kinds", "databases.shop.example.com")).to_contain_text(
            "watching"
        )
        phone = await visit(browser, shown, viewport=_PHONE, reduced_motion="reduce")
        bar = phone.locator(".histogram i").first
        assert await bar.evaluate("(bar) => getComputedStyle(bar).transitionProperty") == "none"
        scrolled = """[...document.querySelectorAll(".scroll")]
          .filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.id)"""
        for window, width in ((page, 1080), (phone, 375)):
            assert await window.evaluate(scrolled) == []
            assert await window.evaluate("document.documentElement.scrollWidth") <= width
            backgrounds = set()
            for scheme in ("dark", "light"):
                await window.emulate_media(color_scheme=scheme)
                weak = [each for each in await window.evaluate(_CONTRASTS) if each[1] < 4.5]
                assert weak == []
                backgrounds.add(
                    await window.evaluate("getComputedStyle(document.body).backgroundColor")
                )
            assert len(backgrounds) == 2
        assert {url for url in foreign if not url.startswith(shown.url)} <= {"data:,"}
        assert complaints == []
        folder = Path(os.environ.get("STATUS_SCREENSHOTS", tmp_path))
        await phone.emulate_media(color_scheme="dark")
        pictures = (
            await page.screenshot(path=folder / "status_page.png", full_page=True),
            await phone.screenshot(path=folder / "status_page_phone.png"),
        )
        assert all(10_000 < len(picture) < 250_000 for picture in pictures)


async def test_shards_without_an_owner_are_on_the_page(
    run_operator: RunOperator, objects: Objects, browser: Browser
) -> None:
    webop.on.create("widgets", id="create")(lambda **_: None)
    # A leader: nobody may take shards.
    await hold_lease(objects.client, objects.namespace, "team")
    lease = {"lease_name": "team", "lease_namespace": objects.namespace, "sharded": True}
    url, settings = f"http://127.0.0.1:{find_free_port()}", build_settings(leadership=lease)
    async with (
        run_operator(settings, beside=True, liveness_endpoint=f"{url}/healthz"),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        shown = Shown(http, url, 0)
        await shown.wait(lambda report: not report["not_ready"] and report["shards"]["unowned"])
        page = await visit(browser, shown)
        fact = page.locator("#facts div").filter(has_text="Shards without an owner")
        await api.expect(fact.locator("dd")).to_have_text("0-63")
