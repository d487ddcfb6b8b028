"""Three replicas of one operator, as processes, each with its own proxy to the API server.

Each writes one line per step to its own file, with the times of its begin and its end by the
monotonic clock of the machine.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.forwarder import Forwarder
from tests.kit.operators import Kind
from tests.kit.processes import find_free_port

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

HANDLERS = """
import asyncio
import json
import os
import time
import webop

WHO = os.environ['POD_ID']
KIND = (os.environ['GROUP'], 'v1', os.environ['PLURAL'])
FILE = os.open(os.environ['STEPS'], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

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
    folder: Path
    url: str
    probes: str
    proxy: Forwarder
    process: asyncio.subprocess.Process
    excused_from: float = float("inf")
    is_gone: bool = False

    @property
    def log(self) -> str:
        """The content of its log."""
        return (self.folder / f"{self.name}.log").read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def end(self) -> None:
        """Kill the process if it still runs."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            await self.process.wait()


@dataclass
class Deployment:
    """The common properties of the replicas.

    Attributes:
        folder: for the handlers, the logs and the steps.
        variables: of the environment, beside those of this process.
    """

    cluster: LocalCluster
    namespace: str
    kind: Kind
    folder: Path
    variables: dict[str, str]
    lease: str = "leadership"
    replicas: list[Replica] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)
    _read: dict[str, int] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def run(self, count: int) -> AsyncIterator[list[Replica]]:
        """Run replicas during a block: the last one under uvicorn, the others by ``webop run``."""
        (self.folder / "handlers.py").write_text(HANDLERS)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(count):
                proxy = await stack.enter_async_context(Forwarder(self.cluster.server).listen())
                name = f"replica-{number + 1}"
                start = self._start_uvicorn if number == count - 1 else self._start_webop
                self.replicas.append(await start(name, proxy))
                stack.push_async_callback(self.replicas[-1].end)
            yield self.replicas

    def grant(self, name: str) -> None:
        """Grant a replica access to the Lease."""
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.lease}
        self.cluster.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": name, "namespace": self.namespace},
                "roleRef": role,
                "subjects": [{"kind": "User", "name": name}],
            }
        )

    def revoke(self, name: str) -> None:
        """Revoke the access."""
        api = "rbac.authorization.k8s.io/v1"
        self.cluster.delete(api, "RoleBinding", name, self.namespace)

    def permit_all(self, names: Iterable[str]) -> None:
        """Grant the replicas exactly the rights that they need."""
        api = "rbac.authorization.k8s.io/v1"
        group = f"{self.namespace}-replicas"
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": group}
        kind = {"apiGroups": [self.kind.group], "resources": [self.kind.plural]}
        definitions = {
            "apiGroups": ["apiextensions.k8s.io"],
            "resources": ["customresourcedefinitions"],
            "verbs": ["list", "watch"],
        }
        namespaces = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]}
        rules = [{**kind, "verbs": ["list", "watch", "patch"]}, definitions, namespaces]
        verbs = ["get", "create", "update", "list", "watch"]
        leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}
        self.cluster.apply(
            {"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": group}, "rules": rules},
            {
                "apiVersion": api,
                "kind": "ClusterRoleBinding",
                "metadata": {"name": group},
                "roleRef": role,
                "subjects": [{"kind": "Group", "name": group}],
            },
            {
                "apiVersion": api,
                "kind": "Role",
                "metadata": {"name": self.lease, "namespace": self.namespace},
                "rules": [leases],
            },
        )
        for name in names:
            self.grant(name)

    def read_steps(self) -> list[Step]:
        """Return the steps of all replicas so far, in order."""
        for replica in self.replicas:
            path = self.folder / f"{replica.name}.steps"
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

    async def _start_webop(self, name: str, proxy: Forwarder) -> Replica:
        port, probes = find_free_port(), find_free_port()
        arguments = (
            *("webop", "run", "--standalone", f"--namespace={self.namespace}", "--lease"),
            *(self.lease, f"--liveness=http://127.0.0.1:{probes}/healthz", "handlers.py"),
        )
        process = await self._spawn(name, proxy, arguments, PORT=str(port))
        url = f"http://127.0.0.1:{port}"
        base = f"http://127.0.0.1:{probes}"
        return Replica(name, self.folder, url, base, proxy, process)

    async def _start_uvicorn(self, name: str, proxy: Forwarder) -> Replica:
        port = find_free_port()
        arguments = ("uvicorn", "--log-level=warning", f"--port={port}", "webop.app:app")
        variables = {
            "WEBOP_MODULES": "handlers.py",
            "WEBOP_NAMESPACES": self.namespace,
            "WEBOP_PEERING__STANDALONE": "true",
            "WEBOP_LEADERSHIP__LEASE_NAME": self.lease,
        }
        process = await self._spawn(name, proxy, arguments, **variables)
        url = f"http://127.0.0.1:{port}"
        return Replica(name, self.folder, url, url, proxy, process)

    async def _spawn(
        self, name: str, proxy: Forwarder, arguments: Iterable[str], **variables: str
    ) -> asyncio.subprocess.Process:
        kubeconfig = self.folder / f"{name}.kubeconfig"
        source = self.cluster.kubeconfig_for(name, [f"{self.namespace}-replicas"])
        kubeconfig.write_text(source.read_text().replace(self.cluster.server, proxy.url))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WEBOP_", "KUBE"))}
        own: dict[str, Any] = {
            "HOME": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            "KUBECONFIG": str(kubeconfig),
            "POD_ID": name,
            "STEPS": str(self.folder / f"{name}.steps"),
            "GROUP": self.kind.group,
            "PLURAL": self.kind.plural,
            "WEBOP_LEADERSHIP__LEASE_NAMESPACE": self.namespace,
        }
        with (self.folder / f"{name}.log").open("wb") as file:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *arguments),
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env={**kept, **own, **self.variables, **variables},
            )


def read_clock() -> float:
    """Return the time by the clock of the steps."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
