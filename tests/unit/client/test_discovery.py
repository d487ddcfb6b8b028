"""The discovery of resources."""

from __future__ import annotations

import copy
import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import httpx
import orjson
import pytest

from tests.kit.client_options import Networking
from tests.kit.httpx_client import connect
from tests.kit.rows import rows
from webop import Resource
from webop.client.api import Client
from webop.client.discovery import discover
from webop.errors import APIConnectionError

PODS = Resource(
    *("", "v1", "pods", "Pod", "pod", frozenset({"po"}), frozenset({"all"})),
    subresources=frozenset({"log", "status"}),
    namespaced=True,
    preferred=True,
    verbs=frozenset({"list", "watch"}),
)
KEX_V1 = Resource(
    *("kopf.dev", "v1", "kopfexamples", "KopfExample", "kopfexample"),
    subresources=frozenset(),
    namespaced=False,
    preferred=True,
)
KEX_BETA = dataclasses.replace(KEX_V1, version="v1beta1", preferred=False)
POD = {
    "resource": "pods",
    "responseKind": {"group": "", "version": "v1", "kind": "Pod"},
    "scope": "Namespaced",
    "singularResource": "pod",
    "verbs": ["list", "watch"],
    "shortNames": ["po"],
    "categories": ["all"],
    "subresources": [{"subresource": "log", "verbs": ["get"]}, {"subresource": "status"}],
}
KEX = {
    "resource": "kopfexamples",
    "responseKind": {"kind": "KopfExample"},
    "scope": "Cluster",
    "singularResource": "",
}


def build_group(name: str, **versions: list[Any] | None) -> dict[str, Any]:
    """Return an API group with the resources of its versions, none of which is known if None."""
    described = [
        {"version": version, **({"freshness": "Stale"} if found is None else {"resources": found})}
        for version, found in versions.items()
    ]
    return {"metadata": {"name": name}, "versions": described}


def build_list(*groups: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "APIGroupDiscoveryList", "items": [*groups]}


CLUSTER = {
    "/api": build_list(build_group("", v1=[POD])),
    "/apis": build_list(
        build_group("kopf.dev", v1=[KEX], v1beta1=[KEX]),
        build_group("metrics.k8s.io", v1beta1=None),
    ),
}


class Server:
    """Serves JSON by paths, with ETags or without."""

    def __init__(self, answers: Mapping[str, object], *, has_etags: bool = True) -> None:
        self.answers = answers
        self.has_etags = has_etags
        self.requests: list[httpx.Request] = []
        self.statuses: list[int] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path not in self.answers:
            return httpx.Response(404)
        content = orjson.dumps(self.answers[request.url.path])
        headers = {"ETag": f'"{zlib.crc32(content)}"'} if self.has_etags else {}
        if self.has_etags and request.headers.get("If-None-Match") == headers["ETag"]:
            content = b""
        self.statuses.append(200 if content else 304)
        return httpx.Response(self.statuses[-1], content=content, headers=headers)

    @property
    def paths(self) -> set[str]:
        return {request.url.path for request in self.requests}

    def connect(self) -> Client:
        return connect(self, Networking(error_backoffs=[0.01]))


def get_all_fields(resources: frozenset[Resource]) -> list[dict[str, Any]]:
    fields = Resource.__dataclass_fields__
    return sorted(
        ({name: getattr(resource, name) for name in fields} for resource in resources), key=str
    )


@pytest.mark.feature("RES-19", "RES-20", "RES-22")
async def test_all_is_known_about_all_resources_but_those_of_a_broken_group() -> None:
    async with Server(CLUSTER).connect() as client:
        found = await discover(client)
    expected = frozenset({PODS, KEX_V1, KEX_BETA})
    assert found.resources == expected
    assert get_all_fields(found.resources) == get_all_fields(expected)
    assert found.broken == {("metrics.k8s.io", "v1beta1")}


@rows("freshness", ["Current", "Stale"])
async def test_a_kind_that_the_preferred_version_lacks_is_preferred_where_it_is(
    freshness: str,
) -> None:
    """Not if another version does not answer, which may have the kind."""
    answers: dict[str, Any] = copy.deepcopy(CLUSTER)
    first, second = answers["/apis"]["items"][0]["versions"]
    second["resources"].append({**second["resources"][0], "resource": "elders"})
    first["freshness"] = freshness
    async with Server(answers).connect() as client:
        found = await discover(client)
    preferred = {one for one in found.resources if one.preferred}
    assert ("elders" in {one.plural for one in preferred}) is (freshness == "Current")
    assert KEX_V1 in preferred
    assert KEX_BETA not in preferred


@pytest.mark.feature("RES-19")
@rows(
    ("groups", "resources", "paths"),
    [
        ({""}, {PODS}, {"/api"}),
        ({"kopf.dev"}, {KEX_V1, KEX_BETA}, {"/apis"}),
        ({"absent.dev"}, set(), {"/apis"}),
        (set(), set(), set()),
    ],
)
async def test_only_the_given_groups_are_scanned(
    groups: set[str], resources: set[Resource], paths: set[str]
) -> None:
    server = Server(CLUSTER)
    async with server.connect() as client:
        found = await discover(client, groups)
    assert found.resources == resources
    assert ("kopf.dev" in found.groups) is ("/apis" in paths)
    assert server.paths == paths


async def test_a_server_that_knows_only_the_old_discovery_is_told_of() -> None:
    old = {"kind": "APIVersions", "versions": ["v1"]}
    async with Server({"/api": old, "/apis": old}).connect() as client:
        with pytest.raises(APIConnectionError, match=r"since Kubernetes 1\.27"):
            await discover(client)


@rows(("has_etags", "statuses"), [(True, [304, 304]), (False, [200, 200])])
async def test_a_cluster_that_has_not_changed_costs_no_content(
    *, has_etags: bool, statuses: list[int]
) -> None:
    server = Server(CLUSTER, has_etags=has_etags)
    async with server.connect() as client:
        first = await discover(client)
        second = await discover(client, None, first)
    assert server.statuses == [200, 200, *statuses]
    assert (second is first) is has_etags
    assert second.resources == first.resources


async def test_a_group_that_breaks_keeps_the_kinds_that_were_discovered_before() -> None:
    answers: dict[str, Any] = copy.deepcopy(CLUSTER)
    async with Server(answers).connect() as client:
        found = [await discover(client)]
        for version in answers["/apis"]["items"][0]["versions"]:
            version.update(freshness="Stale", resources=[])
        for _ in range(3):
            found.append(await discover(client, None, found[-1]))
        answers["/apis"]["items"][0]["versions"] = []
        last = await discover(client, None, found[-1])
    for one in found:
        assert {KEX_V1, KEX_BETA} < one.resources
    assert last.resources == {PODS}


async def test_a_kind_is_kept_while_the_api_server_has_just_started_and_does_not_show_it() -> None:
    answers: dict[str, Any] = copy.deepcopy(CLUSTER)
    async with Server(answers).connect() as client:
        first = await discover(client)
        answers["/apis"]["items"] = []
        answers["/apis/kopf.dev/v1"] = {"resources": [{"name": "kopfexamples"}]}
        second = await discover(client, None, first)
        del answers["/apis/kopf.dev/v1"]
        third = await discover(client, None, second)
    assert KEX_V1 in second.resources
    assert third.resources == {PODS}
