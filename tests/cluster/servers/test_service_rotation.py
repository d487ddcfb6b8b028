"""``webop.WebhookServiceServer`` with a cluster in memory: sharing, rotations, faults."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import datetime as dt
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.shared_secrets import SECRET, Replica, Secrets, Trust, replicate, shake_hands, to_der
from tests.kit.waiting import eventually
from webop.errors import APIConnectionError
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


async def rotate(cluster: Secrets, *replicas: Replica, old: bytes | None = None) -> None:
    """Wait until replicas use another certificate than before, and trust its CA only."""
    before = old or cluster.get_data("tls.crt")

    def is_over() -> bool:
        present = cluster.get_data("tls.crt") if SECRET in cluster.stored else before
        if present == before or b"BEGIN" not in present:
            return False
        cas = split_certificates(cluster.get_data("ca.crt"))
        bundles = [split_certificates(replica.get_bundle()) for replica in replicas]
        return len(cas) == 1 and all(bundle == cas for bundle in bundles)

    await eventually(is_over)
    for replica in replicas:
        shown = await shake_hands(replica.port, cluster.get_data("ca.crt"))
        assert shown == to_der(cluster.get_data("tls.crt"))


async def test_a_replica_that_finds_an_old_certificate_is_ready_at_once(cluster: Secrets) -> None:
    async with replicate(cluster, overlap=0.0):
        pass
    async with replicate(cluster, overlap=0.0) as replica:
        assert not replica.hosting.is_settling


async def test_a_certificate_is_renewed_after_two_thirds_of_its_life(cluster: Secrets) -> None:
    times: Any = {"certificate_lifetime": dt.timedelta(seconds=6), "settle_time": 0.1}
    times["overlap"] = 0.1
    async with replicate(cluster, **times) as replica:
        first = read_certificate(cluster.get_data("tls.crt"))
        await rotate(cluster, replica)
        left = first.end - dt.datetime.now(dt.UTC)
        assert dt.timedelta(0) < left < dt.timedelta(seconds=2.5)


async def test_replicas_that_need_different_names_agree_on_both(cluster: Secrets) -> None:
    async with (
        replicate(cluster, settle_time=0.05),
        replicate(cluster, settle_time=0.05, extra_sans=["extra.example"]),
    ):
        names = {"svc.ns.svc", "extra.example"}
        await eventually(lambda: read_certificate(cluster.get_data("tls.crt")).hostnames >= names)
        looks = len(cluster.requests)
        await eventually(lambda: len(cluster.requests) > looks + 40)
    assert cluster.count_writes() - cluster.conflicts <= 3  # two certificates, the old CA goes


async def test_no_connection_fails_whatever_happens_to_the_secret(cluster: Secrets) -> None:
    chance, known, spoilt = random.Random(1), Trust(), base64.b64encode(b"?").decode()
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(replicate(cluster, known)) for _ in range(3)]
        await eventually(lambda: not any(replica.hosting.is_settling for replica in replicas))
        failures = await stack.enter_async_context(knock(replicas, known))
        for number in range(8):
            fate = chance.choice(["delete", "spoil", "wish", "outage", "newcomer"])
            if fate == "delete":
                cluster.stored.pop(SECRET, None)
            elif fate == "spoil" and SECRET in cluster.stored:
                document = copy.deepcopy(cluster.stored[SECRET])
                document["data"][chance.choice(["tls.crt", "tls.key", "ca.crt"])] = spoilt
                cluster.put(SECRET, document)
            elif fate == "wish" and SECRET in cluster.stored:
                cluster.annotate(SECRET, **{"webop.dev/rotate": str(number)})
            elif fate == "outage":
                method = chance.choice(["GET", "PUT", "POST"])
                cluster.failures = {method: APIConnectionError("away")}
            elif fate == "newcomer":
                cluster.failures = {}
                newcomer = await stack.enter_async_context(replicate(cluster, known))
                await eventually(lambda one=newcomer: not one.hosting.is_settling)  # type: ignore[misc]
                replicas.append(newcomer)
            await asyncio.sleep(chance.uniform(0, 1))
        cluster.failures = {}
        await eventually(lambda: SECRET in cluster.stored)
        cluster.annotate(SECRET, **{"webop.dev/rotate": "last"})
        await rotate(cluster, *replicas)
        assert failures == []


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


async def test_nothing_new_is_served_until_it_is_confirmed(cluster: Secrets) -> None:
    asked, confirmed = asyncio.Event(), asyncio.Event()

    class Unsure(Trust):
        async def confirm(self, bundle: bytes) -> None:
            if len(split_certificates(bundle)) > 1:
                asked.set()
                await confirmed.wait()

    async with replicate(cluster, Unsure()) as replica:
        served = cluster.get_data("tls.crt")
        cluster.annotate(SECRET, **{"webop.dev/rotate": "1"})
        await asked.wait()
        assert cluster.get_data("tls.crt") != served
        assert await shake_hands(replica.port, replica.get_bundle()) == to_der(served)
        confirmed.set()
        await rotate(cluster, replica, old=served)


# An API server that is away.


async def test_it_serves_what_it_has_while_the_api_server_is_away(
    cluster: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with replicate(cluster) as replica:
        bundle = replica.get_bundle()
        cluster.failures = dict.fromkeys(("GET", "PUT", "POST"), APIConnectionError("away"))
        seen = len(cluster.requests)
        await eventually(lambda: len(cluster.requests) > seen + 5)
        await shake_hands(replica.port, bundle)
        cluster.failures.clear()
        cluster.annotate(SECRET, **{"webop.dev/rotate": "1"})
        await rotate(cluster)
    (told,) = [text for text in caplog.messages if "away" in text]
    assert "Serving the last known one; retrying: away" in told


async def test_it_waits_for_the_api_server_at_the_start(cluster: Secrets) -> None:
    cluster.failures["GET"] = APIConnectionError("away")
    async with asyncio.TaskGroup() as group:

        async def come_back() -> None:
            await eventually(lambda: len(cluster.requests) > 3)
            cluster.failures.clear()

        group.create_task(come_back())
        async with replicate(cluster) as replica:
            await shake_hands(replica.port, replica.get_bundle())


# Secrets of others.


async def test_a_foreign_secret_is_followed_never_written_and_left_to_its_owner(
    cluster: Secrets, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cas, known = [build_ca(name) for name in ("first", "second", "third")], Trust()
    cluster.put(SECRET, build_foreign(sign(cas[0]), cas[0].cert))
    async with replicate(cluster, known) as replica:
        assert split_certificates(replica.get_bundle()) == (cas[0].cert,)
        await eventually(lambda: bool(known.told))
        async with knock([replica], known) as failures:
            cluster.put(SECRET, build_foreign(sign(cas[1]), cas[1].cert))
            await eventually(lambda: split_certificates(replica.get_bundle()) == (cas[1].cert,))
            await shake_hands(replica.port, cas[1].cert)
            await eventually(lambda: known.choose().split() == cas[1].cert.split())
        del cluster.stored[SECRET]
        await eventually(lambda: "Waiting for its owner" in caplog.text)
        await shake_hands(replica.port, cas[1].cert)
        cluster.put(SECRET, build_foreign(sign(cas[2]), cas[2].cert))
        await eventually(lambda: split_certificates(replica.get_bundle()) == (cas[2].cert,))
    assert failures == []
    assert cluster.count_writes() == 0
    told = [text for text in caplog.messages if "not made by webop" in text]
    assert told == ["The Secret ns/svc-webhook-certs was not made by webop: webop only reads it."]


async def test_a_secret_that_somebody_takes_over_is_left_to_them(cluster: Secrets) -> None:
    ca = build_ca("ca")
    async with replicate(cluster) as replica:
        document = build_foreign(sign(ca), ca.cert)
        document["metadata"] = cluster.stored[SECRET]["metadata"]
        cluster.put(SECRET, document)
        writes = cluster.count_writes()
        await eventually(lambda: split_certificates(replica.get_bundle()) == (ca.cert,))
        await shake_hands(replica.port, ca.cert)
        assert cluster.count_writes() == writes
