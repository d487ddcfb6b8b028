"""``webop freeze`` and ``webop resume``, and how an operator takes it."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import Result

import webop
from tests.kit.cli_runner import invoke
from tests.kit.operators import Objects, RunOperator, build_settings, do_nothing
from tests.kit.peering_objects import PeeringObject, build_record, provide_peerings
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.identities import detect_own_identity

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Run = Callable[..., Result]


@pytest.fixture
def run(webop_cluster: LocalCluster, tmp_path: Path) -> Run:
    """Runs a command with the credentials of the cluster, in the pod of the operator "me"."""
    provide_peerings(webop_cluster)
    kubeconfig = str(webop_cluster.kubeconfig)
    return partial(invoke, env={"KUBECONFIG": kubeconfig, "HOME": str(tmp_path), "POD_ID": "me"})


@pytest.fixture
def shared(run: Run, client: Client, webop_namespace: str) -> PeeringObject:
    return PeeringObject(client, webop_namespace, "mine")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    yield
    logging.getLogger().setLevel(logging.WARNING)


@pytest.mark.feature("CLI-02", "CLI-14", "CLI-15", "PEE-02")
async def test_an_operator_is_frozen_and_says_by_whom_until_when_and_why(
    run_operator: RunOperator,
    run: Run,
    shared: PeeringObject,
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "webop.coordination")

    webop.on.create("widgets", id="created")(do_nothing)
    await shared.create(vip=build_record(1000))
    await shared.write("vip", None)
    where = ("-n", objects.namespace, "-P", "mine")
    settings = build_settings(peering={"priority": 5})
    async with run_operator(settings, standalone=False, identity="me", peering_name="mine"):
        await shared.wait(lambda records: "me" in records)
        message = ("-m", "backup is running")
        result = await asyncio.to_thread(run, "freeze", *where, "-t600", *message, "--quiet")
        assert result.exit_code == 0, result.output
        who = detect_own_identity()
        assert f"priorities up to 100, by {who}. Paused operators: me (5)." in result.output
        assert "The pause ends at" in result.output
        assert (
            f"webop resume --namespace={objects.namespace} --peering mine --id {who}"
            in result.output
        )
        text = f"Pausing in favour of {who} (priority 100, valid until "
        await eventually(lambda: text in caplog.text and ": backup is running" in caplog.text)
        assert set(await shared.read()) == {"me", who}

        result = await asyncio.to_thread(run, "resume", *where, "--id", "other", "--quiet")
        assert result.exit_code == 0
        assert "There is no record of other" in result.output
        assert f"{who} (priority 100, valid until" in result.output
        assert "Resuming" not in caplog.text
        result = await asyncio.to_thread(run, "resume", *where, "--quiet")
        assert f"Removed the record of {who} in the namespace" in result.output
        await eventually(lambda: "Resuming" in caplog.text)
        assert set(await shared.read()) == {"me"}
        result = await asyncio.to_thread(run, "freeze", *where, "-t5", "-p1", "-i", "x", "-q")
        assert "Paused operators: none now." in result.output
        assert "Not paused, because their priority is higher: me (5)." in result.output
    assert caplog.text.count("Pausing") == 1


@pytest.mark.feature("CLI-14", "CLI-15")
async def test_names_and_messages_of_others_do_not_rewrite_what_the_terminal_shows(
    run: Run, shared: PeeringObject
) -> None:
    forged = "x\x1b]0;y\x07\nforged"
    await shared.create(**{forged: {**build_record(5), "message": forged}})
    where = ("-n", shared.namespace, "-P", "mine", "-q")
    for command in (("resume",), ("freeze", "-t5"), ("freeze", "-t5", "-p1")):
        result = await asyncio.to_thread(run, *command, *where)
        assert result.exit_code == 0, result.output
        assert r"x\u001b]0;y\u0007\nforged" in result.output
        assert "\x1b" not in result.output


@pytest.mark.feature("CLI-14", "CLI-15", "CLI-03")
async def test_options_come_from_the_command_line_only(
    run: Run, shared: PeeringObject, client: Client, webop_namespace: str
) -> None:
    await shared.create()
    kept = run.keywords["env"]  # type: ignore[attr-defined]
    env = {**kept, "WEBOP_RESUME_ID": "other", "WEBOP_FREEZE_PRIORITY": "7"}
    options = ("-Pmine", "-i", "somebody", "-q")
    args = ("freeze", "-n", webop_namespace, "-t60", "--dev", "-m", "why", *options)
    result = await asyncio.to_thread(invoke, *args, env=env)
    assert result.exit_code == 0, result.output
    record = (await shared.read())["somebody"]
    assert (record["priority"], record["lifetime"], record["message"]) == (666, 60, "why")
    end = ("resume", "-n", f"{webop_namespace[:-1]}*", *options)
    result = await asyncio.to_thread(invoke, *end, env=env)
    assert result.exit_code == 0, result.output
    assert await shared.read() == {}


async def test_the_command_that_ends_a_pause_can_be_pasted(
    run: Run, shared: PeeringObject, webop_namespace: str
) -> None:
    await shared.create()
    where = ("-n", f"{webop_namespace[:-1]}*", "-P", "mine", "-q")
    result = await asyncio.to_thread(run, "freeze", *where, "-t60", "--id", "Jane's laptop")
    _, command, *args = shlex.split(result.output.rpartition("sooner: ")[2])
    result = await asyncio.to_thread(run, command, *args, "-q")
    assert "Removed the record of Jane's laptop" in result.output


@pytest.mark.feature("CLI-14", "CLI-15", "PEE-05")
async def test_the_operators_of_the_whole_cluster_have_their_own_object(
    run: Run, client: Client, webop_namespace: str
) -> None:
    shared = PeeringObject(client, None, webop_namespace)
    result = await asyncio.to_thread(run, "freeze", "-A", "-P", shared.name, "-t60", "-q")
    assert result.exit_code == 1
    assert f"There is no peering '{shared.name}' cluster-wide." in result.output
    assert f"kind: ClusterKopfPeering, metadata: {{name: {shared.name}}}" in result.output
    await shared.create()
    try:
        arguments = ("-A", "-P", shared.name, "-i", "x", "-q")
        assert (await asyncio.to_thread(run, "freeze", *arguments, "-t60")).exit_code == 0
        assert set(await shared.read()) == {"x"}
        assert (await asyncio.to_thread(run, "resume", *arguments)).exit_code == 0
        assert await shared.read() == {}
    finally:
        await shared.delete()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-P", "x", "-t", "5"], 2, "to choose the operators"),
        (["-A", "-n", "ns", "-P", "x", "-t", "5"], 2, "exclude each other"),
        (["-A", "-t", "5"], 2, "Missing option '-P' / '--peering'"),
        (["-A", "-P", "x"], 2, "Missing option '-t' / '--lifetime'"),
        (["-A", "-P", "x", "-t", "0"], 2, "0 is not in the range"),
        (["-A", "-P", "x", "-t", "5", "-p", "high"], 2, "'high' is not a valid integer"),
        (["-n", "no-such", "-P", "x", "-t", "5"], 1, "no peering 'x' in the namespace 'no-such'"),
        (["-n", "no-such-*", "-P", "x", "-t", "5"], 1, "no peering 'x' in these namespaces"),
    ],
)
@pytest.mark.feature("CLI-14")
def test_mistakes_are_told(run: Run, arguments: list[str], code: int, text: str) -> None:
    result = run("freeze", "-q", *arguments)
    assert result.exit_code == code
    assert text in result.output
    assert "Traceback" not in result.output


@pytest.mark.feature("CLI-14", "CLI-15")
def test_without_rights_a_server_or_credentials_it_says_so(
    run: Run, webop_cluster: LocalCluster, webop_namespace: str, tmp_path: Path
) -> None:
    base = run.keywords["env"]  # type: ignore[attr-defined]
    text = webop_cluster.kubeconfig.read_text().replace(webop_cluster.server, "https://127.0.0.1:1")
    (tmp_path / "away").write_text(text)
    nobody = webop_cluster.kubeconfig_for("nobody")
    for command, kubeconfig, expected in (
        (("freeze", "-t5"), nobody, "Grant the verb 'patch' on 'kopfpeerings'"),
        (("resume",), nobody, "Grant the verb 'get' on 'kopfpeerings'"),
        (("resume",), tmp_path / "away", "Error: Cannot"),
        (("resume",), tmp_path / "absent", "Cannot log in to the cluster (KUBECONFIG is"),
    ):
        where = ("-n", webop_namespace, "-P", "x", "-q")
        result = invoke(*command, *where, env={**base, "KUBECONFIG": str(kubeconfig)})
        assert (result.exit_code, expected in result.output) == (1, True), result.output
