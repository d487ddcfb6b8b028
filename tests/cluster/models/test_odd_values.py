"""Values that the API server accepts and a class refuses: the API server, and all users, go on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field

import webop
from tests.kit.operators import CRDS, Json, build_settings, operate, wait_served
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.models.crds import build_crds

GROUP, NAME = "odd.webop.dev", "peers.odd.webop.dev"
KEPT, NOTE = "kept.webop.dev", {"metadata": {"annotations": {"note": "x"}}}


def refuse(text: str) -> str:
    if text == "odd":
        raise ValueError("it is odd")
    return text


Address = Annotated[str, AfterValidator(refuse)]


class OldRoute(webop.Struct):
    target: str


class OldSpec(webop.Struct):
    address: Address
    template: dict[str, Any] | None = None
    size: int = 5
    routes: list[OldRoute] = Field(default_factory=list)


@webop.resource(GROUP, "v1beta1", kind="Peer", stored=False)
class PeerV1beta1(webop.Model):
    spec: OldSpec


class Route(webop.Struct):
    target: str
    weight: int | None = None


class Spec(webop.Struct):
    address: Address
    template: Annotated[dict[str, Any], webop.Embedded()] | None = None
    count: int = 1
    mode: str | None = None
    routes: list[Route] = Field(default_factory=list)


@webop.resource(GROUP, "v1", kind="Peer")
class PeerV1(webop.Model):
    spec: Spec


def upgrade(old: PeerV1beta1) -> PeerV1:
    routes = [Route(target=each.target) for each in old.spec.routes]
    same: Json = {"address": old.spec.address, "template": old.spec.template}
    return PeerV1(spec=Spec(**same, count=old.spec.size, routes=routes))


def downgrade(new: PeerV1) -> PeerV1beta1:
    routes = [OldRoute(target=each.target) for each in new.spec.routes]
    same: Json = {"address": new.spec.address, "template": new.spec.template}
    return PeerV1beta1(spec=OldSpec(**same, size=new.spec.count, routes=routes))


class Peers:
    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace

    async def send(self, method: str, version: str, name: str = "", **options: Any) -> Json:
        path = f"/apis/{GROUP}/{version}/namespaces/{self._namespace}/peers/{name}".rstrip("/")
        found: Json = await self._client.request(method, path, **options)
        return found

    async def create(self, version: str, name: str, **spec: Any) -> Json:
        head = {"apiVersion": f"{GROUP}/{version}", "kind": "Peer", "metadata": {"name": name}}
        return await self.send("POST", version, body={**head, "spec": spec})

    async def patch(self, version: str, body: Json, **params: str) -> Json:
        """Change the object "odd"; by server-side apply if there are parameters."""
        kind = "application/apply-patch+yaml" if params else "application/merge-patch+json"
        options = {"body": body, "content_type": kind, "params": params}
        return await self.send("PATCH", version, "odd", **options)


@pytest.fixture
async def peers(
    client: Client, webop_namespace: str, info: webop.ConnectionInfo
) -> AsyncIterator[Peers]:
    """Peers, stored as v1, of an operator that refuses odd addresses."""
    webop.on.convert(PeerV1beta1, to=PeerV1)(upgrade)
    webop.on.convert(PeerV1, to=PeerV1beta1)(downgrade)
    with contextlib.suppress(webop.APIConflictError):
        await client.create(CRDS, None, *build_crds([PeerV1beta1, PeerV1]))
    await wait_served(client, webop.Resource(GROUP, "v1", "peers", kind="Peer", namespaced=True))
    server = webop.WebhookServer(port=0, host="localhost")
    settings = build_settings(admission={"server": server, "managed": "auto.odd.webop.dev"})
    peers = Peers(client, webop_namespace)
    registry = webop.get_default_registry()
    async with operate(info, registry, settings, clusterwide=True, beside=True):

        async def is_converted() -> bool:
            spec = {"address": "a", "size": 7}
            body = {"apiVersion": f"{GROUP}/v1beta1", "kind": "Peer", "spec": spec}
            body["metadata"] = {"name": "probe"}
            made = await peers.send("POST", "v1beta1", body=body, params={"dryRun": "All"})
            return "size" in made["spec"]

        await eventually(is_converted, "the conversion", ignoring=webop.APIError)
        yield peers
        await peers.send("DELETE", "v1")


ROUTES = [{"target": "a", "weight": 1}, {"target": "b", "weight": 2}]
ODD: Json = {"address": "odd", "count": 3, "mode": "x", "routes": ROUTES}
OLD_ROUTES = [{"target": "a"}, {"target": "b"}]


async def test_one_odd_object_breaks_no_list_and_no_write(peers: Peers) -> None:
    await peers.create("v1", "even", address="a")
    await peers.create("v1", "odd", **ODD)
    for version in ("v1beta1", "v1"):
        assert len((await peers.send("GET", version))["items"]) == 2
    shown = await peers.send("GET", "v1beta1", "odd")
    assert shown["spec"] == {"address": "odd", "size": 5, "routes": OLD_ROUTES}
    assert f"{KEPT}/v1" in shown["metadata"]["annotations"]
    await peers.patch("v1beta1", NOTE)
    stored = await peers.send("GET", "v1", "odd")
    assert stored["spec"] == ODD
    assert stored["metadata"]["annotations"] == NOTE["metadata"]["annotations"]
    assert stored["metadata"]["generation"] == 1
    await peers.send("DELETE", "v1beta1", "odd")
