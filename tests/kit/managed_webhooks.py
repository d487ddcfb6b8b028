"""Operators with managed webhooks on a real API server: what a test of them has to itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

import webop
from tests.kit.operators import (
    Kind,
    Objects,
    Running,
    build_settings,
    get_connection,
    open_http,
    operate,
)
from tests.kit.waiting import eventually
from webop.admission.configurations.replica_agreement import PREFIX, decode_record
from webop.client.api import Client
from webop.errors import APINotFoundError
from webop.handlers.model import WebhookType

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Json = dict[str, Any]
GROUP = "admissionregistration.k8s.io"
KINDS = {
    kind: webop.Resource(GROUP, "v1", f"{kind.name.lower()}webhookconfigurations", namespaced=False)
    for kind in WebhookType
}

_PATIENCE = 20.0  # seconds; only failing tests wait for so long
_SENTINEL = "sentinel"


@contextlib.asynccontextmanager
async def open_site(
    cluster: LocalCluster, client: Client, namespace: str, kind: Kind
) -> AsyncIterator[Site]:
    """Give a test what it has to itself; in the end, no configuration is left of it."""
    name = f"auto.{kind.group}"
    yield Site(cluster, client, Objects(client, kind, namespace), name)
    for resource in KINDS.values():
        with contextlib.suppress(APINotFoundError):
            await client.delete(resource, None, name)


@dataclass
class Site:
    """A kind in an API group of the test alone, and configurations of a name of its own.

    So the webhooks of one test never meet the objects of another.
    """

    cluster: LocalCluster
    client: Client
    objects: Objects
    name: str

    @property
    def names(self) -> tuple[str, str, str]:
        """What decorators need to be for the objects of this test."""
        return (self.objects.kind.group, "v1", self.objects.kind.plural)

    async def get_webhooks(self, which: WebhookType) -> list[Json] | None:
        """Return the webhooks of a configuration by the word of the API server, if there is one."""
        try:
            found = await self.client.get(KINDS[which], None, self.name)
        except APINotFoundError:
            return None
        suffix = f".{self.name}"
        webhooks = [
            {**webhook, "name": webhook["name"].removesuffix(suffix)}
            for webhook in found.get("webhooks", [])
        ]
        return [webhook for webhook in webhooks if webhook["name"] != _SENTINEL]

    async def get_records(self, which: WebhookType = WebhookType.VALIDATING) -> list[str]:
        """Return the identities of the replicas that a configuration knows of, in order."""
        try:
            found = await self.client.get(KINDS[which], None, self.name)
        except APINotFoundError:
            return []
        annotations = found["metadata"].get("annotations") or {}
        texts = [text for key, text in annotations.items() if key.startswith(PREFIX)]
        return sorted(record.identity for record in map(decode_record, texts))

    async def has_names(self, validating: str = "", mutating: str = "") -> bool:
        """Tell whether just these webhooks are configured, in that order."""
        found = [
            " ".join(webhook["name"] for webhook in await self.get_webhooks(which) or [])
            for which in (WebhookType.VALIDATING, WebhookType.MUTATING)
        ]
        return found == [validating, mutating]

    async def wait_for_names(self, validating: str = "", mutating: str = "") -> None:
        what = f"{validating!r} and {mutating!r} in {self.name}"
        await eventually(lambda: self.has_names(validating, mutating), what)

    async def send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request to the API server as kubectl would, to see all of its answer."""
        async with open_http(self.cluster, timeout=_PATIENCE) as http:
            return await http.request(method, path, json=body, headers=headers)

    async def create(
        self, name: str, spec: Json | None = None, query: str = "", **metadata: Any
    ) -> httpx.Response:
        """Create an object, and return all of the answer."""
        kind = self.objects.kind
        body = {
            "apiVersion": kind.resource.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, **metadata},
            "spec": spec or {},
        }
        path = kind.resource.get_url(namespace=self.objects.namespace)
        return await self.send("POST", f"{path}{query}", body)

    @contextlib.asynccontextmanager
    async def run(
        self,
        registry: webop.OperatorRegistry | None = None,
        *,
        server: Any = None,
        sentinel: Json | None = None,
        **options: Any,
    ) -> AsyncIterator[Running]:
        """Run an operator that manages its webhooks; wait until the API server goes by them.

        Args:
            registry: the handlers; by default those of the test.
            server: the webhook server; by default one on any free port.
            sentinel: the spec of an object that all of the handlers allow.
            options: ``take_over`` is the setting; more of those of
                :func:`tests.kit.operators.operate`.
        """
        chosen = webop.WebhookServer(port=0) if server is None else server
        admission = {"server": chosen, "managed": self.name, "shutdown_delay": 0.0}
        admission["take_over"] = options.pop("take_over", False)
        settings = build_settings(admission=admission)
        registry = registry or webop.get_default_registry()
        reasons = {handler.reason for handler in registry.select_webhooks()}
        for reason in reasons:
            self._declare_sentinel(registry, reason)
        options = {"namespaces": [self.objects.namespace], **options}
        info = get_connection(self.cluster)
        async with operate(info, registry, settings, **options) as running:
            spec = sentinel or {}
            what = f"the webhooks of {self.name} in force"
            await eventually(lambda: self._is_guarded(reasons, spec), what)
            yield running

    def _declare_sentinel(self, registry: webop.OperatorRegistry, reason: WebhookType) -> None:
        """Declare a webhook that gives a sign; all of a configuration come into force at once."""

        def give_sign(warnings: list[str], **_: Any) -> None:
            warnings.append(f"{_SENTINEL} {reason}")

        decorate = webop.on.validate if reason is WebhookType.VALIDATING else webop.on.mutate
        labels = {_SENTINEL: "yes"}
        decorate(*self.names, id=_SENTINEL, labels=labels, registry=registry)(give_sign)

    async def _is_guarded(self, reasons: set[WebhookType], spec: Json) -> bool:
        answer = await self.create(_SENTINEL, spec, "?dryRun=All", labels={_SENTINEL: "yes"})
        signs = answer.headers.get_list("warning")
        return all(any(f"{_SENTINEL} {reason}" in sign for sign in signs) for reason in reasons)
