"""Operators in processes that are killed and started again, on one host and with one priority."""

from __future__ import annotations

import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.commands import HANDLERS, Command, Workshop
from tests.meeting import Meeting
from tests.operating import Objects

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_HANDLERS = f"""{HANDLERS}
@webop.on.startup()
def live_long(settings, **_):
    settings.peering.lifetime = 600
"""


class Runs:
    """Runs of one operator, each in a folder and a process of its own."""

    def __init__(self, cluster: LocalCluster, folder: Path, meeting: Meeting) -> None:
        self._kubeconfig = str(cluster.kubeconfig)
        self._folder = folder
        self._namespace = meeting.namespace or ""

    def start(self, name: str, **variables: str) -> AbstractAsyncContextManager[Command]:
        """Start the operator."""
        folder = self._folder / name
        folder.mkdir()
        workshop = Workshop(folder)
        args = (workshop.write(_HANDLERS), "-n", self._namespace, "--peering=default")
        return workshop.start(*args, KUBECONFIG=self._kubeconfig, **variables)


@pytest.fixture
def runs(
    webop_cluster: LocalCluster, tmp_path: Path, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> Runs:
    monkeypatch.delenv("POD_ID", raising=False)
    return Runs(webop_cluster, tmp_path, meeting)


@pytest.mark.feature("PEE-14", "PEE-18")
@pytest.mark.parametrize("variables", [{}, {"POD_ID": "operator-0"}], ids=["host", "pod"])
async def test_a_killed_operator_that_is_started_again_does_not_pause_for_its_own_record(
    runs: Runs, meeting: Meeting, objects: Objects, variables: dict[str, str]
) -> None:
    await meeting.create()
    async with runs.start("one", **variables) as command:
        await objects.create("first")
        await command.wait_for("created first")
        (killed,) = await meeting.read()
        await command.stop(signal.SIGKILL)
    assert list(await meeting.read()) == [killed]
    async with runs.start("two", **variables) as command:
        await objects.create("second")
        await command.wait_for("created second")
        (record,) = await meeting.wait(lambda records: len(records) == 1, "the own record alone")
        assert (record == killed) is bool(variables)
        assert "Pausing" not in command.output
        assert await command.stop() == 0
    assert await meeting.read() == {}


@pytest.mark.feature("PEE-03", "PEE-18")
async def test_two_live_operators_on_one_host_are_not_taken_for_one_another(
    runs: Runs, meeting: Meeting
) -> None:
    await meeting.create()
    async with runs.start("one") as one, runs.start("two") as two:
        await one.wait_for("so all of them pause")
        await two.wait_for("so all of them pause")
        assert len(await meeting.read()) == 2
        await one.stop(signal.SIGKILL)
        assert len(await meeting.read()) == 2
        async with runs.start("three") as three:  # there is still another live one
            await three.wait_for("so all of them pause")
            await meeting.wait(lambda records: len(records) == 2, "the record of the dead is gone")
            await three.stop()
        await two.wait_for("Resuming")
