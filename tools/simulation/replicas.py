"""Replicas of an operator: webop itself, with handlers that do what the plan says.

A replica is a process: it has its own connections and its own clock, and can be killed, stopped
and paused. Killed, it never runs a step again. Each start of it is another incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import webop
from tools.simulation.plans import HandlerPlan, Plan
from tools.simulation.themes import BACKGROUND_KINDS, STATE_KINDS
from tools.simulation.virtual import VirtualThreads, block
from webop.client.auth.vault import ConnectionInfo
from webop.reactor.observer import Scope
from webop.runtime.operator import Operator, OperatorOptions
from webop.testing.simulation.network import SimulatedTransport
from webop.testing.simulation.virtual_loop import Process, current_process

if TYPE_CHECKING:
    from tools.simulation.world import World

PLURAL = "things"
PARTS = "parts"
FOREIGN = ("foreign", "of-another")  # parts that are not the operator's
GROUP = "sim.webop.dev"
NAMESPACE = "default"
LEASE = "operator"
CANARIES = 5  # shards that all canaries own together
BESIDE = {"one": "two", "two": "three", "three": "one"}
"""On which other object the parts of an object depend."""
LABEL = "chosen"
CATEGORY = "sims"
NOTE = "note"  # an annotation
PREFIX = "kopf.zalando.org"  # of the annotations of operators
DIFFBASE = f"{PREFIX}/last-handled-configuration"
FINALIZER = f"{PREFIX}/KopfFinalizerMarker"
GUARD = "sim.webop.dev/guard"  # the finalizer of another operator
FAILED = {"temporary", "error"}  # outcomes of attempts
FINAL = {"ok", "permanent"}
COUNTING = {"count", "count-fn"}  # effects
_UNTIL_ABANDONED = 1.0  # seconds since the cancellation of a daemon that does not end
_UNTIL_FAILURE = 0.5  # seconds that a daemon runs before its attempt fails


class Wish(NamedTuple):
    """What users want of an object; values and notes only grow."""

    value: int
    is_chosen: bool
    note: int


def get_essence(body: Mapping[str, Any]) -> str:
    """Return the state of an object that its handlers are called for, as text."""
    meta = body.get("metadata", {})
    note = meta.get("annotations", {}).get(NOTE)
    notes = {NOTE: note} if note else {}
    return json.dumps({**body.get("spec", {}), **meta.get("labels", {}), **notes}, sort_keys=True)


def get_wish(body: Mapping[str, Any]) -> Wish:
    """Return what users have made of an object: what handlers leave alone."""
    meta = body.get("metadata", {})
    is_chosen = meta.get("labels", {}).get(LABEL) == "yes"
    note = int(meta.get("annotations", {}).get(NOTE, 0))
    return Wish(body.get("spec", {}).get("value", 0), is_chosen, note)


@dataclass(eq=False)
class Call:
    """One call of a handler.

    Attributes:
        essence: the state that it is called for.
        wish: the part of it that users make; each of their changes makes another one.
        end: when it ended; None until then.
        outcome: "ok", "temporary", "error", "permanent", "cancelled"; nothing until then.
        delay: until the next attempt, as the handler wants it.
        run: of a timer or daemon: its ``stopped``. Each time it is started, it gets another one.
        started: when the first attempt began, as webop says.
    """

    process: ReplicaProcess
    plan: HandlerPlan
    handler: str
    uid: str
    name: str
    essence: str
    wish: Wish
    retry: int
    reason: str
    begin: float
    end: float | None = None
    outcome: str = ""
    delay: float = 0.0
    run: webop.DaemonStopped | None = None
    started: dt.datetime | None = None

    def __str__(self) -> str:
        times = f"{self.begin:.3f} to {'...' if self.end is None else f'{self.end:.3f}'}"
        what = f"{self.handler} of {self.name} ({self.uid[:8]}) {self.essence}"
        return f"{self.process}: {what} retry {self.retry}, {times}: {self.outcome or 'running'}"


class ReplicaProcess(Process):
    """One incarnation of a replica.

    Attributes:
        handlers: of its version.
        daemons: those that run, by handler and uid.
        started_daemons: when they have started last.
        ended_daemons: those that have ended by themselves, and timers that failed for good.
        task: the whole operator.
        is_dead: whether it was killed.
        stopping_since: when it was asked to end.
    """

    def __init__(self, world: World, number: int, serial: int) -> None:
        super().__init__()
        self.number = number
        self.serial = serial
        self.identity = f"replica-{number}-{serial}"
        self.daemons: dict[tuple[str, str], int] = {}
        self.started_daemons: dict[tuple[str, str], float] = {}
        self.ended_daemons: set[tuple[str, str]] = set()
        self.handlers = world.handlers
        self.started_at = world.loop.time()
        self.ended_at: float | None = None
        self.is_dead = False
        self.stopping_since: float | None = None
        self.world = world
        self.context = contextvars.copy_context()
        self.context.run(current_process.set, self)
        self.operator: Operator
        self.context.run(self._build)
        self.task = world.loop.create_task(
            self.operator.run(), name=self.identity, context=self.context
        )
        grace = 0.001 if world.admission else 0.0  # seconds for what waits for the signal to end
        self.task.add_done_callback(partial(world.network.later, grace, world.note_end, self))

    @property
    def is_stopping(self) -> bool:
        """Tell whether it was asked to end."""
        return self.stopping_since is not None

    @is_stopping.setter
    def is_stopping(self, value: bool) -> None:
        if not value or self.stopping_since is None:  # another signal changes nothing
            self.stopping_since = self.world.loop.time() if value else None

    def __str__(self) -> str:
        return self.identity

    @property
    def is_running(self) -> bool:
        return not self.is_dead and not self.task.done()

    @property
    def is_sharer(self) -> bool:
        """Whether it shares the work with others, instead of being elected."""
        plan = self.world.plan
        return plan.mode == "shards" and self.number not in plan.leaders

    @property
    def is_canary(self) -> bool:
        return self.number in self.world.plan.canaries

    @property
    def indexing(self) -> float:
        """The seconds that one call of each indexer takes together."""
        return sum(plan.seconds for plan in self.handlers if plan.kind == "index")

    def _build(self) -> None:
        plan = self.world.plan
        registry = webop.OperatorRegistry()

        @webop.on.login(registry=registry, id="login")
        async def login(**_: Any) -> ConnectionInfo | None:
            token = self.world.get_token(self.number)
            return ConnectionInfo(server="http://cluster", token=token) if token else None

        fns: dict[str, Any] = {}  # those with several decorators have one id
        for handler in self.handlers:
            fn = fns.setdefault(handler.id, _build_function(handler, self))
            _declare(registry, handler, fn)
        settings = self._build_settings(plan)
        if self.world.admission is not None:
            self.world.admission.equip(self, registry, settings)
        transport = SimulatedTransport(self.world.network, self)
        self.operator = Operator(
            OperatorOptions(
                registry=registry,
                settings=settings,
                scope=Scope(clusterwide=False, patterns=(NAMESPACE,)),
                identity=self.identity,
                is_hosted=plan.is_hosted,
                transport_factory=lambda _: transport,
            )
        )

    def _build_settings(self, plan: Plan) -> webop.OperatorSettings:
        settings = webop.OperatorSettings()
        settings.execution.executor = VirtualThreads()
        settings.background.executor = VirtualThreads()
        settings.peering.standalone = plan.mode != "peering"
        settings.peering.mandatory = plan.mode == "peering"
        settings.peering.priority = self.number
        if plan.has_leases:
            settings.leadership.lease_name = LEASE
            settings.leadership.lease_namespace = NAMESPACE
            settings.leadership.sharded = self.is_sharer
            settings.leadership.canary_shards = CANARIES if self.is_canary else None
        for section, values in plan.settings.items():
            for name, value in values.items():
                setattr(getattr(settings, section), name, value)
        return settings

    def act(self, plan: HandlerPlan, handler: str, kwargs: Mapping[str, Any]) -> _Act:
        return _Act(self.world, self, plan, handler, kwargs)


@dataclass
class _Act:
    world: World
    process: ReplicaProcess
    plan: HandlerPlan
    handler: str
    kwargs: Mapping[str, Any]
    is_in_thread: bool = False
    call: Call = field(init=False)

    def __post_init__(self) -> None:
        kwargs = self.kwargs
        self.world.judge.background.judge_sight(self.process, self.handler)
        self.call = self.world.begin_call(
            Call(
                self.process,
                self.plan,
                self.handler,
                kwargs["uid"],
                kwargs["name"],
                get_essence(kwargs["body"]),
                get_wish(kwargs["body"]),
                kwargs.get("retry", 0) or 0,
                str(kwargs.get("reason") or kwargs.get("type") or ""),
                self.world.loop.time(),
                run=kwargs.get("stopped"),
                started=kwargs.get("started"),
            )
        )

    def decide(self) -> dict[str, Any] | None:
        """Change the object; return or raise what the plan says."""
        attempt = self.plan.get_attempt(self.call.retry)
        # What the attempts of timers and daemons change is written even if they fail.
        if attempt.end == "ok" or self.plan.kind not in STATE_KINDS:
            self._change(self.kwargs["patch"])
        if attempt.end == "ok":
            return self.build_result()
        self.call.delay = attempt.delay
        if attempt.end == "temporary":
            raise webop.TemporaryError("not yet", delay=attempt.delay)
        if attempt.end == "permanent":
            raise webop.PermanentError("never")
        self.call.delay = self.world.plan.settings["execution"]["default_backoff"]
        raise ValueError("as planned")

    def build_result(self) -> dict[str, Any] | None:
        is_told = self.plan.effect == "result"
        return {"uid": self.call.uid, "count": self.world.count()} if is_told else None

    def _change(self, patch: webop.Patch) -> None:
        key, uid = f"of-{self.plan.id}", self.call.uid
        number = self.world.count()
        value = uid if self.plan.kind == "event" else f"{uid}#{number}"  # each write is an event
        if self.plan.effect == "status":
            patch.status[key] = value
        elif self.plan.effect == "label":
            patch.metadata.labels[key] = uid
        elif self.plan.effect in COUNTING:
            key = f"count-{self.plan.id}"
            if self.plan.effect == "count":
                patch.status[key] = number
            else:
                patch.fns.append(partial(_note_in_status, key=key, value=number))
            pause = self.plan.seconds if self.is_in_thread else 0.0  # webop gets it at the end
            note = self.world.judge.note_value
            self.world.network.later(pause, note, self.process, uid, key, number)
        elif self.plan.effect == "fn":
            patch.fns.append(partial(_note_in_status, key=key, value=value))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Note how the call ends."""
        outcome = "ok"
        try:
            yield
        except webop.TemporaryError:
            outcome = "temporary"
            raise
        except webop.PermanentError:
            outcome = "permanent"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception:
            outcome = "error"
            raise
        finally:
            self.finish(outcome)

    def finish(self, outcome: str) -> None:
        """Note the end; that of a call in a thread is later."""
        self.call.outcome = outcome
        if self.is_in_thread:
            self.world.network.later(self.plan.seconds, self._end)
        else:
            self._end()

    def _end(self) -> None:
        # What it does after it was asked to stop does not count.
        if self.call.outcome == "permanent" and not self.call.run:
            self.process.ended_daemons.add((self.handler, self.call.uid))
        self.world.end_call(self.call)


def _note_in_status(body: dict[str, Any], *, key: str, value: Any) -> None:
    body.setdefault("status", {})[key] = value


def _build_function(plan: HandlerPlan, process: ReplicaProcess) -> Any:
    """Return the function of a handler; it gets the plan as its param."""
    if plan.kind == "index":
        return _index
    if plan.kind == "daemon":
        return partial(_run_daemon, process)
    if plan.kind == "reconcile":
        return partial(_keep_parts, process)
    is_sync = plan.is_sync and plan.kind not in {"event", "absent"}
    return partial(run_sync if is_sync else _run_async, process)


def _declare(registry: webop.OperatorRegistry, plan: HandlerPlan, fn: Any) -> None:
    options = {"registry": registry, "param": plan, **_build_options(plan)}
    decorate: Any = {
        "index": webop.index,
        "daemon": webop.daemon,
        "timer": webop.timer,
        "absent": webop.on.event,
        "reconcile": partial(
            webop.reconcile,
            owns=[PARTS],
            watches={PLURAL: _name_dependents} if plan.is_mutual else {},
            backoff=1.0,
        ),
    }.get(plan.kind) or getattr(webop.on, plan.kind)
    if plan.is_general:
        decorate(category=CATEGORY, **options)(fn)
    else:
        decorate(f"absent.{GROUP}" if plan.kind == "absent" else PLURAL, **options)(fn)


def _build_options(plan: HandlerPlan) -> dict[str, Any]:
    options: dict[str, Any] = {"id": plan.id}
    if plan.is_choosy:
        options["labels"] = {LABEL: "yes"}
    if plan.kind == "field":
        options["field"] = "spec.value"
    if plan.kind == "timer":
        options |= {"interval": plan.interval, "sharp": plan.is_sharp, "idle": plan.idle}
    if plan.kind in BACKGROUND_KINDS:
        options["initial_delay"] = plan.initial_delay
    if plan.is_stubborn:
        options |= {"cancellation_backoff": 0.5, "cancellation_timeout": _UNTIL_ABANDONED}
    return options


async def _run_async(process: ReplicaProcess, param: HandlerPlan, **kwargs: Any) -> Any:
    plan = param
    doing = process.act(plan, plan.id, kwargs)
    with doing.recording():
        if plan.seconds:
            await asyncio.sleep(plan.seconds)
        if plan.subs:
            subs = {
                f"sub{number}": partial(_run_sub, process, plan, number)
                for number in range(plan.subs)
            }
            await webop.execute(fns=subs)
        return doing.decide()


async def _run_sub(process: ReplicaProcess, plan: HandlerPlan, number: int, **kwargs: Any) -> Any:
    doing = process.act(plan, f"{plan.id}/sub{number}", kwargs)
    with doing.recording():
        await asyncio.sleep(plan.seconds / 2)
        return doing.build_result()


def run_sync(process: ReplicaProcess, param: HandlerPlan, **kwargs: Any) -> Any:
    plan = param
    doing = process.act(plan, plan.id, kwargs)
    doing.is_in_thread = True
    block(plan.seconds)
    with doing.recording():
        return doing.decide()


def list_parts(name: str, value: int) -> dict[str, int]:
    """Return the parts that an object must have, with their values; odd ones have another one."""
    return {f"{name}-{suffix}": value for suffix in ("ab" if value % 2 else "a")}


def _name_dependents(name: str, **_: Any) -> list[str]:
    return [other for other, beside in BESIDE.items() if beside == name]


async def _keep_parts(
    process: ReplicaProcess, param: HandlerPlan, children: webop.Children, **kwargs: Any
) -> None:
    doing = process.act(param, param.id, kwargs)
    with doing.recording():
        if param.seconds:
            await asyncio.sleep(param.seconds)
        wanted = list_parts(kwargs["name"], kwargs["spec"].get("value", 0))
        more = {"beside": process.world.look_beside(kwargs["name"])} if param.is_mutual else {}
        for name, value in wanted.items():
            head = {"apiVersion": f"{GROUP}/v1", "kind": "Part", "metadata": {"name": name}}
            await children.apply({**head, "spec": {"value": value, **more}})
        await children.prune()
        doing.decide()


async def _run_daemon(process: ReplicaProcess, param: HandlerPlan, **kwargs: Any) -> None:
    plan = param
    stopped: webop.DaemonStopped = kwargs["stopped"]
    key, loop = (plan.id, kwargs["uid"]), asyncio.get_running_loop()
    process.world.judge.background.judge_daemon(process, plan, key[1])
    process.started_daemons[key] = loop.time()
    process.daemons[key] = process.daemons.get(key, 0) + 1
    doing = process.act(plan, plan.id, kwargs)
    attempt = plan.get_attempt(doing.call.retry)
    try:
        with doing.recording():
            if plan.is_stubborn:
                await asyncio.Event().wait()
            await stopped.wait(plan.life if attempt.end == "ok" else _UNTIL_FAILURE)
            process.world.judge.leadership.judge_step(process, key)
            if stopped:
                await asyncio.sleep(plan.seconds)
                process.world.judge.leadership.judge_step(process, key)
                return
            if attempt.end == "ok":
                process.ended_daemons.add(key)
            doing.decide()
    finally:
        process.daemons[key] -= 1
        if plan.is_stubborn:
            await asyncio.Event().wait()  # it is abandoned, until the operator ends


async def _index(
    param: HandlerPlan, name: str, uid: str, spec: Mapping[str, Any], **_: Any
) -> dict[str, Any]:
    await asyncio.sleep(param.seconds * (1 + len(name) % 3))  # some objects are slower than others
    value = spec.get("value", 0)
    return dict.fromkeys(list_keys(name, value), (uid, value))


def list_keys(name: str, value: int) -> tuple[str, str]:
    """Return the keys of an object in each index: one of them moves with its value."""
    return name, f"{name} has {value}"
