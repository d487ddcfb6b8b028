"""Bundles and certificates."""

from __future__ import annotations

import base64
import datetime as dt

import pytest

from webop.cli.doctor.reachability import check_bundle
from webop.servers.certificates.certs import build_ca


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
    finding = check_bundle(bundle, now)
    assert finding.level == level


@pytest.mark.parametrize(
    ("bundle", "text"),
    [("no base64!", "cannot be read"), (base64.b64encode(b"no PEM").decode(), "cannot be read")],
)
def test_a_bundle_that_cannot_be_read_is_a_failure(bundle: str, text: str) -> None:
    finding = check_bundle(bundle, get_now())
    assert (finding.level, text in finding.text) == ("failure", True)


def test_old_cas_beside_a_new_one_are_no_trouble() -> None:
    bundle = encode(build_ca("old", days=1).cert, build_ca("new", days=90).cert)
    finding = check_bundle(bundle, get_now() + dt.timedelta(days=2))
    assert finding.level == "ok"
    assert finding.text.startswith("the last of its 2 CAs")


def test_no_bundle_is_worth_a_note() -> None:
    finding = check_bundle("", get_now())
    assert finding.level == "note"
