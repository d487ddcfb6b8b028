"""Replicas of one operator as processes, each with a proxy between it and the API server.

A replica is a place, like a pod: when its process has ended, another one can start there. Each
process has its own log and its own lines of evidence, named after the replica and its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.operators import Kind
from tests.kit.processes import Command, Workshop
from tests.kit.waiting import eventually
from tools.long_runs import read_clock
from tools.soak.balancer import Balancer, Endpoint
from tools.soak.evidence import Process, Violation
from tools.soak.link import Link
from webop.controlplane.cluster_client import find_free_port

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

RUN = ["webop", "run", "--standalone", "--namespace={namespace}", "--liveness={base}/healthz"]
RUN += ["handlers.py"]
PATIENCE = 60.0  # seconds


@dataclass(eq=False)
class Replica:
    """A place for one process after another.

    Attributes:
        link: the way to the API server.
        endpoint: the port of its webhooks, and its readiness.
        options: arguments of its command, beside those of all replicas.
        processes: all of them with their times, the present one last.
        expected: the exit code with which its process must end; None if it must stay.
        attending: waits for the end of its process.
        generation: of the pod: it changes with each SIGTERM, as another pod takes its place.
    """

    name: str
    link: Link
    endpoint: Endpoint
    options: tuple[str, ...]
    command: Command | None = None
    processes: list[Process] = field(default_factory=list)
    expected: int | None = None
    is_paused: bool = False
    generation: int = 1
    attending: asyncio.Task[None] | None = None

    @property
    def identity(self) -> str:
        """The identity in the Lease; a container that restarts in its pod keeps it."""
        return f"{self.name}-{self.generation}"

    @property
    def who(self) -> str:
        """The present process, in the evidence."""
        return self.processes[-1].who

    @property
    def is_up(self) -> bool:
        """Whether there is a running process, not stopped, and not asked to end."""
        return self.command is not None and self.expected is None and not self.is_paused

    @property
    def output(self) -> str:
        return self.command.output[-3000:] if self.command else ""

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """Stop the process with SIGSTOP during a block."""
        assert self.command is not None
        process, record = self.command.process, self.processes[-1]
        self.is_paused = True
        process.send_signal(signal.SIGSTOP)
        begin = read_clock()
        try:
            yield
        finally:
            self.is_paused = False
            record.pauses.append((begin, read_clock()))
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)


@dataclass
class Fleet:
    """All replicas.

    Attributes:
        folder: of the handlers, the logs and the evidence.
        variables: of the environment of all replicas.
        balancer: the Service of their webhooks.
        problems: processes that have ended by themselves, or with a wrong exit code.
    """

    cluster: LocalCluster
    namespace: str
    kind: Kind
    folder: Path
    variables: dict[str, str]
    balancer: Balancer
    seed: int = 1
    replicas: list[Replica] = field(default_factory=list)
    problems: list[Violation] = field(default_factory=list)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @contextlib.asynccontextmanager
    async def run(self, handlers: str) -> AsyncIterator[None]:
        """Let replicas be added during a block, and kill them at its end."""
        (self.folder / "handlers.py").write_text(handlers)
        async with self._stack:
            try:
                yield
            finally:
                for replica in self.replicas:
                    if replica.command is not None:
                        await self.end(replica, signal.SIGKILL)

    @property
    def processes(self) -> dict[str, Process]:
        """All processes that have ever run."""
        return {process.who: process for one in self.replicas for process in one.processes}

    async def add(self, *options: str) -> Replica:
        """Start one more replica."""
        name = f"replica-{len(self.replicas) + 1}"
        chance = random.Random(f"{self.seed} {name}")
        link = Link(self.cluster.server, self.cluster.ca_data, chance)
        await self._stack.enter_async_context(link.listen())
        port = find_free_port()
        base = f"http://127.0.0.1:{find_free_port()}"
        replica = Replica(name, link, Endpoint(port, f"{base}/readyz"), options)
        self.replicas.append(replica)
        self.balancer.add(replica.endpoint)
        await self.start(replica)
        return replica

    async def start(self, replica: Replica) -> None:
        """Start the next process of a replica."""
        who = f"{replica.name}.{len(replica.processes) + 1}"
        record = Process(who, read_clock())
        replica.processes.append(record)
        kubeconfig = self.folder / f"{replica.name}.kubeconfig"
        text = self.cluster.kubeconfig.read_text()
        kubeconfig.write_text(text.replace(self.cluster.server, replica.link.url))
        words = {
            "namespace": self.namespace,
            "port": replica.endpoint.port,
            "base": replica.endpoint.probe.removesuffix("/readyz"),
        }
        program = tuple(each.format(**words) for each in (*RUN, *replica.options))
        variables = {
            "NAMESPACE": self.namespace,
            "GROUP": self.kind.group,
            "PLURAL": self.kind.plural,
            "KUBECONFIG": str(kubeconfig),
            "POD_ID": replica.identity,
            "PORT": str(replica.endpoint.port),
            "EVIDENCE": str(self.folder / f"{who}.lines"),
            "WEBOP_MODULES": "handlers.py",
            "WEBOP_LEADERSHIP__LEASE_NAMESPACE": self.namespace,
        }
        replica.expected = None
        workshop = Workshop(self.folder)
        everything: Mapping[str, Any] = {**variables, **self.variables}
        command = await workshop.spawn(program, log=f"{who}.log", **everything)
        replica.command = command
        replica.attending = asyncio.create_task(self._attend(replica, command, record))

    async def _attend(self, replica: Replica, command: Command, record: Process) -> None:
        code = await command.process.wait()
        record.died, replica.command = read_clock(), None
        if code != replica.expected:
            text = f"{record.who} ended with {code}:\n{command.output[-1500:]}"
            self.problems.append(Violation("a process has ended by itself", text, at=record.died))

    async def end(self, replica: Replica, number: signal.Signals = signal.SIGTERM) -> None:
        """End the process of a replica by a signal, and wait for it."""
        assert replica.command is not None
        command = replica.command
        replica.expected = -number if number == signal.SIGKILL else 0
        replica.generation += number == signal.SIGTERM
        command.process.send_signal(number)
        assert replica.attending is not None
        async with asyncio.timeout(PATIENCE):
            await asyncio.shield(replica.attending)  # a process has one waiter only

    async def remove(self, replica: Replica) -> None:
        """End a replica for good."""
        try:
            await self.end(replica)
        finally:
            self.balancer.remove(replica.endpoint)

    async def wait_listed(self, replica: Replica) -> None:
        """Wait until the balancer sends connections to a replica."""

        def is_listed() -> bool:
            assert replica.command is not None, self.problems
            return replica.endpoint.is_listed

        await eventually(is_listed, lambda: f"{replica.who} listed\n{replica.output}", PATIENCE)

    def read(self, who: str, ending: str) -> str:
        """Return what a process has written: its log, or its lines of evidence."""
        path = self.folder / f"{who}.{ending}"
        return path.read_text() if path.exists() else ""
