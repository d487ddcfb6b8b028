"""``uvicorn webop.app:app`` as people run it: a process, configured by its environment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.kit.operators import Kind
from tests.kit.reviews import build_object, build_review, read_patch
from tests.kit.waiting import wait_until
from webop.controlplane.requests import find_free_port

if TYPE_CHECKING:
    from webop.client.api import Client
    from webop.controlplane.cluster import LocalCluster

_ROOT = Path(__file__).parents[2]
_PATIENCE = 30.0  # seconds; only failing tests wait for so long

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


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return self.wait_for(r"running on (http://\S+)")

    def read_log(self) -> str:
        return self.log.read_text()

    def wait_for(self, pattern: str) -> str:
        """Wait for something in the log; return its first group, or all of it."""

        def find() -> re.Match[str] | None:
            is_over = self.process.poll() is not None
            found = re.search(pattern, self.read_log())
            assert found or not is_over, self.read_log()
            return found

        found = wait_until(find, lambda: f"{pattern!r} in the log:\n{self.read_log()}")
        return str(found[1] if found.re.groups else found[0])

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", trust_env=False)

    def post(self, review: object, path: str = "/") -> httpx.Response:
        """Post a review as curl does with ``-d``."""
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        return httpx.post(
            f"{self.url}{path}",
            content=json.dumps(review),
            headers=form,
            trust_env=False,
        )

    def finish(self) -> int:
        return self.process.wait(_PATIENCE)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, and wait for the end, which must be a graceful one."""
        self.process.send_signal(number)
        # After all is done, uvicorn dies of the signal that it has got, unless it is process 1.
        assert self.finish() in (0, -signal.SIGTERM)
        assert "Application shutdown complete." in self.read_log()
        assert "Traceback" not in self.read_log()


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers with variables of the environment, and no credentials but for these."""
    with contextlib.ExitStack() as stack:

        def run(*options: str, **variables: str) -> Server:
            log = tmp_path / "uvicorn.log"
            dropped = ("WEBOP_", "KUBE")
            inherited = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
            environment = {
                **inherited,
                "HOME": str(tmp_path),
                "PYTHONPATH": str(_ROOT),
                "WEBOP_ADMISSION__SHUTDOWN_DELAY": "0",
            }
            command = [sys.executable, "-m", "uvicorn", "webop.app:app", "--port", "0"]
            command += options
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env={**environment, **variables},
                    stdout=output,
                    stderr=output,
                )
            stack.callback(end, process)
            return Server(process, log)

        yield run


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    file = tmp_path / "handlers.py"
    file.write_text(HANDLERS + WATCHERS.format(plural="kopfexamples", group="kopf.dev"))
    return file


@pytest.mark.feature("ADM-01", "ADM-02", "ADM-07", "ADM-09", "ADM-88", "PRB-03", "STA-05")
def test_with_no_cluster_admission_and_probes_are_served_until_sigterm(
    start: Start, handlers: Path
) -> None:
    server = start(WEBOP_MODULES="handlers.py", WEBOP_POSTING__LEVEL="40")
    assert server.post(build_review(build_object({"x": "bad"})), "/check").json()["response"] == {
        "uid": build_review()["request"]["uid"],
        "allowed": False,
        "warnings": ["Checked."],
        "status": {"message": "No.", "code": 422},
    }
    assert read_patch(server.post(build_review(), "/fill").json()["response"]) == [
        {"op": "add", "path": "/spec/filled", "value": True}
    ]
    assert server.post(build_review()).json()["response"]["allowed"]
    assert server.post(build_review(), "/no-such").status_code == 404
    assert server.get("/healthz").json() == {"health": "fine"}
    assert server.get("/livez").status_code == 200
    assert server.get("/").json()["webhooks"] == ["check", "fill"]

    server.wait_for(
        "There are no credentials .* Until the login succeeds, only admission and probes are served"
    )
    readiness = server.get("/readyz")
    assert readiness.status_code == 503
    assert "There are no credentials" in readiness.text
    assert "level=40 managed=None" in server.read_log()

    server.stop()
    assert "cleaned up" in server.read_log()


def test_with_admission_alone_it_is_ready_at_once_and_misses_nothing(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "sizes.py").write_text(HANDLERS)
    server = start(WEBOP_MODULES=" checks.sizes ,", WEBOP_ADMISSION__MANAGED="none")
    assert server.get("/readyz").status_code == 200
    assert "credentials" not in server.read_log()
    assert "WARNING" not in server.read_log()


@pytest.mark.usefixtures("default_hangup")
def test_it_stops_gracefully_when_its_terminal_is_closed(start: Start) -> None:
    server = start()
    assert server.get("/healthz").json() == {}
    server.process.send_signal(signal.SIGHUP)
    server.stop(signal.SIGHUP)  # shells and the kernel both send it


@pytest.mark.parametrize(
    ("text", "variables", "reason"),
    [
        ("import no_such_module", {}, r"No module named 'no_such_module' \(.*handlers.py, line 1"),
        ("", {"WEBOP_MODULES": "missing.py"}, "There is no file 'missing.py'"),
        ("", {"WEBOP_MODULES": "miss.ing"}, "'miss.ing' cannot be imported"),
        ("", {"WEBOP_POSTING__LEVEL": "loud"}, "WEBOP_POSTING__LEVEL='loud' is invalid"),
        (FAILING, {}, "Startup handler 'prepare' failed for good: No database."),
    ],
)
def test_what_is_wrong_from_the_beginning_ends_it_with_a_message_and_no_traceback(
    start: Start, tmp_path: Path, text: str, variables: dict[str, str], reason: str
) -> None:
    (tmp_path / "handlers.py").write_text(text)
    server = start(**{"WEBOP_MODULES": "handlers.py", **variables})
    assert server.finish() != 0
    assert re.search(rf"ERROR:\s+(?!Error: ).*{reason}", server.read_log()), server.read_log()
    assert "Traceback" not in server.read_log()


@pytest.fixture
async def kind(client: Client) -> Kind:
    kind = Kind("uvicorn.webop.dev", "pebbles", "Pebble")
    await kind.define(client)
    return kind


def test_as_soon_as_there_are_credentials_the_objects_are_handled_too(
    start: Start, tmp_path: Path, webop_cluster: LocalCluster, kind: Kind, webop_namespace: str
) -> None:
    watchers = WATCHERS.format(plural=kind.plural, group=kind.group)
    (tmp_path / "handlers.py").write_text(HANDLERS + watchers)
    server = start(
        WEBOP_MODULES="handlers.py",
        WEBOP_NAMESPACES=webop_namespace,
        KUBECONFIG="kubeconfig",
    )
    server.wait_for("Until the login succeeds, only admission and probes are served")
    assert server.post(build_review()).status_code == 200
    (tmp_path / "kubeconfig").write_text(webop_cluster.kubeconfig.read_text())
    wait_until(lambda: server.get("/readyz").status_code == 200, server.read_log)
    body: dict[str, Any] = {
        "apiVersion": f"{kind.group}/v1",
        "kind": kind.kind,
        "metadata": {"name": "one"},
        "spec": {},
    }
    webop_cluster.kubectl("create", "-f-", "-n", webop_namespace, stdin=json.dumps(body))
    server.wait_for("created one")
    assert server.post(build_review()).status_code == 200
    server.stop()


@pytest.mark.parametrize(
    ("server", "is_ignored"),
    [
        ("webop.WebhookServer(port={port})", True),
        ("Server(port={port})", False),
        ("webop.WebhookAutoServer(port={port})", False),
        ("nowhere", False),
    ],
)
def test_a_plain_webhook_server_is_ignored_with_one_line_and_others_serve_beside_uvicorn(
    start: Start, tmp_path: Path, server: str, is_ignored: bool
) -> None:
    port = find_free_port()
    code = SERVERS.format(port=port, server=server.format(port=port))
    (tmp_path / "handlers.py").write_text(code)
    app = start(WEBOP_MODULES="handlers.py")
    assert app.post(build_review()).json()["response"]["allowed"]
    if not is_ignored:
        app.wait_for(f"Serving webhooks at https://localhost:{port}")
    with socket.socket() as sock:
        assert (sock.connect_ex(("127.0.0.1", port)) != 0) is is_ignored
    app.stop()
    log = app.read_log()
    assert "The operator is running: 1 webhook (check), no watched kinds." in log
    ignored = "settings.admission.server is ignored: the ASGI server serves the webhooks"
    assert log.count(ignored) == is_ignored
    assert ("'auto.example.com' are not managed" in log) is is_ignored


def test_two_workers_do_not_handle_all_objects_twice_in_silence(
    start: Start, handlers: Path
) -> None:
    server = start("--workers", "2", WEBOP_MODULES=handlers.name)
    server.finish()
    log = server.read_log()
    assert "in several worker processes, and each would handle all objects" in log
    assert "settings.leadership.lease_name" in log
    assert "Traceback" not in log


def test_two_workers_can_serve_webhooks_and_share_a_lease(start: Start, handlers: Path) -> None:
    variables = {"WEBOP_MODULES": handlers.name, "WEBOP_LEADERSHIP__LEASE_NAME": "mine"}
    server = start("--workers", "2", **variables)
    wait_until(
        lambda: server.read_log().count("Application startup complete") == 2, server.read_log
    )
    assert server.post(build_review()).json()["response"]["allowed"]
    assert "several worker processes" not in server.read_log()
    server.process.send_signal(signal.SIGTERM)
    server.finish()


FORKING = """
import multiprocessing, time, webop

@webop.on.mutate("kopfexamples")
def fork(warnings, **_):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(10)
    warnings.append(str(child.exitcode))
"""


def test_a_handler_that_terminates_its_child_process_does_not_stop_the_server(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "handlers.py").write_text(FORKING)
    server = start(WEBOP_MODULES="handlers.py")
    answers = [server.post(build_review()).json() for _ in range(2)]
    assert [answer["response"].get("warnings") for answer in answers] == [["-15"]] * 2
    server.stop()
