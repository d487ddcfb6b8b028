"""Replicas of an operator with webhooks: processes of ``webop run``, as pods have them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.commands import find_free_port
from tests.rollout.balancer import Endpoint

HANDLERS = """
import os
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.admission.server = webop.WebhookServiceServer(
        service='webhooks',
        namespace=os.environ['NAMESPACE'],
        service_port=int(os.environ['SERVICE_PORT']),
        addr='127.0.0.1',
        port=int(os.environ['PORT']),
        poll_interval=1.0,
        settle_time=float(os.environ['SETTLE_TIME']),
    )
    settings.admission.managed = os.environ['MANAGED']

@webop.on.mutate(os.environ['GROUP'], 'v1', os.environ['PLURAL'])
async def stamp(patch, **_):
    patch.spec['stamped'] = True

@webop.on.validate(os.environ['GROUP'], 'v1', os.environ['PLURAL'])
async def check(spec, **_):
    if spec.get('bad'):
        raise webop.AdmissionError('This is bad.', code=400)
"""


@dataclass
class Plan:
    """What all replicas of one deployment have in common.

    Attributes:
        folder: for the handlers and the logs.
        variables: of the environment, beside those of this process.
    """

    folder: Path
    variables: dict[str, str]
    _count: int = 0

    def __post_init__(self) -> None:
        self.release(HANDLERS)

    def release(self, handlers: str) -> None:
        """Have all replicas that are started from now on run these handlers."""
        (self.folder / "handlers.py").write_text(handlers)

    async def start(self) -> Replica:
        """Start one more replica."""
        self._count += 1
        port, probes = find_free_port(), find_free_port()
        log = self.folder / f"replica-{self._count}.log"
        url = f"http://127.0.0.1:{probes}"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "webop", "run", "--standalone", "--all-namespaces"),
                *(f"--liveness={url}/healthz", "handlers.py"),
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env={**os.environ, **self.variables, "PORT": str(port)},
            )
        return Replica(process, log, Endpoint(port, f"{url}/readyz"))


@dataclass
class Replica:
    """A running replica."""

    process: asyncio.subprocess.Process
    log: Path
    endpoint: Endpoint = field(repr=False)

    async def wait_listed(self, patience: float = 60.0) -> None:
        """Wait until the balancer sends connections here."""
        async with asyncio.timeout(patience):
            while not self.endpoint.is_listed:
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.05)

    async def stop(self, patience: float = 60.0) -> int:
        """Stop it as a kubelet does; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(patience):
            return await self.process.wait()

    async def kill(self) -> None:
        """End it in any case."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
