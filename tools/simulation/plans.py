"""Histories as data: drawn from seeds (``drawing.py``), written down, and shortened.

A plan says everything that is decided beforehand: the handlers and how they behave, the replicas,
and the steps of users and of fate at their moments. Running it adds nothing but what follows.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from webop.testing.simulation.network import Fault

MODES = {"alone", "lease", "peering", "shards"}
USES = {"create", "update", "label", "toggle", "annotate", "meddle", "delete", "replace"}
USES |= {"guard", "unguard"}
SPOILING = {"part deleted", "part edited", "part orphaned"}
USES |= SPOILING
STRIKES = {"kill", "stop", "pause"}
CHANGES = {"compact", "define", "alter", "regroup", "unlock", "lag", "crowd", "fault", "policy"}
CHANGES |= {"lease deleted"}
STEPS = USES | STRIKES | CHANGES | {"upgrade", "peer", "lost peer", "rollout"}


@dataclass(frozen=True)
class Attempt:
    """How one attempt of a handler ends: "ok", "temporary", "error", "permanent"."""

    end: str = "ok"
    delay: float = 0.0


@dataclass(frozen=True)
class HandlerPlan:
    """A handler.

    Attributes:
        id: of the handler.
        kind: the decorator: "create", "event", "daemon" and so on; "absent": of the events of
            a kind that does not exist, so that discovery is repeated all the time.
        attempts: how the first attempts for each cause end; all others succeed.
        seconds: how long an attempt takes, or a daemon needs to stop.
        is_sync: whether it runs in a thread.
        effect: what it changes: nothing, "status", "label", "fn" (of the patch), "result"; timers
            and daemons: "count", "count-fn".
        subs: the number of its sub-handlers.
        is_choosy: whether it takes objects with a label only.
        life: after how many seconds a daemon ends by itself; None if it does not.
        idle: of a timer, in seconds.
        is_general: whether it selects a category, to which the kind belongs after "regroup".
        interval: of a timer, in seconds.
        is_sharp: whether a timer counts its interval from the begin of the last call.
        initial_delay: of a timer or daemon, in seconds.
        is_stubborn: whether a daemon ignores ``stopped`` and swallows its cancellation.
        is_mutual: whether the parts of a reconciler depend on another object, which it watches.
    """

    id: str
    kind: str
    attempts: tuple[Attempt, ...] = ()
    seconds: float = 0.0
    is_sync: bool = False
    effect: str = ""
    subs: int = 0
    is_choosy: bool = False
    life: float | None = None
    idle: float | None = None
    is_general: bool = False
    interval: float = 7.0
    is_sharp: bool = False
    initial_delay: float = 0.0
    is_stubborn: bool = False
    is_mutual: bool = False

    @property
    def may_give_up(self) -> bool:
        """Whether it can fail for good."""
        return any(attempt.end == "permanent" for attempt in self.attempts)

    def get_attempt(self, retry: int) -> Attempt:
        """Return how an attempt ends; the first one is 0."""
        return self.attempts[retry] if retry < len(self.attempts) else Attempt()


@dataclass(frozen=True)
class Step:
    """What happens at a moment: to an object, to a replica, to the network, to the cluster."""

    at: float
    kind: str
    target: Any = None
    seconds: float = 0.0
    fault: Fault | None = None

    def __str__(self) -> str:
        words = [f"{self.at:8.3f}", self.kind]
        if self.target is not None:
            words.append(str(self.target))
        if self.fault is not None:
            words.append(str(self.fault))
        if self.seconds:
            words.append(f"for {self.seconds:.3f} s")
        return " ".join(words)


@dataclass(frozen=True)
class AdmissionPlan:
    """Admission webhooks of the operator.

    Attributes:
        pace: seconds between creations that are tried.
        seconds: how long a handler takes.
        lifetime: of replicas that are not heard of.
        shutdown_delay: how long replicas go on serving after they were asked to stop.
        shrinks: whether a rollout brings fewer webhooks, not more.
        is_persistent: whether one of the webhooks stays when there is no replica.
        lag: seconds until changed webhook configurations are in force in the API server.
    """

    pace: float = 2.0
    seconds: float = 0.0
    lifetime: float = 120.0
    shutdown_delay: float = 10.0
    shrinks: bool = False
    is_persistent: bool = False
    lag: float = 0.0


@dataclass
class Plan:
    """A history before it has happened.

    Attributes:
        seed: for what is drawn while it happens: delays, and who is hit by a fault.
        mode: who acts among the replicas: "alone", "lease", "peering", "shards".
        replicas: their number.
        handlers: what the operator does.
        steps: what happens, by time.
        settings: of the operator, by section.
        has_status: whether the kind has a status endpoint.
        is_late: whether the kind is defined by a step only, not at the start.
        is_hosted: whether the operator stays when there are no credentials.
        discovery_lag: in seconds.
        admission: its webhooks; None for none.
        upgraded: the handlers after the step "upgrade"; the same as before if there are none.
        leaders: with shards, the numbers of the replicas that elect a leader nevertheless.
        canaries: with shards, the numbers of the replicas that are canaries.
    """

    seed: int
    mode: str = "alone"
    replicas: int = 1
    handlers: list[HandlerPlan] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    has_status: bool = False
    is_late: bool = False
    is_hosted: bool = False
    discovery_lag: float = 0.0
    admission: AdmissionPlan | None = None
    upgraded: list[HandlerPlan] = field(default_factory=list)
    leaders: tuple[int, ...] = ()
    canaries: tuple[int, ...] = ()

    @property
    def has_leases(self) -> bool:
        """Whether replicas act by Leases: one of them, or each on its shards."""
        return self.mode in {"lease", "shards"}

    @property
    def calm_at(self) -> float:
        """The moment after which nothing goes wrong any more."""
        return max(map(self._find_end, self.steps), default=0.0) + 1.0

    @property
    def has_parts(self) -> bool:
        return any(handler.kind == "reconcile" for handler in (*self.handlers, *self.upgraded))

    @property
    def worker_limit(self) -> int | None:
        """How many objects are worked on at once; None for no limit."""
        limit: int | None = self.settings.get("batching", {}).get("worker_limit")
        return limit

    def _find_end(self, step: Step) -> float:
        replicas = self.replicas if step.kind == "upgrade" else 1  # one after the other
        return step.at + abs(step.seconds) * replicas


def dump(plan: Plan) -> str:
    """Write a plan down, without what is as usual."""
    return json.dumps(_simplify(plan), indent=1)


def _simplify(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_simplify(item) for item in value]
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if item != {}}
    if not dataclasses.is_dataclass(value):
        return value
    usual = {one.name: one.default for one in dataclasses.fields(value)}
    fields = {name: getattr(value, name) for name in usual}
    return {name: _simplify(item) for name, item in fields.items() if item not in ([], usual[name])}


def load(data: dict[str, Any]) -> Plan:
    """Read a plan that was written down."""
    handlers, upgraded = (
        [*map(_load_handler, data.get(version, ()))] for version in ("handlers", "upgraded")
    )
    steps = [
        Step(**{**step, "fault": _load_fault(step["fault"])} if "fault" in step else step)
        for step in data["steps"]
    ]
    admission = AdmissionPlan(**data["admission"]) if "admission" in data else None
    unknown = {step.kind for step in steps} - STEPS
    if unknown:
        raise TypeError(f"there is no step {' or '.join(sorted(unknown))}")
    if data.get("mode", "alone") not in MODES:
        raise TypeError(f"there is no mode {data['mode']}")
    made = {"handlers": handlers, "steps": steps, "admission": admission}
    made |= {name: tuple(data.get(name, ())) for name in ("leaders", "canaries")}
    return Plan(**{**data, **made, "upgraded": upgraded})


def _load_handler(data: dict[str, Any]) -> HandlerPlan:
    attempts = tuple(Attempt(**attempt) for attempt in data.get("attempts", ()))
    return HandlerPlan(**{**data, "attempts": attempts})


def _load_fault(data: dict[str, Any]) -> Fault:
    chosen = {name: tuple(data.get(name, ())) for name in ("replicas", "methods")}
    return Fault(**{**data, **chosen})


def describe(plan: Plan) -> str:
    """Say for people what is planned."""
    lines = [f"seed {plan.seed}, {plan.mode}, {plan.replicas} replicas, {plan.settings}"]
    lines += [f"  {handler}" for handler in plan.handlers]
    lines += [f"  upgraded: {handler}" for handler in plan.upgraded]
    lines += [f"  {plan.admission}"] if plan.admission else []
    return "\n".join([*lines, *(f"  {step}" for step in plan.steps)])
