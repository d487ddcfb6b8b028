"""Bundles and certificates."""

from __future__ import annotations

import base64
import datetime as dt

import pytest

from webop.doctor.addresses import (
    Material,
    Route,
    check_bundle,
    check_stored,
    is_ending,
    judge_validity,
)
from webop.servers.certificates.certs import (
    KeyPair,
    build_ca,
    build_certificate_self_signed,
    build_certificate_signed,
    read_validity,
)

NAME = "hooks.ns.svc"
ROUTE = Route(NAME, 443, ("ns", "hooks"))


def encode(*pems: bytes) -> str:
    return base64.b64encode(b"".join(pems)).decode()


def get_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@pytest.mark.parametrize(
    ("days", "age", "level"),
    [
        (3650, 0, "ok"),
        (3650, 3642, "ok"),
        (3650, 3644, "warning"),
        (3650, 3651, "failure"),
        (1, 0.5, "ok"),  # short lives end soon from the beginning on
        (1, 0.95, "warning"),
    ],
)
def test_a_bundle_is_judged_by_what_is_left_of_its_life(days: int, age: float, level: str) -> None:
    bundle = encode(build_ca("authority", days=days).cert)
    now = get_now() + dt.timedelta(days=age)
    (finding,) = check_bundle(bundle, now, is_required=True)
    assert finding.level == level


@pytest.mark.parametrize(
    ("bundle", "text"),
    [
        ("no base64!", "not base64"),
        (base64.b64encode(b"no PEM").decode(), "no certificates"),
    ],
)
def test_a_bundle_that_cannot_be_read_is_a_failure_if_answers_are_needed(
    bundle: str, text: str
) -> None:
    (finding,) = check_bundle(bundle, get_now(), is_required=True)
    assert (finding.level, text in finding.text) == ("failure", True)
    (finding,) = check_bundle(bundle, get_now(), is_required=False)
    assert finding.level == "warning"


def test_old_authorities_beside_a_new_one_are_no_trouble() -> None:
    bundle = encode(build_ca("old", days=1).cert, build_ca("new", days=90).cert)
    (finding,) = check_bundle(bundle, get_now() + dt.timedelta(days=2), is_required=True)
    assert finding.level == "ok"
    assert finding.text.startswith("2 authorities")


def test_no_bundle_is_worth_a_note() -> None:
    (finding,) = check_bundle("", get_now(), is_required=True)
    assert finding.level == "note"


def test_a_life_ends_in_its_last_tenth_or_in_its_last_week() -> None:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for days, left, expected in ((100, 8, False), (100, 6, True), (10, 2, False), (10, 0.9, True)):
        end = start + dt.timedelta(days=days)
        assert is_ending(start, end, end - dt.timedelta(days=left)) is expected


CA, OTHER = build_ca("authority"), build_ca("stranger")


def sign(ca: KeyPair = CA, name: str = NAME) -> KeyPair:
    return build_certificate_signed(ca, common_name=NAME, hostnames=[name])


@pytest.mark.parametrize(
    ("pair", "authority", "level", "remedy"),
    [
        (sign(), CA, "ok", ""),
        (sign(OTHER), CA, "failure", "cafile="),
        (sign(name="other.ns.svc"), CA, "failure", "subjectAltName"),
        (KeyPair(sign().cert, sign().key), CA, "failure", ""),
    ],
)
def test_a_stored_certificate_is_tried_with_the_bundle_and_the_name(
    pair: KeyPair, authority: KeyPair, level: str, remedy: str
) -> None:
    material = Material(pair.cert, pair.key)
    bundle = encode(authority.cert)
    (finding,) = check_stored(material, ROUTE, bundle, get_now(), is_required=True)
    assert finding.level == level, finding
    assert remedy in finding.remedy


def test_a_certificate_that_is_its_own_authority_is_trusted() -> None:
    pair = build_certificate_self_signed([NAME])
    material = Material(pair.cert, pair.key)
    (finding,) = check_stored(material, ROUTE, encode(pair.cert), get_now(), is_required=True)
    assert finding.level == "ok"


def test_a_trusted_certificate_that_ends_soon_is_a_warning() -> None:
    cert = sign().cert
    _, end = read_validity(cert)
    (finding,) = judge_validity(cert, NAME, end - dt.timedelta(days=3))
    assert finding.level == "warning"
    assert "in 3 d" in finding.text


def test_the_key_is_not_shown() -> None:
    assert "PRIVATE" not in repr(Material(b"cert", b"PRIVATE"))
