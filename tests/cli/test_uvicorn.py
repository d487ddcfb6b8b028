"""``uvicorn webop.app:app`` as people run it: a process, configured by its environment."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.kit.operators import Kind, Objects
from tests.kit.processes import Command, Workshop
from tests.kit.reviews import build_object, build_review, read_patch
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port

if TYPE_CHECKING:
    from webop.client.api import Client
    from webop.controlplane.cluster import LocalCluster

_ROOT = Path(__file__).parents[2]

HANDLERS = """
import webop

@webop.on.startup()
def start(settings, **_):
    print(f"level={settings.posting.level} managed={settings.admission.managed}", flush=True)

@webop.on.cleanup()
async def clean(**_):
    print("cleaned up", flush=True)

@webop.on.validate("kopfexamples")
def check(spec, warnings, **_):
    warnings.append("Checked.")
    if spec.get("x") == "bad":
        raise webop.AdmissionError("No.", code=422)

@webop.on.mutate("kopfexamples")
async def fill(patch, **_):
    patch.spec["filled"] = True

@webop.on.probe(id="health")
def tell(**_):
    return "fine"
"""
FAILING = """
import webop

@webop.on.startup()
def prepare(**_):
    raise webop.PermanentError("No database.")
"""
SERVERS = """
import socket

import webop

class Server(webop.WebhookServer):
    pass

async def nowhere(fn):
    async for config in webop.WebhookServer(port={port})(fn):
        yield config

@webop.on.startup()
def start(settings, **_):
    settings.admission.managed = "auto.example.com"
    settings.admission.server = {server}

@webop.on.validate("kopfexamples")
def check(**_): ...
"""
WATCHERS = """
@webop.on.create("{plural}.{group}")
async def create(name, **_):
    print(f"created {{name}}", flush=True)
    return "done"
"""


class Server:
    def __init__(self, command: Command) -> None:
        self.command = command
        self.url = ""

    async def search(self, pattern: str) -> str:
        """Wait for something in the output; return its first group, or all of it."""

        def find() -> re.Match[str] | None:
            is_over = self.command.process.returncode is not None
            found = re.search(pattern, self.command.output)
            assert found or not is_over, self.command.output
            return found

        found = await eventually(find, lambda: f"{pattern!r} in:\n{self.command.output}")
        return str(found[1] if found.re.groups else found[0])

    async def wait_listening(self) -> None:
        """Wait until it serves, or has ended."""

        def is_up() -> bool:
            found = re.search(r"running on (http://\S+)", self.command.output)
            self.url = found[1] if found else ""
            return bool(found) or self.command.process.returncode is not None

        await eventually(is_up, lambda: self.command.output)

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as http:
            return await http.get(f"{self.url}{path}")

    async def post(self, review: object, path: str = "/") -> httpx.Response:
        """Post a review as curl does with ``-d``."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        async with httpx.AsyncClient(trust_env=False) as http:
            url = f"{self.url}{path}"
            return await http.post(url, content=json.dumps(review), headers=headers)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, and wait for the end, which must be a graceful one."""
        # After all is done, uvicorn dies of the signal that it has got, unless it is process 1.
        assert await self.command.stop(number) in (0, -signal.SIGTERM)
        assert "Application shutdown complete." in self.command.output
        assert "Traceback" not in self.command.output


@contextlib.asynccontextmanager
async def start(workshop: Workshop, *options: str, **variables: str) -> AsyncIterator[Server]:
    """Run uvicorn with variables of the environment, and no credentials but for these."""
    args = ("webop.app:app", "--port", "0", *options)
    settings = {"PYTHONPATH": str(_ROOT), "WEBOP_ADMISSION__SHUTDOWN_DELAY": "0", **variables}
    async with workshop.start_module(("uvicorn",), *args, **settings) as command:
        server = Server(command)
        await server.wait_listening()
        yield server


@pytest.fixture
def handlers(workshop: Workshop) -> str:
    """A file with handlers of admission and of resources."""
    watchers = WATCHERS.format(plural="kopfexamples", group="kopf.dev")
    return workshop.write(HANDLERS + watchers).name


@pytest.mark.feature("ADM-01", "ADM-02", "ADM-07", "ADM-09", "ADM-88", "PRB-03", "STA-05")
async def test_with_no_cluster_admission_and_probes_are_served_until_sigterm(
    workshop: Workshop, handlers: str
) -> None:
    async with start(workshop, WEBOP_MODULES=handlers, WEBOP_POSTING__LEVEL="40") as server:
        bad = await server.post(build_review(build_object({"x": "bad"})), "/check")
        assert bad.json()["response"] == {
            "uid": build_review()["request"]["uid"],
            "allowed": False,
            "warnings": ["Checked."],
            "status": {"message": "No.", "code": 422},
        }
        filled = await server.post(build_review(), "/fill")
        assert read_patch(filled.json()["response"]) == [
            {"op": "add", "path": "/spec/filled", "value": True}
        ]
        assert (await server.post(build_review())).json()["response"]["allowed"]
        assert (await server.post(build_review(), "/no-such")).status_code == 404
        assert (await server.get("/healthz")).json() == {"health": "fine"}
        assert (await server.get("/livez")).status_code == 200
        assert (await server.get("/")).json()["webhooks"] == ["check", "fill"]
        await server.search(
            "There are no credentials .* Until the login succeeds, only admission and probes are"
        )
        readiness = await server.get("/readyz")
        assert readiness.status_code == 503
        assert "There are no credentials" in readiness.text
        await server.stop()
    assert "level=40 managed=None" in server.command.output
    assert "cleaned up" in server.command.output


async def test_with_admission_alone_it_is_ready_at_once_and_misses_nothing(
    workshop: Workshop,
) -> None:
    (workshop.folder / "checks").mkdir()
    (workshop.folder / "checks" / "sizes.py").write_text(HANDLERS)
    variables = {"WEBOP_MODULES": " checks.sizes ,", "WEBOP_ADMISSION__MANAGED": "none"}
    async with start(workshop, **variables) as server:
        assert (await server.get("/readyz")).status_code == 200
    assert "credentials" not in server.command.output
    assert "WARNING" not in server.command.output


@pytest.mark.usefixtures("default_hangup")
async def test_it_stops_gracefully_when_its_terminal_is_closed(workshop: Workshop) -> None:
    async with start(workshop) as server:
        assert (await server.get("/healthz")).json() == {}
        server.command.process.send_signal(signal.SIGHUP)
        await server.stop(signal.SIGHUP)  # shells and the kernel both send it


@pytest.mark.parametrize(
    ("text", "variables", "reason"),
    [
        (
            "import no_such_module",
            {},
            r"No module named 'no_such_module' \(.*my_handlers.py, line 1",
        ),
        ("", {"WEBOP_MODULES": "missing.py"}, "There is no file 'missing.py'"),
        ("", {"WEBOP_MODULES": "miss.ing"}, "'miss.ing' cannot be imported"),
        ("", {"WEBOP_POSTING__LEVEL": "loud"}, "WEBOP_POSTING__LEVEL='loud' is invalid"),
        (FAILING, {}, "Startup handler 'prepare' failed for good: No database."),
    ],
)
async def test_what_is_wrong_from_the_beginning_ends_it_with_a_message_and_no_traceback(
    workshop: Workshop, text: str, variables: dict[str, str], reason: str
) -> None:
    modules = {"WEBOP_MODULES": workshop.write(text).name}
    async with start(workshop, **{**modules, **variables}) as server:
        assert await server.command.wait_for_exit() != 0
    output = server.command.output
    assert re.search(rf"ERROR:\s+(?!Error: ).*{reason}", output), output
    assert "Traceback" not in output


async def test_as_soon_as_there_are_credentials_the_objects_are_handled_too(
    workshop: Workshop, webop_cluster: LocalCluster, client: Client, webop_namespace: str
) -> None:
    kind = Kind("uvicorn.webop.dev", "pebbles", "Pebble")
    await kind.define(client)
    watchers = WATCHERS.format(plural=kind.plural, group=kind.group)
    variables = {
        "WEBOP_MODULES": workshop.write(HANDLERS + watchers).name,
        "WEBOP_NAMESPACES": webop_namespace,
        "KUBECONFIG": "kubeconfig",
    }
    async with start(workshop, **variables) as server:
        await server.search("Until the login succeeds, only admission and probes are served")
        assert (await server.post(build_review())).status_code == 200
        (workshop.folder / "kubeconfig").write_text(webop_cluster.kubeconfig.read_text())
        await eventually(
            lambda: server.get("/readyz"),
            lambda: server.command.output,
            check=lambda answer: answer.status_code == 200,
        )
        await Objects(client, kind, webop_namespace).create("one")
        await server.search("created one")
        assert (await server.post(build_review())).status_code == 200
        await server.stop()


@pytest.mark.parametrize(
    ("server", "is_ignored"),
    [
        ("webop.WebhookServer(port={port})", True),
        ("Server(port={port})", False),
        ("webop.WebhookAutoServer(port={port})", False),
        ("nowhere", False),
    ],
)
async def test_a_plain_webhook_server_is_ignored_with_one_line_and_others_serve_beside_uvicorn(
    workshop: Workshop, server: str, is_ignored: bool
) -> None:
    port = find_free_port()
    code = SERVERS.format(port=port, server=server.format(port=port))
    async with start(workshop, WEBOP_MODULES=workshop.write(code).name) as app:
        assert (await app.post(build_review())).json()["response"]["allowed"]
        if not is_ignored:
            await app.search(f"Serving webhooks at https://localhost:{port}")
        with socket.socket() as sock:
            assert (sock.connect_ex(("127.0.0.1", port)) != 0) is is_ignored
        await app.stop()
    log = app.command.output
    assert "The operator is running: 1 webhook (check), no watched kinds." in log
    ignored = "settings.admission.server is ignored: the ASGI server serves the webhooks"
    assert log.count(ignored) == is_ignored
    assert ("'auto.example.com' are not managed" in log) is is_ignored


async def test_two_workers_do_not_handle_all_objects_twice_in_silence(
    workshop: Workshop, handlers: str
) -> None:
    options = ("--workers", "2")
    async with start(workshop, *options, WEBOP_MODULES=handlers) as server:
        await server.command.wait_for_exit()
    log = server.command.output
    assert "in several worker processes, and each would handle all objects" in log
    assert "settings.leadership.lease_name" in log
    assert "Traceback" not in log


async def test_two_workers_can_serve_webhooks_and_share_a_lease(
    workshop: Workshop, handlers: str
) -> None:
    variables = {"WEBOP_MODULES": handlers, "WEBOP_LEADERSHIP__LEASE_NAME": "mine"}
    async with start(workshop, "--workers", "2", **variables) as server:
        command = server.command
        await eventually(lambda: command.output.count("Application startup complete") == 2)
        assert (await server.post(build_review())).json()["response"]["allowed"]
        assert "several worker processes" not in command.output
        await command.stop()
