"""``webop finalizers``: deletions that wait for an operator that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import Result

from tests.kit.cli_runner import invoke
from tests.kit.operators import FINALIZER, Objects, get_connection
from webop.cli.doctor.finalizer_removal import find_held, remove_finalizer
from webop.client.api import Client
from webop.client.auth.vault import Vault
from webop.controlplane.cluster_client import find_free_port
from webop.errors import APIConflictError
from webop.settings.groups import NetworkingSettings

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

OTHER = "example.com/other"
Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def run(webop_cluster: LocalCluster, tmp_path: Path) -> Run:
    variables = {"KUBECONFIG": str(webop_cluster.kubeconfig), "HOME": str(tmp_path)}

    def call(*args: str, **changes: str) -> Awaitable[Result]:
        return asyncio.to_thread(invoke, "finalizers", *args, env={**variables, **changes})

    return call


@pytest.fixture
async def held(objects: Objects) -> Objects:
    """An object that is being deleted, one that has another finalizer, too, and one that lives."""
    for name, finalizers in (
        ("one", [FINALIZER]),
        ("two", [FINALIZER, OTHER]),
        ("alive", [FINALIZER]),
    ):
        await objects.create(name, finalizers=finalizers)
    for name in ("one", "two"):
        await objects.delete(name)
    return objects


async def test_objects_with_the_finalizer_are_listed_and_those_being_deleted_come_first(
    held: Objects, run: Run
) -> None:
    plural = f"{held.kind.plural}.{held.kind.group}"
    for kinds in ((), (plural,), (held.kind.plural,)):
        result = await run("list", *kinds, "-n", held.namespace)
        assert result.exit_code == 0, result.output
        header, *rows = result.output.splitlines()
        assert header.split("  ")[0] == "KIND"
        assert [row.split()[1].partition("/")[2] for row in rows][-1] == "alive"
        assert {tuple(row.split()[:2]) for row in rows} == {
            (plural, f"{held.namespace}/{name}") for name in ("one", "two", "alive")
        }
    assert "being deleted for" in rows[0]
    assert OTHER in result.output
    result = await run("list", held.kind.plural, "-n", held.namespace, "--finalizer", "no/body")
    assert result.output == (
        "No object has the finalizer no/body. To search for another finalizer, use "
        "--finalizer NAME.\n"
    )
    variables = {"WEBOP_PERSISTENCE__FINALIZER": OTHER}
    result = await run("list", "-n", held.namespace, **variables)
    assert [line.split()[1] for line in result.output.splitlines()[1:]] == [f"{held.namespace}/two"]


async def test_names_of_roles_do_not_rewrite_what_the_terminal_shows(
    client: Client, webop_namespace: str, run: Run
) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{webop_namespace}/roles"
    role = {"metadata": {"name": "x\x1b]0;y\x07\nforged", "finalizers": [FINALIZER]}, "rules": []}
    await client.request("POST", path, body=role)
    place = ("roles.rbac.authorization.k8s.io", "-n", webop_namespace)
    for command in (("list", *place), ("release", *place, "--all", "--yes")):
        result = await run(*command)
        assert result.exit_code == 0, result.output
        assert r"x\u001b]0;y\u0007\nforged" in result.output
        assert "\x1b" not in result.output
    assert result.output.endswith(": released\n")
    (left,) = (await client.request("GET", path))["items"]
    assert "finalizers" not in left["metadata"]


async def test_a_release_asks_and_ends_the_deletions_only(held: Objects, run: Run) -> None:
    place = ("-n", held.namespace)
    refused = await run("release", *place)  # there is nobody to answer
    assert (refused.exit_code, "from these 2 objects?" in refused.output) == (1, True)
    tried = await run("release", *place, "--dry-run")
    assert (tried.exit_code, "released (dry run)" in tried.output) == (0, True)
    assert FINALIZER in (await held.get("one"))["metadata"]["finalizers"]
    named = await run("release", *place, "--name", "two", "--yes")
    assert f"two: released; still held by {OTHER}" in named.output
    assert (await held.get("two"))["metadata"]["finalizers"] == [OTHER]
    done = await run("release", held.kind.plural, *place, "--yes")
    assert done.output.endswith(f"{held.namespace}/one: released\n")
    await held.wait_gone("one")
    assert (await held.get("alive"))["metadata"]["finalizers"] == [FINALIZER]
    nothing = await run("release", *place, "--yes")
    assert "Found no objects to release" in nothing.output
    assert "Other objects have it" in nothing.output
    mistaken = await run("list", "pods/status")
    assert (mistaken.exit_code, "must not have a slash" in mistaken.output) == (2, True)
    everything = await run("release", *place, "--yes", "--all")
    assert everything.exit_code == 0
    assert "finalizers" not in (await held.get("alive"))["metadata"]
    await held.patch("two", {"metadata": {"finalizers": None}})


class Meddling(Client):
    """Changes an object between the reading and the writing of somebody else."""

    times = 0

    async def request(self, method: str, path: str, **options: Any) -> Any:
        answer = await super().request(method, path, **options)
        if method == "GET" and self.times:
            self.times -= 1
            patch = {"metadata": {"annotations": {"meddled": str(self.times)}}}
            kind = "application/merge-patch+json"
            await super().request("PATCH", path, body=patch, content_type=kind)
        return answer


async def test_a_release_does_not_undo_the_changes_of_others(
    held: Objects, webop_cluster: LocalCluster
) -> None:
    vault = Vault({"test": get_connection(webop_cluster)})
    async with Meddling(vault, NetworkingSettings()) as client:
        found = await find_held(client, [held.kind.resource], [held.namespace], FINALIZER)
        one, two, alive = sorted(
            found.held, key=lambda item: ["one", "two", "alive"].index(item.name)
        )
        act = partial(remove_finalizer, client, finalizer=FINALIZER, everything=False, dry=False)
        client.times = 2
        assert await act(two) == f"released; still held by {OTHER}"
        assert (await held.get("two"))["metadata"]["annotations"] == {"meddled": "0"}
        client.times = 99
        with pytest.raises(APIConflictError):
            await act(one)
        client.times = 0
        assert await act(alive) == "skipped: it is not being deleted any more"
        assert await act(one) == "released"
        assert await act(one) == "already gone"
        assert await act(two) == "already released"
    for name in ("two", "alive"):
        await held.patch(name, {"metadata": {"finalizers": None}})


async def test_what_an_account_may_not_do_is_named(
    held: Objects, run: Run, webop_cluster: LocalCluster
) -> None:
    user = "finalizers-reader"
    plural = f"{held.kind.plural}.{held.kind.group}"
    role = ("create", "clusterrole", user, "--verb=get,list", f"--resource={plural}")
    webop_cluster.kubectl(*role)
    webop_cluster.kubectl(
        "create", "clusterrolebinding", user, f"--clusterrole={user}", f"--user={user}"
    )
    kubeconfig = str(webop_cluster.kubeconfig_for(user))
    result = await run("release", plural, "-n", held.namespace, "--yes", KUBECONFIG=kubeconfig)
    assert result.exit_code == 1
    assert f'User "{user}" cannot patch resource' in result.output
    result = await run("list", plural, "secrets", "-n", held.namespace, KUBECONFIG=kubeconfig)
    assert (result.exit_code, "one" in result.output) == (1, True)
    assert f'User "{user}" cannot list resource "secrets"' in result.output
    for name in ("one", "two", "alive"):
        await held.patch(name, {"metadata": {"finalizers": None}})


async def test_each_namespace_that_cannot_be_searched_is_named(
    run: Run, webop_cluster: LocalCluster
) -> None:
    kubeconfig = str(webop_cluster.kubeconfig_for("nobody-in-particular"))
    result = await run("list", "secrets", "-n", "first", "-n", "second", KUBECONFIG=kubeconfig)
    assert result.exit_code == 1
    assert 'in the namespace "first"' in result.output
    assert 'in the namespace "second"' in result.output


async def test_mistakes_are_told(run: Run, tmp_path: Path) -> None:
    result = await run("release")
    assert (result.exit_code, "-A/--all-namespaces or -n" in result.output) == (2, True)
    result = await run("list", "deploymets")
    assert (result.exit_code, "Did you mean deployments" in result.output) == (2, True)
    config = tmp_path / "config"
    config.write_text(
        f"clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{find_free_port()}'}}}}]\n"
        "users: [{name: a, user: {token: x}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "current-context: a\n"
    )
    result = await run("list", KUBECONFIG=str(config))
    assert (result.exit_code, result.output.startswith("Error: Cannot ")) == (1, True)
    result = await run("list", KUBECONFIG=str(tmp_path / "nowhere"))
    assert (result.exit_code, "Cannot log in to the cluster" in result.output) == (1, True)
    assert "Traceback" not in result.output


async def test_an_object_of_the_same_name_that_comes_meanwhile_is_not_released(
    held: Objects, webop_cluster: LocalCluster
) -> None:
    vault = Vault({"test": get_connection(webop_cluster)})
    async with Client(vault, NetworkingSettings()) as client:
        found = await find_held(client, [held.kind.resource], [held.namespace], FINALIZER)
        (one,) = [item for item in found.held if item.name == "one"]
        await held.patch("one", {"metadata": {"finalizers": None}})
        await held.create("one", finalizers=[FINALIZER])
        outcome = await remove_finalizer(client, one, FINALIZER, everything=True, dry=False)
    assert outcome == "already gone"
    assert (await held.get("one"))["metadata"]["finalizers"] == [FINALIZER]
