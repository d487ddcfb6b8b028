"""Marks of replicas: written and read, and what they are made of."""

from __future__ import annotations

import base64
import datetime as dt
from typing import Any

import pytest

from webop.admission.managed.replica_records import (
    ReplicaRecord,
    Served,
    build_bundle,
    build_key,
    decode_record,
    join_address,
    list_targets,
    parse_bundle,
    split_address,
    split_certificates,
)
from webop.errors import ConfigurationError

NOW = dt.datetime(2026, 11, 21, 12, 30, 15, 250_000, dt.UTC)
ONE = "-----BEGIN CERTIFICATE-----\nAAA\nBBB\n-----END CERTIFICATE-----"
TWO = "-----BEGIN CERTIFICATE-----\nCCC\n-----END CERTIFICATE-----"


def build_record(**fields: Any) -> ReplicaRecord:
    chosen: dict[str, Any] = {
        "identity": "user@host/1",
        "process": "1-2-abcdefabcdef",
        "since": NOW,
        "renewed": NOW,
        "lifetime": 180.0,
        "address": {"url": "https://host:1"},
        "served": {
            "b.x": Served("/b", frozenset({"g/v1/parcels", "g/v1/parcels/*"})),
            "a.x": Served("/a", frozenset()),
        },
        "cas": (ONE, TWO),
        "definitions": {"b.x": {"name": "b.x", "rules": []}},
    }
    return ReplicaRecord(**{**chosen, **fields})


def test_a_mark_is_read_as_it_was_written() -> None:
    record = build_record()
    read = decode_record(record.encode())
    assert read == record
    assert list(read.served) == ["b.x", "a.x"]


def test_a_mark_of_a_version_that_did_not_tell_its_process_is_read() -> None:
    text = build_record().encode().replace('"process":"1-2-abcdefabcdef",', "")
    assert decode_record(text) == build_record(process="")


def test_a_mark_is_small() -> None:
    names = [f"some-handler-{number}.webhooks.example.com" for number in range(20)]
    served = {
        name: Served(f"/some_handler_{name}", frozenset({"example.com/v1/widgets"}))
        for name in names
    }
    assert len(build_record(served=served, definitions={}).encode()) < 4000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing"),
        ("{", "broken JSON"),
        ("[]", "not a record"),
        ("{}", "no fields"),
        (build_record().encode().replace('"lifetime":180.0', '"lifetime":"long"'), "a number"),
        (build_record().encode().replace("+00:00", ""), "no time zone"),
        (build_record().encode().replace('"targets"', '"others"'), "no targets"),
        (build_record().encode().replace('"rules":[]', '"rules":{}').replace("}}", "}", 1), "cut"),
    ],
)
def test_what_is_not_a_mark_is_none(text: str, why: str) -> None:
    assert decode_record(text) is None, why


@pytest.mark.parametrize(
    ("age", "is_alive"),
    [(-3600, True), (0, True), (179, True), (180, True), (180.5, False), (3600, False)],
)
def test_a_mark_lives_as_long_as_it_says(age: float, is_alive: bool) -> None:
    record = build_record(renewed=NOW - dt.timedelta(seconds=age))
    assert record.is_alive(NOW) is is_alive


def test_the_targets_of_a_path_are_those_of_all_of_its_webhooks() -> None:
    served = {
        "x": Served("/x", frozenset({"g/v1/a"})),
        "x-2": Served("/x", frozenset({"g/v1/b"})),
        "y": Served("/y", frozenset({"g/v1/c"})),
    }
    record = build_record(served=served)
    assert record.get_targets("/x") == {"g/v1/a", "g/v1/b"}
    assert record.get_targets("/z") == frozenset()


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


def test_targets_are_all_combinations_of_a_rule() -> None:
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "pods/status"]},
        {"apiGroups": ["a", "b"], "apiVersions": ["v2"], "resources": ["c"], "operations": ["*"]},
        {},
    ]
    assert list_targets(rules) == {"/v1/pods", "/v1/pods/status", "a/v2/c", "b/v2/c"}


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
