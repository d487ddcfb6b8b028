"""``webop.WebhookServiceServer`` with a cluster in memory: sharing, rotations, faults."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.servers.clustering import (
    SECRET,
    Replica,
    Secrets,
    Trust,
    replicate,
    shake_hands,
    to_der,
)
from tests.servers.reviewing import connect, trust, until
from tests.servers.test_webhook_files import make_rsa
from webop.errors import (
    APIConnectionError,
    APIForbiddenError,
)
from webop.servers.certificates.certs import (
    KeyPair,
    build_ca,
    build_certificate_signed,
    split_certificates,
)


@pytest.fixture
def cluster() -> Secrets:
    return Secrets()


def build_foreign(pair: KeyPair, ca: bytes) -> dict[str, Any]:
    parts = {"tls.crt": pair.cert, "tls.key": pair.key, "ca.crt": ca}
    data = {key: base64.b64encode(part).decode() for key, part in parts.items()}
    return {"metadata": {"name": SECRET}, "type": "kubernetes.io/tls", "data": data}


def sign(ca: KeyPair) -> KeyPair:
    return build_certificate_signed(ca, common_name="svc", hostnames=["svc.ns.svc"])


# Several replicas.


async def test_replicas_that_start_together_share_one_certificate(cluster: Secrets) -> None:
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        running = await asyncio.gather(*(enter(replicate(cluster)) for _ in range(5)))
        shown = {await shake_hands(one.port, cluster.get_data("ca.crt")) for one in running}
    assert shown == {to_der(cluster.get_data("tls.crt"))}
    assert cluster.count_writes() - cluster.conflicts == 1


@contextlib.asynccontextmanager
async def knock(replicas: list[Replica], known: Trust) -> AsyncIterator[list[str]]:
    """Connect to the replicas all the time, as API servers that are behind; yield the failures."""
    failures: list[str] = []
    count = 0

    async def go_on() -> None:
        nonlocal count
        while True:
            for number, replica in enumerate(replicas):
                bundle = known.choose()
                try:
                    await shake_hands(replica.port, bundle)
                except OSError as exc:
                    failures.append(f"replica {number}: {exc!r}")
                count += 1
            await asyncio.sleep(0.005)

    task = asyncio.create_task(go_on())
    try:
        yield failures
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert count > 5
        assert task.cancelled()


async def rotate(cluster: Secrets) -> None:
    """Wait until a rotation that is under way, or begins now, is over."""
    old = cluster.stored[SECRET]["data"]["tls.crt"] if SECRET in cluster.stored else ""
    await until(
        lambda: (
            SECRET in cluster.stored
            and cluster.stored[SECRET]["data"]["tls.crt"] != old
            and "next.crt" not in cluster.stored[SECRET]["data"]
            and len(split_certificates(cluster.get_data("ca.crt"))) == 1
        )
    )


async def test_no_connection_fails_in_three_rotations_of_five_replicas(cluster: Secrets) -> None:
    known = Trust()
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(replicate(cluster, known)) for _ in range(5)]
        await until(lambda: bool(known.told))
        failures = await stack.enter_async_context(knock(replicas, known))
        ports = [replica.port for replica in replicas]
        cluster.annotate(SECRET, **{"webop.dev/rotate": "please"})
        await rotate(cluster)
        cluster.annotate(SECRET, **{"webop.dev/renew-at": "2020-01-01T00:00:00Z"})
        await rotate(cluster)
        served = cluster.get_data("tls.crt")
        del cluster.stored[SECRET]
        await until(lambda: SECRET in cluster.stored)
        assert cluster.get_data("tls.crt") == served, "the one in use is kept at first"
        await rotate(cluster)
        last = split_certificates(cluster.get_data("ca.crt"))
        await until(lambda: all(split_certificates(one.get_bundle()) == last for one in replicas))
        shown = {await shake_hands(one.port, b"".join(last)) for one in replicas}
        assert [replica.port for replica in replicas] == ports
    assert failures == []
    assert shown == {to_der(cluster.get_data("tls.crt"))}
    granted = cluster.stored[SECRET]["metadata"]["annotations"]
    assert "webop.dev/renew-at" in granted


async def test_a_replica_that_comes_just_after_the_deletion_leaves_the_restoring_to_the_others(
    cluster: Secrets,
) -> None:
    known = Trust()
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(replicate(cluster, known)) for _ in range(2)]
        await until(lambda: bool(known.told))
        failures = await stack.enter_async_context(knock(replicas, known))
        served = cluster.get_data("tls.crt")
        del cluster.stored[SECRET]
        replicas.append(await stack.enter_async_context(replicate(cluster, known)))
        assert cluster.get_data("tls.crt") == served
        await rotate(cluster)
        assert failures == []


async def test_names_in_another_form_than_in_certificates_are_no_reason_to_rotate_for_ever(
    cluster: Secrets,
) -> None:
    names = ["2001:DB8::1", "b\u00fccher.example", "0.0.0.0"]
    async with replicate(cluster, extra_sans=names, settle_time=0.05):
        looks = len(cluster.requests)
        await until(lambda: len(cluster.requests) > looks + 20)
    assert cluster.count_writes() == 1


async def test_open_connections_outlive_a_rotation(cluster: Secrets) -> None:
    async with (
        replicate(cluster) as replica,
        connect(replica.port, trust(replica.get_bundle()), "svc.ns.svc") as (reader, writer),
    ):
        cluster.annotate(SECRET, **{"webop.dev/rotate": "1"})
        await rotate(cluster)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 405")


async def test_what_others_have_put_into_the_secret_stays(cluster: Secrets) -> None:
    async with replicate(cluster):
        document = cluster.stored[SECRET]
        document["data"]["more"] = "eA=="
        document["metadata"]["labels"]["team"] = "a"
        document["metadata"]["ownerReferences"] = [{"uid": "1"}]
        cluster.annotate(SECRET, **{"webop.dev/rotate": "1", "note": "x"})
        await rotate(cluster)
        metadata = cluster.stored[SECRET]["metadata"]
        assert cluster.stored[SECRET]["data"]["more"] == "eA=="
        assert metadata["labels"]["team"] == "a"
        assert metadata["ownerReferences"] == [{"uid": "1"}]
        assert metadata["annotations"]["note"] == "x"
        assert metadata["annotations"]["webop.dev/rotated"] == "1"


@pytest.mark.parametrize("spoilt", ["tls.crt", "tls.key", "ca.crt"])
async def test_a_spoilt_secret_is_repaired(cluster: Secrets, spoilt: str) -> None:
    async with replicate(cluster):
        served = cluster.get_data("tls.crt")
        document = cluster.stored[SECRET]
        document["data"][spoilt] = base64.b64encode(b"what is this?").decode()
        cluster.put(SECRET, document)
        await until(lambda: "next.crt" in cluster.stored[SECRET]["data"])
        assert cluster.get_data("tls.crt") == served
        await rotate(cluster)


async def test_a_spoilt_secret_is_replaced_at_the_start(cluster: Secrets) -> None:
    async with replicate(cluster):
        document = cluster.stored[SECRET]
    cluster.put(SECRET, {**document, "data": {"tls.crt": "", "tls.key": ""}})
    async with replicate(cluster) as replica:
        await shake_hands(replica.port, cluster.get_data("ca.crt"))


async def test_nothing_new_is_served_until_it_is_confirmed(cluster: Secrets) -> None:
    confirmed = asyncio.Event()

    class Unsure(Trust):
        async def confirm(self, bundle: bytes) -> None:
            if len(split_certificates(bundle)) > 1:
                await confirmed.wait()

    async with replicate(cluster, Unsure()) as replica:
        served = cluster.get_data("tls.crt")
        cluster.annotate(SECRET, **{"webop.dev/rotate": "1"})
        await until(lambda: len(replica.configs) > 1)
        seen = len(cluster.requests)
        await until(lambda: len(cluster.requests) > seen + 20)
        assert cluster.get_data("tls.crt") == served
        confirmed.set()
        await rotate(cluster)


# An API server that is away.


async def test_it_serves_what_it_has_while_the_api_server_is_away(
    cluster: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with replicate(cluster) as replica:
        bundle = replica.get_bundle()
        cluster.failures = dict.fromkeys(("GET", "PUT", "POST"), APIConnectionError("away"))
        seen = len(cluster.requests)
        await until(lambda: len(cluster.requests) > seen + 5)
        await shake_hands(replica.port, bundle)
        cluster.failures.clear()
        cluster.annotate(SECRET, **{"webop.dev/rotate": "1"})
        await rotate(cluster)
    (told,) = [text for text in caplog.messages if "away" in text]
    assert told.startswith("The Secret ns/svc-webhook-certs cannot be used. Serving the last known")


async def test_it_waits_for_the_api_server_at_the_start(cluster: Secrets) -> None:
    cluster.failures["GET"] = APIConnectionError("away")
    async with asyncio.TaskGroup() as group:

        async def come_back() -> None:
            await until(lambda: len(cluster.requests) > 3)
            cluster.failures.clear()

        group.create_task(come_back())
        async with replicate(cluster) as replica:
            await shake_hands(replica.port, replica.get_bundle())


async def test_lost_permissions_to_write_are_no_reason_to_stop_serving(
    cluster: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicate(cluster) as replica:
        cluster.failures["PUT"] = APIForbiddenError("no way", status=403)
        cluster.annotate(SECRET, **{"webop.dev/rotate": "1"})
        await until(lambda: cluster.requests.count("PUT") > 3)
        await shake_hands(replica.port, replica.get_bundle())
    assert len([text for text in caplog.messages if "no way" in text]) == 1


# Secrets of others.


async def test_a_foreign_secret_is_followed_and_never_written(
    cluster: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second, known = build_ca("first"), build_ca("second"), Trust()
    cluster.put(SECRET, build_foreign(sign(first), first.cert))
    async with replicate(cluster, known) as replica:
        assert split_certificates(replica.get_bundle()) == (first.cert,)
        await until(lambda: bool(known.told))
        async with knock([replica], known) as failures:
            cluster.put(SECRET, build_foreign(sign(second), second.cert))
            await until(lambda: split_certificates(replica.get_bundle()) == (second.cert,))
            await shake_hands(replica.port, second.cert)
            await until(lambda: known.choose().split() == second.cert.split())
    assert failures == []
    assert cluster.count_writes() == 0
    told = [text for text in caplog.messages if "not made by webop" in text]
    assert told == ["The Secret ns/svc-webhook-certs was not made by webop: webop only reads it."]


async def test_a_certificate_that_the_context_of_the_user_cannot_show_does_not_end_the_server(
    cluster: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    first, pair = build_ca("first"), make_rsa()
    cluster.put(SECRET, build_foreign(sign(first), first.cert))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    async with replicate(cluster, context=context, settle_time=0.05) as replica:
        cluster.put(SECRET, build_foreign(pair, pair.cert))
        await until(lambda: "still presents another certificate" in caplog.text)
        looks = len(cluster.requests)
        await until(lambda: len(cluster.requests) > looks + 3)
        await shake_hands(replica.port, first.cert)
    assert caplog.text.count("still presents another certificate") == 1


async def test_an_empty_foreign_secret_is_waited_for(
    cluster: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    ca = build_ca("ca")
    cluster.put(SECRET, {"metadata": {"name": SECRET}, "type": "kubernetes.io/tls"})
    async with asyncio.TaskGroup() as group:

        async def issue() -> None:
            await until(lambda: any("Waiting for its owner" in text for text in caplog.messages))
            cluster.put(SECRET, build_foreign(sign(ca), ca.cert))

        group.create_task(issue())
        async with replicate(cluster) as replica:
            await shake_hands(replica.port, ca.cert)
    assert cluster.count_writes() == 0


async def test_a_secret_that_somebody_takes_over_is_left_to_them(cluster: Secrets) -> None:
    ca = build_ca("ca")
    async with replicate(cluster) as replica:
        document = build_foreign(sign(ca), ca.cert)
        document["metadata"] = cluster.stored[SECRET]["metadata"]
        cluster.put(SECRET, document)
        writes = cluster.count_writes()
        await until(lambda: split_certificates(replica.get_bundle()) == (ca.cert,))
        await shake_hands(replica.port, ca.cert)
        assert cluster.count_writes() == writes
