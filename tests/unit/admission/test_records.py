"""Records of replicas: written and read, and what they are made of."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import pytest

from tests.kit.rows import rows
from webop.admission.configurations.replica_agreement import (
    ReplicaRecord,
    decode_record,
    join_address,
    parse_bundle,
    split_address,
)
from webop.errors import ConfigurationError

NOW = "2026-11-21T12:30:15.250+00:00"
ONE = "-----BEGIN CERTIFICATE-----\nAAA\nBBB\n-----END CERTIFICATE-----"
NAMED = {"name": "n", "namespace": "ns"}
TWO = "-----BEGIN CERTIFICATE-----\nCCC\n-----END CERTIFICATE-----"


def build_record(**fields: Any) -> ReplicaRecord:
    record = ReplicaRecord(
        identity="user@host/1",
        since=NOW,
        renewed=NOW,
        lifetime=180.0,
        address={"url": "https://host:1"},
        cas=(ONE, TWO),
        digest="0123456789abcdef",
    )
    return dataclasses.replace(record, **fields)


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode_record(build_record().encode()) == build_record()


def damage(old: str, new: str) -> str:
    return build_record().encode().replace(old, new)


@rows(
    "text",
    [
        *("", "{", "[]", "{}"),
        *(damage("180.0", number) for number in ('"long"', '"nan"', '"-inf"', "1e999")),
        damage('"address"', '"others"'),
        build_record(address={"a": 1}).encode(),
        build_record(address={"service": "x"}).encode(),
        *(build_record(since=time).encode() for time in ("x", "9999-12-31T23:59:59.999+00:00")),
        build_record(renewed="x").encode(),
    ],
)
def test_what_is_not_a_record_counts_as_a_replica_that_has_retired(text: str) -> None:
    assert decode_record(text).is_retired


@rows(
    ("config", "address", "path"),
    [
        ({"url": "https://host"}, {"url": "https://host"}, ""),
        ({"url": "https://host/"}, {"url": "https://host"}, "/"),
        ({"url": "https://host:1/a/b%20c"}, {"url": "https://host:1"}, "/a/b%20c"),
        ({"url": "https://[::1]:1/a", "caBundle": "x"}, {"url": "https://[::1]:1"}, "/a"),
        ({"service": {**NAMED, "path": "/a", "port": 1}}, {"service": {**NAMED, "port": 1}}, "/a"),
        ({"service": NAMED, "url": None}, {"service": {**NAMED, "port": 443}}, ""),
    ],
)
def test_client_configs_are_taken_apart_and_put_together(
    config: dict[str, Any], address: dict[str, Any], path: str
) -> None:
    assert split_address(config) == (address, path)
    assert split_address(join_address(address, path)) == (address, path)


@rows(
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


@rows("bundle", ["a", base64.b64encode(b"\xff\xfe").decode()])
def test_a_bundle_that_is_no_text_is_the_mistake_of_the_server(bundle: str) -> None:
    with pytest.raises(ConfigurationError, match="must be base64 of certificates in PEM"):
        parse_bundle(bundle)
