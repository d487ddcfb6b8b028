"""Send requests to the API server, and run the operator as a process."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent
_POLLING = 0.05  # seconds between two checks of a condition
_STARTING, _STOPPING = 30.0, 15.0  # seconds for the operator to become ready, and to stop
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')  # RFC 7234, 5.5, as Kubernetes uses it


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True)
class Response:
    """A response of the API server, with its warnings."""

    status: int
    body: dict[str, Any]
    warnings: list[str]


class ApiServer:
    """Sends requests to the API server, one at a time.

    Args:
        server: its URL.
        token: a bearer token.
        ca_data: its CA, PEM in base64.
    """

    def __init__(self, server: str, token: str, ca_data: str) -> None:
        tls = ssl.create_default_context(cadata=base64.b64decode(ca_data).decode("ascii"))
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(
            base_url=server, headers=headers, verify=tls, trust_env=False, timeout=30
        )

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Response:
        """Send a request and return the response, also that of a failure."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        response = self._client.request(method, path, json=body, headers={"Content-Type": kind})
        warnings = [
            re.sub(r"\\(.)", r"\1", text)
            for header in response.headers.get_list("warning")
            for text in _WARNING.findall(header)
        ]
        is_json = response.headers.get("content-type", "").startswith("application/json")
        text = {
            "kind": "Status",
            "message": response.text.strip(),
        }  # no JSON: the kind is not served yet
        return Response(response.status_code, response.json() if is_json else text, warnings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


class Operator:
    """The process of the operator."""

    def __init__(self, process: subprocess.Popen[bytes], probes: str, log: Path) -> None:
        self.pid = process.pid
        self.probes = probes
        self.log = log
        self._process = process

    def check(self) -> None:
        """Raise an error if the operator has stopped.

        Raises:
            DemoError: the operator has stopped; the message has the end of its log.
        """
        if self._process.poll() is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
            raise DemoError(
                f"The operator stopped with exit code {self._process.returncode}. "
                + "\n    ".join([f"The end of its log ({self.log}):", *lines])
            )

    def wait_until_ready(self) -> None:
        """Wait until the operator watches the cluster and has registered its webhooks.

        Raises:
            DemoError: it has stopped, or was not ready in time.
        """
        if not wait_for(self._is_ready, _STARTING):
            raise DemoError(
                f"The operator was not ready within {_STARTING:g} s. See its log: {self.log}"
            )

    def _is_ready(self) -> bool:
        self.check()
        try:
            return httpx.get(f"{self.probes}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False  # it does not listen yet


@contextlib.contextmanager
def run_operator(handlers: Path, kubeconfig: Path, log: Path) -> Iterator[Operator]:
    """Run the operator as a process, and stop it at the end of the block.

    Args:
        handlers: the file with the handlers; local_storage.py runs in the same process.
        kubeconfig: the kubeconfig of the cluster.
        log: the file for its log.
    """
    probes = f"http://127.0.0.1:{find_free_port()}"
    options = ["--all-namespaces", "--standalone", "--verbose", f"--liveness={probes}/healthz"]
    files = [str(handlers), str(HERE / "local_storage.py")]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("WEBOP_", "EVC_"))
    }
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "webop", "run", *options, *files],
            env={
                **environment,
                "KUBECONFIG": str(kubeconfig),
                "EVC_PORT": "0",
                "WEBOP_ADMISSION__SHUTDOWN_DELAY": "0",  # there is no other replica to drain to
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # the demo gets Ctrl-C, then stops the operator
        )
    try:
        yield Operator(process, probes, log)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOPPING)
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; return whether it was met in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLLING)
    return True


def find_free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
