"""When tokens and certificates end, by what they say themselves."""

from __future__ import annotations

from tests.kit.exec_plugins import build_token
from tests.kit.rows import rows
from webop.client.auth.expiration import (
    Lifetime,
    parse_certificate_lifetime,
    parse_token_lifetime,
)

HOUR = 3600.0
YEAR = 365 * 24 * HOUR


@rows(
    ("lifetime", "now", "expected"),
    [
        (Lifetime(0, HOUR), 0, HOUR - 60),
        (Lifetime(0, HOUR), HOUR - 60, HOUR),
        (Lifetime(0, HOUR), HOUR, None),
        (Lifetime(0, 100), 0, 90),
        (Lifetime(0, YEAR, HOUR), 0, HOUR - 60),
        (Lifetime(0, YEAR, HOUR), HOUR, YEAR - 60),
    ],
)
def test_the_next_credentials_are_looked_for_a_while_before_the_end(
    lifetime: Lifetime, now: float, expected: float | None
) -> None:
    expiration = lifetime.choose_expiration(now)
    assert (expiration and expiration.timestamp()) == expected


@rows(
    ("token", "expected"),
    [
        (build_token({"exp": 200, "iat": 100}), Lifetime(100, 200)),
        (build_token({"exp": 200}), Lifetime(200, 200)),
        (
            build_token({"exp": 900, "iat": 1, "kubernetes.io": {"warnafter": 200}}),
            Lifetime(1, 900, 200),
        ),
        (build_token({"iat": 100}), None),
        (build_token({"exp": 200}, parts=2), None),
        (build_token(["exp"]), None),
        ("a.ÿ.c", None),
        ("opaque", None),
        (None, None),
    ],
)
def test_tokens_tell_their_lifetime_if_they_are_of_the_kind_that_does(
    token: str | None, expected: Lifetime | None
) -> None:
    assert parse_token_lifetime(token) == expected


@rows("body", [b"", b"????", b"MAA=", b"MIIB", b"BAEB" * 20, b"MAMwAQA="])
def test_what_is_not_a_certificate_has_no_known_end(body: bytes) -> None:
    pem = b"-----BEGIN CERTIFICATE-----\n" + body + b"\n-----END CERTIFICATE-----\n"
    assert parse_certificate_lifetime(pem) is None
    assert parse_certificate_lifetime(body) is None
