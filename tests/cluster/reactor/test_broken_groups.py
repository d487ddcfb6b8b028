"""API groups whose servers are down: they hold up nobody else."""

from __future__ import annotations

import pytest

import webop
from tests.kit.operators import (
    Kind,
    Objects,
    build_settings,
    connect,
    do_nothing,
    get_connection,
    operate,
)
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.controlplane.cluster import LocalCluster

APISERVICES = webop.Resource("apiregistration.k8s.io", "v1", "apiservices", kind="APIService")
NAME = "v1.broken.webop.dev"


async def break_group(client: Client) -> None:
    """Announce an API group that nobody serves (Kubernetes API, apiregistration/v1 APIService)."""
    spec = {
        "group": "broken.webop.dev",
        "version": "v1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": "nowhere", "namespace": "default"},
    }
    head = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
    await client.create(APISERVICES, None, {**head, "metadata": {"name": NAME}, "spec": spec})


@pytest.mark.feature("RES-19", "RES-07", "RES-17")
async def test_a_group_that_answers_503_holds_up_nobody_and_is_told_once(
    registry: webop.OperatorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    webop.on.create("sounds", id="sound")(do_nothing)
    webop.on.create("brokens", id="broken")(do_nothing)
    kind = Kind("sound.webop.dev", "sounds", "Sound")
    with LocalCluster() as cluster:
        async with connect(cluster) as client:
            await break_group(client)
            await kind.define(client)
            objects = Objects(client, kind, "default")
            info = get_connection(cluster)
            async with operate(info, registry, build_settings(), clusterwide=True):
                await objects.make("a")
                await Kind("late.webop.dev", "lates", "Late").define(client)  # one more scan
                await objects.make("b")
                told = [line for line in caplog.messages if "does not respond" in line]
                assert len(told) == 1, told
                assert "broken.webop.dev/v1" in told[0]
                await client.delete(APISERVICES, None, NAME)
                text = "broken.webop.dev/v1 responds again"
                await eventually(lambda: text in caplog.text, "the end of it is noticed")
