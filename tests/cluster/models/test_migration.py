"""``webop crd migrate`` on the real API server: what is stored in an old version is rewritten."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import webop
from tests.kit.cli_runner import invoke
from tests.kit.operators import CRDS, Running, build_settings, operate
from tests.kit.processes import Workshop
from tests.kit.versioned_shops import MANAGED, NAME, Shops, ShopV1, ShopV2, declare, upgrade
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.http.requests import Call
from webop.errors import APIGoneError
from webop.testing import LocalCluster

MODELS = Path(__file__).parents[2] / "kit" / "versioned_shops.py"
Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def run(webop_cluster: LocalCluster, tmp_path: Path) -> Run:
    variables = {"KUBECONFIG": str(webop_cluster.kubeconfig), "HOME": str(tmp_path)}

    def call(*args: str | Path) -> Awaitable[Result]:
        return asyncio.to_thread(invoke, "crd", "migrate", *map(str, args), env=variables)

    return call


@contextlib.asynccontextmanager
async def convert(
    info: webop.ConnectionInfo, shops: Shops, version: str = "v1"
) -> AsyncIterator[Running]:
    server = webop.WebhookServer(port=0, host="localhost")
    settings = build_settings(admission={"server": server, "managed": MANAGED})
    async with operate(info, webop.get_default_registry(), settings, clusterwide=True) as running:
        await shops.wait_converted(version)
        yield running


async def store_as(shops: Shops, version: str) -> None:
    """Change the storage version, and wait until it is in use."""
    definition = await shops.client.get(CRDS, None, NAME)
    versions = definition["spec"]["versions"]
    for each in versions:
        each["storage"] = each["name"] == version
    await shops.change_definition({"spec": {"versions": versions}})

    async def is_served() -> bool:
        with contextlib.suppress(webop.APIError):
            await shops.list(version)
            return True
        return False

    await eventually(is_served, f"shops stored as {version}")
    await asyncio.sleep(0.5)  # the former handler of the kind can serve for a moment


async def make_old(shops: Shops, count: int) -> None:
    """Store objects as v1, and change the storage version to v2."""
    await store_as(shops, "v1")
    specs = [{"address": f"host:{number + 1}"} for number in range(count)]
    making = (shops.create("v1", f"shop-{n}", spec) for n, spec in enumerate(specs))
    await asyncio.gather(*making)
    await store_as(shops, "v2")
    assert "v1" in await read_stored(shops)


async def read_stored(shops: Shops) -> list[str]:
    found: list[str] = (await shops.client.get(CRDS, None, NAME))["status"]["storedVersions"]
    return found


async def check_stored(shops: Shops, count: int) -> None:
    """Check that all objects are stored as v2: without conversion, others would lose fields."""
    none = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
    await shops.change_definition(none)

    async def is_stored() -> bool:
        with contextlib.suppress(webop.APIError):
            items = await shops.list("v2")
            return len(items) == count and all("host" in body["spec"] for body in items)
        return False

    await eventually(is_stored, "all objects as v2")


async def test_stored_objects_are_rewritten_and_the_old_version_is_released(
    shops: Shops, info: webop.ConnectionInfo, run: Run
) -> None:
    declare()
    async with convert(info, shops):
        await make_old(shops, 20)
        result = await run("--dry-run", "--name", NAME)
        assert f"{NAME}: 20 objects can be stored as v2; nothing was changed" in result.output
        assert "v1" in await read_stored(shops)
        result = await run(MODELS)
        assert result.exit_code == 0, result.output
        assert f"{NAME}: 20 objects are stored as v2; v1 can be removed" in result.output
        assert await read_stored(shops) == ["v2"]
        result = await run(MODELS)
        assert f"{NAME}: all objects are stored as v2" in result.output
    await check_stored(shops, 20)


async def test_it_can_be_interrupted_and_repeated(
    shops: Shops,
    info: webop.ConnectionInfo,
    run: Run,
    workshop: Workshop,
    webop_cluster: LocalCluster,
) -> None:
    calls = 0

    async def count(old: ShopV1) -> ShopV2:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.02)
        return upgrade(old)

    declare(up=count)
    async with convert(info, shops):
        await make_old(shops, 40)
        variables = {"KUBECONFIG": str(webop_cluster.kubeconfig)}
        args = ("crd", "migrate", "--name", NAME)
        for _ in range(2):
            async with workshop.start_module(("webop",), *args, **variables) as command:
                await command.wait_for("Rewriting the objects of")
                before = calls
                while calls < before + 10:
                    await asyncio.sleep(0.01)
                assert await command.stop(signal.SIGINT) == 130
            assert "run the command again" in command.output
            assert "v1" in await read_stored(shops)
        result = await run("--name", NAME)
        assert f"{NAME}: 40 objects are stored as v2" in result.output, result.output
        assert await read_stored(shops) == ["v2"]
    await check_stored(shops, 40)


async def test_a_list_that_expires_half_way_goes_on(
    shops: Shops, info: webop.ConnectionInfo, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform, expired = Client.perform, list[str]()

    async def expire(client: Client, call: Call) -> Any:
        token = (call.params or {}).get("continue")
        if token and not expired:
            expired.append(token)
            raise APIGoneError("too old", status=410, details={"continue": token})
        return await perform(client, call)

    declare()
    async with convert(info, shops):
        await make_old(shops, 22)
        monkeypatch.setattr(Client, "perform", expire)
        result = await run("--name", NAME)
        assert f"{NAME}: 22 objects are stored as v2" in result.output, result.output
        assert expired
    await check_stored(shops, 22)


async def test_objects_that_cannot_be_converted_are_named(
    shops: Shops, info: webop.ConnectionInfo, run: Run
) -> None:
    is_failing = False

    def fail(old: ShopV1) -> ShopV2:
        if is_failing and old.metadata.name == "shop-1":
            raise ValueError("not this one")
        return upgrade(old)

    declare(up=fail)
    async with convert(info, shops):
        await make_old(shops, 3)
        is_failing = True
        result = await run("--name", NAME)
        assert result.exit_code == 1
        text = f"shops {shops.namespace}/shop-1: it cannot be converted; kept.webop.dev/v1 keeps"
        assert text in result.output
        assert "cannot be rewritten. storedVersions stays as it is" in result.output
        assert "v1" in await read_stored(shops)
        is_failing = False
        assert (await run("--name", NAME)).exit_code == 0
    await check_stored(shops, 3)


async def test_mistakes_are_named(run: Run, tmp_path: Path) -> None:
    result = await run("--name", "nothing.example.com")
    assert "There is no CustomResourceDefinition nothing.example.com" in result.output
    assert "Name files with models" in (await run()).output
    path = tmp_path / "plain.py"
    path.write_text(
        "import webop\n@webop.resource('plain.example.com', 'v1')\nclass Plain(webop.Model): ...\n"
    )
    assert "has several versions" in (await run(path)).output
