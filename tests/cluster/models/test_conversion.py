"""Conversion between versions on the real API server: objects, the definition, failures."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import webop
from tests.kit.doctor_runs import Doctor
from tests.kit.operators import Running, build_settings, operate, undefine
from tests.kit.processes import Workshop
from tests.kit.versioned_shops import (
    GROUP,
    MANAGED,
    NAME,
    NewSpec,
    OldSpec,
    Shops,
    ShopV1,
    ShopV2,
    declare,
    open_shops,
)
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.settings.groups import NetworkingSettings
from webop.testing import LocalCluster

Run = Callable[..., contextlib.AbstractAsyncContextManager[Running]]


@pytest.fixture
def shops(shops: Shops) -> Shops:
    # API servers answer with 500 if a conversion fails.
    shops.client.options = NetworkingSettings(error_backoffs=[])
    return shops


@pytest.fixture
def run(info: webop.ConnectionInfo, registry: webop.OperatorRegistry) -> Run:
    def run(*, posts: bool = False, **admission: Any) -> Any:
        options = {"server": webop.WebhookServer(port=0, host="localhost"), "managed": MANAGED}
        settings = build_settings(admission={**options, **admission}, posting={"enabled": posts})
        return operate(info, registry, settings, clusterwide=True, beside=True)

    return run


async def test_the_definition_can_come_later(
    client: Client, webop_namespace: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    await undefine(client, webop.Resource(GROUP, "v2", "shops", kind="Shop", namespaced=True))
    declare()
    caplog.set_level(logging.INFO)
    async with run():
        await eventually(lambda: f"{NAME} is not in the cluster yet" in caplog.text)
        async with open_shops(client, webop_namespace) as shops:
            await shops.wait_converted()
            await shops.create("v1", "one", {"address": "a:81"})


async def test_objects_are_read_and_written_in_all_versions(shops: Shops, run: Run) -> None:
    declare()
    async with run(replica_lifetime=3.0):
        await shops.wait_converted()
        made = await shops.create(
            "v1", "one", {"address": "host:81", "replicas": 3}, labels={"a": "b"}
        )
        assert made["spec"] == {"address": "host:81", "replicas": 3, "tags": {}}
        stored = await shops.get("v2", "one")
        assert stored["spec"] == {"host": "host", "port": 81, "count": 3, "tags": {}}
        for key in ("uid", "name", "labels", "creationTimestamp"):
            assert stored["metadata"][key] == made["metadata"][key]
        alpha = await shops.get("v1alpha1", "one")
        assert alpha["spec"] == {"url": "http://host:81"}
        path = shops.locate("v1alpha1", "one")
        patch = {"spec": {"url": "http://other:82"}}
        patched = await shops.client.request(
            "PATCH", path, body=patch, content_type="application/merge-patch+json"
        )
        assert patched["metadata"]["uid"] == made["metadata"]["uid"]
        assert [body["spec"]["address"] for body in await shops.list("v1")] == ["other:82"]

        # The conversion in the definition is repaired.
        before = await shops.read_conversion()
        await shops.change_definition(
            {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
        )
        await shops.wait_converted()
        assert await shops.read_conversion() == before
    # It stays when the operator stops; nothing is lost until that one is back.
    left = await shops.read_conversion()
    assert left["webhook"]["clientConfig"]["url"].endswith("/convert")
    assert left["webhook"]["conversionReviewVersions"] == ["v1"]
    with pytest.raises(webop.APIStatusError, match=r"conversion webhook for .*Shop failed"):
        await shops.create("v1", "two", {"address": "b"})
    assert [body["metadata"]["name"] for body in await shops.list("v2")] == ["one"]
    async with run():
        await shops.wait_converted()
        assert (await shops.get("v1", "one"))["spec"]["address"] == "other:82"
        await shops.client.request("DELETE", shops.locate("v1", "one"))
        assert await shops.list("v2") == []


async def test_a_failure_names_the_object_and_the_reason(
    shops: Shops, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(old: ShopV1) -> ShopV2:
        if old.spec.address == "misfit":
            return ShopV2(spec=NewSpec(host="a", port=0))
        raise KeyError("boom")

    def rename(new: ShopV2) -> ShopV1:
        new.metadata.name, new.metadata.uid = "other", "1"
        return ShopV1(metadata=new.metadata, spec=OldSpec(address="x"))

    declare(up=fail, down=rename)
    async with run(posts=True):
        await shops.wait_converted("v1alpha1")
        for address, reason in (
            ("x", r"Converter .*fail\(\) failed: .*boom"),
            ("misfit", r".*NewSpec is not valid: port: .*greater than or equal to 1"),
        ):
            made = await shops.create("v1", address, {"address": address})
            assert made["spec"] == {"address": address, "replicas": 1, "tags": {}}
            text = f"Cannot convert Shop {shops.namespace}/{address} from v1 to v2: {reason}"
            await eventually(
                lambda: list_reasons(shops), "an Event", check=partial(any_matches, text)
            )
            assert re.search(text, caplog.text)
        await shops.create("v2", "one", {"host": "a"})
        assert "kept.webop.dev/v2" in (await shops.get("v1", "one"))["metadata"]["annotations"]
        assert "must not change metadata.name and metadata.uid" in caplog.text
        assert (await shops.get("v2", "one"))["spec"]["host"] == "a"


async def list_reasons(shops: Shops) -> list[str]:
    found = await shops.client.request("GET", f"/api/v1/namespaces/{shops.namespace}/events")
    return [each["message"] for each in found["items"] if each["reason"] == "NotConverted"]


def any_matches(pattern: str, texts: list[str]) -> bool:
    return any(re.match(pattern, text) for text in texts)


HANDLERS = """
import webop
from tests.kit.versioned_shops import declare

declare(webop.get_default_registry())
"""


async def test_the_doctor_checks_the_conversion(
    shops: Shops, run: Run, workshop: Workshop, webop_cluster: LocalCluster
) -> None:
    declare()
    doctor, path = Doctor(workshop, webop_cluster), workshop.write(HANDLERS)
    title, args = f"Conversion of {NAME}", ("--managed", MANAGED, path)
    report = await doctor.examine(*args)
    assert "fields that the other version" in report.find("strategy", title).text
    assert report.find("strategy", title).level == "failure"
    async with run():
        await shops.wait_converted()
        await shops.create("v1", "one", {"address": "a:81"})
        report = await doctor.examine(*args)
        assert not report.of("failure", title), report.output
        for version in ("v1alpha1", "v1", "v2"):
            text = f"{shops.namespace}/one can be read in this version"
            assert report.find(version, title).text == text
        permissions = report.find("customresourcedefinitions", "Permissions")
        assert permissions.text == "get, patch granted"
        await shops.create("v1", "odd", {"address": "a:b"})
        report = await doctor.examine(*args)
        found = report.find("v2", title)
        text = f"{shops.namespace}/odd cannot be converted: kept.webop.dev/v1 keeps what it was"
        assert (found.level, found.text) == ("failure", text)
        await shops.client.request("DELETE", shops.locate("v1", "odd"))
    report = await doctor.examine(*args)
    for version in ("v1alpha1", "v1"):
        found = report.find(version, title)
        assert found.level == "failure"
        assert "no server listens there" in found.text
    assert report.find("v2", title).level == "ok"
