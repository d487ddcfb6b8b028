"""``webop plan`` in a process of its own, as a user whom the audit log follows."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from tests.kit.exec_plugins import write_kubeconfig
from tests.kit.forking import run_forked
from tests.kit.http_relay import Meddler, relay
from tests.kit.operators import Kind, Objects, connect, open_http
from tests.kit.processes import Command, Workshop
from tests.kit.waiting import eventually
from webop import Resource
from webop.client.api import Client
from webop.controlplane.cluster import LocalCluster
from webop.errors import APINotFoundError

Json = dict[str, Any]

PLANNERS = "planners"  # the group whose requests are in the audit log
UNKNOWN = "unknown after this step"
MAPS = Resource("", "v1", "configmaps", kind="ConfigMap", namespaced=True)
SECRETS = Resource("", "v1", "secrets", kind="Secret", namespaced=True)
_HEAD = """
import json, os, webop

def note(*what):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(what) + "\\n")

@webop.on.startup()
def configure(settings, planning, **_):
    settings.posting.enabled = False
    note("startup", planning)
"""


@dataclass(frozen=True)
class Planned:
    code: int
    output: str
    errors: str
    document: Json = field(default_factory=dict)

    def section(self, title: str) -> Json:
        found = [one for one in self.document["sections"] if title in one["title"]]
        assert len(found) == 1, self.output
        section: Json = found[0]
        return section

    def items(self, name: str, title: str = "kiosks") -> list[Json]:
        """Return the items of an object, by its name, maybe with its namespace."""
        objects = self.section(title)["objects"]
        found: list[Json] = next(
            (v for k, v in objects.items() if f"/{k}".endswith(f"/{name}")), []
        )
        return found

    def find(self, name: str, action: str, target: str = "") -> Json:
        """Return the only item of an object with this action, and with a word in its target."""
        items = [i for i in self.items(name) if i["action"] == action and target in i["target"]]
        assert len(items) == 1, self.output
        return items[0]

    def certainty(self, action: str, target: str = "", name: str = "one") -> tuple[str, str]:
        """Return how certain an item is, and for what reason."""
        item = self.find(name, action, target)
        return item["certainty"], item["reason"]

    def children(self, name: str, kind: str = "configmaps") -> dict[str, Json]:
        """Return the planned writes of objects of a kind, by their names."""
        items = [i for i in self.items(name) if f"of {kind} in" in i["target"]]
        return {item["target"].split("'")[1]: item for item in items}

    def words(self, name: str) -> list[str]:
        """Return the items of an object as short texts."""
        return [f"{item['action']} {item['target']}" for item in self.items(name)]


@dataclass
class Desk:
    """A folder with the handlers of an operator, its namespace, and what it has been called for."""

    cluster: LocalCluster
    client: Client
    objects: Objects
    workshop: Workshop
    planner: Path
    is_followed: bool = False  # whether the audit log has something of the planner

    @property
    def namespace(self) -> str:
        return self.objects.namespace

    def write(self, code: str) -> Path:
        return self.workshop.write(_HEAD + textwrap.dedent(code))

    @property
    def _path(self) -> Path:
        return self.workshop.folder / "my_handlers.py"

    @property
    def _log(self) -> Path:
        return self.workshop.folder / "calls.jsonl"

    def take_calls(self) -> list[list[Any]]:
        """Return the calls since the last look."""
        if not self._log.exists():
            return []
        calls = [json.loads(line) for line in self._log.read_text().splitlines()]
        self._log.unlink()
        return calls

    async def plan(self, *args: str, form: str = "json", **variables: str) -> Planned:
        """Run ``webop plan`` for the namespace."""
        return await self.plan_with("-n", self.namespace, *args, "-o", form, form=form, **variables)

    async def plan_with(self, *args: str, form: str = "", **variables: str) -> Planned:
        """Run ``webop plan`` with these options."""
        planner = {"KUBECONFIG": str(self.planner), **variables}
        found = await self.command("plan", *args, **planner)
        is_done = found.code in (0, 2)
        self.is_followed |= is_done and "KUBECONFIG" not in variables
        is_planned = form == "json" and is_done
        return replace(found, document=json.loads(found.output) if is_planned else {})

    async def plan_relayed(
        self, *args: str, meddle: Meddler | None = None
    ) -> tuple[Planned, list[httpx.Request]]:
        """Plan behind a relay, as the administrator; return the requests that are not reads."""
        async with relay(self.cluster) as relayed:
            relayed.meddle = meddle
            config = write_kubeconfig(self.workshop.folder, relayed.server.url)
            planned = await self.plan(*args, KUBECONFIG=config)
            return planned, [request for request in relayed.requests if request.method != "GET"]

    async def command(self, *args: str, **variables: str) -> Planned:
        """Run a command for the handlers, as the administrator unless the variables say else."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WEBOP_", "KUBE"))}
        config = {"KUBECONFIG": str(self.cluster.kubeconfig), "CALLS": str(self._log)}
        words = ("webop", *args, str(self._path))
        environment = {**kept, **config, **variables}
        return Planned(*await run_forked(words, self.workshop.folder, environment))

    @asynccontextmanager
    async def run(self, *args: str) -> AsyncIterator[Command]:
        """Run the operator itself."""
        scope = "-n", self.namespace, "--standalone", *args
        path = self._path
        async with self.workshop.start(*scope, path, CALLS=str(self._log)) as command:
            yield command
            assert await command.stop() == 0, command.output

    async def find(self, kind: Resource, name: str) -> Json | None:
        try:
            return await self.client.get(kind, self.namespace, name)
        except APINotFoundError:
            return None

    async def list(self, kind: Resource) -> dict[str, Json]:
        """Return the objects of a kind in the namespace, by their names."""
        pages = self.client.list_pages(kind, self.namespace)
        return {one["metadata"]["name"]: one async for page in pages for one in page.items}


async def wait_declared(cluster: LocalCluster, kind: Kind) -> None:
    """Wait until the API server declares the dry runs of a new kind, a moment after the kind."""
    path = f"/openapi/v3/apis/{kind.resource.api_version}"
    async with open_http(cluster) as client:

        async def is_declared() -> bool:
            return f"/{kind.resource.plural}/{{name}}/status" in (await client.get(path)).text

        await eventually(is_declared, f"dry runs of {kind.resource}")


@asynccontextmanager
async def open_desk(
    cluster: LocalCluster, kind: Kind, folder: Path, audit_log: Path
) -> AsyncIterator[Desk]:
    """Give an operator to plan; all that its plans have sent must be reads and dry runs."""
    namespace = cluster.create_namespace()
    user = f"planner-of-{namespace}"
    planner = cluster.kubeconfig_for(user, [PLANNERS, "system:masters"], namespace=namespace)
    workshop = Workshop(folder, KUBECONFIG=str(cluster.kubeconfig))
    async with connect(cluster) as client:
        desk = Desk(cluster, client, Objects(client, kind, namespace), workshop, planner)
        yield desk
    events = read_audit(audit_log, user)
    assert events or not desk.is_followed, "the audit log follows the planner"
    assert not list_stored_writes(events)
    cluster.delete_namespace(namespace)


def read_audit(log: Path, user: str) -> list[Json]:
    """Return the events about a user in the audit log; none before the first one."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [event for event in map(json.loads, lines) if event["user"]["username"] == user]


def list_stored_writes(events: list[Json]) -> list[Json]:
    """Return the events about requests that can have changed something."""
    found = []
    for event in events:
        group = event.get("objectRef", {}).get("apiGroup", "")
        if event["verb"] in ("get", "list", "watch") or group == "authorization.k8s.io":
            continue
        body = event.get("requestObject") or {}
        is_dry = "dryRun=All" in event["requestURI"]
        if event["verb"] in ("delete", "deletecollection") and body:  # the query does not count
            is_dry = body.get("dryRun") == ["All"]
        if not is_dry:
            found.append(event)
    return found
