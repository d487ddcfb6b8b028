"""``webop.WebhookServer`` as users and API servers see it: URLs, certificates, life cycle."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

import webop
from tests.kit.webhook_servers import (
    RESPONSE,
    REVIEW,
    Recorder,
    connect,
    get_bundle,
    get_port,
    get_url,
    post,
    serve,
    trust,
)
from webop.errors import ConfigurationError


def get_host(config: webop.WebhookClientConfig) -> str:
    """Return the host that clients are told of."""
    return urlsplit(get_url(config)).hostname or ""


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    """Tell whether no one listens on a port."""
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.feature("ADM-61", "ADM-64", "ADM-72", "ADM-88", "ADM-92")
async def test_by_default_it_serves_https_with_a_certificate_that_its_config_verifies(
    fn: Recorder,
) -> None:
    async with serve(webop.WebhookServer(port=0), fn) as config:
        assert set(config) == {"url", "caBundle"}
        assert get_url(config).startswith("https://localhost:")
        response = await post(f"{get_url(config)}/fn", trust(get_bundle(config)))
        assert response.json() == RESPONSE
    assert fn.calls[0].request == REVIEW
    assert fn.calls[0].webhook == "fn"
    assert fn.calls[0].sslpeer is None
    assert "Authorization" not in fn.calls[0].headers


@pytest.mark.feature("ADM-69", "D-13")
async def test_by_default_it_listens_on_the_documented_address_and_says_if_that_is_in_use(
    fn: Recorder,
) -> None:
    with contextlib.ExitStack() as stack:
        # If someone else has the port, that is as good.
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", 9443)))
        with pytest.raises(ConfigurationError, match=r"localhost:9443.*in use.*another port"):
            async with serve(webop.WebhookServer(), fn):
                pass


@pytest.mark.feature("ADM-69", "ADM-71")
@pytest.mark.parametrize(
    ("addr", "hostname"),
    [
        *(("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("", "localhost")),
        *((None, "localhost"), ("::1", "::1"), ("::", "::1"), ("::0", "::1")),
    ],
)
async def test_the_url_has_the_address_or_one_to_reach_it_by(
    fn: Recorder, addr: str | None, hostname: str
) -> None:
    if hostname == "::1" and not has_ipv6():
        pytest.skip("there is no IPv6")
    async with serve(webop.WebhookServer(addr=addr, port=0), fn) as config:
        assert urlsplit(get_url(config)).hostname == hostname
        response = await post(get_url(config), trust(get_bundle(config)))
    assert response.status_code == 200


@pytest.mark.feature("ADM-69", "ADM-71")
@pytest.mark.parametrize(
    ("pod", "options", "listens_widely", "warns"),
    [
        (False, {}, False, False),
        (False, {"host": "hooks.default.svc"}, True, False),
        (True, {"host": "hooks.default.svc"}, True, False),
        (True, {}, True, True),
        (True, {"addr": "127.0.0.1"}, False, False),
        (True, {"addr": "127.0.0.1", "host": "hooks.default.svc"}, False, False),
        (True, {"addr": ""}, True, False),
    ],
)
async def test_in_a_pod_and_with_a_host_it_is_reached_from_outside_unless_an_address_is_given(
    fn: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    pod: bool,
    options: dict[str, Any],
    listens_widely: bool,
    warns: bool,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1" if pod else "")
    async with serve(webop.WebhookServer(port=0, **options), fn) as config:
        assert get_host(config) in {"localhost", *options.values()}
        # Clients of other tests have the first addresses of the loopback network.
        assert is_free(get_port(config), "127.77.0.2") is not listens_widely
        async with connect(get_port(config), trust(get_bundle(config)), get_host(config)):
            pass
    assert ("on all interfaces of this pod" in caplog.text) is warns


@pytest.mark.feature("ADM-71", "ADM-72")
async def test_a_host_replaces_the_address_in_the_url_and_in_the_certificate(fn: Recorder) -> None:
    async with serve(webop.WebhookServer(port=0, host="hooks.example"), fn) as config:
        assert urlsplit(get_url(config)).hostname == "hooks.example"
        for hostname in ("hooks.example", "localhost"):
            async with connect(get_port(config), trust(get_bundle(config)), hostname):
                pass


@pytest.mark.feature("ADM-83", "ADM-84", "ADM-90")
@pytest.mark.parametrize(
    ("server", "hostname"),
    [
        (webop.WebhookK3dServer, "host.k3d.internal"),
        (webop.WebhookMinikubeServer, "host.minikube.internal"),
        (webop.WebhookDockerDesktopServer, "host.docker.internal"),
    ],
)
async def test_local_clusters_have_a_name_for_this_host(
    fn: Recorder, server: type[webop.WebhookServer], hostname: str
) -> None:
    async with serve(server(port=0), fn) as config:
        assert urlsplit(get_url(config)).hostname == hostname
        async with connect(get_port(config), trust(get_bundle(config)), hostname):
            pass
    async with serve(server(port=0, host="other"), fn) as config:
        assert urlsplit(get_url(config)).hostname == "other"


@pytest.mark.feature("ADM-70")
@pytest.mark.parametrize(
    ("path", "suffix"), [(None, ""), ("/", ""), ("p", "/p"), ("/p/q/", "/p/q"), ("a b", "/a%20b")]
)
async def test_a_path_is_the_root_of_the_urls(fn: Recorder, path: str | None, suffix: str) -> None:
    async with serve(webop.WebhookServer(port=0, path=path), fn) as config:
        assert urlsplit(get_url(config)).path == suffix
        context = trust(get_bundle(config))
        assert (await post(get_url(config), context)).status_code == 200
        assert (await post(f"{get_url(config)}/fn", context)).status_code == 200
    assert [call.webhook for call in fn.calls] == [None, "fn"]


@pytest.mark.feature("ADM-78")
async def test_insecure_is_plain_http_with_no_authorities(fn: Recorder) -> None:
    async with serve(webop.WebhookServer(port=0, insecure=True), fn) as config:
        assert set(config) == {"url"}
        assert get_url(config).startswith("http://localhost:")
        assert (await post(get_url(config))).status_code == 200


@pytest.mark.feature("ADM-65", "ADM-67")
async def test_the_exit_from_the_context_stops_the_serving(fn: Recorder) -> None:
    async with webop.WebhookServer(port=0) as server:
        generator = server(fn)
        config = await anext(generator)
        assert not is_free(get_port(config))
    assert is_free(get_port(config))


@pytest.mark.feature("ADM-67")
async def test_the_exit_from_the_context_ends_an_iteration_in_another_task(fn: Recorder) -> None:
    configs: asyncio.Queue[webop.WebhookClientConfig] = asyncio.Queue()

    async def iterate(server: webop.WebhookServer) -> None:
        async for config in server(fn):
            configs.put_nowait(config)

    async with webop.WebhookServer(port=0) as server:
        task = asyncio.create_task(iterate(server))
        config = await configs.get()
        await asyncio.sleep(0)
    await task
    assert is_free(get_port(config))
