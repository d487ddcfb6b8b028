"""Kinds of handlers that the cluster does not have: who says so, and what helps."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import httpx

from tests.kit.cli_runner import forgetting_modules, invoke
from tests.kit.processes import Workshop
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port
from webop.testing import LocalCluster

# The second name is misspelt; that the third kind is missing is nothing to report.
CODE = """
import webop

@webop.resource("GROUP", "v1")
class Website(webop.Model):
    spec: dict[str, str] = {}

@webop.on.create(Website)
@webop.on.create("configmapz")
@webop.on.create("optional.GROUP", when_kind_exists=True)
def fn(**_): ...
"""


async def run(workshop: Workshop, cluster: LocalCluster, *args: str) -> str:
    env = {"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(workshop.folder)}
    with forgetting_modules(workshop.folder):
        result = await asyncio.to_thread(invoke, *args, env=env)
    return result.output


async def test_a_missing_definition_is_in_readyz_the_status_page_and_the_doctor(
    connected: Workshop, webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    group = f"{webop_namespace}.missing.webop.dev"
    path = str(connected.write(CODE.replace("GROUP", group)))
    url, apply = f"http://127.0.0.1:{find_free_port()}", f"webop crd apply {path}"
    options = ("-A", "--standalone", f"--liveness={url}/healthz")
    async with (
        connected.start(*options, path) as command,
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        await command.wait_for("The operator is running.")

        async def read_ready() -> list[str]:
            answer = await http.get("/readyz")
            assert answer.status_code == 200, answer.text  # webhooks must go on
            missing: list[str] = answer.json().get("missing kinds", [])
            return missing

        async def read_missing() -> list[str]:
            missing = await read_ready()
            report: Any = (await http.get("/status.json")).json()
            assert report["missing_kinds"] == missing
            assert (await http.get("/")).json()["missing kinds"] == missing
            return missing

        waiting = "is not in the cluster yet. Waiting for its definition (CRD)."
        misspelt = f"configmapz {waiting} Did you mean configmaps.v1?"
        missing = [misspelt, f"websites.v1.{group} {waiting} Create it: {apply}"]
        assert await read_missing() == missing
        assert all(text in command.output for text in missing)
        report = await run(connected, webop_cluster, "doctor", path)
        assert f"-> Create it: {apply}\n" in report
        assert "not checked. Did you mean configmaps.v1?\n" in report
        await run(connected, webop_cluster, *shlex.split(apply)[1:])
        await eventually(read_ready, check=lambda now: now == [misspelt])
        assert await read_missing() == [misspelt]
