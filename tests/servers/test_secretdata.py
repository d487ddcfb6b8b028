"""The Secret of shared certificates: what is read from it and what is written, and by what."""

from __future__ import annotations

import base64
import datetime as dt
import random
import ssl
from typing import Any

import pytest

from webop.servers.certificates.certs import (
    build_ca,
    build_certificate_of_own_ca,
    build_certificate_self_signed,
    build_certificate_signed,
    get_expiry,
    is_signed_by,
    read_hostnames,
    split_certificates,
)
from webop.servers.certificates.secretdata import (
    Leaf,
    Shared,
    build_secret,
    make_leaf,
    parse_secret,
    read_leaf,
)

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def make(*names: str) -> tuple[Leaf, bytes]:
    pair, authority = build_certificate_of_own_ca(names or ["a.b.svc"], dt.timedelta(hours=5))
    return read_leaf(pair.cert, pair.key, (authority,)), authority


def write(shared: Shared, present: Any = None) -> dict[str, Any]:
    return build_secret(present or {"metadata": {"name": "certs", "namespace": "ns"}}, shared)


def encode(**parts: bytes) -> dict[str, str]:
    return {key.replace("_", "."): base64.b64encode(part).decode() for key, part in parts.items()}


def test_a_certificate_has_an_authority_of_its_own_that_lives_as_long() -> None:
    pair, authority = build_certificate_of_own_ca(["a.b.svc", "::1"], dt.timedelta(hours=5))
    other, other_authority = build_certificate_of_own_ca(["a.b.svc"], dt.timedelta(hours=5))
    left = get_expiry(pair.cert) - dt.datetime.now(dt.UTC)
    assert dt.timedelta(hours=4.9) < left <= dt.timedelta(hours=5)
    assert get_expiry(authority) >= get_expiry(pair.cert)
    assert read_hostnames(pair.cert) == {"a.b.svc", "::1"}
    assert is_signed_by(pair.cert, authority)
    assert not is_signed_by(other.cert, authority)
    assert not is_signed_by(pair.cert, pair.cert)
    assert split_certificates(authority + b"text\n" + other_authority + authority) == (
        authority,
        other_authority,
    )


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"certificate|PEM"):
        split_certificates(b"nothing")
    assert read_hostnames(build_ca("ca").cert) == frozenset()


def test_a_certificate_that_is_its_own_authority_is_seen_as_such() -> None:
    pair = build_certificate_self_signed(["localhost"])
    assert is_signed_by(pair.cert, pair.cert)


@pytest.mark.parametrize("is_rotating", [False, True])
def test_what_is_written_is_read_again(is_rotating: bool) -> None:
    leaf, authority = make()
    upcoming, other = make("c", "10.0.0.1")
    shared = Shared(
        uid="u1",
        leaf=leaf,
        upcoming=upcoming if is_rotating else None,
        cas=(other, authority),
        renew_at=START,
    )
    present = {"metadata": {"uid": "u1", "annotations": {"webop.dev/rotate": "w"}}}
    assert parse_secret(write(shared, present)) == shared


def test_a_wish_for_a_rotation_is_due_until_it_is_granted() -> None:
    leaf, ca = make()
    document = write(Shared(leaf=leaf, cas=(ca,), renew_at=START))
    annotations = document["metadata"]["annotations"]
    annotations["webop.dev/rotate"] = "please"
    wished = parse_secret(document)
    assert wished.renew_at is None
    meanwhile = write(wished, document)
    assert parse_secret(meanwhile).renew_at is None, "what is written for other reasons grants none"
    granted = write(Shared(leaf=leaf, cas=(ca,), renew_at=START), meanwhile)
    assert parse_secret(granted).renew_at == START
    del granted["metadata"]["annotations"]["webop.dev/rotate"]
    assert parse_secret(granted).renew_at == START, "a wish that is withdrawn"


def test_a_new_secret_is_one_that_tools_know() -> None:
    leaf, authority = make()
    document = write(Shared("", leaf, None, (authority,)))
    assert document["type"] == "kubernetes.io/tls"
    assert document["metadata"]["name"] == "certs"
    assert set(document["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    assert parse_secret(document).renew_at is None


def test_the_upcoming_certificate_goes_and_other_parts_stay() -> None:
    leaf, authority = make()
    rotating = write(Shared("", leaf, leaf, (authority,)))
    rotating["data"]["other"] = "eA=="
    rotating["metadata"]["resourceVersion"] = "7"
    rotating["immutable"] = False
    document = write(Shared("", leaf, None, (authority,)), rotating)
    assert set(document["data"]) == {"tls.crt", "tls.key", "ca.crt", "other"}
    assert document["metadata"]["resourceVersion"] == "7"
    assert document["immutable"] is False
    assert "next.crt" in rotating["data"], "what was read is not changed"


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
    leaf, authority = make()
    document = write(Shared("", leaf, None, (authority,)))
    own = parse_secret({**document, "data": data})
    assert own.leaf is None
    assert not own.is_foreign
    foreign = parse_secret({"metadata": {}, "data": data})
    assert foreign.leaf is None
    assert foreign.is_foreign


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize("part", ["tls.crt", "ca.crt"])
def test_a_certificate_that_cannot_be_parsed_is_left_out_and_ends_nothing(part: str) -> None:
    leaf = make_leaf(("localhost",), dt.timedelta(days=30))
    assert leaf.ca is not None
    secret = build_secret({"metadata": {"name": "x"}}, Shared(leaf=leaf, cas=(leaf.ca,)))
    good = leaf.cert if part == "tls.crt" else leaf.ca
    whole = ssl.PEM_cert_to_DER_cert(good.decode())
    chance = random.Random(1)
    for number in range(400):
        der = bytearray(whole)
        der[chance.randrange(len(der))] = chance.randrange(256)
        pem = good * (number % 2) + ssl.DER_cert_to_PEM_cert(bytes(der)).encode()
        data = {**secret["data"], part: base64.b64encode(pem).decode()}
        for metadata in (secret["metadata"], {"name": "x"}):
            parse_secret({**secret, "metadata": metadata, "data": data})


def test_a_certificate_that_nobody_would_trust_is_not_usable() -> None:
    leaf, authority = make()
    document = write(Shared("", leaf, None, (make()[1],)))
    assert parse_secret(document).leaf is None
    assert parse_secret(write(Shared("", leaf, None, (authority,)))).leaf == leaf


def test_the_certificate_of_another_maker_is_seen_by_its_digest() -> None:
    leaf, authority = make()
    document = write(Shared("", leaf, None, (authority,)))
    other, other_authority = make()
    data = encode(tls_crt=other.cert, tls_key=other.key, ca_crt=other_authority)
    parsed = parse_secret({**document, "data": data})
    assert parsed.is_foreign
    assert parsed.leaf == other


def test_a_foreign_certificate_may_come_without_authorities_or_with_indirect_ones() -> None:
    root, own = build_ca("root"), build_certificate_self_signed(["localhost"])
    alone = encode(tls_crt=own.cert, tls_key=own.key)
    parsed = parse_secret({"metadata": {}, "data": alone})
    assert parsed.cas == (own.cert,)
    signed = build_certificate_signed(root, common_name="x", hostnames=["x"])
    above = encode(tls_crt=signed.cert, tls_key=signed.key, ca_crt=build_ca("above").cert)
    parsed = parse_secret({"metadata": {}, "data": above})
    assert parsed.leaf is not None
    assert parsed.leaf.ca is None


def test_a_certificate_put_over_ours_by_hand_is_trusted_though_the_bundle_stays() -> None:
    leaf, authority = make()
    document = write(Shared("", leaf, None, (authority,)))
    own = build_certificate_self_signed(["localhost"])
    document["data"] |= encode(tls_crt=own.cert, tls_key=own.key)
    parsed = parse_secret(document)
    assert parsed.is_foreign
    assert parsed.cas == (own.cert, authority)


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_cannot_be_read_is_none(text: str) -> None:
    leaf, authority = make()
    document = write(Shared("", leaf, None, (authority,), renew_at=START))
    assert parse_secret(document).renew_at == START
    document["metadata"]["annotations"]["webop.dev/renew-at"] = text
    assert parse_secret(document).renew_at is None


def test_a_key_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="does not belong to the certificate"):
        read_leaf(make()[0].cert, make()[0].key, ())
