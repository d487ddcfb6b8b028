"""Replicas of an operator with webhooks, by ``webop run`` or uvicorn, as in pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.processes import Command, Workshop
from tests.kit.waiting import eventually
from tools.soak.balancer import Endpoint
from webop.controlplane.cluster_client import find_free_port

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

_SERVER = HANDLERS.index("    settings.admission.server =")
_WEBHOOKS = HANDLERS.index("@webop.on.mutate")

# Certificates from files, and webhook configurations of an administrator.
STATIC_HANDLERS = HANDLERS.replace(
    HANDLERS[_SERVER:_WEBHOOKS],
    """    settings.admission.server = webop.WebhookServer(
        addr='127.0.0.1', port=int(os.environ['PORT']), certfile='cert.pem', pkeyfile='key.pem'
    )

""",
)
UVICORN_HANDLERS = "import os\nimport webop\n\n" + HANDLERS[_WEBHOOKS:]

#: The ways to serve: who manages the webhook configurations, and which server it is.
WAYS = {
    "managed": HANDLERS,
    "static": STATIC_HANDLERS,
    "uvicorn": UVICORN_HANDLERS,
    "uvicorn-protocol": UVICORN_HANDLERS,
}
_PROTOCOL = "--http=webop.servers.http.protocol:HTTPProtocol"


@dataclass
class Plan:
    """The common properties of all replicas of one deployment.

    Attributes:
        folder: the folder of the handlers and the logs.
        variables: environment variables, in addition to those of this process.
        way: one of :data:`WAYS`.
    """

    folder: Path
    variables: dict[str, str]
    way: str = "managed"
    _count: int = 0

    def __post_init__(self) -> None:
        self.release(WAYS[self.way])

    def release(self, handlers: str) -> None:
        """Set the handlers of replicas that start from now on."""
        (self.folder / "handlers.py").write_text(handlers)

    async def start(self) -> Replica:
        self._count += 1
        port, probes = find_free_port(), find_free_port()
        if self.way.startswith("uvicorn"):
            url = f"https://127.0.0.1:{port}"
            options = ["uvicorn", f"--port={port}", "--host=127.0.0.1", "--no-access-log"]
            options += ["--ssl-certfile=cert.pem", "--ssl-keyfile=key.pem", "webop.app:app"]
            is_ours = self.way == "uvicorn-protocol"
            options += [_PROTOCOL] if is_ours else ["--timeout-keep-alive=120"]
        else:
            url = f"http://127.0.0.1:{probes}"
            options = ["webop", "run", "--standalone", "--all-namespaces", "handlers.py"]
            options += [f"--liveness={url}/healthz"]
        variables = {**self.variables, "PORT": str(port), "WEBOP_MODULES": "handlers.py"}
        log = f"replica-{self._count}.log"
        command = await Workshop(self.folder).spawn((*options,), log=log, **variables)
        return Replica(command, Endpoint(port, f"{url}/readyz"))


@dataclass
class Replica:
    command: Command
    endpoint: Endpoint = field(repr=False)

    async def wait_listed(self) -> None:
        """Wait until the balancer sends connections here."""

        def is_listed() -> bool:
            assert self.command.process.returncode is None, self.command.output
            return self.endpoint.is_listed

        await eventually(is_listed, lambda: self.command.output, 60)
