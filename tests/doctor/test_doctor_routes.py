"""Where webhooks lead, and who is behind a Service."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.commands import find_free_port, take_port
from webop.doctor.addresses import (
    Backing,
    Route,
    check_backing,
    check_connection,
    connect,
    describe_state,
    group_records,
    is_elsewhere,
    list_services,
    parse_route,
    read_material,
)
from webop.doctor.permissions import SecretState
from webop.doctor.records import Record
from webop.handling.handlers import WebhookType

Json = dict[str, Any]

SERVICE = {"service": {"namespace": "ns", "name": "hooks", "port": 8443, "path": "/x"}}
ROUTE = Route("hooks.ns.svc", 8443, ("ns", "hooks"))


@pytest.mark.parametrize(
    ("config", "route"),
    [
        ({"url": "https://host/path"}, Route("host", 443)),
        ({"url": "https://[::1]:8443/path"}, Route("::1", 8443)),
        (SERVICE, ROUTE),
        (
            {"service": {"namespace": "ns", "name": "hooks"}},
            Route("hooks.ns.svc", 443, ("ns", "hooks")),
        ),
        ({}, None),
        ({"url": "https://host:port/"}, None),
        ({"url": "nonsense"}, None),
    ],
)
def test_a_client_config_is_read(config: Json, route: Route | None) -> None:
    assert parse_route(config) == route


def build_service(**spec: Any) -> Json:
    return {"spec": {"type": "ClusterIP", "ports": [{"port": 8443}], **spec}}


def build_slice(*ready: bool | None) -> Json:
    return {"endpoints": [{"conditions": {"ready": value}} for value in ready]}


@pytest.mark.parametrize(
    ("backing", "levels"),
    [
        (Backing(None), ["note"]),
        (Backing({}), ["failure"]),
        (Backing(build_service(type="ExternalName", externalName="host")), ["ok"]),
        (Backing(build_service(), [build_slice(True)]), ["ok", "ok"]),
        (Backing(build_service(), [build_slice(False), build_slice(None)]), ["ok", "ok"]),
        (Backing(build_service(), [build_slice(False)]), ["ok", "failure"]),
        (Backing(build_service(), [{"endpoints": None}]), ["ok", "failure"]),
        (Backing(build_service(), []), ["ok", "failure"]),
        (Backing(build_service()), ["ok", "note"]),
        (Backing(build_service(ports=None), [build_slice(True)]), ["failure", "ok"]),
    ],
)
def test_a_service_is_judged(backing: Backing, levels: list[str]) -> None:
    found = list(check_backing(ROUTE, backing, is_required=True))
    assert [finding.level for finding in found] == levels
    lenient = [finding.level for finding in check_backing(ROUTE, backing, is_required=False)]
    assert lenient == ["warning" if level == "failure" else level for level in levels]


async def test_a_connection_is_tried() -> None:
    with take_port() as port:
        assert await connect("127.0.0.1", port) == ""
    assert await connect("127.0.0.1", find_free_port()) == "connection refused"
    problem = await connect("nowhere.invalid", 443)
    assert "no host of that name" in problem
    route = Route("host", 443)
    assert check_connection(route, "").level == "ok"
    assert check_connection(route, "connection refused").level == "warning"
    assert "Start the operator" in check_connection(route, "connection refused").remedy
    assert "correct host=" in check_connection(route, problem).remedy


def test_hosts_of_virtual_machines_are_known_only_there() -> None:
    assert is_elsewhere("host.docker.internal")
    assert not is_elsewhere("localhost")


def build_record(config: Json, **webhook: Any) -> Record:
    return Record(WebhookType.VALIDATING, {"name": "x", "clientConfig": config, **webhook})


def test_webhooks_of_one_address_and_bundle_are_looked_at_together() -> None:
    url = {"url": "https://host/a", "caBundle": "x"}
    records = [
        build_record(url),
        build_record({**url, "url": "https://host/b"}),
        build_record({**url, "caBundle": "y"}),
        build_record(SERVICE),
        build_record({}),
    ]
    assert [len(group) for group in group_records(records).values()] == [2, 1, 1, 1]
    assert list_services(records) == [("ns", "hooks")]


@pytest.mark.parametrize(
    ("secret", "state"),
    [
        (None, SecretState()),
        ({}, SecretState(is_absent=True)),
        ({"metadata": {}}, SecretState(is_foreign=True)),
        ({"metadata": {"annotations": {"webop.dev/certificate": "x"}}}, SecretState()),
    ],
)
def test_the_maker_of_a_secret_is_recognised(secret: Json | None, state: SecretState) -> None:
    assert describe_state(secret) == state


def test_a_secret_without_a_certificate_is_none() -> None:
    data = {key: base64.b64encode(b"x").decode() for key in ("tls.crt", "tls.key")}
    assert read_material({"data": data}) is not None
    assert read_material({"data": {"tls.crt": "eA=="}}) is None
    assert read_material({"data": {**data, "tls.key": "x"}}) is None
    assert read_material({}) is None
