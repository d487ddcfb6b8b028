"""The discovery of resources."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import httpx
import orjson
import pytest

from tests.kit.fake_cluster import Networking, connect
from webop.client.api import Client
from webop.client.discovery import discover
from webop.errors import APIConnectionError
from webop.objects.resources import Resource

PODS = Resource(
    group="",
    version="v1",
    plural="pods",
    kind="Pod",
    singular="pod",
    shortcuts=frozenset({"po"}),
    categories=frozenset({"all"}),
    subresources=frozenset({"log", "status"}),
    namespaced=True,
    preferred=True,
    verbs=frozenset({"list", "watch"}),
)
KEX_V1 = Resource(
    group="kopf.dev",
    version="v1",
    plural="kopfexamples",
    kind="KopfExample",
    singular="kopfexample",
    subresources=frozenset(),
    namespaced=False,
    preferred=True,
)
KEX_BETA = dataclasses.replace(KEX_V1, version="v1beta1", preferred=False)

AGGREGATED_API = {
    "kind": "APIGroupDiscoveryList",
    "apiVersion": "apidiscovery.k8s.io/v2",
    "items": [
        {
            "metadata": {"creationTimestamp": None},
            "versions": [
                {
                    "version": "v1",
                    "freshness": "Current",
                    "resources": [
                        {
                            "resource": "pods",
                            "responseKind": {"group": "", "version": "v1", "kind": "Pod"},
                            "scope": "Namespaced",
                            "singularResource": "pod",
                            "verbs": ["list", "watch"],
                            "shortNames": ["po"],
                            "categories": ["all"],
                            "subresources": [
                                {"subresource": "log", "verbs": ["get"]},
                                {"subresource": "status", "verbs": ["get"]},
                            ],
                        }
                    ],
                }
            ],
        }
    ],
}
AGGREGATED_APIS = {
    "kind": "APIGroupDiscoveryList",
    "items": [
        {
            "metadata": {"name": "kopf.dev"},
            "versions": [
                {
                    "version": version,
                    "resources": [
                        {
                            "resource": "kopfexamples",
                            "responseKind": {"kind": "KopfExample"},
                            "scope": "Cluster",
                            "singularResource": "",
                        }
                    ],
                }
                for version in ("v1", "v1beta1")
            ],
        },
        {
            "metadata": {"name": "metrics.k8s.io"},
            "versions": [{"version": "v1beta1", "freshness": "Stale"}],
        },
    ],
}


class Server:
    """Serves JSON by paths."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(200, content=orjson.dumps(self.answers[request.url.path]))

    @property
    def paths(self) -> set[str]:
        return {request.url.path for request in self.requests}

    def connect(self) -> Client:
        return connect(self, Networking(error_backoffs=[0.01]))


AGGREGATED = {"/api": AGGREGATED_API, "/apis": AGGREGATED_APIS}


def get_all_fields(resources: frozenset[Resource]) -> list[dict[str, Any]]:
    fields = Resource.__dataclass_fields__
    return sorted(
        ({name: getattr(resource, name) for name in fields} for resource in resources), key=str
    )


@pytest.mark.feature("RES-20", "RES-22")
async def test_all_is_known_about_all_resources() -> None:
    async with Server(AGGREGATED).connect() as client:
        resources = (await discover(client)).resources
    expected = frozenset({PODS, KEX_V1, KEX_BETA})
    assert resources == expected
    assert get_all_fields(resources) == get_all_fields(expected)


@pytest.mark.parametrize("freshness", ["Current", "Stale"])
async def test_a_kind_that_the_preferred_version_lacks_is_preferred_where_it_is(
    freshness: str,
) -> None:
    """Not if another version does not answer, which may have the kind."""
    answers: dict[str, Any] = copy.deepcopy(AGGREGATED)
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
@pytest.mark.parametrize(
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
    server = Server(AGGREGATED)
    async with server.connect() as client:
        found = await discover(client, groups)
    assert found.resources == resources
    assert ("kopf.dev" in found.groups) is ("/apis" in paths)
    assert server.paths == paths


@pytest.mark.feature("RES-19")
async def test_a_broken_group_is_reported_and_does_not_affect_others() -> None:
    async with Server(AGGREGATED).connect() as client:
        found = await discover(client)
    assert KEX_V1 in found.resources
    assert found.broken.keys() == {("metrics.k8s.io", "v1beta1")}
    assert all(found.broken.values())


async def test_a_server_that_knows_only_the_old_discovery_is_told_of() -> None:
    old = {"kind": "APIVersions", "versions": ["v1"]}
    async with Server({"/api": old, "/apis": old}).connect() as client:
        with pytest.raises(APIConnectionError, match=r"since Kubernetes 1\.27"):
            await discover(client)
