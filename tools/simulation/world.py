"""One history: a cluster, a network, users, replicas; everything in one thread, in virtual time.

Flow: :func:`run` makes the world of a plan, lets its steps happen, waits in the calm for everything
to converge, ends the replicas, and returns what was wrong (:mod:`tools.simulation.invariants`).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import hashlib
import itertools
import logging
import math
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn
from unittest import mock

import orjson

from tests.kit.memory_cluster import MemoryCluster
from tools.simulation.admission import Admission
from tools.simulation.invariants import Judge, list_notes
from tools.simulation.network import HANGING, FaultyNetwork
from tools.simulation.patience import LATENESS, SETTLING, SETTLING_SOON
from tools.simulation.peers import Peers
from tools.simulation.plans import SPOILING, STRIKES, USES, HandlerPlan, Plan, Step
from tools.simulation.replicas import (
    BESIDE,
    CATEGORY,
    FOREIGN,
    GROUP,
    GUARD,
    LABEL,
    LEASE,
    NAMESPACE,
    NOTE,
    PARTS,
    PLURAL,
    Call,
    ReplicaProcess,
)
from tools.simulation.themes import STATE_KINDS
from tools.simulation.virtual import EPOCH, virtual_time
from webop.errors import WebopError
from webop.logs.formats import TextFormatter
from webop.testing import apiserver as servers
from webop.testing.apiserver.kinds import CRDS
from webop.testing.simulation.network import Sender
from webop.testing.simulation.virtual_loop import (
    DeadlockError,
    LivelockError,
    VirtualLoop,
    current_process,
)

_EXIT = 60.0  # seconds for a replica to end when it is asked to
_CONVERGENCE = 200.0  # seconds in the calm, in which nothing goes wrong
_CONVERGENCE_OF_CROWDS = 1200.0  # the same, if ``worker_limit`` makes a crowd wait
_LOOKS = 2.0  # seconds between looks in the calm
_BUSINESS = 20.0  # seconds; the longest delay of attempts, and a call
_BUSINESS_OF_CROWDS = 60.0  # the same, and a crowd is indexed before
_COLLECTION = 20  # histories between collections of garbage, which are expensive
_LEASE_GRACE = 0.05  # seconds; as webop's own thread has it
_LEASE_NAP = 0.5  # seconds between two looks without a lease
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_PEERINGS = f"/apis/kopf.dev/v1/namespaces/{NAMESPACE}/kopfpeerings"
_DISTURBING = STRIKES | {"fault", "alter", "regroup", "unlock", "lease deleted"}
_DISTURBING |= {"rollout", "upgrade"}
_DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"
PARTS_PATH = f"/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{PARTS}"
OBJECTS = f"/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{PLURAL}"


def _build_foreign(name: str) -> dict[str, Any]:
    """Return a part that is not the operator's; one is the child of another object."""
    labels = {"webop.dev/owner": "nobody", "webop.dev/reconciler": "keeper"}
    metadata = {"name": name, "labels": labels if name == FOREIGN[1] else {}}
    return {"apiVersion": f"{GROUP}/v1", "kind": "Part", "metadata": metadata, "spec": {}}


@dataclass
class Verdict:
    """What a history has shown.

    Attributes:
        violations: what was wrong; the first one counts.
        story: what happened, line by line.
        calls: the number of calls of handlers.
        requests: the number of requests to the API server.
        seconds: of virtual time.
        digest: of all that happened: the same for the same plan.
    """

    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    calls: int = 0
    requests: int = 0
    seconds: float = 0.0
    digest: str = ""


class World:
    def __init__(self, plan: Plan, loop: VirtualLoop) -> None:
        self.plan = plan
        self.loop = loop
        self.rng = random.Random(f"world {plan.seed}")
        rng = random.Random(plan.seed)
        self.cluster = MemoryCluster(self._read_wall_clock, rng)
        self.judge = Judge(self)
        self.network = FaultyNetwork(loop, self.cluster, self.rng, self._note_request)
        self.calls: list[Call] = []
        self.replicas: list[ReplicaProcess | None] = [None] * plan.replicas
        self.processes: list[ReplicaProcess] = []
        self.story: list[str] = []
        self._disturbances: list[tuple[float, float, str]] = []  # from, to, the path concerned
        self.unlocked_at: float | None = None
        self.lagging = math.inf, -math.inf  # since and until when, by the clock of the loop
        self._serials = 0
        self._values = 0
        self._is_upgraded = False
        self._counted = 0
        self._requests = 0
        self._digest = hashlib.sha256()
        self.peers = Peers(self.network, loop.time, self._read_wall_clock, self._patch_peering)
        self.cluster.discovery_lag = plan.discovery_lag
        if not plan.is_late:
            self._define()
        self.cluster.add_kind("kopf.dev", "kopfpeerings", "KopfPeering")
        if plan.has_parts:
            self.cluster.add_kind(GROUP, PARTS, "Part")
            for name in FOREIGN:
                self.ask("POST", PARTS_PATH, _build_foreign(name))
            self.cluster.store.observers.append(self._collect_later)
        self._create_peering()
        self.cluster.store.observers.append(self.judge.judge_change)
        self.admission = Admission(self, plan.admission) if plan.admission else None

    @property
    def handlers(self) -> list[HandlerPlan]:
        """The handlers of the present version of the operator."""
        return (self._is_upgraded and self.plan.upgraded) or self.plan.handlers

    async def live(self) -> None:
        """Let everything happen."""
        for number in range(self.plan.replicas):
            self.start(number)
        if self.admission is not None:
            self.admission.begin()
        for step in self.plan.steps:
            await asyncio.sleep(max(0.0, step.at - self.loop.time()))
            self.tell(str(step)[9:])
            self._take(step)
        await asyncio.sleep(max(0.0, self.plan.calm_at - self.loop.time()))
        self._calm_down()
        end = self.loop.time() + (_CONVERGENCE_OF_CROWDS if self._is_crowded else _CONVERGENCE)
        await asyncio.sleep(LATENESS)  # what users have sent may still be under review
        while self.judge.calm.list_unfinished() and self.loop.time() < end:
            await asyncio.sleep(_LOOKS)
        await asyncio.sleep(self.plan.calm_at + self._settling - self.loop.time())
        while self._was_busy() and self.loop.time() < end:
            await asyncio.sleep(_LOOKS)
        await self.judge.calm.judge()
        await self._end()

    @property
    def _settling(self) -> float:
        """The seconds in which dead peers are forgotten, and silent watches given up."""
        has_others = self.plan.mode == "peering" or self.admission is not None
        faults = [step.fault for step in self.plan.steps if step.fault is not None]
        is_long = has_others or any(fault.kind in HANGING for fault in faults)
        return SETTLING if is_long else SETTLING_SOON

    @property
    def _is_crowded(self) -> bool:
        """Whether many objects wait for few slots."""
        is_limited = self.plan.worker_limit is not None
        return is_limited and any(step.kind == "crowd" for step in self.plan.steps)

    def _was_busy(self) -> bool:
        """Tell whether handlers were called lately: what must be resumed is on no record."""
        since = self.loop.time() - (_BUSINESS_OF_CROWDS if self._is_crowded else _BUSINESS)
        return any(c.begin > since for c in self.calls if c.plan.kind in STATE_KINDS)

    def tell(self, what: str) -> None:
        line = f"{self.loop.time():8.3f} {what}"
        self.story.append(line)
        self._digest.update(line.encode())

    def start(self, number: int) -> None:
        """Start a replica, unless it runs."""
        present = self.replicas[number]
        if present is None or not present.is_running:
            self.launch(number)

    def launch(self, number: int) -> None:
        """Start a replica, also beside its predecessor."""
        self._serials += 1
        process = ReplicaProcess(self, number, self._serials)
        self.replicas[number] = process
        self.processes.append(process)
        self.disturb(0.0, "start")
        self.tell(f"{process} starts")

    def note_end(self, process: ReplicaProcess, task: asyncio.Task[Any]) -> None:
        """Note that an operator has ended; it is started again, as a kubelet does it."""
        process.ended_at = self.loop.time()
        if process.is_dead:
            return
        error = None if task.cancelled() else task.exception()
        self.tell(f"{process} has ended: {error!r}")
        self.network.cut_off(process)
        self.disturb(0.0)
        self.judge.judge_leftovers(process)
        if self.admission is not None:
            self.admission.judge.judge_exit(process)
        if error is not None and not isinstance(error, WebopError | SelfExit):
            self.judge.complain(f"failure: {process} has failed: {error!r}")
        if not process.is_stopping:
            self.network.later(1.0, self.start, process.number)

    def kill(self, process: ReplicaProcess) -> None:
        """End a process at once: it never runs a step again."""
        process.is_dead = process.is_paused = True
        process.ended_at = self.loop.time()
        self.network.cut_off(process)
        if self.admission is not None:
            self.admission.note_loss(process)
        self.disturb(0.0)
        for call in self.calls:
            if call.process is process and call.end is None:
                call.outcome = "killed"
                self.end_call(call)

    def begin_call(self, call: Call) -> Call:
        if not call.process.is_dead:
            self.judge.judge_begin(call)
            self.calls.append(call)
            self.tell(f"{call}")
        return call

    def end_call(self, call: Call) -> None:
        if call.end is None:
            call.end = self.loop.time()
            self.tell(f"{call}")
            self.judge.judge_end(call)

    def was_disturbed(self, begin: float, end: float, path: str = "", *, ignored: str = "") -> bool:
        """Tell whether anything was wrong with the network or the processes in a time.

        Args:
            begin: by the loop's clock.
            end: by the loop's clock.
            path: if only faults of requests with this in their path count, or "start", "stop",
                "unlock", "watches".
            ignored: what does not count.
        """
        return any(
            first <= end
            and last >= begin
            and (not concerned or path in concerned)
            and not (ignored and ignored == concerned)
            for first, last, concerned in self._disturbances
        )

    def get_token(self, number: int) -> str:
        """Return a token for a login that has to bring another one; nothing if there is none."""
        faults = [fault for fault in self.network.faults if fault.status == 401]
        is_locked = any(fault.concerns(number, "GET", "") for fault in faults)
        return "" if is_locked else f"token-{number}-{self.loop.time():.3f}"

    def count(self) -> int:
        """Return a number that is greater than all others before it."""
        self._counted += 1
        return self._counted

    def request(self, method: str, name: str = "", body: Any = None) -> servers.Response:
        return self.ask(method, f"{OBJECTS}/{name}" if name else OBJECTS, body)

    def ask(self, method: str, path: str, body: Any = None) -> servers.Response:
        """Ask the API server as the user, about anything."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else orjson.dumps(body)
        headers = {"content-type": kind}
        return self.cluster.handle(servers.Request(method, path, {}, headers, content, "user"))

    def list_objects(self) -> dict[str, Any]:
        items = self.request("GET").body.get("items", ())
        return {item["metadata"]["name"]: item for item in items}

    def get_verdict(self) -> Verdict:
        return Verdict(
            self.judge.violations,
            self.story,
            len(self.calls),
            self._requests,
            self.loop.time(),
            self._digest.hexdigest()[:16],
        )

    def _take(self, step: Step) -> None:
        changes: dict[str, Callable[[], Any]] = {
            "compact": self.cluster.compact,
            "define": self._define,
            "alter": self._alter,
            "regroup": self._regroup,
            "unlock": self._unlock,
            "lease deleted": partial(self.ask, "DELETE", f"{_LEASES}/{LEASE}-{step.target}"),
        }
        if step.kind in USES:
            self._act_as_user(step)
        elif step.kind in changes:
            changes[step.kind]()
        elif step.kind == "fault":
            assert step.fault is not None
            self.network.begin(step.fault)
            self.network.later(step.seconds, self.network.end, step.fault)
        elif step.kind == "policy":
            assert step.fault is not None
            self.network.policies.append(step.fault)
        elif step.kind == "crowd":
            for number in range(int(step.target)):
                self._act_as_user(Step(step.at, "create", f"crowd-{number}"))
        elif step.kind == "lag":
            self.cluster.set_lag(5)
            now, (begin, end) = self.loop.time(), self.lagging
            self.lagging = (begin if now < end else now), max(end, now + step.seconds)
            self.network.later(step.seconds, self._catch_up)
        elif step.kind == "upgrade":
            self._upgrade(step)
        elif step.kind in {"peer", "lost peer"}:
            self.peers.join(int(step.target), step.seconds, is_lost=step.kind == "lost peer")
        elif step.kind == "rollout":
            assert self.admission is not None
            self.admission.roll_out()
        else:
            self._strike(step)
        if step.kind in _DISTURBING:
            delay = 0.0 if step.fault is None else step.fault.seconds  # of each request
            self.disturb(abs(step.seconds) + delay, _name_disturbance(step))

    def disturb(self, seconds: float, path: str = "") -> None:
        """Note that something is disturbed from now on: see :meth:`was_disturbed`."""
        self._disturbances.append((self.loop.time(), self.loop.time() + seconds, path))

    def _act_as_user(self, step: Step) -> None:
        self._values += 1
        spec = {"spec": {"value": self._values}}
        name = str(step.target)
        requests: list[tuple[str, str, Any]] = []
        if step.kind in {"delete", "replace"}:
            requests.append(("DELETE", name, None))
        if step.kind in {"create", "replace"}:
            labels = {LABEL: "yes"} if self._values % 2 else {}
            head = {"apiVersion": f"{GROUP}/v1", "kind": "Thing"}
            body = {**head, "metadata": {"name": name, "labels": labels}, **spec}
            requests.append(("POST", "", body))
        elif step.kind == "update":
            requests.append(("PATCH", name, spec))
        elif step.kind in {"label", "toggle"}:
            is_chosen = bool(self._values % 2)
            if step.kind == "toggle":
                metadata = self.list_objects().get(name, {}).get("metadata", {})
                is_chosen = LABEL not in metadata.get("labels", {})
            label = "yes" if is_chosen else None
            requests.append(("PATCH", name, {"metadata": {"labels": {LABEL: label}}}))
        elif step.kind == "annotate":
            notes = {NOTE: str(self._values)}
            requests.append(("PATCH", name, {"metadata": {"annotations": notes}}))
        elif step.kind == "meddle":
            requests += self._meddle(name)
        elif step.kind in SPOILING:
            self._spoil(step.kind, f"{name}-a")
        elif step.kind in {"guard", "unguard"}:
            self._guard(name, is_guarded=step.kind == "guard")
        if self.admission is not None:
            self.admission.submit(requests)
            return
        for request in requests:
            self.request(*request)

    def _meddle(self, name: str) -> list[tuple[str, str, Any]]:
        """Overwrite what handlers have written."""
        body, value = self.list_objects().get(name, {}), f"user#{self._values}"
        status = dict.fromkeys(list_notes(body.get("status", {})), value)
        path = f"{name}/status" if self.plan.has_status else name
        return [("PATCH", path, {"status": status})] if status else []

    def _guard(self, name: str, *, is_guarded: bool) -> None:
        """Add the finalizer of another operator to an object, or remove it."""
        metadata = self.list_objects().get(name, {}).get("metadata", {})
        finalizers = [each for each in metadata.get("finalizers", ()) if each != GUARD]
        finalizers += [GUARD] if is_guarded else []
        self.request("PATCH", name, {"metadata": {"finalizers": finalizers}})

    def _spoil(self, what: str, name: str) -> None:
        """Delete a part of an object, edit it, or take away by what it is found."""
        path = f"{PARTS_PATH}/{name}"
        if what == "part deleted":
            self.ask("DELETE", path)
        elif what == "part edited":
            self.ask("PATCH", path, {"spec": {"value": -1}})
        elif self._values % 2:
            self.ask("PATCH", path, {"metadata": {"ownerReferences": None}})
        else:
            self.ask("PATCH", path, {"metadata": {"labels": None}})

    def _collect_later(self, change: servers.Change) -> None:
        """Delete the parts of objects that are gone, as the garbage collector does."""
        is_gone = change.resource == f"{PLURAL}.{GROUP}" and change.new is None
        if is_gone or (change.resource == f"{PARTS}.{GROUP}" and change.new is not None):
            self.network.later(0.5, self._collect)

    def _collect(self) -> None:
        uids = {body["metadata"]["uid"] for body in self.list_objects().values()}
        for name, body in self.list_parts().items():
            owners = {owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()}
            if owners and not owners & uids:
                self.ask("DELETE", f"{PARTS_PATH}/{name}")

    def list_parts(self) -> dict[str, Any]:
        items = self.ask("GET", PARTS_PATH).body.get("items", ())
        return {item["metadata"]["name"]: item for item in items}

    def look_beside(self, name: str) -> int:
        """Return the value of the object that the parts of an object depend on; 0 for none."""
        beside = self.list_objects().get(BESIDE.get(name, ""), {})
        value: int = beside.get("spec", {}).get("value", 0)
        return value

    def _upgrade(self, step: Step) -> None:
        """Replace one replica after another by one of the next version."""
        self._is_upgraded = True
        for number, process in enumerate(self.replicas):
            if process is not None:
                self.network.later(number * step.seconds, self._replace, process, step.seconds)

    def _replace(self, process: ReplicaProcess, seconds: float) -> None:
        if process.is_paused:  # it does not end in time
            self._resume(process)
            kind = "kill"
        else:
            kind = "stop"
        if self.replicas[process.number] is process:
            self._strike(Step(self.loop.time(), kind, process.number, seconds))

    def _strike(self, step: Step) -> None:
        known: dict[Any, ReplicaProcess | None] = dict(enumerate(self.replicas))
        known["leader"] = next(
            (one for one in self.replicas if one and one.identity == self.judge.leadership.holder),
            None,
        )
        process = known.get(step.target)
        if process is None or not process.is_running or process.is_paused:
            return
        if step.kind == "stop" and process.is_stopping and self.admission is not None:
            return  # it is told once
        if step.kind == "pause":
            process.is_paused = True
            self.network.later(step.seconds, self._resume, process)
            return
        process.is_stopping = True
        if step.kind == "kill":
            self.kill(process)
        elif self.admission is not None:
            self.admission.stop(process)
        else:
            process.task.cancel()
        self.network.later(step.seconds, self.restart, process)

    def restart(self, process: ReplicaProcess) -> None:
        if process.is_running:  # it is not over yet
            self.network.later(1.0, self.restart, process)
        else:
            self.start(process.number)

    def _resume(self, process: ReplicaProcess) -> None:
        if not process.is_dead:
            process.is_paused = False
            self.tell(f"{process} goes on")
            self.loop.resume()

    def _define(self) -> None:
        self.cluster.add_kind(GROUP, PLURAL, "Thing", has_status=self.plan.has_status)

    def _alter(self) -> None:
        """Let the kind gain a status endpoint, or lose it."""
        if crd := self._read_definition():
            version = crd["spec"]["versions"][0]
            version["subresources"] = {} if version.get("subresources") else {"status": {}}
            self.ask("PUT", _DEFINITION, crd)

    def _regroup(self) -> None:
        """Let the kind join a category, or leave it."""
        if crd := self._read_definition():
            crd["spec"]["names"]["categories"] = [] if self.is_grouped else [CATEGORY]
            self.ask("PUT", _DEFINITION, crd)

    def _read_definition(self) -> Any:
        """Return a copy of the definition of the kind; what the cluster answers is its own."""
        response = self.ask("GET", _DEFINITION)
        return orjson.loads(response.encode()) if response.status == 200 else None

    @property
    def is_grouped(self) -> bool:
        """Whether the kind belongs to the category."""
        crd = self.cluster.get_objects(CRDS).get(f"{PLURAL}.{GROUP}", {})
        return bool(crd.get("spec", {}).get("names", {}).get("categories"))

    def _unlock(self) -> None:
        """Delete what replicas or operators coordinate themselves by; somebody puts it back."""
        self.unlocked_at = self.loop.time()
        for lease in self.ask("GET", _LEASES).body["items"]:
            self.ask("DELETE", f"{_LEASES}/{lease['metadata']['name']}")
        self.ask("DELETE", f"{_PEERINGS}/default")
        self.network.later(3.0, self._create_peering)

    def _create_peering(self) -> None:
        head = {"apiVersion": "kopf.dev/v1", "kind": "KopfPeering"}
        self.ask("POST", _PEERINGS, {**head, "metadata": {"name": "default"}})

    def _patch_peering(self, patch: dict[str, Any]) -> None:
        self.ask("PATCH", f"{_PEERINGS}/default", patch)

    def _catch_up(self) -> None:
        self.cluster.set_lag(0)

    def _calm_down(self) -> None:
        self.tell("calm")
        self.network.faults.clear()
        self._catch_up()
        for name in self.list_objects():
            self._guard(name, is_guarded=False)
        for number, process in enumerate(self.replicas):
            if process is not None and process.is_paused and not process.is_dead:
                self._resume(process)
            self.start(number)

    async def _end(self) -> None:
        """Stop all replicas; those that were killed end now, without anybody hearing of it."""
        self.tell("the end")
        for process in self.processes:
            is_retiring = process.is_stopping and self.admission is not None
            process.is_stopping = True
            if process.is_dead:
                process.is_paused = False
            if process.is_dead or not is_retiring:
                process.task.cancel()
        self.loop.resume()
        _, pending = await asyncio.wait({p.task for p in self.processes}, timeout=_EXIT)
        for task in pending:
            self.judge.complain(f"exit: {task.get_name()} does not end within {_EXIT:g} s")
        if self.admission is not None:
            await self.admission.end()
        await asyncio.sleep(1.0)

    def _note_request(self, sender: Sender, request: servers.Request) -> None:
        self._requests += 1
        if request.method != "GET":
            # Webhook configurations have the ids of real processes.
            is_long = "/leases/" in request.path or "webhookconfigurations" in request.path
            body = "" if is_long else (request.body or b"").decode()
            self.tell(f"{sender}: {request.method} {request.path.removeprefix(OBJECTS)} {body}")

    def _read_wall_clock(self) -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=self.loop.time())

    def begin_thread(self, thread: threading.Thread) -> None:
        """Do what a thread of webop would do, in the loop."""
        if thread.name == "end of the lease":
            process = current_process.get()
            assert isinstance(process, ReplicaProcess)
            self._watch_lease(thread._target.__self__, process)  # type: ignore[attr-defined]
        elif thread.name != "webop-watchdog":
            raise AssertionError(f"a thread: {thread.name}")

    def _watch_lease(self, watchdog: Any, process: ReplicaProcess) -> None:
        """Look as the thread at the end of a lease does; it ends its process."""
        if watchdog._stopped.is_set() or not process.is_running:
            return
        fence = watchdog._fence  # by the time of the loop, as all clocks but those on the wall
        rest = fence.ends_at - self.loop.time() + _LEASE_GRACE
        if rest <= 0 and fence.threads and not process.is_paused:
            with contextlib.suppress(SelfExit):
                process.context.copy().run(watchdog._on_overrun)
            self.tell(f"{process} ends itself")
            self.kill(process)
            self.network.later(1.0, self.start, process.number)
            return
        nap = _LEASE_NAP if rest < -_LEASE_NAP else max(rest, _LEASE_GRACE)
        self.network.later(nap, self._watch_lease, watchdog, process)


def _name_disturbance(step: Step) -> str:
    """Say what is disturbed: a part of paths, or nothing for everything."""
    if step.fault is not None:
        return "watches" if step.fault.kind in {"cut", "mute"} else step.fault.path
    names = {"unlock": "unlock leases", "lease deleted": "leases", "stop": "stop"}
    return names.get(step.kind, "")


class SelfExit(BaseException):
    """A process ends itself."""


def _exit(_: int) -> NoReturn:
    raise SelfExit


class _StoryHandler(logging.Handler):
    """Puts what is logged into a story, with the moment and the replica; not into the digest."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.setFormatter(TextFormatter("%(levelname)s %(name)s: %(message)s", has_prefix=True))

    def emit(self, record: logging.LogRecord) -> None:
        moment, process = self._world.loop.time(), current_process.get()
        self._world.story.append(f"{moment:8.3f} {process}: {self.format(record)}")


_runs = itertools.count()


def run(plan: Plan, *, has_logs: bool = False) -> Verdict:
    """Run a history."""
    with _interruptible() as loop:
        return _run(plan, loop, has_logs=has_logs)


def _run(plan: Plan, loop: VirtualLoop, *, has_logs: bool) -> Verdict:
    if next(_runs) % _COLLECTION == 0:
        gc.unfreeze()
        gc.collect()  # what is left of others
    gc.freeze()
    gc.disable()
    errors: list[str] = []
    loop.set_exception_handler(lambda _, context: errors.append(str(context)))
    problem = ""
    world = World(plan, loop)
    if has_logs:
        logging.disable(logging.NOTSET)
        logging.basicConfig(level=logging.DEBUG, handlers=[_StoryHandler(world)], force=True)
    with virtual_time(loop, plan.seed, world.begin_thread), _quiet():
        try:
            loop.run_until_complete(world.live())
        except (LivelockError, DeadlockError) as exc:
            problem = f"{type(exc).__name__}: {exc}"
        finally:
            gc.enable()
            loop.close()
    verdict = world.get_verdict()
    verdict.violations += [problem] if problem else []
    verdict.violations += [f"an error nobody has caught: {text}" for text in errors]
    return verdict


@contextlib.contextmanager
def _interruptible() -> Iterator[VirtualLoop]:
    """Yield a loop that ends with ``KeyboardInterrupt`` after Ctrl-C; no step can catch that."""
    loop = VirtualLoop()
    if threading.current_thread() is not threading.main_thread():
        yield loop
        return
    former = signal.signal(signal.SIGINT, lambda *_: loop.interrupt(KeyboardInterrupt()))
    try:
        yield loop
    finally:
        signal.signal(signal.SIGINT, former)
    if loop.interruption is not None:  # after its last step
        raise KeyboardInterrupt


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No process is ended, and nothing is logged unless it is asked for."""
    with mock.patch.object(os, "_exit", _exit), mock.patch.object(logging, "shutdown"):
        yield
