"""Operators whose good credentials are refused for a while by a real API server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import webop
from tests.login.refusing import refusing_proxy
from tests.operating import Objects, build_settings, eventually, operate
from webop.client.auth.vault import ConnectionInfo


@pytest.fixture
def handled(registry: webop.OperatorRegistry) -> list[str]:
    """The names of the objects that were handled, in order."""
    names: list[str] = []

    @webop.on.create("widgets", registry=registry)
    def created(name: str, **_: Any) -> None:
        names.append(name)

    return names


@pytest.mark.feature("AUT-17", "AUT-18")
async def test_a_hosted_operator_goes_on_after_its_only_credentials_were_refused_and_came_back(
    registry: webop.OperatorRegistry,
    objects: Objects,
    handled: list[str],
    info: ConnectionInfo,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with refusing_proxy(info.server) as proxy:
        only = dataclasses.replace(info, server=proxy.url, ca_data=None)
        webop.on.login(registry=registry)(lambda **_: only)
        settings = build_settings(networking={"error_backoffs": [0.1]})
        app = webop.create_app(registry=registry, settings=settings, namespaces=[objects.namespace])
        async with app.lifespan():
            await objects.create("before")
            await eventually(lambda: "before" in handled)
            proxy.refuse()
            await eventually(lambda: "only admission and probes are served" in caplog.text)
            proxy.is_refusing = False
            await objects.create("after")
            await eventually(lambda: "after" in handled)


@pytest.mark.feature("AUT-17")
async def test_an_operator_outlasts_a_time_in_which_its_only_credentials_are_refused(
    registry: webop.OperatorRegistry, objects: Objects, handled: list[str], info: ConnectionInfo
) -> None:
    async with refusing_proxy(info.server) as proxy:
        only = dataclasses.replace(info, server=proxy.url, ca_data=None)
        webop.on.login(registry=registry)(lambda **_: only)
        settings = build_settings(networking={"error_backoffs": [0.2] * 100})
        async with operate(
            only, registry, settings, vault=None, namespaces=[objects.namespace]
        ) as running:
            await objects.create("before")
            await eventually(lambda: "before" in handled)
            proxy.refuse()
            await eventually(lambda: proxy.refused >= 10)
            proxy.is_refusing = False
            await objects.create("after")
            await eventually(lambda: "after" in handled)
            assert not any(task.done() for task in running.tasks)
