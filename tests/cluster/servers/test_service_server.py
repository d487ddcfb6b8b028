"""``webop.WebhookServiceServer`` with a cluster in memory: what it serves, mistakes."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from tests.kit.shared_secrets import SECRET, Secrets, replicate, shake_hands, to_der
from tests.kit.waiting import eventually
from tests.kit.webhook_servers import post, save, trust
from webop.errors import APIConnectionError, APIForbiddenError, APINotFoundError, ConfigurationError
from webop.servers.certificates.certs import (
    KeyPair,
    build_ca,
    build_certificate_signed,
    read_certificate,
    split_certificates,
)


@pytest.fixture
def cluster() -> Secrets:
    return Secrets()


async def fail(cluster: Secrets | None, **options: Any) -> str:
    """Run a server that cannot start; return why."""
    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.timeout(5), replicate(cluster, **options):
            pass
    (error,) = caught.value.exceptions
    assert isinstance(error, ConfigurationError)
    return str(error)


def sign(ca: KeyPair) -> KeyPair:
    return build_certificate_signed(ca, common_name="svc", hostnames=["svc.ns.svc"])


# What it advertises and stores.


async def test_it_advertises_the_service_and_serves_under_all_of_its_names(
    cluster: Secrets,
) -> None:
    async with replicate(
        cluster, service_port=8443, path="/a/b/", extra_sans=["localhost", "10.0.0.1"]
    ) as replica:
        (config,) = replica.configs
        assert set(config) == {"service", "caBundle"}
        assert config["service"] == {"namespace": "ns", "name": "svc", "port": 8443, "path": "/a/b"}
        names = {"svc", "svc.ns", "svc.ns.svc", "svc.ns.svc.cluster.local", "localhost"}
        for name in names:
            await shake_hands(replica.port, replica.get_bundle(), name)
        assert read_certificate(cluster.get_data("tls.crt")).hostnames == names | {"10.0.0.1"}
        url = f"https://localhost:{replica.port}/a/b"
        assert (await post(url, trust(replica.get_bundle()))).status_code == 200


async def test_the_service_comes_from_the_environment_and_the_path_may_be_absent(
    cluster: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBOP_SERVICE", "svc")
    async with replicate(cluster, service=None, namespace="ns") as replica:
        service = replica.configs[0]["service"]
        assert service == {"namespace": "ns", "name": "svc", "port": 443}


async def test_the_namespace_is_known_after_the_login_only(cluster: Secrets) -> None:
    cluster.namespace = None
    cluster.failures["GET"] = APIConnectionError("no login yet")
    async with asyncio.TaskGroup() as group:

        async def log_in() -> None:
            await eventually(lambda: len(cluster.requests) > 1)
            cluster.failures.clear()
            cluster.namespace = "ns"

        group.create_task(log_in())
        async with replicate(cluster) as replica:
            service = replica.configs[0]["service"]
            assert service is not None
            assert service["namespace"] == "ns"


async def test_the_secret_has_all_that_is_needed_and_no_key_of_an_authority(
    cluster: Secrets,
) -> None:
    async with replicate(cluster) as replica:
        document = cluster.stored[SECRET]
        assert document["type"] == "kubernetes.io/tls"
        assert set(document["data"]) == {"tls.crt", "tls.key", "ca.crt"}
        assert document["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "webop"}
        assert replica.get_bundle().split() == cluster.get_data("ca.crt").split()
        shown = await shake_hands(replica.port, cluster.get_data("ca.crt"))
        assert shown == to_der(cluster.get_data("tls.crt"))
        assert replica.hosting.expiry == read_certificate(cluster.get_data("tls.crt")).end
        left = read_certificate(cluster.get_data("tls.crt")).end - dt.datetime.now(dt.UTC)
        assert dt.timedelta(days=89) < left <= dt.timedelta(days=90)


async def test_further_authorities_are_advertised_and_dumped_also_when_their_file_changes(
    cluster: Secrets, tmp_path: Path
) -> None:
    cafile, dump = tmp_path / "ca.pem", tmp_path / "dump.pem"
    extra, changed = build_ca("extra").cert, build_ca("changed").cert
    cafile.write_bytes(extra)
    async with replicate(cluster, cafile=cafile, cadump=dump) as replica:
        own = split_certificates(cluster.get_data("ca.crt"))
        assert split_certificates(replica.get_bundle()) == (*own, extra)
        assert split_certificates(dump.read_bytes()) == (*own, extra)
        cafile.write_bytes(changed)
        expected = (*own, changed)
        await eventually(lambda: split_certificates(replica.get_bundle()) == expected)
        assert cluster.count_writes() == 1


async def test_with_files_there_is_no_secret_nor_a_cluster(tmp_path: Path) -> None:
    ca = build_ca("ca")
    certfile, pkeyfile = save(sign(ca), tmp_path)
    options: Any = {"certfile": certfile, "pkeyfile": pkeyfile, "cadata": ca.cert}
    async with replicate(None, namespace="n", **options) as replica:
        await shake_hands(replica.port, ca.cert)
        assert replica.get_bundle() == ca.cert
        service = replica.configs[0]["service"]
        assert service == {"namespace": "n", "name": "svc", "port": 443}


# What it cannot do.


async def test_mistakes_are_named_with_their_remedies(cluster: Secrets) -> None:
    assert "WEBOP_SERVICE" in await fail(cluster, service=None)
    assert "certfile=" in await fail(None, namespace="ns")
    assert "got 'Op erator'" in await fail(cluster, service="Op erator")
    assert "namespace= of" in await fail(cluster, namespace="a b")
    assert "from 1 to 65535, got 70000" in await fail(cluster, service_port=70000)
    assert "'ä..b' is not a valid host name" in await fail(cluster, extra_sans=["ä..b"])
    assert "cafile='absent.pem'" in await fail(cluster, cafile="absent.pem")
    assert "too short" in await fail(cluster, certificate_lifetime=dt.timedelta(seconds=1))
    cluster.namespace = None
    assert "namespace=" in await fail(cluster)


async def test_missing_permissions_and_namespaces_are_named(cluster: Secrets) -> None:
    method = "POST"
    cluster.failures[method] = APIForbiddenError("no way", status=403)
    message = await fail(cluster)
    assert "Secret ns/svc-webhook-certs" in message
    assert "verbs get and update" in message
    assert "no way" in message
    cluster.failures[method] = APINotFoundError("no namespace ns", status=404)
    assert "no namespace ns" in await fail(cluster)
