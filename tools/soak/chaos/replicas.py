"""Replicas of one operator, one process after another in each place."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.operators import Kind
from tests.kit.processes import Command, Workshop
from tests.kit.waiting import eventually
from tools.long_runs import read_clock
from tools.soak.balancer import Balancer, Endpoint
from tools.soak.chaos.handlers import ADMISSION, RECORDING
from tools.soak.chaos.invariants import Process
from tools.soak.chaos.link import Link
from webop.controlplane.cluster_client import find_free_port

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

LEASE = "chaos"
DURATION, DEADLINE, PERIOD = 8, 5, 1  # of the lease, in seconds


@dataclass(eq=False)
class Place:
    """Where one process after another runs, as containers do in a pod.

    Attributes:
        link: the way to the API server.
        expected: the exit code with which the present process is to end; None if it is to stay.
        rest: seconds until the next process is started.
        processes: all of them with their times, the present one last.
        surprises: what has ended although nobody has asked for it.
    """

    number: int
    fleet: Fleet
    link: Link
    port: int
    endpoint: Endpoint
    command: Command | None = None
    expected: int | None = None
    rest: float = 0.0
    is_paused: bool = False
    generation: int = 1
    processes: list[Process] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)

    @property
    def identity(self) -> str:
        """The identity in the Lease; a container that restarts in its pod keeps it."""
        return f"replica-{self.number + 1}-{self.generation}"

    @property
    def is_spared(self) -> bool:
        """Whether the process is never killed, so that its growth can be measured."""
        return self.number == 0 and len(self.fleet.places) > 1

    @property
    def is_up(self) -> bool:
        """Whether there is a running process, not killed or stopped."""
        return self.command is not None and self.expected is None and not self.is_paused

    async def keep(self) -> None:
        while True:
            self.command = command = await self._start()
            present = self.processes[-1]
            code = await command.process.wait()
            present.died, self.command = read_clock(), None
            if code != self.expected:
                end = command.output[-1500:]
                self.surprises.append(f"{present.who} ended with {code}:\n{end}")
            self.expected = None
            await asyncio.sleep(self.rest)

    def end(self, number: signal.Signals, rest: float) -> None:
        """End the process; start another one after a delay."""
        assert self.command is not None
        # A killed container starts again in its pod; another pod replaces one that was terminated.
        self.generation += number == signal.SIGTERM
        self.expected = -number if number == signal.SIGKILL else 0
        self.rest = rest
        self.command.process.send_signal(number)

    async def pause(self, seconds: float) -> None:
        """Stop the process with SIGSTOP for a while."""
        assert self.command is not None
        process, present = self.command.process, self.processes[-1]
        self.is_paused = True
        process.send_signal(signal.SIGSTOP)
        begin = read_clock()
        try:
            await asyncio.sleep(seconds)
        finally:
            self.is_paused = False
            present.pauses.append((begin, read_clock()))
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)

    async def _start(self) -> Command:
        who = f"replica-{self.number + 1}.{len(self.processes) + 1}"
        self.processes.append(Process(who, read_clock()))
        options = ["webop", "run", "--standalone", "-n", self.fleet.namespace, "handlers.py"]
        options += [f"--liveness={self.endpoint.probe.removesuffix('readyz')}healthz"]
        options += [f"--lease={LEASE}"] if self.fleet.has_lease else []
        variables = {
            **({"LEASE": LEASE} if self.fleet.has_lease else {}),
            "KUBECONFIG": str(self._write_kubeconfig()),
            "POD_ID": self.identity,
            "PORT": str(self.port),
            "EVIDENCE": str(self.fleet.folder / f"{who}.lines"),
        }
        workshop, everything = Workshop(self.fleet.folder), {**self.fleet.variables, **variables}
        return await workshop.spawn((*options,), log=f"{who}.log", **everything)

    def _write_kubeconfig(self) -> Path:
        cluster = self.fleet.cluster
        path = self.fleet.folder / f"replica-{self.number + 1}.kubeconfig"
        text = cluster.kubeconfig.read_text()
        path.write_text(text.replace(cluster.server, self.link.url))
        return path


@dataclass
class Fleet:
    """All replicas, behind a balancer that plays the Service of their webhooks."""

    cluster: LocalCluster
    namespace: str
    kind: Kind
    folder: Path
    balancer: Balancer
    has_lease: bool
    places: list[Place] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def run(self, count: int, seed: int) -> AsyncIterator[None]:
        (self.folder / "handlers.py").write_text(RECORDING + ADMISSION)
        self.variables = {
            "NAMESPACE": self.namespace,
            "SERVICE_PORT": str(self.balancer.port),
            "MANAGED": "chaos.webop.dev",
            "GROUP": self.kind.group,
            "PLURAL": self.kind.plural,
            "WEBOP_ADMISSION__SHUTDOWN_DELAY": "2",
            "WEBOP_LEADERSHIP__LEASE_NAMESPACE": self.namespace,
            "WEBOP_LEADERSHIP__LEASE_DURATION": str(DURATION),
            "WEBOP_LEADERSHIP__RENEW_DEADLINE": str(DEADLINE),
            "WEBOP_LEADERSHIP__RETRY_PERIOD": str(PERIOD),
        }
        async with contextlib.AsyncExitStack() as stack:
            for number in range(count):
                chance = random.Random(f"{seed} link {number}")
                link = Link(self.cluster.server, self.cluster.ca_data, chance)
                await stack.enter_async_context(link.listen())
                probe = f"http://127.0.0.1:{find_free_port()}/readyz"
                endpoint = Endpoint(find_free_port(), probe)
                self.places.append(Place(number, self, link, endpoint.port, endpoint))
                self.balancer.add(endpoint)
            keeping = [asyncio.create_task(place.keep()) for place in self.places]
            try:
                yield
            finally:
                for task in keeping:
                    task.cancel()
                for place in self.places:
                    if place.command is not None:
                        await place.command.kill()

    async def wait_ready(self) -> None:
        """Wait until all replicas receive webhook requests."""
        await eventually(lambda: all(place.endpoint.is_listed for place in self.places), timeout=60)
