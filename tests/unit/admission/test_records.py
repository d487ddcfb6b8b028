"""Records of replicas: written and read, and what they are made of."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from webop.admission.configurations.replica_agreement import (
    ReplicaRecord,
    build_bundle,
    build_key,
    decode_record,
    join_address,
    parse_bundle,
    split_address,
    split_certificates,
)
from webop.errors import ConfigurationError

NOW = "2026-11-21T12:30:15.250+00:00"
ONE = "-----BEGIN CERTIFICATE-----\nAAA\nBBB\n-----END CERTIFICATE-----"
TWO = "-----BEGIN CERTIFICATE-----\nCCC\n-----END CERTIFICATE-----"


def build_record(**fields: Any) -> ReplicaRecord:
    chosen: dict[str, Any] = {
        "identity": "user@host/1",
        "since": NOW,
        "renewed": NOW,
        "lifetime": 180.0,
        "address": {"url": "https://host:1"},
        "cas": (ONE, TWO),
        "digest": "0123456789abcdef",
    }
    return ReplicaRecord(**{**chosen, **fields})


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode_record(build_record().encode()) == build_record()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing"),
        ("{", "broken JSON"),
        ("[]", "not a record"),
        ("{}", "no fields"),
        (build_record().encode().replace('"lifetime":180.0', '"lifetime":"long"'), "a number"),
        (build_record().encode().replace('"address"', '"others"'), "no address"),
        (build_record().encode().replace("180.0", '"nan"'), "a number"),
        (build_record().encode().replace("180.0", '"-inf"'), "a finite number"),
        (build_record().encode().replace("180.0", "1e999"), "a number of JSON"),
        (build_record(address={"a": 1}).encode(), "neither a URL nor a service"),
        (build_record(address={"service": "x"}).encode(), "no service"),
        (build_record(since="x").encode(), "no start"),
        (build_record(renewed="x").encode(), "no time"),
        (build_record(since="9999-12-31T23:59:59.999+00:00").encode(), "the end of all times"),
    ],
)
def test_what_is_not_a_record_counts_as_a_replica_that_has_retired(text: str, why: str) -> None:
    assert decode_record(text).is_retired, why


@pytest.mark.parametrize("identity", ["", "me", "user@host/1/ä", "x" * 1000])
def test_keys_are_valid_names_of_annotations(identity: str) -> None:
    prefix, _, name = build_key(identity).partition("/")
    assert prefix == "replica.webop.dev"
    assert name.isalnum()
    assert len(name) <= 63
    assert build_key(identity) != build_key(identity + "/")


@pytest.mark.parametrize(
    ("config", "address", "path"),
    [
        ({"url": "https://host"}, {"url": "https://host"}, ""),
        ({"url": "https://host/"}, {"url": "https://host"}, "/"),
        ({"url": "https://host:1/a/b%20c"}, {"url": "https://host:1"}, "/a/b%20c"),
        ({"url": "https://[::1]:1/a", "caBundle": "x"}, {"url": "https://[::1]:1"}, "/a"),
        (
            {"service": {"name": "n", "namespace": "ns", "path": "/a/b", "port": 8443}},
            {"service": {"name": "n", "namespace": "ns", "port": 8443}},
            "/a/b",
        ),
        (
            {"service": {"name": "n", "namespace": "ns", "port": None}, "url": None},
            {"service": {"name": "n", "namespace": "ns", "port": 443}},
            "",
        ),
    ],
)
def test_client_configs_are_taken_apart_and_put_together(
    config: dict[str, Any], address: dict[str, Any], path: str
) -> None:
    assert split_address(config) == (address, path)
    assert split_address(join_address(address, path)) == (address, path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "got neither"),
        ({"url": None, "service": None}, "got neither"),
        ({"url": "https://host", "service": {"name": "n"}}, "got both"),
    ],
)
def test_a_client_config_must_lead_to_one_place(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        split_address(config)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        (" \n", ()),
        (f"{ONE}\n{TWO}\n{ONE}\n", (ONE, TWO)),
        (f"# mine\r\n{ONE}\r\n".replace("\n", "\r\n"), (ONE,)),
        ("nonsense", ("nonsense",)),
    ],
)
def test_certificates_are_found_in_texts(text: str, found: tuple[str, ...]) -> None:
    assert split_certificates(text) == found


def test_a_bundle_is_base64_of_the_certificates_without_repetitions() -> None:
    built = build_bundle([TWO, ONE, TWO])
    assert base64.b64decode(built["caBundle"]).decode() == f"{TWO}\n{ONE}\n"
    assert parse_bundle(built["caBundle"]) == (TWO, ONE)
    assert build_bundle([]) == {}
    assert parse_bundle(None) == ()


@pytest.mark.parametrize("bundle", ["a", base64.b64encode(b"\xff\xfe").decode()])
def test_a_bundle_that_is_no_text_is_the_mistake_of_the_server(bundle: str) -> None:
    with pytest.raises(ConfigurationError, match="must be base64 of certificates in PEM"):
        parse_bundle(bundle)
