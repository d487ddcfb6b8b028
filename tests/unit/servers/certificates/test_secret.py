"""The Secret of the certificate that replicas share: what is read from it, and what is written."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import random
import ssl
from typing import Any

import pytest

from tests.kit.shared_secrets import SECRET, Secrets
from webop.errors import APINotFoundError, ConfigurationError, WebopError
from webop.servers.certificates.certs import (
    Certificate,
    KeyPair,
    build_ca,
    build_certificate_of_own_ca,
    build_certificate_self_signed,
    build_certificate_signed,
    is_signed_by,
    read_certificate,
    split_certificates,
)
from webop.servers.certificates.secret import Content, SecretSource, build_secret, parse_secret

Json = dict[str, Any]
ABSENT: Json = {"metadata": {"name": "certs", "namespace": "ns"}}


def make(*names: str, hours: float = 5) -> tuple[KeyPair, bytes]:
    return build_certificate_of_own_ca(names or ["a.b.svc"], dt.timedelta(hours=hours))


def encode(**parts: bytes) -> dict[str, str]:
    return {key.replace("_", "."): base64.b64encode(part).decode() for key, part in parts.items()}


def test_a_certificate_has_an_authority_of_its_own_that_lives_as_long() -> None:
    pair, authority = make("a.b.svc", "::1")
    other, other_authority = make()
    left = read_certificate(pair.cert).end - dt.datetime.now(dt.UTC)
    assert dt.timedelta(hours=4.9) < left <= dt.timedelta(hours=5)
    assert read_certificate(authority).end >= read_certificate(pair.cert).end
    assert read_certificate(pair.cert).hostnames == {"a.b.svc", "::1"}
    assert is_signed_by(pair.cert, authority)
    assert not is_signed_by(other.cert, authority)
    assert not is_signed_by(pair.cert, pair.cert)
    assert split_certificates(authority + b"text\n" + other_authority + authority) == (
        authority,
        other_authority,
    )


def test_what_is_written_is_read_again_in_a_secret_that_tools_know() -> None:
    pair, ca = make()
    document = build_secret(ABSENT, pair, (make()[1], ca))
    assert document["type"] == "kubernetes.io/tls"
    assert document["metadata"]["name"] == "certs"
    assert set(document["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    content = parse_secret(document)
    assert (content.is_own, content.pair, content.cas[0]) == (True, pair, ca)
    assert len(content.cas) == 2
    assert not content.is_due


@pytest.mark.parametrize(("hours", "is_due"), [(0.01, False), (-0.01, True)])
def test_a_certificate_is_due_for_renewal_by_its_age(hours: float, is_due: bool) -> None:
    pair, ca = make(hours=hours)
    assert parse_secret(build_secret(ABSENT, pair, (ca,))).is_due is is_due


def test_a_wish_for_a_rotation_is_due_until_it_is_granted() -> None:
    document = build_secret(ABSENT, *_only(make()))
    document["metadata"]["annotations"]["webop.dev/rotate"] = "please"
    assert parse_secret(document).is_due
    granted = build_secret(document, *_only(make()))
    assert not parse_secret(granted).is_due
    del granted["metadata"]["annotations"]["webop.dev/rotate"]
    assert not parse_secret(granted).is_due, "a wish that is withdrawn"


def _only(made: tuple[KeyPair, bytes]) -> tuple[KeyPair, tuple[bytes, ...]]:
    return made[0], (made[1],)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        encode(tls_crt=b"", tls_key=b""),
        encode(tls_crt=b"nothing", tls_key=b"nothing"),
        encode(tls_crt=make()[0].cert, tls_key=make()[0].key),
        encode(tls_crt=make()[0].cert),
    ],
)
def test_what_is_not_usable_is_left_out(data: Any) -> None:
    own = parse_secret({**build_secret(ABSENT, *_only(make())), "data": data})
    assert own.pair is None
    assert own.is_own
    foreign = parse_secret({"metadata": {}, "data": data})
    assert foreign.pair is None
    assert not foreign.is_own


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize("part", ["tls.crt", "ca.crt"])
def test_a_certificate_that_cannot_be_parsed_is_left_out_and_ends_nothing(part: str) -> None:
    pair, ca = make("localhost")
    secret = build_secret(ABSENT, pair, (ca,))
    good = pair.cert if part == "tls.crt" else ca
    whole = ssl.PEM_cert_to_DER_cert(good.decode())
    chance = random.Random(1)
    for number in range(50):
        der = bytearray(whole)
        der[chance.randrange(len(der))] = chance.randrange(256)
        pem = good * (number % 2) + ssl.DER_cert_to_PEM_cert(bytes(der)).encode()
        data = {**secret["data"], part: base64.b64encode(pem).decode()}
        for metadata in (secret["metadata"], {"name": "x"}):
            parse_secret({**secret, "metadata": metadata, "data": data})


def test_a_certificate_that_nobody_would_trust_is_not_usable() -> None:
    content = parse_secret(build_secret(ABSENT, make()[0], (make()[1],)))
    assert content.pair is None
    assert content.is_own


def test_a_ca_that_was_planted_into_an_own_secret_is_not_the_one_that_is_trusted() -> None:
    pair, ca = make()
    planted = parse_secret(build_secret(ABSENT, pair, (build_ca("planted").cert, ca)))
    assert planted.cas[0] == ca


def test_the_certificate_of_another_maker_is_seen_by_its_issuer() -> None:
    document = build_secret(ABSENT, *_only(make()))
    ca = build_ca("webop of ours")
    pair = build_certificate_signed(ca, common_name="x", hostnames=["x"])
    document["data"] |= encode(tls_crt=pair.cert, tls_key=pair.key, ca_crt=ca.cert)
    content = parse_secret(document)
    assert (content.is_own, content.pair, content.cas) == (False, pair, (ca.cert,))


def test_a_foreign_certificate_may_come_without_authorities_or_with_indirect_ones() -> None:
    own, root, above = build_certificate_self_signed(["localhost"]), build_ca("root"), build_ca("x")
    alone = encode(tls_crt=own.cert, tls_key=own.key)
    assert parse_secret({"metadata": {}, "data": alone}).cas == (own.cert,)
    signed = build_certificate_signed(root, common_name="x", hostnames=["x"])
    indirect = encode(tls_crt=signed.cert, tls_key=signed.key, ca_crt=above.cert)
    assert parse_secret({"metadata": {}, "data": indirect}).cas == (signed.cert, above.cert)


def test_a_certificate_put_over_ours_by_hand_is_trusted_though_the_bundle_stays() -> None:
    pair, ca = make()
    document = build_secret(ABSENT, pair, (ca,))
    own = build_certificate_self_signed(["localhost"])
    document["data"] |= encode(tls_crt=own.cert, tls_key=own.key)
    content = parse_secret(document)
    assert not content.is_own
    assert content.cas == (own.cert, ca)


def build_source(secrets: Secrets, *, overlap: float = 60.0) -> SecretSource:
    return SecretSource(
        cluster=secrets,
        namespace="ns",
        name=SECRET,
        hostnames=("svc.ns.svc",),
        lifetime=dt.timedelta(days=90),
        interval=0.2,
        overlap=overlap,
    )


def spoil(secrets: Secrets) -> None:
    document = secrets.stored[SECRET]
    secrets.put(SECRET, {**document, "data": {**document["data"], "tls.key": ""}})


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_starting_replica_does_not_drop_the_ca_that_others_use(is_deleted: bool) -> None:
    secrets = Secrets()
    serving, starting = build_source(secrets), build_source(secrets)
    used = await serving.load()
    if is_deleted:
        del secrets.stored[SECRET]
    else:
        spoil(secrets)
    start = asyncio.create_task(starting.load())
    await asyncio.sleep(0.1)  # it has looked; the other one looks once in each interval
    await serving.load()
    found = await start
    assert used.bundle is not None
    assert set(split_certificates(used.bundle)) < set(
        split_certificates(secrets.get_data("ca.crt"))
    )
    assert found.is_recent


async def test_a_secret_that_is_deleted_while_it_is_written_does_not_end_the_server() -> None:
    secrets = Secrets()
    await build_source(secrets).load()
    spoil(secrets)
    secrets.failures["PUT"] = APINotFoundError("no such Secret", status=404)
    starting = build_source(secrets)
    with pytest.raises(WebopError, match="no certificate that can be used") as caught:
        await starting.load()
    assert not isinstance(caught.value, ConfigurationError)
    del secrets.stored[SECRET]
    assert (await starting.load()).cert == secrets.get_data("tls.crt")


async def test_old_cas_in_the_secret_tell_that_others_may_use_an_old_certificate() -> None:
    secrets = Secrets()
    source = build_source(secrets, overlap=0.0)
    await source.load()
    secrets.annotate(SECRET, **{"webop.dev/rotate": "now"})
    await source.load()
    assert len(split_certificates(secrets.get_data("ca.crt"))) == 2
    assert (await build_source(secrets, overlap=0.0).load()).is_recent


def test_a_certificate_that_is_valid_only_later_is_due() -> None:
    pair, _ = make()
    day = dt.timedelta(days=1)
    now = dt.datetime.now(dt.UTC)
    for start, is_due in ((now - day, False), (now + day, True)):
        found = Certificate(start, now + 90 * day, "01")
        assert Content(is_own=True, pair=pair, certificate=found).is_due is is_due
