"""``WebhookServiceServer`` on a real API server: behind a Service, through rotations."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.managed_webhooks import Site
from tests.kit.operators import Json, build_settings, get_connection, operate
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port
from webop.handlers.model import WebhookType

SERVICES = webop.Resource("", "v1", "services", kind="Service", namespaced=True)
SECRETS = webop.Resource("", "v1", "secrets", kind="Secret", namespaced=True)
SECRET = "hooks-webhook-certs"
FAST: Json = {"poll_interval": 0.1, "settle_time": 1.0, "overlap": 1.0}


@pytest.fixture(autouse=True)
async def service(site: Site) -> None:
    """An ExternalName leads API servers to this process, with the TLS name of the Service."""
    spec = {"type": "ExternalName", "externalName": "localhost"}
    body = {"metadata": {"name": "hooks"}, "spec": spec}
    await site.client.create(SERVICES, site.objects.namespace, body)


def build_registry(site: Site) -> webop.OperatorRegistry:
    registry = webop.OperatorRegistry()

    def check(spec: webop.Spec, warnings: list[str], **_: Any) -> None:
        warnings.append("checked")
        if spec.get("bad"):
            raise webop.AdmissionError("It is bad.", code=422)

    webop.on.validate(*site.names, id="check_it", registry=registry)(check)
    return registry


def build_server(site: Site, port: int, service_port: int) -> webop.WebhookServiceServer:
    return webop.WebhookServiceServer(
        service="hooks",
        namespace=site.objects.namespace,
        port=port,
        service_port=service_port,
        path="/webhooks",
        **FAST,
    )


async def get_secret(site: Site) -> Json | None:
    try:
        return await site.client.get(SECRETS, site.objects.namespace, SECRET)
    except webop.APINotFoundError:
        return None


@pytest.mark.feature("ADM-45", "ADM-61", "ADM-64")
async def test_the_api_server_goes_by_the_verdicts_through_the_service(site: Site) -> None:
    port = find_free_port()
    async with site.run(build_registry(site), server=build_server(site, port, port)):
        good = await site.create("good", {})
        bad = await site.create("bad", {"bad": True})
        (webhook,) = await site.get_webhooks(WebhookType.VALIDATING) or []
    assert good.status_code == 201
    assert bad.status_code == 422
    assert bad.json()["message"].endswith("denied the request: It is bad.")
    assert webhook["clientConfig"]["service"] == {
        "namespace": site.objects.namespace,
        "name": "hooks",
        "port": port,
        "path": "/webhooks/check-it-" + webhook["clientConfig"]["service"]["path"][-8:],
    }
    secret = await get_secret(site)
    assert secret is not None
    assert secret["type"] == "kubernetes.io/tls"


async def test_a_webhook_that_refuses_all_secrets_never_stands_in_the_way_of_its_own(
    site: Site,
) -> None:
    """Also while nobody answers: the Secret is lost, and the operator needs it to start."""
    port = find_free_port()
    namespace = site.objects.namespace

    def build_guarded_registry() -> webop.OperatorRegistry:
        registry = build_registry(site)

        @webop.on.validate(
            "secrets",
            id="guard",
            persistent=True,
            namespace_selector={"kubernetes.io/metadata.name": namespace},
            registry=registry,
        )
        def guard(**_: Any) -> None:
            raise webop.AdmissionError("No secrets here.")

        return registry

    async def create_secret(**metadata: str) -> int:
        path = f"/api/v1/namespaces/{namespace}/secrets?dryRun=All"
        return (await site.send("POST", path, {"metadata": metadata})).status_code

    async with site.run(build_guarded_registry(), server=build_server(site, port, port)):
        before = await get_secret(site)
        assert before is not None
        assert await create_secret(name="another") == 500  # AdmissionError without a code
        assert await create_secret(generateName=SECRET) == 500
    await site.wait_for_names("guard")
    assert await create_secret(name="another") == 500  # nobody answers
    await site.client.delete(SECRETS, namespace, SECRET)
    async with site.run(build_guarded_registry(), server=build_server(site, port, port)):
        after = await get_secret(site)
    assert after is not None
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_webhooks_of_secrets_are_warned_of_where_others_configure_them(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    registry = build_registry(site)
    webop.on.mutate("secrets", id="stamp", registry=registry)(lambda **_: None)
    port = find_free_port()
    settings = build_settings(admission={"server": build_server(site, port, port)})
    where = [site.objects.namespace]
    async with operate(get_connection(site.cluster), registry, settings, namespaces=where):
        await eventually(lambda: "for Secrets" in caplog.text, "the warning")
    (warning,) = [one.getMessage() for one in caplog.records if "for Secrets" in one.getMessage()]
    assert f"needs the Secret {site.objects.namespace}/{SECRET} to start" in warning
    assert warning.startswith("Webhook 'stamp'")
