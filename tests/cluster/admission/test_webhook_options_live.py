"""Options of webhooks on a real API server: it takes them all, and goes by them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Unpack

import pytest

import webop
from tests.kit.managed_webhooks import KINDS, Site
from tests.kit.waiting import eventually
from webop.admission.configurations.building import Exclusions, build_configuration
from webop.handlers.model import WebhookType
from webop.handlers.options import WebhookOptions

Json = dict[str, Any]

VALIDATING, MUTATING = WebhookType.VALIDATING, WebhookType.MUTATING
NAMESPACES = webop.Resource("", "v1", "namespaces", kind="Namespace", namespaced=False)
NOWHERE = "https://localhost:1/hooks"  # where nobody listens


@dataclass
class Place:
    """A kind whose webhooks are at an address where nobody listens: what is asked about, fails."""

    site: Site
    registry: webop.OperatorRegistry

    def __post_init__(self) -> None:
        self._numbers = itertools.count()

    def declare(
        self,
        reason: WebhookType = VALIDATING,
        name: str = "check",
        **options: Unpack[WebhookOptions],
    ) -> None:
        decorator = webop.on.validate if reason is VALIDATING else webop.on.mutate
        options["registry"], options["id"] = self.registry, name
        decorator(*self.site.names, **options)(lambda **_: None)

    async def apply(
        self, reason: WebhookType = VALIDATING, exclusions: Exclusions | None = None
    ) -> list[Json]:
        """Create the configuration; return the webhooks as the API server has them."""
        await self.site.client.create(KINDS[reason], None, self.build(reason, exclusions))
        return await self.site.get_webhooks(reason) or []

    def build(self, reason: WebhookType, exclusions: Exclusions | None = None) -> Json:
        return build_configuration(
            reason=reason,
            name=self.site.name,
            handlers=self.registry.select_webhooks(),
            resources=[self.site.objects.kind.resource],
            client_config={"url": NOWHERE},
            exclusions=exclusions or Exclusions(),
        )

    async def create(self, namespace: str | None = None, user: str | None = None) -> Json:
        kind = self.site.objects.kind
        body = {
            "apiVersion": kind.resource.api_version,
            "kind": kind.kind,
            "metadata": {"name": f"one-{next(self._numbers)}"},
            "spec": {},
        }
        path = kind.resource.get_url(namespace=namespace or self.site.objects.namespace)
        headers = {} if user is None else {"Impersonate-User": user, **AS_ADMIN}
        answer = await self.site.send("POST", path, body, headers=headers)
        status: Json = {"status_code": answer.status_code, **answer.json()}
        return status

    async def is_asked(self, **options: Any) -> bool:
        answer = await self.create(**options)
        assert answer["status_code"] in (201, 500), answer
        return bool(answer["status_code"] == 500)

    async def wait_in_force(self, **options: Any) -> None:
        """Wait until the API server goes by the configuration."""
        await eventually(
            lambda: self.is_asked(**options), f"the webhooks of {self.site.name} in force"
        )


AS_ADMIN = {"Impersonate-Group": "system:masters"}


@pytest.fixture
def place(site: Site, registry: webop.OperatorRegistry) -> Place:
    return Place(site, registry)


@pytest.mark.feature("ADM-46")
@pytest.mark.parametrize("reason", [VALIDATING, MUTATING])
async def test_the_api_server_takes_all_options_at_once(place: Place, reason: WebhookType) -> None:
    options: WebhookOptions = {
        "operations": ["CREATE", "UPDATE"],
        "subresource": "*",
        "side_effects": True,
        "labels": {"a": "b", "example.com/c": webop.PRESENT, "d": webop.ABSENT},
        "failure_policy": "Ignore",
        "timeout_seconds": 7,
        "namespace_selector": {
            "matchLabels": {"a": "", "example.com/b": "c"},
            "matchExpressions": [
                {"key": "d", "operator": "In", "values": ["e", ""]},
                {"key": "f", "operator": "NotIn", "values": ["g"]},
                {"key": "h", "operator": "Exists"},
                {"key": "i", "operator": "DoesNotExist"},
            ],
        },
        "match_conditions": {
            f"example.com/c{number}": "object.spec.x > 1 // as it is" for number in range(64)
        },
        "match_policy": "Exact",
        "scope": "Namespaced",
    }
    if reason is MUTATING:
        options["reinvocation_policy"] = "IfNeeded"
    place.declare(reason, **options)
    exclusions = Exclusions(namespace="some-namespace", username='a "user" \\ 😀\n')
    (sent,) = place.build(reason, exclusions)["webhooks"]
    (taken,) = await place.apply(reason, exclusions)
    assert len(taken["matchConditions"]) == 64
    assert taken == {**sent, "name": "check"}


async def test_the_namespace_of_the_operator_is_left_out(place: Place) -> None:
    own = place.site.objects.namespace
    other = f"{own}-other"
    await place.site.client.create(NAMESPACES, None, {"metadata": {"name": other}})
    place.declare()
    await place.apply(exclusions=Exclusions(namespace=own))
    await place.wait_in_force(namespace=other)
    assert not await place.is_asked()


@pytest.mark.parametrize("user", ["system:serviceaccount:ns:operator", 'o"neill\\'])
async def test_the_account_of_the_operator_is_left_out(place: Place, user: str) -> None:
    place.declare()
    await place.apply(exclusions=Exclusions(username=user))
    await place.wait_in_force()
    assert not await place.is_asked(user=user)
    assert await place.is_asked(user="somebody")
