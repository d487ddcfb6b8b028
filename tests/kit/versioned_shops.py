"""A kind with three versions, and functions between them: a field is renamed, another one split."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

import webop
from tests.kit.operators import CRDS, Json, wait_served
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.errors import APIConflictError, APIError
from webop.models.crds import build_crds

if TYPE_CHECKING:
    from webop.handlers.registry import OperatorRegistry

# Definitions are for the whole cluster, which the workers of a test run share.
GROUP = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.versions.webop.dev"
NAME = f"shops.{GROUP}"
MANAGED = f"auto.{GROUP}"  # of the operators that convert


class AlphaSpec(webop.Struct):
    url: str


@webop.resource(GROUP, "v1alpha1", kind="Shop", stored=False)
class ShopAlpha(webop.Model):
    spec: AlphaSpec


class OldSpec(webop.Struct):
    address: str
    replicas: int = Field(default=1, ge=0)
    tags: dict[str, str] = Field(default_factory=dict)


class Status(webop.Struct):
    ready: bool | None = None


@webop.resource(GROUP, "v1", kind="Shop", stored=False)
class ShopV1(webop.Model):
    spec: OldSpec
    status: Status | None = None


class NewSpec(webop.Struct):
    host: str
    port: int = Field(default=80, ge=1, le=65535)
    count: int = Field(default=1, ge=0)
    tags: dict[str, str] = Field(default_factory=dict)


@webop.resource(GROUP, "v2", kind="Shop")
class ShopV2(webop.Model):
    spec: NewSpec
    status: Status | None = None


def split(address: str) -> tuple[str, int]:
    host, separator, port = address.rpartition(":")
    return (host, int(port)) if separator else (address, 80)


def upgrade(old: ShopV1) -> ShopV2:
    host, port = split(old.spec.address)
    spec = NewSpec(host=host, port=port, count=old.spec.replicas, tags=old.spec.tags)
    return ShopV2(metadata=old.metadata, spec=spec, status=old.status)


async def downgrade(new: ShopV2) -> ShopV1:
    spec = OldSpec(
        address=f"{new.spec.host}:{new.spec.port}", replicas=new.spec.count, tags=new.spec.tags
    )
    return ShopV1(metadata=new.metadata, spec=spec, status=new.status)


def upgrade_alpha(old: ShopAlpha) -> ShopV2:
    host, port = split(old.spec.url.removeprefix("http://"))
    return ShopV2(spec=NewSpec(host=host, port=port))


def downgrade_alpha(new: ShopV2) -> ShopAlpha:
    return ShopAlpha(spec=AlphaSpec(url=f"http://{new.spec.host}:{new.spec.port}"))


def declare(
    registry: OperatorRegistry | None = None, up: Any = upgrade, down: Any = downgrade
) -> None:
    webop.on.convert(ShopV1, to=ShopV2, registry=registry)(up)
    webop.on.convert(ShopV2, to=ShopV1, registry=registry)(down)
    webop.on.convert(ShopAlpha, to=ShopV2, registry=registry)(upgrade_alpha)
    webop.on.convert(ShopV2, to=ShopAlpha, registry=registry)(downgrade_alpha)


@dataclass
class Shops:
    client: Client
    namespace: str

    def locate(self, version: str, name: str = "") -> str:
        """Return the path of the shops, or of one of them."""
        path = f"/apis/{GROUP}/{version}/namespaces/{self.namespace}/shops"
        return f"{path}/{name}" if name else path

    async def create(self, version: str, name: str, spec: Json, **metadata: Any) -> Json:
        body = {
            "apiVersion": f"{GROUP}/{version}",
            "kind": "Shop",
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }
        created: Json = await self.client.request("POST", self.locate(version), body=body)
        return created

    async def get(self, version: str, name: str) -> Json:
        found: Json = await self.client.request("GET", self.locate(version, name))
        return found

    async def list(self, version: str) -> list[Json]:
        found = await self.client.request("GET", self.locate(version))
        items: list[Json] = found["items"]
        return items

    async def read_conversion(self) -> Json:
        """Return how API servers convert shops."""
        found: Json = (await self.client.get(CRDS, None, NAME))["spec"]["conversion"]
        return found

    async def change_definition(self, patch: Json) -> None:
        await self.client.patch(CRDS, None, NAME, patch)

    async def wait_converted(self, version: str = "v1") -> None:
        """Wait until API servers convert by the operator, which adds the port."""
        probe = {"v1": {"address": "a"}, "v1alpha1": {"url": "http://a"}}[version]
        body = {
            "apiVersion": f"{GROUP}/{version}",
            "kind": "Shop",
            "metadata": {"name": "probe"},
            "spec": probe,
        }

        path, params = self.locate(version), {"dryRun": "All"}
        await eventually(
            self.read_conversion, "the conversion", check=lambda it: it["strategy"] == "Webhook"
        )
        await eventually(
            lambda: self.client.request("POST", path, body=body, params=params),
            "the conversion in force",
            check=lambda made: ":80" in str(made["spec"]),
            ignoring=APIError,
        )


@contextlib.asynccontextmanager
async def open_shops(client: Client, namespace: str) -> AsyncIterator[Shops]:
    """Define the kind, without conversion; remove the conversion and the objects at the end.

    The definition stays: API servers can need a minute to remove one whose conversion has failed.
    """
    (crd,) = build_crds([ShopAlpha, ShopV1, ShopV2])
    with contextlib.suppress(APIConflictError):
        await client.create(CRDS, None, crd)
    resource = webop.Resource(GROUP, "v2", "shops", kind="Shop", namespaced=True)
    await wait_served(client, resource)
    shops = Shops(client, namespace)
    try:
        yield shops
    finally:
        none = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
        await shops.change_definition(none)
        # The former conversion can be in use for a moment.
        url = shops.locate("v2")
        await eventually(lambda: client.request("DELETE", url), ignoring=APIError)
