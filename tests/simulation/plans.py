"""Histories as data: what a seed makes of them, what is written down, what can be shortened.

A plan says everything that is decided beforehand: the handlers and how they behave, the replicas,
and the steps of users and of fate at their moments. Running it adds nothing but what follows.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.network import Fault
from tests.simulation.themes import STATE_KINDS, THEMES, Theme

CALM = 600.0  # seconds at the end in which nothing goes wrong, and everything must converge


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
        effect: what it changes: nothing, "status", "label", "fn" (of the patch), "result"; timers:
            "count".
        subs: the number of its sub-handlers.
        is_choosy: whether it takes objects with a label only.
        life: after how many seconds a daemon ends by itself; None if it does not.
        idle: of a timer, in seconds.
        is_general: whether it selects a category, to which the kind belongs after "regroup".
        interval: of a timer, in seconds.
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
        shutdown_delay: how long replicas serve on that were told to stop.
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


@dataclass(frozen=True)
class Plan:
    """A history before it has happened.

    Attributes:
        seed: for what is drawn while it happens: delays, and who is hit by a fault.
        mode: who acts among the replicas: "alone", "lease", "peering".
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
    """

    seed: int
    mode: str = "alone"
    replicas: int = 1
    handlers: tuple[HandlerPlan, ...] = ()
    steps: tuple[Step, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    has_status: bool = False
    is_late: bool = False
    is_hosted: bool = False
    discovery_lag: float = 0.0
    admission: AdmissionPlan | None = None
    upgraded: tuple[HandlerPlan, ...] = ()

    @property
    def calm_at(self) -> float:
        """The moment after which nothing goes wrong any more."""
        return max(map(self._find_end, self.steps), default=0.0) + 1.0

    def _find_end(self, step: Step) -> float:
        replicas = self.replicas if step.kind == "upgrade" else 1  # one after the other
        return step.at + abs(step.seconds) * replicas


_NAMES = ("one", "two", "three")


def draw_plan(seed: int, theme_name: str | None = None) -> Plan:
    """Make a plan of a seed, of a given theme or of any."""
    rng = random.Random(seed)
    drawn = rng.choice(("mixed", "mixed", *THEMES))
    name = theme_name or drawn
    theme = THEMES[name]
    mode = rng.choice(theme.modes)
    replicas = 1 if mode == "alone" else rng.randint(1, 3)
    length = rng.choice((10.0, 30.0, 90.0))
    is_late = name == "kinds" and rng.random() < 0.4
    steps = [*_draw_user(rng, theme, length), *_draw_fate(rng, theme, length, replicas)]
    steps += [Step(rng.uniform(0, 1.0), "define")] if is_late else []
    if mode == "peering":  # which goes by the clocks of its members: they must agree
        steps = [step for step in steps if step.kind != "skew"]
    plan = Plan(
        seed,
        mode,
        replicas,
        tuple(_draw_handlers(rng, theme)),
        _sort(steps),
        _draw_settings(rng, theme, mode),
        has_status=rng.random() < 0.3,
        is_late=is_late,
        is_hosted=name == "lockouts" or rng.random() < 0.5,
        discovery_lag=rng.choice((0.0, 0.5, 3.0)) if name == "kinds" else 0.0,
    )
    for add in (_add_meddling, _add_upgrade, _add_peers, _add_kind_changes):
        plan = add(plan, length)
    has_webhooks = theme.has_webhooks and mode != "peering"
    return _add_admission(plan, length) if has_webhooks else plan


def _add_admission(plan: Plan, length: float) -> Plan:
    """Add webhooks to some plans, rollouts and rotations; half of these are spared all faults."""
    rng = random.Random(f"admission {plan.seed}")
    if rng.random() > 0.6:
        return plan
    # What replaces replicas before the next ones are ready is no rollout.
    steps = [step for step in plan.steps if step.kind != "upgrade"]
    if rng.random() < 0.5:
        steps = [step for step in steps if step.kind not in {"fault", "kill", "pause", "unlock"}]
    for _ in range(rng.choice((0, 0, 1, 2))):
        steps.append(Step(rng.uniform(0, length), "stop", rng.randrange(plan.replicas), 1.0))
    steps += [Step(rng.uniform(0, length), "rotate") for _ in range(rng.choice((0, 0, 1, 2)))]
    if rng.random() < 0.6:
        steps.append(Step(rng.uniform(0, length), "rollout", None, 60.0))
    admission = AdmissionPlan(
        pace=rng.choice((0.5, 2.0, 5.0)),
        seconds=rng.choice((0.0, 0.05, 0.5)),
        lifetime=rng.choice((90.0, 120.0)),
        shutdown_delay=rng.choice((6.0, 10.0)),
        shrinks=rng.random() < 0.25,
        is_persistent=rng.random() < 0.25,
        lag=rng.choice((0.0, 0.3, 1.0)),
    )
    return dataclasses.replace(plan, steps=_sort(steps), admission=admission)


def _add_meddling(plan: Plan, length: float) -> Plan:
    """Let users annotate objects, and overwrite what one handler has written before the next."""
    rng = random.Random(f"meddling {plan.seed}")
    if rng.random() > 0.3:
        return plan
    kind = rng.choice(("create", "update"))
    effect = rng.choice(("status", "result", "fn"))
    quick = HandlerPlan(f"quick-{kind}", kind, effect=effect)
    slow = HandlerPlan(f"slow-{kind}", kind, seconds=rng.choice((1.0, 3.0)))
    steps = list(plan.steps)
    for step in plan.steps:
        if step.kind in {"create", "update", "replace"} and rng.random() < 0.6:
            delay = rng.choice((0.3, 0.6, 1.5, rng.uniform(0, length / 4)))
            what = rng.choice(("meddle", "meddle", "annotate"))
            steps.append(Step(step.at + delay, what, step.target))
    handlers = (quick, slow, *plan.handlers)
    return dataclasses.replace(plan, handlers=handlers, steps=_sort(steps))


def _add_upgrade(plan: Plan, length: float) -> Plan:
    """Let some operators be replaced by versions with other handlers, or restarted while users act.

    In between, a handler has failed for the first time, and users change what it waits for.
    """
    rng = random.Random(f"upgrade {plan.seed}")
    if rng.random() > 0.35:
        return plan
    name = rng.choice(_NAMES)
    begin, fails = rng.uniform(0.0, length / 2), rng.choice((2.0, 5.0, 15.0))
    attempts = tuple(Attempt("temporary", fails) for _ in range(rng.choice((1, 2, 4))))
    kind = rng.choice(("create", "update"))
    waiting = HandlerPlan(
        f"waiting-{kind}", kind, attempts, subs=rng.choice((0, 2)), is_choosy=rng.random() < 0.25
    )
    handlers = [HandlerPlan("noting-update", "update"), *plan.handlers]
    handlers.insert(rng.randrange(len(handlers) + 1), waiting)
    at, down = begin + rng.choice((0.3, 1.0, 3.0)), rng.choice((0.5, 2.0, 20.0))
    steps = [
        *plan.steps,
        Step(max(0.0, begin - 1.0), "create", name),
        Step(begin, "update", name),
        Step(at, rng.choice(("upgrade", "upgrade", "kill", "stop")), 0, down),
    ]
    for _ in range(rng.randint(0, 3)):
        what = rng.choice(("update", "label", "annotate", "delete"))
        steps.append(Step(at + rng.uniform(-0.2, 1.2) * down, what, name))
    upgraded = [handler for handler in handlers if rng.random() > 0.2]
    if upgraded and rng.random() < 0.6:
        number = rng.randrange(len(upgraded))
        other = not upgraded[number].is_choosy
        upgraded[number] = dataclasses.replace(upgraded[number], is_choosy=other)
    if rng.random() < 0.6 or not upgraded:
        upgraded.insert(
            0, _draw_handler(rng, THEMES["mixed"], rng.choice(THEMES["mixed"].pool), "new")
        )
    return dataclasses.replace(
        plan, handlers=tuple(handlers), steps=_sort(steps), upgraded=tuple(upgraded)
    )


def _add_peers(plan: Plan, length: float) -> Plan:
    """Let operators of others join some peerings: they leave, or vanish without notice."""
    rng = random.Random(f"peers {plan.seed}")
    if plan.mode != "peering" or rng.random() < 0.4:
        return plan
    steps = list(plan.steps)
    if rng.random() < 0.7:
        steps = [step for step in steps if step.kind not in {"fault", "pause", "unlock", "lag"}]
    for _ in range(rng.randint(1, 2)):
        kind, priority = rng.choice(("peer", "lost peer")), rng.choice((-1, 0, 1, 100))
        steps.append(Step(rng.uniform(0, length), kind, priority, rng.choice((5.0, 30.0, 70.0))))
    return dataclasses.replace(plan, steps=_sort(steps))


def _add_kind_changes(plan: Plan, length: float) -> Plan:
    """Let the kind change, with objects in indexes, while a handler runs and an object goes."""
    rng = random.Random(f"kind changes {plan.seed}")
    if plan.is_late or rng.random() > 0.2:
        return plan
    handlers = [
        HandlerPlan("index-all", "index"),
        HandlerPlan("index-general", "index", seconds=0.05, is_general=True),
        HandlerPlan("watching", "event"),
        HandlerPlan("slow-update", "update", seconds=3.0),
    ]
    guards = {"delete", "daemon", "timer"} if rng.random() < 0.7 else set()
    handlers += [handler for handler in plan.handlers if handler.kind not in guards]
    at = rng.uniform(5.0, 5.0 + length)
    steps = [*plan.steps, *(Step(at - 4.0, "create", name) for name in _NAMES)]
    steps += [
        Step(at - rng.choice((0.1, 1.0, 2.5)), "update", "one"),
        Step(at, rng.choice(("alter", "regroup", "regroup"))),
        Step(at + rng.uniform(0.0, 3.0), rng.choice(("delete", "update")), "two"),
        Step(at + rng.uniform(3.0, 20.0), rng.choice(("alter", "regroup"))),
    ]
    upgraded = tuple(handler for handler in plan.upgraded if handler.kind not in guards)
    return dataclasses.replace(
        plan, handlers=tuple(handlers), steps=_sort(steps), upgraded=upgraded
    )


def _sort(steps: list[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.at))


def _draw_handlers(rng: random.Random, theme: Theme) -> list[HandlerPlan]:
    kinds = [*theme.kinds, *rng.sample(theme.pool, rng.randint(1, min(5, len(theme.pool))))]
    more = [kind for kind in ("create", "update", "delete") if kind in theme.pool]
    kinds += rng.choices(more, k=rng.randint(0, 2))
    return [_draw_handler(rng, theme, kind, f"{kind}{n}") for n, kind in enumerate(kinds)]


# A replica that stands by indexes one object after the other.
_SECONDS = {"index": (0.0, 0.0, 0.05, 0.5), "daemon": (0.0, 0.5, 3.0, 3.0, 8.0)}


def _draw_handler(rng: random.Random, theme: Theme, kind: str, name: str) -> HandlerPlan:
    is_state = kind in STATE_KINDS
    attempts: list[Attempt] = []
    if is_state and rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            end = rng.choice(("temporary", "temporary", "error"))
            attempts.append(Attempt(end, rng.choice((0.0, 0.3, 1.0, 5.0, 15.0))))
        if rng.random() < 0.15:
            attempts.append(Attempt("permanent"))
    effects = theme.effects if is_state else ("",)
    return HandlerPlan(
        name,
        kind,
        tuple(attempts),
        seconds=rng.choice(_SECONDS.get(kind, (0.0, 0.0, 0.05, 0.5, 3.0))),
        is_sync=rng.random() < 0.25,
        effect=rng.choice(("", "count") if kind == "timer" else effects),
        subs=rng.choice((0, 0, 0, 2)) if kind in {"create", "update"} else 0,
        is_choosy=rng.random() < (0.5 if kind in {"daemon", "index"} else 0.25),
        life=rng.choice((None, None, None, 2.0)) if kind == "daemon" else None,
        idle=rng.choice((None, 3.0)) if kind == "timer" else None,
        interval=rng.choice((7.0, 2.0)) if kind == "timer" else 7.0,
    )


def _draw_user(rng: random.Random, theme: Theme, length: float) -> list[Step]:
    steps = []
    for name in _NAMES[: rng.randint(1, 3)]:
        at, exists = rng.choice((0.0, rng.uniform(0, length / 2))), False
        for _ in range(rng.randint(1, 8)):
            kind = rng.choice(theme.user) if exists else "create"
            exists = kind != "delete"
            steps.append(Step(at, kind, name))
            at += rng.choice((0.0, 0.02, 0.2, 1.0, rng.uniform(0, length / 4)))
    return steps


def _draw_fate(rng: random.Random, theme: Theme, length: float, replicas: int) -> Iterator[Step]:
    for _ in range(rng.randint(0, 5)):
        at, seconds = rng.uniform(0, length), rng.choice((0.3, 2.0, rng.uniform(1, 40)))
        replica = rng.randrange(replicas)
        kind = rng.choice(theme.fate)
        if kind == "fault":
            yield Step(at, kind, None, seconds, _draw_fault(rng, theme, replica))
        elif kind == "watches":
            fault = Fault(rng.choice(("cut", "mute")), share=rng.choice((0.5, 1.0)))
            yield Step(at, "fault", None, seconds, fault)
        elif kind in _SERIES:
            yield from _SERIES[kind](rng, at, seconds, replica)
        elif kind in {"kill", "stop", "pause"}:
            yield Step(at, kind, replica, seconds)
        elif kind == "skew":
            yield Step(at, kind, replica, rng.choice((-20.0, -3.0, 3.0, 30.0)))
        else:
            yield Step(at, kind, None, seconds if kind == "lag" else 0.0)


def _draw_outage(rng: random.Random, at: float, seconds: float, _: int) -> Iterator[Step]:
    """Nobody reaches the API server; users change objects; the history may be lost."""
    yield Step(at, "fault", None, 0.0, Fault("cut"))
    yield Step(at, "fault", None, seconds, Fault("refused"))
    for name in rng.sample(_NAMES, rng.randint(0, 2)):
        kind = rng.choice(("delete", "delete", "update", "replace"))
        yield Step(at + seconds * rng.uniform(0, 0.5), kind, name)
    if rng.random() < 0.5:
        yield Step(at + seconds / 2, "compact")


def _draw_lockout(rng: random.Random, at: float, seconds: float, _: int) -> Iterator[Step]:
    """Credentials are refused; before, writes may have failed."""
    if rng.random() < 0.5:
        fault = Fault("status", (), ("PATCH",), "things", rng.choice((0.5, 1.0)))
        yield Step(max(0.0, at - 3.0), "fault", None, min(at, 3.0) + 0.2, fault)
        yield Step(max(0.0, at - 2.0), rng.choice(("delete", "update")), rng.choice(_NAMES))
    yield Step(at, "fault", None, 0.0, Fault("cut"))
    yield Step(at, "fault", None, seconds, Fault("status", status=401))


def _draw_relisting(rng: random.Random, at: float, _: float, __: int) -> Iterator[Step]:
    """The history is lost, and the new listing shows what was true some seconds ago."""
    late = Fault("late", (), ("GET",), "things", seconds=rng.choice((2.0, 5.0)))
    yield Step(max(0.0, at - 0.1), "update", rng.choice(("one", "one", "two")))
    yield Step(at, "compact")
    yield Step(at, "fault", None, 3.0, late)
    yield Step(at, "fault", None, 0.0, Fault("cut", path="things"))


def _draw_crowd(rng: random.Random, at: float, seconds: float, _: int) -> Iterator[Step]:
    """Many objects at once; the watch cache may lag behind them."""
    if rng.random() < 0.5:
        yield Step(at, "lag", None, seconds)
    if rng.random() < 0.5:
        fault = Fault("status", (), ("PATCH",), "things")
        yield Step(at + rng.uniform(0, 0.5), "fault", None, rng.uniform(2, 15), fault)
    yield Step(at, "crowd", rng.choice((10, 25)))


def _draw_burst(rng: random.Random, at: float, _: float, __: int) -> Iterator[Step]:
    """Many objects at once, whose patches hang."""
    kind = rng.choice(("hung", "silent", "late"))
    fault = Fault(kind, (), ("PATCH",), "things", seconds=30.0)
    yield Step(at, "fault", None, rng.uniform(15, 40), fault)
    yield Step(at, "crowd", 25)


def _draw_takeover(rng: random.Random, at: float, _: float, replica: int) -> Iterator[Step]:
    """Somebody cannot renew the Lease, maybe after answers that were late."""
    who, leases = rng.choice(((), (replica,))), "leases"
    if rng.random() < 0.5:
        late = Fault("late", who, ("PUT", "PATCH"), leases, seconds=8.0)
        yield Step(max(0.0, at - 10.0), "fault", None, min(at, 10.0), late)
    refused = Fault(rng.choice(("refused", "hung")), who, (), leases)
    yield Step(at, "fault", None, rng.uniform(9, 30), refused)


def _draw_freeze(rng: random.Random, at: float, _: float, replica: int) -> Iterator[Step]:
    """A process stands still in the middle of its work, for longer than its Lease lasts."""
    yield Step(max(0.0, at - 0.1), "update", rng.choice(("one", "one", "two")))
    yield Step(at, "pause", replica, rng.uniform(14, 40))


def _draw_hiccup(rng: random.Random, at: float, _: float, __: int) -> Iterator[Step]:
    """The Lease is lost, and got back soon."""
    yield Step(at, "fault", None, rng.uniform(9, 14), Fault("refused", path="leases"))


def _draw_policy(rng: random.Random, _: float, __: float, ___: int) -> Iterator[Step]:
    """The API server denies some of what handlers want, for ever."""
    content = rng.choice(('"of-create', '"of-update', '"of-'))
    status = rng.choice((403, 422))
    yield Step(
        0.0, "policy", None, 0.0, Fault("status", (), ("PATCH",), content=content, status=status)
    )


_SERIES = {
    "outage": _draw_outage,
    "lockout": _draw_lockout,
    "relisting": _draw_relisting,
    "crowd": _draw_crowd,
    "burst": _draw_burst,
    "takeover": _draw_takeover,
    "freeze": _draw_freeze,
    "hiccup": _draw_hiccup,
    "policy": _draw_policy,
}
"""Steps that belong together: from a moment, for some seconds, and which replica suffers."""


def _draw_fault(rng: random.Random, theme: Theme, replica: int) -> Fault:
    kind = rng.choice(theme.faults)
    return Fault(
        kind,
        replicas=rng.choice(((), (replica,))),
        methods=rng.choice(theme.methods),
        path=rng.choice(theme.paths),
        share=rng.choice((0.2, 0.5, 1.0)),
        status=rng.choice(theme.statuses) if kind == "status" else 503,
        seconds=rng.choice((0.0, 1.0, 5.0)) if kind != "lost" else rng.choice((0.0, 5.0, 9.0)),
    )


def _draw_settings(rng: random.Random, theme: Theme, mode: str) -> dict[str, Any]:
    peering = {"peering": {"mandatory": rng.random() < 0.5}} if mode == "peering" else {}
    return peering | {
        "posting": {"enabled": rng.random() < 0.3},
        "batching": {
            "idle_timeout": rng.choice((0.5, 5.0)),
            "error_delays": [0.5, 2, 5],
            "worker_limit": rng.choice(theme.worker_limits),
        },
        "networking": {"request_timeout": rng.choice((10.0, 30.0))},
        "execution": {"default_backoff": rng.choice((0.5, 5.0))},
        "watching": {
            "inactivity_timeout": 70.0,
            "streaming_list": rng.random() < 0.6,
            "server_timeout": rng.choice((None, 20.0)),
        },
    }


def dump(plan: Plan) -> str:
    """Write a plan down as JSON."""
    return json.dumps(dataclasses.asdict(plan), indent=1)


def load(data: dict[str, Any]) -> Plan:
    """Read a plan that was written down."""
    handlers, upgraded = (
        tuple(map(_load_handler, data.get(version, ()))) for version in ("handlers", "upgraded")
    )
    steps = [
        Step(**{**step, "fault": step["fault"] and _load_fault(step["fault"])})
        for step in data["steps"]
    ]
    admission = AdmissionPlan(**given) if (given := data.get("admission")) else None
    made = {"handlers": handlers, "steps": tuple(steps), "admission": admission}
    return Plan(**{**data, **made, "upgraded": upgraded})


def _load_handler(data: dict[str, Any]) -> HandlerPlan:
    attempts = tuple(Attempt(**attempt) for attempt in data["attempts"])
    return HandlerPlan(**{**data, "attempts": attempts})


def _load_fault(data: dict[str, Any]) -> Fault:
    return Fault(**{**data, "replicas": tuple(data["replicas"]), "methods": tuple(data["methods"])})


def describe(plan: Plan) -> str:
    """Say for people what is planned."""
    lines = [f"seed {plan.seed}, {plan.mode}, {plan.replicas} replicas, {plan.settings}"]
    lines += [f"  {handler}" for handler in plan.handlers]
    lines += [f"  upgraded: {handler}" for handler in plan.upgraded]
    lines += [f"  {plan.admission}"] if plan.admission else []
    return "\n".join([*lines, *(f"  {step}" for step in plan.steps)])
