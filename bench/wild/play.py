"""Play the steps of an operator with one side, on a new cluster."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from bench.model import BenchError
from bench.wild.compare import normalise
from bench.wild.model import Step, Wild
from bench.wild.sources import ROOT
from webop.testing import LocalCluster

_COMMANDS = {"kopf": ("-m", "kopf", "run"), "webop": ("-m", "webop", "run", "--aliased")}
_LONGEST = 90.0  # seconds for a step
_UNCOMPARED = {"Event", "IPAddress", "Lease"}  # Events, and objects of the API server
_LOG_LINES = 15


class Outcome(NamedTuple):
    """The cluster after a step."""

    objects: dict[str, Any]
    """Those that were created or changed since the operator's start."""
    events: int
    seconds: float
    """From the step to the last change."""


class Player:
    """The cluster of one side, and the operator that runs in it."""

    def __init__(self, wild: Wild, side: str, python: Path, sources: Path, workdir: Path) -> None:
        self._wild, self._side, self._sources = wild, side, sources
        self._argv = (str(python), *_COMMANDS[side])
        self._workdir = workdir
        self._log = workdir / f"{wild.name}-{side}.log"
        self._log.write_text("")

    def play(self) -> list[Outcome]:
        """Play all steps, and return the outcome of each."""
        with contextlib.ExitStack() as stack:
            self._cluster = stack.enter_context(LocalCluster())
            tls = ssl.create_default_context(
                cadata=base64.b64decode(self._cluster.ca_data).decode()
            )
            token = {"Authorization": f"Bearer {self._cluster.token}"}
            self._http = stack.enter_context(
                httpx.Client(base_url=self._cluster.server, headers=token, verify=tls, timeout=30)
            )
            self._apply(self._wild.definitions, self._wild.given)
            self._kinds = dict(self._discover())
            self._given, _ = self._read()
            stack.callback(self._stop)
            self._start()
            return [self._do(step) for step in self._wild.steps]

    def _do(self, step: Step) -> Outcome:
        if step.restart:
            self._stop()
            self._start()
        began = time.monotonic()
        self._apply(step.files, step.apply)
        for patch in step.patch:
            body = {key: value for key, value in patch.items() if key != "subresource"}
            self._send("PATCH", patch, json=body)
        for body in step.delete:
            self._send("DELETE", body)
        changed, events = began, 0
        objects: dict[str, Any] = {}
        while time.monotonic() - changed < self._wild.quiet and time.monotonic() - began < _LONGEST:
            self._check_alive()
            before = objects
            objects, events = self._read()
            objects = {
                name: item for name, item in objects.items() if item != self._given.get(name)
            }
            if objects != before:
                changed = time.monotonic()
            time.sleep(0.5)
        return Outcome(objects, events, changed - began)

    def _apply(self, names: tuple[str, ...], bodies: tuple[dict[str, Any], ...]) -> None:
        found = [(name, sorted(self._sources.glob(name))) for name in names]
        if missing := [name for name, files in found if not files]:
            raise BenchError(f"{self._wild.name}: the sources lack {', '.join(missing)}.")
        self._cluster.apply(*bodies, *(file for _, files in found for file in files))

    def _read(self) -> tuple[dict[str, Any], int]:
        """Return the objects of all kinds, and the number of Events."""
        found: list[dict[str, Any]] = []
        for (api_version, kind), url in self._kinds.items():
            items = self._http.get(url).raise_for_status().json()["items"]
            found += [{**item, "apiVersion": api_version, "kind": kind} for item in items]
        events = sum(item["kind"] == "Event" for item in found)
        objects = [item for item in found if item["kind"] not in _UNCOMPARED]
        return normalise(objects, self._wild.random), events

    def _discover(self) -> Iterator[tuple[tuple[str, str], str]]:
        """Yield the URLs of all lists by version and kind, each kind in one version."""
        groups = self._http.get("/apis").raise_for_status().json()["groups"]
        prefixes = {f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups}
        for prefix in ("/api/v1", *sorted(prefixes - {"/apis/events.k8s.io/v1"})):
            found = self._http.get(prefix).raise_for_status().json()
            for item in found["resources"]:
                if "list" in item["verbs"] and "/" not in item["name"]:
                    yield (found["groupVersion"], item["kind"]), f"{prefix}/{item['name']}"

    def _send(self, method: str, body: dict[str, Any], **content: Any) -> None:
        prefix, _, plural = self._kinds[body["apiVersion"], body["kind"]].rpartition("/")
        namespace = body["metadata"].get("namespace")
        scope = f"/namespaces/{namespace}" if namespace else ""
        sub = f"/{body['subresource']}" if "subresource" in body else ""
        url = f"{prefix}{scope}/{plural}/{body['metadata']['name']}{sub}"
        headers = {"Content-Type": "application/merge-patch+json"} if content else {}
        response = self._http.request(method, url, headers=headers, **content)
        if response.is_error:
            raise BenchError(f"{method} {url}: {response.status_code} {response.text[:300]}")

    def _start(self) -> None:
        """Start the operator, and wait until its probes respond."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            probes = f"http://127.0.0.1:{free.getsockname()[1]}/healthz"
        words = [text.format(sources=self._sources) for text in self._wild.arguments]
        variables = {
            **os.environ,
            **self._wild.variables,
            "PYTHONHASHSEED": "0",  # some operators write sets as lists
            "KUBECONFIG": str(self._cluster.kubeconfig),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(self._sources))),
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._argv, f"--liveness={probes}", *words],
                env=variables,
                cwd=self._workdir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _LONGEST
        while time.monotonic() < deadline:
            self._check_alive()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(probes).is_success:
                    return
            time.sleep(0.2)
        raise BenchError(f"{self._wild.name}, {self._side}: not ready. The log is {self._log}")

    def _stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()
        self._process.wait()

    def _check_alive(self) -> None:
        if self._process.poll() is not None:
            last = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            what = f"{self._wild.name}, {self._side}: exited with code {self._process.returncode}"
            raise BenchError("\n".join([what, *last]))
