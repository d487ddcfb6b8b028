"""Where the stories of ``stories.yaml`` happen: each breaks one rule of the simulation.

A scene is a real :class:`World` with a real cluster. Its replicas do nothing but what a story makes
of them: it calls handlers, writes objects and ends processes as if they were operators' doings.

A story is a list of lines: a moment in seconds, who acts (``A`` and ``B`` are replicas), a verb,
and for some verbs a handler and a mapping of details. The verbs are the methods of :class:`Scene`
after ``do_``. Most stories are about one object, ``one``.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import math
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import yaml

from tools.simulation.admission import Server
from tools.simulation.admission_rules import Attempt
from tools.simulation.plans import AdmissionPlan, HandlerPlan, Plan, Step
from tools.simulation.replicas import (
    DIFFBASE,
    GROUP,
    NAMESPACE,
    PLURAL,
    Call,
    ReplicaProcess,
    Wish,
    list_keys,
    list_parts,
    run_sync,
)
from tools.simulation.virtual import VirtualThreads
from tools.simulation.world import OBJECTS, PARTS_PATH, World
from webop import Patch
from webop.aio.work_deadline import Fence
from webop.context.ownership import Ownership
from webop.context.pausing import Pausing
from webop.handlers.stopping import AsyncDaemonStopped, Stopper
from webop.objects.shards import parse_shards
from webop.testing.apiserver import Json, Request, Response
from webop.testing.simulation.network import Fault
from webop.testing.simulation.virtual_loop import VirtualLoop

CALM = 20.0  # seconds until all must converge
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_PEERING = f"/apis/kopf.dev/v1/namespaces/{NAMESPACE}/kopfpeerings/default"
_HOOKS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"


class _Idle:
    """An operator that does nothing, until it is asked to end.

    Attributes:
        ending: done when it ends by itself.
        is_stubborn: whether it goes on when it is asked to end.
        obstacles: why it is not ready.
    """

    def __init__(self) -> None:
        self.ending = asyncio.get_running_loop().create_future()
        self.is_stubborn = False
        self.obstacles: list[str] = []
        self.context = SimpleNamespace(indices={}, pausing=Pausing(), ownership=Ownership())
        self.webhooks = SimpleNamespace(manager=SimpleNamespace(is_applied=asyncio.Event()))

    def list_obstacles(self) -> list[str]:
        return self.obstacles

    async def run(self) -> None:
        while True:
            try:
                return await asyncio.shield(self.ending)
            except asyncio.CancelledError:
                if not self.is_stubborn:
                    raise


class _Replica(ReplicaProcess):
    operator: Any

    def _build(self) -> None:
        self.operator = _Idle()


class Scene:
    """A world of which nothing happens but what a story tells."""

    def __init__(self, plan: Json) -> None:
        self.loop = VirtualLoop()
        plan = {"handlers": {}, "steps": (), "admission": None, **plan}
        steps = [Step(at, kind, None, 1.0, Fault(**fault)) for at, kind, fault in plan["steps"]]
        handlers = plan["handlers"]
        handlers = handlers if isinstance(handlers, dict) else dict.fromkeys(handlers.split())
        made: Json = {
            "steps": [*steps, Step(CALM, "compact")],
            "handlers": [
                HandlerPlan(name, name.rstrip("0123456789"), **(details or {}))
                for name, details in handlers.items()
            ],
            "admission": None if plan["admission"] is None else AdmissionPlan(**plan["admission"]),
        }
        self.world = World(Plan(0, replicas=0, **{**plan, **made}), self.loop)
        self.plans = {handler.id: handler for handler in self.world.plan.handlers}
        self._replicas: dict[str, _Replica] = {}
        self._open: dict[tuple[str, str], list[Call]] = defaultdict(list)
        self._runs: dict[tuple[str, str], Any] = {}
        self._uid = "u1"

    def play(self, lines: list[str]) -> list[str]:
        """Tell a story in a history that else is empty; return the complaints."""
        try:
            self.loop.run_until_complete(self._play(lines))
        finally:
            self.loop.run_until_complete(self._clean_up())
            self.loop.close()
        return self.world.judge.violations

    async def _play(self, lines: list[str]) -> None:
        if self.world.admission is None:
            await asyncio.gather(self._tell(lines), self.world.live())
        else:  # the judge of webhooks alone: without users, and without an end
            await self._tell(lines)

    async def _tell(self, lines: list[str]) -> None:
        for line in lines:
            at, who, verb, *rest = line.split(maxsplit=3)
            await asyncio.sleep(max(0.0, float(at) - self.loop.time()))
            what, brace, details = "".join(rest).partition("{")
            options = yaml.safe_load(f"{brace}{details}") or {}
            arguments = [what.strip()] if what else []
            actor: Any = who if who in {"user", "peer"} else self._get_replica(who)
            getattr(self, f"do_{verb}")(actor, *arguments, **options)

    async def _clean_up(self) -> None:
        for process in self.world.processes:
            process.operator.is_stubborn = False  # type: ignore[attr-defined]
        self.loop.resume()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _get_replica(self, name: str) -> _Replica:
        if name not in self._replicas:
            number = "ABCDEFGH".index(name) if self.world.plan.mode in {"peering", "shards"} else 0
            process = _Replica(self.world, number, len(self.world.processes) + 1)
            self._replicas[name] = process
            self.world.processes.append(process)
            self.world.disturb(0.0, "start")
        return self._replicas[name]

    # Handlers

    def do_starts(self, process: _Replica) -> None:
        """Start a replica; all verbs do so."""

    def do_begins(self, process: _Replica, handler: str, **details: Any) -> None:
        value, is_new = details.pop("value", 1), details.pop("is_new", False)
        plan = self.plans[handler.partition("/")[0]]
        usual: Json = {"uid": self._uid, "name": "one", "wish": Wish(value, False, 0), "retry": 0}
        usual |= {"reason": "create", "essence": json.dumps({"value": value})}
        if plan.kind in {"timer", "daemon"}:
            key = str(process), handler
            if is_new or key not in self._runs:
                self._runs[key] = AsyncDaemonStopped(Stopper())
            usual |= {"reason": "", "run": self._runs[key]}
        call = Call(process, plan, handler, **{**usual, "begin": self.loop.time(), **details})
        self._open[str(process), handler].append(self.world.begin_call(call))

    def do_ends(
        self, process: _Replica, handler: str, outcome: str = "ok", delay: float = 0.0
    ) -> None:
        call = self._open[str(process), handler].pop()
        call.outcome, call.delay = outcome, delay
        self.world.end_call(call)

    def do_calls(
        self,
        process: _Replica,
        handler: str,
        outcome: str = "ok",
        delay: float = 0.0,
        **details: Any,
    ) -> None:
        self.do_begins(process, handler, **details)
        self.do_ends(process, handler, outcome, delay)

    def do_makes(self, process: _Replica, handler: str) -> None:
        """Let a handler do in a thread what is planned for it."""
        what = {"uid": self._uid, "name": "one", "body": self._read(), "patch": Patch()}
        VirtualThreads().submit(run_sync, process, self.plans[handler], **what)

    def do_runs(self, process: _Replica, handler: str, times: int = 1) -> None:
        """Run a daemon."""
        key = handler, self._uid
        process.daemons[key] = times
        process.started_daemons[key] = self.loop.time()

    def do_returns(self, process: _Replica, handler: str) -> None:
        """Let a daemon end by itself."""
        process.ended_daemons.add((handler, self._uid))
        process.daemons[handler, self._uid] = 0

    def do_restarts(self, process: _Replica, handler: str) -> None:
        process.judge_daemon(self.plans[handler], self._uid)

    def do_steps(self, process: _Replica, handler: str) -> None:
        process.judge_step((handler, self._uid))

    def do_indexes(self, process: _Replica, **found: list[int]) -> None:
        """Fill the index of an object, by its name and its value; ``other`` is a former key."""
        keys = dict(zip(("name", "value"), list_keys("one", 1), strict=True))
        process.operator.context.indices["index0"] = {
            keys.get(key, key): [(self._uid, value) for value in values]
            for key, values in found.items()
        }

    def do_looks(self, process: _Replica, handler: str) -> None:
        self.world.judge.background.judge_sight(process, handler)

    # Objects

    def do_creates(self, who: str, **fields: Any) -> None:
        head = {"apiVersion": f"{GROUP}/v1", "kind": "Thing"}
        metadata = {"name": "one", **fields.pop("metadata", {})}
        body = {**head, "metadata": metadata, "spec": {"value": 1}, "status": {}, **fields}
        self._uid = self.world.request("POST", "", body).body["metadata"]["uid"]

    def do_changes(self, who: str, **patch: Any) -> None:
        self.world.request("PATCH", "one", patch)

    def do_deletes(self, who: str, part: str = "") -> None:
        if part:
            self.world.ask("DELETE", f"{PARTS_PATH}/{part}")
        else:
            self.world.request("DELETE", "one")

    def do_writes(self, process: _Replica, **patch: Any) -> None:
        """Change the object; ``UID`` stands for its uid."""
        patch = json.loads(json.dumps(patch).replace("UID", self._uid))
        self._send(process, "PATCH", f"{OBJECTS}/one", patch)

    def do_handled(self, process: _Replica, value: int = 1) -> None:
        """Write down which state of the object was handled."""
        state = json.dumps({"spec": {"value": value}})
        self._send(
            process, "PATCH", f"{OBJECTS}/one", {"metadata": {"annotations": {DIFFBASE: state}}}
        )

    def do_keeps(self, process: _Replica, value: int) -> None:
        """Create the parts of the object."""
        names = {"webop.dev/owner": self._uid, "webop.dev/reconciler": "keeper"}
        head = {"apiVersion": f"{GROUP}/v1", "kind": "Part"}
        owner = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "name": "one", "uid": self._uid}
        for name in list_parts("one", 1):
            meta = {"name": name, "labels": names, "ownerReferences": [owner]}
            body = {**head, "metadata": meta, "spec": {"value": value}}
            self.world.ask("POST", PARTS_PATH, body)

    def _read(self) -> Json:
        body: Json = self.world.list_objects()["one"]
        return body

    def _send(self, process: ReplicaProcess, method: str, path: str, body: Json) -> None:
        form = "merge-patch+json" if method == "PATCH" else "json"
        headers = {"content-type": f"application/{form}"}
        content = json.dumps(body).encode()
        sent = Request(method, path, {}, headers, content, process.identity)
        assert self.world.cluster.handle(sent).status < 300

    # Processes

    def do_stops(self, process: _Replica) -> None:
        process.is_stopping = True
        process.operator.ending.set_result(None)

    def do_retires(self, process: _Replica) -> None:
        process.is_stopping = True

    def do_dies(self, process: _Replica) -> None:
        self.world.kill(process)

    def do_fails(self, process: _Replica, error: str) -> None:
        process.operator.ending.set_exception(getattr(builtins, error)("a bug"))

    def do_refuses(self, process: _Replica) -> None:
        """Ignore in the end that it is to stop."""
        process.operator.is_stubborn = True

    def do_leaves(self, process: _Replica, seconds: float) -> None:
        """Begin a task that outlives its operator."""
        self.loop.create_task(asyncio.sleep(seconds), context=process.context.copy())

    def do_comes(self, who: str, priority: int, seconds: float) -> None:
        self.world.peers.join(priority, seconds, is_lost=False)

    def do_joins(self, process: _Replica) -> None:
        self._send(process, "PATCH", _PEERING, {"status": {process.identity: {"priority": 1}}})

    # Leases

    def do_leases(self, process: _Replica, holder: str) -> None:
        """Write the Lease of the leader, for a replica."""
        holder = self._get_replica(holder).identity
        spec = {"holderIdentity": holder, "renewTime": f"{self.loop.time()}"}
        self._write_lease(process, "operator", spec=spec)

    def do_owns(self, process: _Replica, shards: str, believes: str = "") -> None:
        """Have a Lease and shards; it can believe to own others."""
        context, slot = process.operator.context, f"operator-member-0{process.number}"
        context.pausing.fence = Fence(self.loop.time)
        context.pausing.fence.ends_at = math.inf
        context.ownership.is_divided = True
        context.ownership.owned = parse_shards(believes or shards)
        self._write_lease(
            process, slot, spec={"holderIdentity": process.identity, "acquireTime": "now"}
        )
        lease = self.world.ask("GET", f"{_LEASES}/operator-shards").body
        owners = json.loads(lease.get("metadata", {}).get("annotations", {}).get(_OWNERS, "[]"))
        claim = {"holder": process.identity, "since": "now", "slot": slot, "shards": shards}
        notes = {_OWNERS: json.dumps([*owners, claim])}
        self._write_lease(process, "operator-shards", annotations=notes)

    def _write_lease(self, process: _Replica, name: str, spec: Any = None, **metadata: Any) -> None:
        body: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        body |= {"metadata": {"name": name, **metadata}, "spec": spec or {}}
        if self.world.ask("GET", f"{_LEASES}/{name}").status == 404:
            self._send(process, "POST", _LEASES, body)
        else:
            self._send(process, "PATCH", f"{_LEASES}/{name}", body)

    # Webhooks

    def do_serves(self, process: _Replica, version: int = 1) -> None:
        """Serve webhooks, and be known to do so."""
        assert self.world.admission is not None
        server = self.world.admission.servers[process] = Server(process.identity)
        server.fn = process.operator.run
        process.operator.webhooks.manager.is_applied.set()
        self.world.admission.versions[process] = version
        self.world.admission.listed.append(process)

    def do_configures(self, process: _Replica, **webhooks: list[str]) -> None:
        """Write webhook configurations, by their ways."""
        for way, names in webhooks.items():
            path, served = _HOOKS.format(way), [*map(_build_webhook, names)]
            head = {"apiVersion": "admissionregistration.k8s.io/v1"}
            metadata = {"metadata": {"name": "operator"}}
            body = {**head, **metadata, "kind": f"{way.capitalize()}WebhookConfiguration"}
            if self.world.ask("GET", f"{path}/operator").status == 404:
                self._send(process, "POST", path, {**body, "webhooks": served})
            else:
                self._send(process, "PATCH", f"{path}/operator", {"webhooks": served})

    def do_loses(self, process: _Replica, what: str) -> None:
        """Be not ready any more, as something is missing."""
        assert self.world.admission is not None
        process.operator.obstacles = [what]
        self.world.admission.judge.judge_unreadiness(process)

    def do_asks(
        self,
        who: str,
        *,
        method: str = "POST",
        plural: str = PLURAL,
        mark: str = "",
        status: int = 201,
        message: str = "",
        spec: Any = None,
    ) -> None:
        """Send a request with webhooks; the mark says what is wrong with the object."""
        assert self.world.admission is not None
        judge, attempt = self.world.admission.judge, Attempt(method, plural, mark)
        judge.judge_request(attempt)
        judge.judge_answer(attempt, Response(status, {"message": message, "spec": spec or {}}))


_OWNERS = "webop.dev/shards"


def _build_webhook(name: str) -> Json:
    rule = {"apiGroups": [GROUP], "apiVersions": ["v1"], "resources": [PLURAL]}
    return {
        "name": f"{name}.sim.webop.dev",
        "clientConfig": {"url": "https://operator"},
        "rules": [{**rule, "operations": ["CREATE"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def read_stories(text: str) -> Iterator[tuple[str, Json, list[str]]]:
    """Return the rule, the plan and the lines of each story; its name begins with the rule."""
    for name, story in yaml.safe_load(text).items():
        lines = story["story"].strip().splitlines()
        yield name, {key: story[key] for key in story if key != "story"}, lines
