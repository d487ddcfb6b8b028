"""The Secret of the certificate that replicas share: what is read from it, and what is written."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

from tests.kit.rows import rows
from webop.servers.certificates.certs import (
    KeyPair,
    build_ca,
    build_certificate_of_own_ca,
    build_certificate_self_signed,
    build_certificate_signed,
)
from webop.servers.certificates.secret import build_secret, parse_secret

Json = dict[str, Any]
ABSENT: Json = {"metadata": {"name": "certs", "namespace": "ns"}}


def make(*names: str, hours: float = 5) -> tuple[KeyPair, bytes]:
    return build_certificate_of_own_ca(names or ["a.b.svc"], dt.timedelta(hours=hours))


def encode(**parts: bytes) -> dict[str, str]:
    return {key.replace("_", "."): base64.b64encode(part).decode() for key, part in parts.items()}


def _only(made: tuple[KeyPair, bytes]) -> tuple[KeyPair, tuple[bytes, ...]]:
    return made[0], (made[1],)


@rows(
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
