"""Admission in histories: replicas that serve webhooks behind one Service, and those who call them.

Place in the flow: webop itself keeps the webhook configurations in the simulated cluster. Requests
of users are carried out in steps (:meth:`Cluster.perform`), and the reviews go to one of the
endpoints of the Service, as kube-apiserver does it: one attempt for each review, unless the
answer asks for another one (429 and 5xx with Retry-After, ten times at most).

Guarantees:
    - Endpoints come and go some time after the readiness of their replicas has changed.
    - A changed webhook configuration is in force some time later, as planned.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

import webop
from tools.simulation.admission_rules import AdmissionJudge, Attempt
from tools.simulation.replicas import GROUP, NAMESPACE, PLURAL, ReplicaProcess
from webop.errors import ReviewError
from webop.servers.base import WebhookClientConfig, WebhookFn
from webop.testing.apiserver import Refusal, Request, Response
from webop.testing.apiserver.webhooks import Review

if TYPE_CHECKING:
    from tools.simulation.plans import AdmissionPlan
    from tools.simulation.world import World

OTHERS = "others"  # the resource that only the second version of the operator judges
NAME = "operator.sim.webop.dev"  # of the webhook configurations
MARKS = {PLURAL: ("", "", "", "forbidden", "doubtful", "unfit"), OTHERS: ("", "unfit")}
_PROBING = 1.0  # seconds between looks at the readiness of a replica
_AGREEING = 2.0  # seconds in which a replica that stops finds out whether others stay
_JOINING = 3.0  # seconds more than until the end: requests go by the CAs of their begin
_TRIES = 11  # of client-go
_PATIENCE = 60.0  # seconds of a rollout for a new replica to be listed
_ENOUGH = 40.0  # seconds of the calm in which there are still creations to be judged


class Server:
    """The webhook server of one replica (the protocol of ``settings.admission.server``).

    Attributes:
        fn: judges reviews; None while nobody listens.
        context: of the replica's calls.
        calls: those in flight.
        lost: done when the process is killed.
    """

    def __init__(self) -> None:
        self.fn: WebhookFn | None = None
        self.context = contextvars.Context()
        self.calls: set[asyncio.Task[Any]] = set()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Listen until the end."""
        self.context, self.fn = contextvars.copy_context(), fn
        try:
            yield {"service": {"namespace": NAMESPACE, "name": "operator"}, "caBundle": ""}
            await asyncio.Event().wait()
        finally:
            self.fn = None
            if self.calls:
                await asyncio.wait(self.calls)


class Admission:
    """The webhooks of a world.

    Attributes:
        version: of the operator, for the replicas that are started from now on.
        versions: of each process; the second one (1) judges more.
        listed: the endpoints of the Service, as the API server sees them.
        terminating: those that were asked to stop: they are asked if there are no others.
        servers: of each process.
    """

    def __init__(self, world: World, plan: AdmissionPlan) -> None:
        self.plan = plan
        self.version = 1 if plan.shrinks else 0
        self.versions: dict[ReplicaProcess, int] = {}
        self.listed: list[ReplicaProcess] = []
        self.terminating: list[ReplicaProcess] = []
        self.servers: dict[ReplicaProcess, Server] = {}
        self.judge = AdmissionJudge(world, self)
        self._world = world
        self._rng = random.Random(f"reviews {world.plan.seed}")
        self._ready: dict[ReplicaProcess, tuple[bool, bool]] = {}
        self._lags: dict[ReplicaProcess, float] = {}
        self._listed_at: dict[ReplicaProcess, float] = {}  # when the last news arrive
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._count = 0
        world.cluster.add_kind(GROUP, OTHERS, "Other")
        world.cluster.store.observers.append(self.judge.judge_change)
        later = partial(world.network.later, plan.lag)
        world.cluster.webhooks.delay(later)

    def begin(self) -> None:
        """Begin to look at the replicas, and to create objects."""
        self._spawn(self._watch_readiness())
        self._spawn(self._create_again_and_again())

    async def end(self) -> None:
        """Stop what :meth:`begin` began."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def equip(
        self,
        process: ReplicaProcess,
        registry: webop.OperatorRegistry,
        settings: webop.OperatorSettings,
    ) -> None:
        self.versions[process] = self.version
        self._lags[process] = self._rng.uniform(0.0, 3.0)
        server = self.servers[process] = Server()
        settings.admission.server = server.serve
        settings.admission.managed = NAME
        settings.admission.replica_lifetime = self.plan.lifetime
        settings.admission.shutdown_delay = self.plan.shutdown_delay
        _declare(registry, self.version, self.plan)

    def submit(self, requests: Sequence[tuple[str, str, Any]]) -> None:
        """Carry out requests of users, one after another."""
        self._spawn(self._request_all(requests))

    def roll_out(self) -> None:
        """Roll the other version of the operator out."""
        self._spawn(self._roll_out())

    def stop(self, process: ReplicaProcess) -> None:
        """Send SIGTERM to a replica: it serves on for a while (as ``webop run`` does it)."""
        retiring = self._world.loop.create_task(_retire(process), context=process.context.copy())
        process.task.add_done_callback(lambda _: retiring.cancel())

    def note_loss(self, process: ReplicaProcess) -> None:
        """Note that a process was killed: nobody answers the calls in flight."""
        self.judge.note_loss()
        self.servers[process].fn = None
        self.servers[process].lost.set_result(None)

    # The API server.

    async def perform(self, request: Request) -> Response:
        """Carry out a request of a user, with all webhooks that are concerned."""
        steps, verdict = self._world.cluster.perform(request), None
        while True:
            try:
                review = steps.send(verdict)
            except StopIteration as exc:
                response: Response = exc.value
                return response
            verdict = await self._call(review)

    async def _call(self, review: Review) -> Any:
        try:
            async with asyncio.timeout(review.webhook["timeoutSeconds"]):
                for _ in range(_TRIES):
                    try:
                        return await self._call_once(review)
                    except ReviewError as exc:
                        problem = f"HTTP {exc.status}: {exc}"
                        if exc.retry_after is None or 429 != exc.status < 500:
                            break
                        await asyncio.sleep(exc.retry_after)
        except TimeoutError:
            problem = "context deadline exceeded"
        return _fail(problem)

    async def _call_once(self, review: Review) -> Any:
        await asyncio.sleep(self._world.network.draw_latency())
        endpoints = self.listed or self.terminating  # as kube-proxy does it
        if not endpoints:
            return _fail("no endpoints available for service")
        process = self._rng.choice(endpoints)
        server, config = self.servers[process], review.webhook["clientConfig"]
        if server.fn is None:
            return _fail(f"connection refused by {process}")
        copy, path = orjson.loads(orjson.dumps(review)), config["service"]["path"].strip("/")
        call: asyncio.Task[Any] = self._world.loop.create_task(
            server.fn(copy, webhook=path),
            context=server.context.copy(),
        )
        server.calls.add(call)
        call.add_done_callback(server.calls.discard)
        try:
            await asyncio.wait({call, server.lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
        if not call.done() or call.cancelled():
            return _fail(f"connection reset by {process}")
        return call.result()

    async def _watch_readiness(self) -> None:
        while True:
            for process in self._world.processes:
                is_ready = self.is_ready(process)
                state = (is_ready, is_ready and process.is_stopping)
                if state != self._ready.get(process, (False, False)):
                    self._ready[process] = state
                    now = self._world.loop.time()
                    is_joining = is_ready and not process.is_stopping
                    at = now + self._lags[process] + (_JOINING if is_joining else 0.0)
                    at = self._listed_at[process] = max(at, self._listed_at.get(process, 0.0))
                    self._world.network.later(at - now, self._list_endpoint, process, *state)
                    if not is_ready:
                        self._world.network.later(_AGREEING, self.judge.judge_unreadiness, process)
            await asyncio.sleep(_PROBING)

    def is_ready(self, process: ReplicaProcess) -> bool:
        is_alive = process.is_running and not process.is_paused
        is_listening = self.servers[process].fn is not None
        return is_alive and is_listening and not process.operator.list_obstacles()

    def _list_endpoint(self, process: ReplicaProcess, is_ready: bool, is_terminating: bool) -> None:
        what = ("an endpoint" if is_ready else "no endpoint") + ", terminating" * is_terminating
        self._world.tell(f"{process} is {what}")
        for endpoints in (self.listed, self.terminating):
            if process in endpoints:
                endpoints.remove(process)
        if is_ready:
            (self.terminating if is_terminating else self.listed).append(process)

    # The users.

    async def _create_again_and_again(self) -> None:
        """Try creations that store nothing: good ones and bad ones, of all resources."""
        end = self._world.plan.calm_at + _ENOUGH
        while self._world.loop.time() < end:
            plural = OTHERS if self._rng.random() < 0.3 else PLURAL
            spec = {mark: True for mark in [self._rng.choice(MARKS[plural])] if mark}
            self._count += 1
            kind = "Other" if plural == OTHERS else "Thing"
            name = f"probe-{self._count}"
            body = {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}}
            self._spawn(self._request("POST", plural, "", {**body, "spec": spec}, is_dry=True))
            there = self._world.cluster.get_objects(f"{PLURAL}.{GROUP}")
            if there and self._rng.random() < 0.3:
                name = self._rng.choice(sorted(there)).partition("/")[2]
                spec = {mark: True for mark in [self._rng.choice(MARKS[PLURAL])] if mark}
                self._spawn(self._request("PATCH", PLURAL, name, {"spec": spec}, is_dry=True))
            await asyncio.sleep(self.plan.pace * self._rng.uniform(0.5, 1.5))

    async def _request_all(self, requests: Sequence[tuple[str, str, Any]]) -> None:
        for method, name, body in requests:
            target = name or body["metadata"]["name"]
            async with self._turns[target]:  # nobody changes what they have not created yet
                await self._request(method, PLURAL, name, body)

    async def _request(
        self, method: str, plural: str, name: str, body: Any, *, is_dry: bool = False
    ) -> None:
        path = f"/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{plural}"
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else orjson.dumps(body)
        query = {"dryRun": "All"} if is_dry else {}
        request = Request(
            method, f"{path}/{name}" if name else path, query, {"content-type": kind}, content, "u"
        )
        marks = sorted(set(body["spec"]) & {*MARKS[PLURAL]}) if body and "spec" in body else []
        attempt = Attempt(method, plural, "".join(marks))
        self.judge.judge_request(attempt)
        answer = await self.perform(request)
        self.judge.judge_answer(attempt, answer)

    async def _roll_out(self) -> None:
        """Replace all replicas by those of the other version, as a Deployment does it."""
        self.version = 0 if self.plan.shrinks else 1
        world = self._world
        for number, old in enumerate(list(world.replicas)):
            is_beside = world.plan.has_leases  # else, there is but one at a time
            if is_beside:
                world.launch(number)
                until = world.loop.time() + _PATIENCE
                while world.loop.time() < until and world.replicas[number] not in self.listed:
                    await asyncio.sleep(_PROBING)
            if old is not None and old.is_running and not old.is_stopping:
                old.is_stopping = True
                world.tell(f"{old} is replaced")
                self.stop(old)
                if not is_beside:
                    world.network.later(1.0, world.restart, old)

    def _spawn(self, coro: Any) -> None:
        task = self._world.loop.create_task(coro, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _retire(process: ReplicaProcess) -> None:
    try:
        await process.operator.retire()
    finally:
        process.task.cancel()


def _fail(problem: str) -> Refusal:
    return Refusal(500, "InternalError", problem)


def _declare(registry: webop.OperatorRegistry, version: int, plan: AdmissionPlan) -> None:
    async def refuse(mark: str, spec: Any) -> None:
        await asyncio.sleep(plan.seconds)
        if spec.get(mark):
            raise webop.AdmissionError(f"It is {mark}.")

    @webop.on.validate(
        GROUP, "v1", PLURAL, persistent=plan.is_persistent, id="check", registry=registry
    )
    async def check(spec: Any, **_: Any) -> None:
        await refuse("forbidden", spec)

    @webop.on.validate(GROUP, "v1", PLURAL, id="twin", registry=registry)
    async def doubt(spec: Any, **_: Any) -> None:
        await refuse("doubtful", spec)

    @webop.on.validate(GROUP, "v1", PLURAL, id="twin", registry=registry)
    async def agree(**_: Any) -> None:
        pass

    @webop.on.mutate(GROUP, "v1", PLURAL, operations=["CREATE"], id="stamp", registry=registry)
    async def stamp(patch: webop.Patch, **_: Any) -> None:
        patch.spec["stamp"] = "yes"

    plural: Any = webop.EVERYTHING if version else PLURAL
    operations: Any = ["CREATE", "UPDATE"] if version else ["CREATE"]

    @webop.on.validate(GROUP, "v1", plural, operations=operations, id="grow", registry=registry)
    async def grow(spec: Any, **_: Any) -> None:
        await refuse("unfit", spec)
