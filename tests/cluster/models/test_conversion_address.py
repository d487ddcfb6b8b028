"""Operators, commands and others write the address for conversions, one after another."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import webop
from tests.kit.cli_runner import forgetting_modules, invoke
from tests.kit.operators import CRDS, Json, build_settings, operate, undefine
from tests.kit.versioned_shops import GROUP, MANAGED, NAME, Shops, declare
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.http.requests import APPLY_PATCH, Call, encode_body
from webop.controlplane.cluster_client import find_free_port
from webop.testing import LocalCluster

HANDLERS = """
import webop
from tests.kit.versioned_shops import declare

declare(webop.get_default_registry())

@webop.on.startup()
def configure(settings, **_):
    settings.admission.server = webop.WebhookServiceServer()
"""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SERVICES = webop.Resource("", "v1", "services", kind="Service", namespaced=True)


@dataclass
class Site:
    """A cluster where the definition of shops is applied in several ways."""

    client: Client
    info: webop.ConnectionInfo
    shops: Shops
    file: Path
    kubeconfig: Path
    definition: Json = field(default_factory=dict)

    async def invoke(self, *args: str) -> str:
        """Run a command with the handlers; return what it prints."""
        env = {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.file.parent)}
        with forgetting_modules(self.file.parent):
            result = await asyncio.to_thread(invoke, *args, str(self.file), env=env)
        assert result.exit_code == 0, result.output
        return result.stdout

    async def read_config(self) -> Json:
        config: Json = (await self.shops.read_conversion())["webhook"]["clientConfig"]
        return config

    async def apply_by_kubectl(self) -> None:
        """Send what ``kubectl apply`` sends: what differs from the object, nulls included."""
        text = json.dumps(self.definition)
        wanted = self.definition | {"metadata": {"name": NAME, "annotations": {LAST_APPLIED: text}}}
        change = differ(await self.client.get(CRDS, None, NAME), wanted)
        await self._patch("application/strategic-merge-patch+json", change)

    async def apply_on_the_server(self) -> None:
        """Send what ``kubectl apply --server-side`` sends, which tells of --force-conflicts."""
        try:
            await self._patch(APPLY_PATCH, self.definition, force="false")
        except webop.APIConflictError:
            await self._patch(APPLY_PATCH, self.definition, force="true")

    async def _patch(self, kind: str, body: Json, **params: str) -> None:
        url, params = CRDS.get_url(name=NAME), {"fieldManager": "kubectl", **params}
        await self.client.perform(Call("PATCH", url, params, encode_body(body), kind))

    async def run(self, server: webop.WebhookServer, half: str) -> None:
        """Run an operator until API servers call it, and stop it."""
        registry = webop.OperatorRegistry()
        declare(registry)
        settings = build_settings(admission={"server": server, "managed": MANAGED})
        async with operate(self.info, registry, settings, clusterwide=True):
            await eventually(self.read_config, check=lambda config: half in config)
            await self.shops.wait_converted()


def differ(present: Any, wanted: Any) -> Any:
    """Return the fields that differ, as kubectl finds them; what is not wanted stays."""
    if not isinstance(wanted, dict) or not isinstance(present, dict):
        return wanted
    return {
        key: differ(present.get(key), value)
        for key, value in wanted.items()
        if key not in present or present[key] != value
    }


async def test_each_way_to_apply_a_definition_replaces_the_address_of_others(
    shops: Shops, info: webop.ConnectionInfo, webop_cluster: LocalCluster, tmp_path: Path
) -> None:
    """One walk: the command, a local run, one in the cluster, kubectl, the server."""
    client, namespace = shops.client, shops.namespace
    await undefine(client, webop.Resource(GROUP, "v2", "shops", kind="Shop", namespaced=True))
    # An ExternalName leads API servers to this process, with the TLS name of the Service.
    spec = {"type": "ExternalName", "externalName": "localhost"}
    await client.create(SERVICES, namespace, {"metadata": {"name": "op"}, "spec": spec})
    file, port = tmp_path / "handlers.py", find_free_port()
    file.write_text(HANDLERS)
    site = Site(client, info, shops, file, webop_cluster.kubeconfig)
    options = ("--name=op", f"--operator-namespace={namespace}")
    documents = [*yaml.safe_load_all(await site.invoke("manifests", *options))]
    (site.definition,) = (one for one in documents if one["metadata"]["name"] == NAME)
    half, bundle = "url", None
    for step in "CLPKLSC":
        half = {"L": "url", "C": half}.get(step, "service")
        match step:
            case "C":
                await site.invoke("crd", "apply")
            case "L":
                await site.run(webop.WebhookServer(port=0, host="localhost"), half)
            case "P":
                await site.run(
                    webop.WebhookServiceServer(
                        service="op", namespace=namespace, port=port, service_port=port
                    ),
                    half,
                )
            case "K":
                await site.apply_by_kubectl()
            case "S":
                await site.apply_on_the_server()
        config = await site.read_config()
        assert [key for key in ("url", "service") if key in config] == [half], step
        if step not in "LP":  # what the operator has written stays
            assert config.get("caBundle") == bundle, step
        bundle = config.get("caBundle")
