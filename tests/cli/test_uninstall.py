"""``webop uninstall``: what operators that are gone have left in the cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import Result

from tests.kit.cli_runner import invoke
from tests.kit.exec_plugins import write_kubeconfig
from tests.kit.managed_webhooks import KINDS, open_site
from tests.kit.operators import FINALIZER, Kind, Objects, define_kinds
from tests.kit.waiting import eventually
from tests.kit.webhook_replicas import Crew, open_crew
from webop.client.api import Client
from webop.client.discovery import discover
from webop.controlplane.cluster_client import find_free_port
from webop.handlers.model import WebhookType

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

OTHER = "example.com/other"
Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def run(webop_cluster: LocalCluster, tmp_path: Path) -> Run:
    variables = {"KUBECONFIG": str(webop_cluster.kubeconfig), "HOME": str(tmp_path)}

    def call(*args: str, **changes: str) -> Awaitable[Result]:
        return asyncio.to_thread(invoke, "uninstall", *args, env={**variables, **changes})

    return call


@pytest.fixture(scope="session")
def kinds(webop_cluster: LocalCluster) -> Iterator[Kind]:
    made = (Kind(f"leftover{number}.webop.dev", "parcels", "Parcel") for number in range(2))
    return define_kinds(webop_cluster, made)


@pytest.fixture
async def crew(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str, kinds: Iterator[Kind]
) -> AsyncIterator[Crew]:
    kind = next(kinds)
    async with (
        open_site(webop_cluster, client, webop_namespace, kind) as site,
        open_crew(site) as opened,
    ):
        yield opened


@pytest.fixture
async def held(objects: Objects) -> AsyncIterator[Objects]:
    """An object that is being deleted, one that has another finalizer, too, and one that lives."""

    async def is_listed() -> bool:
        return objects.kind.resource.get_url() in {
            one.get_url() for one in (await discover(objects.client)).resources
        }

    await eventually(
        is_listed, "the kind among those of the cluster"
    )  # a moment after it is served
    left = {"one": [FINALIZER], "two": [OTHER, FINALIZER], "alive": [FINALIZER]}
    for name, finalizers in left.items():
        await objects.create(name, finalizers=finalizers)
    for name in ("one", "two"):
        await objects.delete(name)
    yield objects
    for name in left:
        if await objects.exists(name):
            await objects.patch(name, {"metadata": {"finalizers": None}})


async def test_webhooks_of_a_stopped_operator_are_listed_and_removed(crew: Crew, run: Run) -> None:
    member = await crew.start("x!", "~y!")
    name = crew.site.name
    running = await run("--managed", name)  # there is nobody to answer
    assert (running.exit_code, "To confirm, add --yes" in running.stderr) == (1, True)
    assert "renewed" in running.output
    await member.leave()
    assert not await crew.is_allowed("any")
    listed = await run()
    (line,) = [line.split() for line in listed.output.splitlines() if name in line]
    assert line == [name, "x,", "y", "none"]
    tried = await run("--managed", name, "--dry-run")
    assert (tried.exit_code, tried.output.count(f"{name}: removed (dry run)")) == (0, 2)
    assert await crew.site.has_names("x", "y")
    removed = await run("--managed", name, "--yes")
    assert (removed.exit_code, removed.output.count(f"{name}: removed\n")) == (0, 2)
    assert [await crew.site.get_webhooks(which) for which in KINDS] == [None, None]
    await crew.wait_allowed()


async def test_webhooks_of_others_are_not_removed(crew: Crew, run: Run) -> None:
    body = {"metadata": {"name": crew.site.name}, "webhooks": []}
    await crew.site.client.create(KINDS[WebhookType.VALIDATING], None, body)
    result = await run("--managed", crew.site.name, "--yes")
    assert result.exit_code == 1
    assert f"No operator keeps webhook configurations {crew.site.name!r}" in result.stderr
    assert await crew.site.get_webhooks(WebhookType.VALIDATING) == []


async def test_objects_with_the_finalizer_are_listed_and_those_being_deleted_come_first(
    held: Objects, run: Run
) -> None:
    plural = f"{held.kind.plural}.{held.kind.group}"
    result = await run(held.kind.plural)
    assert result.exit_code == 0, result.output
    rows = [row for row in result.output.splitlines() if f" {held.namespace}/" in row]
    assert [tuple(row.split()[:2]) for row in rows] == [
        (plural, f"{held.namespace}/{name}") for name in ("one", "two", "alive")
    ]
    assert "being deleted for" in rows[0]
    assert rows[1].endswith(OTHER)
    assert "To remove it: --managed NAME for webhooks, -A or -n" in result.output
    nobody = await run(held.kind.plural, "--finalizer", "no/body")
    assert nobody.output.startswith("No object has the finalizer no/body. If ")
    result = await run(held.kind.plural, WEBOP_PERSISTENCE__FINALIZER=OTHER)
    assert len([row for row in result.output.splitlines() if held.namespace in row]) == 1


async def test_names_of_roles_do_not_rewrite_what_the_terminal_shows(
    client: Client, webop_namespace: str, run: Run
) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{webop_namespace}/roles"
    role = {"metadata": {"name": "x\x1b]0;y\x07\nforged", "finalizers": [FINALIZER]}, "rules": []}
    await client.request("POST", path, body=role)
    place = ("roles.rbac.authorization.k8s.io", "-n", webop_namespace)
    result = await run(*place, "--all", "--yes")
    assert result.exit_code == 0, result.output
    assert result.output.count(r"x\u001b]0;y\u0007\nforged") == 2
    assert "\x1b" not in result.output
    (left,) = (await client.request("GET", path))["items"]
    assert "finalizers" not in left["metadata"]


async def test_a_release_asks_and_ends_the_deletions_only(held: Objects, run: Run) -> None:
    place = ("-n", held.namespace)
    refused = await run(*place)  # there is nobody to answer
    assert (refused.exit_code, "the finalizer of these objects (2)?" in refused.output) == (1, True)
    tried = await run(*place, "--dry-run")
    assert (tried.exit_code, "released (dry run)" in tried.output) == (0, True)
    assert FINALIZER in (await held.get("one"))["metadata"]["finalizers"]
    named = await run(*place, "--name", "two", "--yes")
    assert f"two: released; still held by {OTHER}" in named.output
    assert (await held.get("two"))["metadata"]["finalizers"] == [OTHER]
    done = await run(held.kind.plural, *place, "--yes")
    assert done.output.endswith(f"{held.namespace}/one: released\n")
    await held.wait_gone("one")
    assert (await held.get("alive"))["metadata"]["finalizers"] == [FINALIZER]
    nothing = await run(*place, "--yes")
    text = f"No object has the finalizer {FINALIZER} that is being deleted; for the others, add"
    assert (nothing.exit_code, text in nothing.output) == (0, True)
    # Webhooks that are gone already do not keep the finalizers.
    everything = await run("--managed", "gone.webop.dev", *place, "--yes", "--all")
    assert (everything.exit_code, "'gone.webop.dev'; known: " in everything.output) == (1, True)
    assert "finalizers" not in (await held.get("alive"))["metadata"]


async def test_what_others_have_changed_or_made_meanwhile_stays(
    held: Objects, webop_cluster: LocalCluster, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "webop", "uninstall", "--all", "-n", held.namespace]
    log = tmp_path / "output.log"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env={"KUBECONFIG": str(webop_cluster.kubeconfig), "HOME": str(tmp_path), "PATH": ""},
        )
    await eventually(lambda: "these objects (3)?" in log.read_text(), log.read_text)
    await held.patch("one", {"metadata": {"finalizers": None}})
    await held.create("one", finalizers=[FINALIZER])
    await held.patch("two", {"metadata": {"annotations": {"meddled": "yes"}}})
    await held.patch("alive", {"metadata": {"finalizers": [OTHER, FINALIZER]}})
    await process.communicate(b"y\n")
    output = log.read_text()
    assert process.returncode == 1
    assert f"two: released; still held by {OTHER}" in output
    assert output.count("If it has changed meanwhile, run the command again.") == 2
    assert (await held.get("one"))["metadata"]["finalizers"] == [FINALIZER]
    assert (await held.get("two"))["metadata"]["annotations"] == {"meddled": "yes"}
    assert (await held.get("alive"))["metadata"]["finalizers"] == [OTHER, FINALIZER]


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
    places = ("-n", held.namespace, "-n", "second")
    result = await run(plural, "secrets", *places, "--yes", KUBECONFIG=kubeconfig)
    assert result.exit_code == 1
    assert f'User "{user}" cannot patch resource' in result.output
    for namespace in (held.namespace, "second"):
        text = f'cannot list resource "secrets" in API group "" in the namespace "{namespace}"'
        assert text in result.output


async def test_mistakes_are_told(run: Run, tmp_path: Path) -> None:
    result = await run("deploymets")
    assert (result.exit_code, "Did you mean deployments" in result.output) == (2, True)
    result = await run("pods/status")
    assert (result.exit_code, "must not have a slash" in result.output) == (2, True)
    away = write_kubeconfig(tmp_path, f"http://127.0.0.1:{find_free_port()}")
    result = await run(KUBECONFIG=away)
    assert (result.exit_code, result.output.startswith("Error: Cannot ")) == (1, True)
    result = await run(KUBECONFIG=str(tmp_path / "nowhere"))
    assert (result.exit_code, "Cannot log in to the cluster" in result.output) == (1, True)
    assert "Traceback" not in result.output
