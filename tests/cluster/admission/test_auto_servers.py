"""The servers that choose by the cluster: on API servers that say what those clusters say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import webop
from tests.kit.managed_webhooks import KINDS
from tests.kit.ngrok_standin import GOOD_TOKEN
from tests.kit.operators import Kind, build_settings, connect, get_connection, operate
from tests.kit.reviews import build_review
from tests.kit.tunnels import prepare
from tests.kit.tunnels import review as review_through_tunnel
from tests.kit.waiting import eventually
from tests.kit.webhook_servers import (
    RESPONSE,
    Recorder,
    get_bundle,
    get_port,
    get_url,
    serve,
    trust,
)
from webop.client.api import Client
from webop.handlers.model import WebhookType
from webop.servers.certificates.certs import build_certificate_self_signed
from webop.servers.limits import Hosting, current_hosting
from webop.testing import LocalCluster


class FakeAccess:
    """A cluster that shows a certificate and tells a version, or fails."""

    namespace = None

    def __init__(self, certificate: bytes | None = None, answer: Any = None) -> None:
        self.certificate = certificate
        self.answer = {"gitVersion": "v1.36.3"} if answer is None else answer
        self.asked = 0

    async def fetch_certificate(self) -> bytes | None:
        self.asked += 1
        return self.certificate

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        assert (method, path, body) == ("GET", "/version", None)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


K3S_ANSWER = {"gitVersion": "v1.36.3+k3s1"}
MINIKUBE = build_certificate_self_signed(["control-plane.minikube.internal"]).cert
DOCKER = build_certificate_self_signed(["docker-for-desktop"]).cert
PLAIN = build_certificate_self_signed(["kubernetes"]).cert


@pytest.fixture
def fn() -> Recorder:
    return Recorder()


@contextlib.contextmanager
def host(access: FakeAccess | None) -> Iterator[FakeAccess | None]:
    """Do as an operator does around the call of its webhook server."""
    token = current_hosting.set(Hosting(cluster=access))
    try:
        yield access
    finally:
        current_hosting.reset(token)


async def review_as(hostname: str, config: webop.WebhookClientConfig) -> httpx.Response:
    """Send a review as a cluster does that knows this host by a name."""
    context = trust(get_bundle(config))
    url = urlsplit(get_url(config))._replace(netloc=f"127.0.0.1:{get_port(config)}").geturl()
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        return await client.post(url, json={}, extensions={"sni_hostname": hostname})


@pytest.mark.feature("ADM-86", "ADM-87", "REF-43", "REF-44")
@pytest.mark.parametrize(
    ("access", "hostname"),
    [
        (FakeAccess(PLAIN, K3S_ANSWER), "host.k3d.internal"),
        (FakeAccess(None, K3S_ANSWER), "host.k3d.internal"),
        (FakeAccess(MINIKUBE), "host.minikube.internal"),
        (FakeAccess(DOCKER), "host.docker.internal"),
        (FakeAccess(PLAIN), "localhost"),
        (FakeAccess(b"garbage"), "localhost"),
        (FakeAccess(PLAIN, webop.APIError("no way")), "localhost"),
        (None, "localhost"),
    ],
)
async def test_the_server_takes_the_name_that_the_cluster_knows_this_host_by(
    fn: Recorder, access: FakeAccess | None, hostname: str, caplog: pytest.LogCaptureFixture
) -> None:
    servers: list[webop.WebhookServerProtocol] = [webop.WebhookAutoServer(port=0, path="/p")]
    if hostname != "localhost":  # else it is a tunnel of ngrok
        servers.append(webop.WebhookAutoTunnel(port=0, path="/p"))
    with host(access):
        for server in servers:
            async with serve(server, fn) as config:
                assert get_url(config) == f"https://{hostname}:{get_port(config)}/p"
                assert (await review_as(hostname, config)).json() == RESPONSE
    is_failing = access is not None and isinstance(access.answer, Exception)
    assert ("Cannot detect the kind of cluster: no way" in caplog.text) == is_failing


@pytest.mark.feature("ADM-86")
@pytest.mark.parametrize(
    ("options", "url_host", "listens_widely"),
    [
        ({}, "host.k3d.internal", True),
        ({"host": "me.example.com"}, "me.example.com", True),
        ({"addr": "127.0.0.1"}, "host.k3d.internal", False),
        ({"addr": "127.0.0.1", "host": "me.example.com"}, "me.example.com", False),
    ],
)
async def test_given_addresses_and_names_win(
    fn: Recorder, options: dict[str, Any], url_host: str, listens_widely: bool
) -> None:
    with host(FakeAccess(None, K3S_ANSWER)):
        async with serve(webop.WebhookAutoServer(port=0, **options), fn) as config:
            assert urlsplit(get_url(config)).hostname == url_host
            # All of 127.0.0.0/8 is this host; a server at one address is not at the next one.
            attempt = asyncio.open_connection("127.0.0.2", get_port(config))
            if listens_widely:
                _, writer = await attempt
                writer.close()
            else:
                with pytest.raises(ConnectionRefusedError):
                    await attempt


@pytest.mark.feature("ADM-86")
async def test_the_options_of_the_plain_server_are_at_work(fn: Recorder, tmp_path: Path) -> None:
    dump = tmp_path / "ca.pem"
    options: dict[str, Any] = {"cadump": dump, "extra_sans": ["other.example.com"]}
    with host(FakeAccess(MINIKUBE)):
        async with serve(webop.WebhookAutoServer(port=0, **options), fn) as config:
            assert dump.read_bytes() == get_bundle(config)
            assert (await review_as("other.example.com", config)).json() == RESPONSE


@pytest.mark.feature("ADM-87")
@pytest.mark.parametrize("access", [FakeAccess(PLAIN), None])
async def test_the_tunnel_is_one_of_ngrok_for_all_others(
    fn: Recorder, access: FakeAccess | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with prepare(tmp_path, monkeypatch) as standin, host(access):
        monkeypatch.setenv("PYNGROK_NGROK_PATH", str(standin.binary))
        with pytest.raises(webop.ConfigurationError, match=r"requires.*authtoken.*NGROK_AUTHTOKEN"):
            async with serve(webop.WebhookAutoTunnel(port=0), fn):
                pass
        monkeypatch.setenv("NGROK_AUTHTOKEN", GOOD_TOKEN)
        async with serve(webop.WebhookAutoTunnel(port=0, path="p"), fn) as config:
            assert set(config) == {"url"}
            assert urlsplit(get_url(config)).path == "/p"
            assert (await review_through_tunnel(get_url(config))).json() == RESPONSE
        assert not standin.running


@pytest.mark.feature("ADM-66", "ADM-67")
@pytest.mark.parametrize("kind", [webop.WebhookAutoServer, webop.WebhookAutoTunnel])
@pytest.mark.parametrize("is_awaited", [False, True])
async def test_the_exit_from_the_context_closes_the_chosen_server(
    fn: Recorder, kind: Any, is_awaited: bool
) -> None:
    with host(FakeAccess(MINIKUBE)):
        async with kind(addr="127.0.0.1", port=0) as server:
            generator = server(fn)
            config = await anext(generator)
            step = asyncio.ensure_future(anext(generator)) if is_awaited else None
            await asyncio.sleep(0)
            assert (await review_as("host.minikube.internal", config)).json() == RESPONSE
        if step is not None:
            with pytest.raises(StopAsyncIteration):
                await step
        with pytest.raises(httpx.ConnectError):
            await review_as("host.minikube.internal", config)


# All of it: operators on API servers.


@contextlib.asynccontextmanager
async def manage(
    cluster: LocalCluster, kind: Kind, server: webop.WebhookServerProtocol
) -> AsyncIterator[webop.WebhookClientConfig]:
    """Run an operator with managed webhooks; give what the API server is told to connect to."""
    registry = webop.OperatorRegistry()
    name = f"auto.{kind.group}"

    @webop.on.validate(kind.group, "v1", kind.plural, id="check_it", registry=registry)
    def check_it(**_: Any) -> None:
        raise webop.AdmissionError("That is how it is.", code=418)

    async with connect(cluster) as client:
        await kind.define(client)
        settings = build_settings(admission={"server": server, "managed": name})
        namespace = await asyncio.to_thread(cluster.create_namespace)
        info = get_connection(cluster)
        async with operate(info, registry, settings, namespaces=[namespace]):
            await eventually(lambda: _find(client, name), f"the webhook of {name}")
            found = await _find(client, name)
            assert found is not None
            yield found


async def _find(client: Client, name: str) -> webop.WebhookClientConfig | None:
    try:
        found = await client.get(KINDS[WebhookType.VALIDATING], None, name)
    except webop.APINotFoundError:
        return None
    configs: list[webop.WebhookClientConfig] = [
        webhook["clientConfig"] for webhook in found.get("webhooks", [])
    ]
    return configs[0] if configs else None


@pytest.mark.feature("ADM-85", "ADM-87", "ADM-63")
async def test_an_ordinary_api_server_is_told_of_each_tunnel(
    webop_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Kind("autotunnel.webop.dev", "autotunnelparcels", "AutoTunnelParcel")
    with prepare(tmp_path, monkeypatch) as standin:
        monkeypatch.setenv("PYNGROK_NGROK_PATH", str(standin.binary))
        monkeypatch.setenv("NGROK_AUTHTOKEN", GOOD_TOKEN)
        async with (
            connect(webop_cluster) as client,
            manage(webop_cluster, kind, webop.WebhookAutoTunnel(port=0)) as first,
        ):
            assert set(first) == {"url"}
            body = build_review(resource=(kind.group, "v1", kind.plural), kind=kind.kind)
            answer = await review_through_tunnel(get_url(first), body)
            assert answer.json()["response"]["status"]["code"] == 418
            os.kill(standin.running[0], signal.SIGKILL)
            await eventually(lambda: _has_other(client, kind, first), "the next tunnel")
        assert not standin.running


async def _has_other(client: Client, kind: Kind, config: webop.WebhookClientConfig) -> bool:
    return await _find(client, f"auto.{kind.group}") not in (None, config)
