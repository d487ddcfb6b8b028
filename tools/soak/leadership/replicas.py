"""Replicas of one operator, as processes, each with its own proxy to the API server.

Each appends its steps to its own file, with their times by the monotonic clock of the machine.
"""

from __future__ import annotations

import bisect
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.forwarder import Forwarder
from tests.kit.operators import Json, Kind
from tests.kit.processes import Command, Workshop
from webop.controlplane.cluster_client import find_free_port

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_RBAC = "rbac.authorization.k8s.io/v1"

HANDLERS = """
import asyncio
import json
import os
import time
import webop

WHO = os.environ['POD_ID']
KIND = (os.environ['GROUP'], 'v1', os.environ['PLURAL'])
FILE = os.open(os.environ['EVIDENCE'], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def read_clock():
    return time.clock_gettime(time.CLOCK_MONOTONIC)

class Step:
    def __init__(self, what, name):
        self.what, self.name = what, name

    def __enter__(self):
        self.begin = read_clock()

    def __exit__(self, *_):
        line = [WHO, self.what, self.name, self.begin, read_clock()]
        os.write(FILE, json.dumps(line).encode() + b'\\n')

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    if 'PORT' in os.environ:
        port = int(os.environ['PORT'])
        settings.admission.server = webop.WebhookServer(port=port, insecure=True)

@webop.index(*KIND)
async def names(name, **_):
    return {'all': name}

@webop.on.validate(*KIND)
async def check(warnings, names, **_):
    warnings.append(str(len(names.get('all', ()))))

@webop.on.event(*KIND)
async def seen(name, **_):
    with Step('event', name):
        pass

@webop.on.create(*KIND)
async def created(name, **_):
    with Step('begin of creation', name):
        pass
    await asyncio.sleep(0.05)
    with Step('end of creation', name):
        pass

@webop.timer(*KIND, interval=0.2)
async def tick(name, **_):
    with Step('timer', name):
        pass

async def work(name):
    with Step('daemon', name):
        pass
    await asyncio.sleep(0.15)

@webop.daemon(*KIND)
async def watch(name, stopped, **_):
    while not stopped:
        # In tasks of its own, and under a time-out: both can miss the end of a lease.
        try:
            async with asyncio.timeout(0.1):
                await asyncio.gather(work(name), work(name))
        except TimeoutError:
            with Step('daemon', name):
                pass
"""


@dataclass(frozen=True, order=True)
class Step:
    """A step of a replica, with times by the monotonic clock of the machine."""

    begin: float
    end: float
    who: str
    what: str
    name: str


@dataclass(eq=False)
class Replica:
    """A running replica.

    Attributes:
        proxy: its way to the API server.
        excused_from: from when on reviews to it may fail, by ``time.monotonic()``.
    """

    name: str
    url: str
    probes: str
    proxy: Forwarder
    command: Command
    excused_from: float = float("inf")
    is_gone: bool = False


@dataclass
class Deployment:
    """The common properties of the replicas.

    Attributes:
        folder: for the handlers, the logs and the steps.
        variables: of the environment, beside those of this process.
        lease: the name that the replicas share.
        handlers: their code.
    """

    cluster: LocalCluster
    namespace: str
    kind: Kind
    folder: Path
    variables: dict[str, str]
    lease: str = "leadership"
    handlers: str = HANDLERS
    replicas: list[Replica] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)
    _read: dict[str, int] = field(default_factory=dict)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @contextlib.asynccontextmanager
    async def run(self, count: int) -> AsyncIterator[list[Replica]]:
        """Run replicas during a block: the last one under uvicorn, the others by ``webop run``."""
        (self.folder / "handlers.py").write_text(self.handlers)
        async with self._stack:
            for number in range(count):
                is_last = number == count - 1
                await self.add(f"replica-{number + 1}", "" if is_last else "--lease")
            yield self.replicas

    async def add(self, name: str, option: str) -> Replica:
        """Start one more replica: by ``webop run`` with ``--lease`` or ``--shards``, or uvicorn."""
        proxy = await self._stack.enter_async_context(Forwarder(self.cluster.server).listen())
        if option:
            replica = await self._start_webop(name, proxy, option)
        else:
            replica = await self._start_uvicorn(name, proxy)
        self.replicas.append(replica)
        self._stack.push_async_callback(replica.command.kill)
        return replica

    def grant(self, name: str) -> None:
        subject = {"kind": "User", "name": name}
        self._bind("Role", self.lease, subject, {"name": name, "namespace": self.namespace})

    def revoke(self, name: str) -> None:
        self.cluster.delete(_RBAC, "RoleBinding", name, self.namespace)

    def permit_all(self, names: Iterable[str]) -> None:
        """Grant the replicas all rights to objects of the kind, and the access to the Lease."""
        group = f"{self.namespace}-replicas"
        groups = [self.kind.group, "", "apiextensions.k8s.io"]
        rules = [{"apiGroups": groups, "resources": ["*"], "verbs": ["list", "watch", "patch"]}]
        verbs = ["get", "create", "update", "list", "watch"]
        leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}
        role = {"name": self.lease, "namespace": self.namespace}
        self.cluster.apply(
            _build("ClusterRole", {"name": group}, rules=rules),
            _build("Role", role, rules=[leases]),
        )
        self._bind("ClusterRole", group, {"kind": "Group", "name": group}, {"name": group})
        for name in names:
            self.grant(name)

    def _bind(self, kind: str, role: str, subject: Json, metadata: Json) -> None:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        content = {"roleRef": reference, "subjects": [subject]}
        self.cluster.apply(_build(f"{kind}Binding", metadata, **content))

    def read_steps(self) -> list[Step]:
        for replica in self.replicas:
            path = self.folder / f"{replica.name}.lines"
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(replica.name, 0))
                lines = file.read().splitlines(keepends=True)
            for line in lines:
                who, what, name, begin, end = json.loads(line)
                bisect.insort(self._steps, Step(begin, end, who, what, name))
            self._read[replica.name] = self._read.get(replica.name, 0) + sum(map(len, lines))
        return self._steps

    async def _start_webop(self, name: str, proxy: Forwarder, option: str) -> Replica:
        port, probes = find_free_port(), find_free_port()
        arguments = (
            *("webop", "run", "--standalone", f"--namespace={self.namespace}", option),
            *(self.lease, f"--liveness=http://127.0.0.1:{probes}/healthz", "handlers.py"),
        )
        command = await self._spawn(name, proxy, arguments, PORT=str(port))
        url, base = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{probes}"
        return Replica(name, url, base, proxy, command)

    async def _start_uvicorn(self, name: str, proxy: Forwarder) -> Replica:
        port = find_free_port()
        arguments = ("uvicorn", "--log-level=warning", f"--port={port}", "webop.app:app")
        variables = {
            "WEBOP_MODULES": "handlers.py",
            "WEBOP_NAMESPACES": self.namespace,
            "WEBOP_PEERING__STANDALONE": "true",
            "WEBOP_LEADERSHIP__LEASE_NAME": self.lease,
        }
        command = await self._spawn(name, proxy, arguments, **variables)
        url = f"http://127.0.0.1:{port}"
        return Replica(name, url, url, proxy, command)

    async def _spawn(
        self, name: str, proxy: Forwarder, arguments: tuple[str, ...], **variables: str
    ) -> Command:
        kubeconfig = self.folder / f"{name}.kubeconfig"
        source = self.cluster.kubeconfig_for(name, [f"{self.namespace}-replicas"])
        kubeconfig.write_text(source.read_text().replace(self.cluster.server, proxy.url))
        own = {
            "KUBECONFIG": str(kubeconfig),
            "POD_ID": name,
            "EVIDENCE": str(self.folder / f"{name}.lines"),
            "GROUP": self.kind.group,
            "PLURAL": self.kind.plural,
            "WEBOP_LEADERSHIP__LEASE_NAMESPACE": self.namespace,
        }
        everything = {**own, **self.variables, **variables}
        return await Workshop(self.folder).spawn(arguments, log=f"{name}.log", **everything)


def _build(kind: str, metadata: Json, **content: Any) -> Json:
    return {"apiVersion": _RBAC, "kind": kind, "metadata": metadata, **content}
