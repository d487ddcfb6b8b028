"""The rights that ``webop manifests`` grants: none is missing, and none is too many.

The operators of the examples run once each as their service accounts. All that they ask the API
server for is recorded, and must not be forbidden. Each verb of each rule must be that of a request.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.manifests.example_stories import (
    HANDLERS,
    Story,
    play_claims,
    play_grants,
    play_in_a_namespace,
    play_policy,
    play_replication,
    play_tenants,
)
from tests.kit.cli_runner import forgetting_modules, invoke
from tests.kit.deployments import Admin, Deployed, administer, load, run_as_pod
from tests.kit.http_relay import Relay, relay
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port
from webop.testing import LocalCluster

# The evidence of six operators is collected in the set-up of the first test.
pytestmark = pytest.mark.timeout(400)

Json = dict[str, Any]

_API = "/apis/rbac.authorization.k8s.io/v1"
_ROOT = Path(__file__).parents[3]
_EXAMPLES = _ROOT / "examples"
_CLAIMS = _EXAMPLES / "ephemeral_volume_claims"
# What is in the cluster beside the manifests is in a file, too.
_STORIES: dict[str, tuple[Deployed, Path, Story]] = {
    "ephemeral-volume-claims": (
        load(_ROOT / "manifests/operator.yaml", _CLAIMS),
        _ROOT / "manifests/ephemeral_volume_claims.crd.yaml",
        play_claims,
    ),
    **{
        folder.replace("_", "-"): (
            load(_EXAMPLES / folder / "manifests/operator.yaml", _EXAMPLES / folder),
            _EXAMPLES / folder / beside,
            story,
        )
        for folder, beside, story in (
            ("access_grants", "manifests/crd.yaml", play_grants),
            ("database_per_tenant", "manifests/crd.yaml", play_tenants),
            ("policy_server", "policy.yaml", play_policy),
            ("secret_replicator", "secret.yaml", play_replication),
        )
    },
}

#: Operators in a namespace of their own, by the options of their manifests.
_LOCAL = {"here": (), "shards": ("--sharded", "--replicas", "1", "--canary", "shards:2")}

_NAMES = (*_STORIES, *_LOCAL)

#: Rights that are checked for other requests than those for the resource itself.
_CHECKED_ELSEWHERE = {"clusterroles", "ephemeralvolumeclaims/finalizers"}
#: It cannot be seen from outside whether handlers have functions in their patches, which need it.
_PRECAUTIONS = {("ephemeral-volume-claims", "get ephemeralvolumeclaims")}
_is_path = re.compile(
    r"/(?:api|apis/([^/]+))/v[^/]+(?:/namespaces/([^/]+)(?=/))?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?"
).fullmatch
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Right:
    """A verb of a rule for one of its resources."""

    role: str  # as in "ClusterRole/name"
    namespace: str  # empty for a ClusterRole
    group: str
    resource: str
    names: tuple[str, ...]
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{' by name' if self.names else ''}"

    def is_used_for(self, asked: httpx.Response) -> bool:
        found = _is_path(asked.request.url.path)
        if found is None:
            return False
        group, namespace, plural, name, part = (found[number] or "" for number in range(1, 6))
        query = asked.request.url.params
        looking = "watch" if is_watch(asked) else "get" if name else "list"
        verbs = {_VERBS.get(asked.request.method, looking)}
        verbs |= {"create"} if asked.status_code == 201 else set()  # also by an apply
        name = name or query.get("fieldSelector", "").removeprefix("metadata.name=")
        return (
            (group, self.namespace or namespace) == (self.group, namespace)
            and self.resource == "/".join(filter(None, (plural, part)))
            and self.verb in verbs
            and (not self.names or name in self.names)
        )


def list_rights(deployed: Deployed) -> list[Right]:
    return [
        Right(
            f"{role['kind']}/{role['metadata']['name']}",
            role["metadata"].get("namespace", ""),
            group,
            resource,
            tuple(rule.get("resourceNames", ())),
            verb,
        )
        for role in (*deployed.find("ClusterRole"), *deployed.find("Role"))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


@dataclass
class Evidence:
    """What an operator has asked for, and its rights."""

    requests: list[httpx.Response]
    rights: list[Right]


@pytest.fixture(scope="module")
def _database_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("databases")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(_EXAMPLES / "database_per_tenant")
        with importlib.import_module("database_server").DatabaseServer(folder) as server:
            patch.setenv("DATABASE_SERVER", server.url)
            patch.setenv("CHECK_INTERVAL", "0.3")
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def evidences(
    webop_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory, _database_server: None
) -> dict[str, Evidence]:
    """The evidence of all examples, collected at the same time."""

    local = {
        name: (
            deploy_locally(tmp_path_factory.mktemp(name), name, options),
            _ROOT / "manifests/peering.yaml",
            partial(play_in_a_namespace, name),
        )
        for name, options in _LOCAL.items()
    }
    examples: dict[str, tuple[Deployed, Path, Story]] = {**_STORIES, **local}

    async def collect() -> list[Evidence]:
        return await asyncio.gather(
            *(
                collect_evidence(webop_cluster, tmp_path_factory.mktemp(name), *example)
                for name, example in examples.items()
            )
        )

    try:
        return dict(zip(examples, asyncio.run(collect()), strict=True))
    finally:
        for deployed, *_ in examples.values():
            for one in deployed.documents:
                if one["kind"] != "Namespace":  # it would go for ever, with no controller
                    place = one["metadata"].get("namespace")
                    webop_cluster.delete(
                        one["apiVersion"], one["kind"], one["metadata"]["name"], place
                    )


def deploy_locally(folder: Path, name: str, more: tuple[str, ...]) -> Deployed:
    """Make the manifests of an operator that works in one namespace, with peers."""
    file = folder / "handlers.py"
    file.write_text(HANDLERS.replace("NAME", name))
    options = ("-n", f"rights-{name}", "--create-namespace", "--peering", "default")
    with forgetting_modules(folder):
        result = invoke("manifests", *options, "--name", name, *more, str(file))
    assert result.exit_code == 0, result.output
    made = folder / "operator.yaml"
    made.write_text(result.stdout)
    return load(made, folder)


async def collect_evidence(
    cluster: LocalCluster, folder: Path, deployed: Deployed, beside: Path, story: Story
) -> Evidence:
    for document in deployed.documents:
        cluster.apply(document)
    cluster.apply(beside)
    definitions = load(beside, folder).find("CustomResourceDefinition")
    namespace = cluster.create_namespace()
    async with administer(cluster) as admin, relay(cluster, keeps_user=True) as relayed:
        await wait_for_owners(admin, namespace, definitions)
        try:
            async with run_as_pod(deployed, admin, relayed, folder, find_free_port()):
                if deployed.find("Service"):
                    await rotate(admin, deployed, relayed)
                await story(admin, relayed, namespace)
        except AssertionError as exc:
            exc.add_note(f"Forbidden: {list_forbidden(relayed.answers)}")
            raise
        for kind in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"):
            place = f"/apis/admissionregistration.k8s.io/v1/{kind}"  # persistent ones stay
            for name in find_names(deployed, kind):
                await admin.client.delete(f"{place}/{name}")
        return Evidence(list(relayed.answers), list_rights(deployed))


async def wait_for_owners(admin: Admin, namespace: str, definitions: list[Json]) -> None:
    """Wait until objects of new kinds can be owners.

    The check of ``blockOwnerDeletion`` looks for new kinds every 30 s, and refuses others.
    """
    kinds = [
        (f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["kind"])
        for spec in (definition["spec"] for definition in definitions)
    ]
    place = f"{_API}/namespaces/{namespace}"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
    await admin.create(f"{place}/roles", {"metadata": {"name": "owned"}, "rules": [rule]})
    group = "rbac.authorization.k8s.io"
    await admin.create(
        f"{place}/rolebindings",
        {
            "metadata": {"name": "owned"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "owned"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": namespace}],
        },
    )
    for version, kind in kinds:
        owner = {"apiVersion": version, "kind": kind, "name": "owner", "uid": "1"}
        references = [{**owner, "blockOwnerDeletion": True}]
        child = {"metadata": {"name": "owned", "ownerReferences": references}}

        async def is_known(child: Json = child) -> bool:
            answer = await admin.client.post(
                f"/api/v1/namespaces/{namespace}/configmaps",
                params={"dryRun": "All"},
                headers={"Impersonate-User": namespace},
                json=child,
            )
            return "set finalizers" in answer.text  # it found the kind, and whom this is forbidden

        await eventually(is_known, f"the kind {kind} as an owner")


def list_forbidden(requests: list[httpx.Response]) -> list[str]:
    return sorted({describe(one) for one in requests if one.status_code == 403})


def is_watch(asked: httpx.Response) -> bool:
    return "watch" in asked.request.url.params


def describe(asked: httpx.Response) -> str:
    """Return what was asked for; two requests that need the same rights are described alike."""
    return f"{'WATCH' if is_watch(asked) else asked.request.method} {asked.request.url.path}"


def find_names(deployed: Deployed, plural: str) -> set[str]:
    return {name for one in list_rights(deployed) if one.resource == plural for name in one.names}


async def rotate(admin: Admin, deployed: Deployed, relayed: Relay) -> None:
    """Ask for a new certificate, as users do, and wait until it is written."""
    (secret,) = find_names(deployed, "secrets")
    path = f"/api/v1/namespaces/{deployed.account[0]}/secrets/{secret}"

    await eventually(lambda: admin.get(path), "the certificate")
    await admin.merge(path, {"metadata": {"annotations": {"webop.dev/rotate": "now"}}})

    await eventually(lambda: relayed.list_requests("PUT", secret), "the new certificate")


@pytest.mark.feature("DEP-05", "DEP-06", "DEP-07", "DEP-10", "ADM-43", "TRB-04")
@pytest.mark.parametrize("name", _NAMES)
def test_nothing_is_forbidden_to_an_operator_with_the_rights_of_its_manifests(
    evidences: dict[str, Evidence], name: str
) -> None:
    requests = evidences[name].requests
    assert len(requests) > 10
    assert list_forbidden(requests) == []


@pytest.mark.parametrize("name", _NAMES)
def test_each_right_of_the_manifests_is_used(evidences: dict[str, Evidence], name: str) -> None:
    rights, requests = evidences[name].rights, evidences[name].requests
    assert len(rights) > 7
    checked = (right for right in rights if right.resource not in _CHECKED_ELSEWHERE)
    unused = (right for right in checked if not any(map(right.is_used_for, requests)))
    assert {(name, str(right)) for right in unused} <= _PRECAUTIONS


@pytest.mark.parametrize("name", _LOCAL)
def test_rights_in_a_single_namespace_are_not_for_the_cluster(
    evidences: dict[str, Evidence], name: str
) -> None:
    rights = evidences[name].rights
    assert {right.role for right in rights} == {
        *(f"ClusterRole/{name}", f"Role/{name}"),
        f"Role/{name}-events",  # in "default": Events about nodes
    }
    everywhere = {right.resource for right in rights if right.role == f"ClusterRole/{name}"}
    assert everywhere == {"nodes", "namespaces", "customresourcedefinitions"}
