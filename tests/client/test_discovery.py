"""The discovery of resources, in both forms that servers speak."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import httpx
import orjson
import pytest

from tests.client.fake_cluster import Networking
from tests.client.mocks import answer_by
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.discovery import discover
from webop.errors import APIServerError
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
KEX_BETA = Resource(
    group="kopf.dev",
    version="v1beta1",
    plural="kopfexamples",
    kind="KopfExample",
    singular="kopfexample",
    namespaced=False,
    preferred=False,
)

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
KEX_ITEM = {"name": "kopfexamples", "kind": "KopfExample", "singularName": "", "namespaced": False}
CLASSIC = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {
        "kind": "APIResourceList",
        "resources": [
            {
                "name": "pods",
                "kind": "Pod",
                "singularName": "pod",
                "namespaced": True,
                "shortNames": ["po"],
                "categories": ["all"],
                "verbs": ["list", "watch"],
            },
            {"name": "pods/status", "kind": "Pod", "namespaced": True},
            {"name": "pods/log", "kind": "Pod", "namespaced": True},
        ],
    },
    "/apis": {
        "kind": "APIGroupList",
        "groups": [
            {
                "name": "kopf.dev",
                "versions": [{"version": "v1beta1"}, {"version": "v1"}],
                "preferredVersion": {"version": "v1"},
            },
            {"name": "metrics.k8s.io", "versions": [{"version": "v1beta1"}]},
            {"name": "vanished.dev", "versions": [{"version": "v1"}]},
        ],
    },
    "/apis/kopf.dev/v1": {"resources": [KEX_ITEM]},
    "/apis/kopf.dev/v1beta1": {"resources": [KEX_ITEM]},
}


class Server:
    """Serves JSON by paths; 503 for the group of a broken server, 404 for the rest."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.url.path == "/apis/metrics.k8s.io/v1beta1":
            return httpx.Response(503, content=b"service unavailable")
        if request.url.path not in self.answers:
            return httpx.Response(404)
        return httpx.Response(200, content=orjson.dumps(self.answers[request.url.path]))

    @property
    def paths(self) -> set[str]:
        return {request.url.path for request in self.requests}

    def connect(self) -> Client:
        return Client(
            Vault({"x": ConnectionInfo(server="https://host")}),
            Networking(error_backoffs=[0.01]),
            transport_factory=answer_by(self),
        )


AGGREGATED = {"/api": AGGREGATED_API, "/apis": AGGREGATED_APIS}


def get_all_fields(resources: frozenset[Resource]) -> list[dict[str, Any]]:
    fields = Resource.__dataclass_fields__
    return sorted(
        ({name: getattr(resource, name) for name in fields} for resource in resources), key=str
    )


@pytest.mark.feature("RES-20", "RES-22")
@pytest.mark.parametrize("answers", [AGGREGATED, CLASSIC], ids=["aggregated", "classic"])
async def test_all_is_known_about_all_resources(answers: Mapping[str, object]) -> None:
    server = Server(answers)
    async with server.connect() as client:
        resources = (await discover(client)).resources
    expected = frozenset({PODS, KEX_V1, KEX_BETA})
    assert resources == expected
    assert get_all_fields(resources) == get_all_fields(expected)


@pytest.mark.parametrize("form", ["aggregated", "stale", "classic"])
async def test_a_kind_that_the_preferred_version_lacks_is_preferred_where_it_is(form: str) -> None:
    """Not if another version does not answer, which may have the kind."""
    answers: dict[str, Any] = copy.deepcopy(CLASSIC if form == "classic" else AGGREGATED)
    if form == "classic":
        item = {"name": "elders", "kind": "Elder", "namespaced": False}
        answers["/apis/kopf.dev/v1beta1"]["resources"].append(item)
    else:
        first, second = answers["/apis"]["items"][0]["versions"]
        second["resources"].append({**second["resources"][0], "resource": "elders"})
        first["freshness"] = "Stale" if form == "stale" else "Current"
    async with Server(answers).connect() as client:
        found = await discover(client)
    preferred = {one for one in found.resources if one.preferred}
    assert ("elders" in {one.plural for one in preferred}) is (form != "stale")
    assert KEX_V1 in preferred
    assert KEX_BETA not in preferred


async def test_new_servers_are_asked_twice_only() -> None:
    server = Server(AGGREGATED)
    async with server.connect() as client:
        await discover(client)
    assert sorted(request.url.path for request in server.requests) == ["/api", "/apis"]
    assert all("as=APIGroupDiscoveryList" in r.headers["accept"] for r in server.requests)


@pytest.mark.feature("RES-19")
@pytest.mark.parametrize(
    ("groups", "resources", "paths"),
    [
        ({""}, {PODS}, {"/api", "/api/v1"}),
        (
            {"kopf.dev"},
            {KEX_V1, KEX_BETA},
            {"/apis", "/apis/kopf.dev/v1", "/apis/kopf.dev/v1beta1"},
        ),
        ({"absent.dev"}, set(), {"/apis"}),
        (set(), set(), set()),
    ],
)
async def test_only_the_given_groups_are_scanned(
    groups: set[str], resources: set[Resource], paths: set[str]
) -> None:
    for answers in (AGGREGATED, CLASSIC):
        server = Server(answers)
        async with server.connect() as client:
            found = await discover(client, groups)
        assert found.resources == resources
        assert ("kopf.dev" in found.groups) is ("/apis" in paths)
        assert server.paths == (paths if answers is CLASSIC else paths & {"/api", "/apis"})


@pytest.mark.feature("RES-19")
@pytest.mark.parametrize("answers", [AGGREGATED, CLASSIC], ids=["aggregated", "classic"])
async def test_a_broken_group_is_reported_and_does_not_affect_others(
    answers: Mapping[str, object],
) -> None:
    async with Server(answers).connect() as client:
        found = await discover(client)
    assert KEX_V1 in found.resources
    assert found.broken.keys() == {("metrics.k8s.io", "v1beta1")}
    assert all(found.broken.values())


async def test_a_broken_server_is_an_error() -> None:
    broken = answer_by(lambda _: httpx.Response(500))
    vault = Vault({"x": ConnectionInfo(server="https://host")})
    async with Client(vault, Networking(), transport_factory=broken) as client:
        with pytest.raises(APIServerError):
            await discover(client)
