"""Draws the plan of a seed: handlers, users and what goes wrong, and then some variations."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from typing import Any

from tools.simulation.fate import NAMES, draw_fate, draw_move
from tools.simulation.plans import (
    SPOILING,
    AdmissionPlan,
    Attempt,
    HandlerPlan,
    Plan,
    Step,
)
from tools.simulation.replicas import LABEL, PARTS, PLURAL
from tools.simulation.themes import BACKGROUND_KINDS, STATE_KINDS, THEMES, Theme
from webop.testing.simulation.network import Fault

_STACKED = ("create", "update", "resume")
_FAULTS = {"fault", "kill", "pause", "unlock", "lease deleted"}


def draw_plan(seed: int, theme_name: str | None = None) -> Plan:
    rng = random.Random(seed)
    drawn = rng.choice(("mixed", "mixed", *THEMES))
    name = theme_name or drawn
    theme = THEMES[name]
    mode = rng.choice(theme.modes)
    replicas = 1 if mode == "alone" else rng.randint(theme.least_replicas, 3)
    length = rng.choice((10.0, 30.0, 90.0))
    is_late = name == "kinds" and rng.random() < 0.4
    steps = [*_draw_user(rng, theme, length), *draw_fate(rng, theme, length, replicas)]
    steps += [Step(rng.uniform(0, 1.0), "define")] if is_late else []
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
    more = _add_meddling, _add_upgrade, _add_peers, _add_kind_changes, _add_mismatch, _add_guards
    for add in more:
        plan = add(plan, length)
    plan = _add_reconciler(_add_late_definition(plan), length)
    for vary in (_vary_background, _vary_events, _stack):
        plan = _vary(plan, vary)
    if theme.has_selector:
        plan = _add_selector(plan)
    plan = _add_shards(plan, length)
    has_webhooks = theme.has_webhooks and mode != "peering"
    return _add_admission(plan, length) if has_webhooks else plan


def _add_selector(plan: Plan) -> Plan:
    """Let a selector of the watch choose the objects, instead of filters of some handlers."""
    handlers, upgraded = (
        tuple(dataclasses.replace(handler, is_choosy=True) for handler in version)
        for version in (plan.handlers, plan.upgraded)
    )
    selectors = {"label_selectors": {PLURAL: f"{LABEL}=yes"}}
    settings = {**plan.settings, "watching": {**plan.settings["watching"], **selectors}}
    return dataclasses.replace(plan, handlers=handlers, upgraded=upgraded, settings=settings)


def _draw_handlers(rng: random.Random, theme: Theme) -> list[HandlerPlan]:
    kinds = [*theme.kinds, *rng.sample(theme.pool, rng.randint(1, min(5, len(theme.pool))))]
    more = [kind for kind in ("create", "update", "delete") if kind in theme.pool]
    kinds += rng.choices(more, k=rng.randint(0, 2))
    return [_draw_handler(rng, theme, kind, f"{kind}{n}") for n, kind in enumerate(kinds)]


# A replica that stands by indexes one object after the other.
_SECONDS = {"index": (0.0, 0.0, 0.05, 0.5), "daemon": (0.0, 0.5, 3.0, 3.0, 8.0)}


def _draw_handler(rng: random.Random, theme: Theme, kind: str, name: str) -> HandlerPlan:
    is_state = kind in STATE_KINDS
    attempts: tuple[Attempt, ...] = ()
    if is_state and rng.random() < 0.5:
        attempts = _draw_attempts(rng, rng.randint(1, 3), (0.0, 0.3, 1.0, 5.0, 15.0), 0.15)
    effects = theme.effects if is_state else ("",)
    return HandlerPlan(
        name,
        kind,
        attempts,
        seconds=rng.choice(_SECONDS.get(kind, (0.0, 0.0, 0.05, 0.5, 3.0))),
        is_sync=rng.random() < 0.25,
        effect=rng.choice(("", "count") if kind == "timer" else effects),
        subs=rng.choice((0, 0, 0, 2)) if kind in {"create", "update"} else 0,
        is_choosy=rng.random() < (0.5 if kind in {"daemon", "index"} else 0.25),
        life=rng.choice((None, None, None, 2.0)) if kind == "daemon" else None,
        idle=rng.choice((None, 3.0)) if kind == "timer" else None,
        interval=rng.choice((7.0, 2.0)) if kind == "timer" else 7.0,
    )


def _draw_attempts(
    rng: random.Random, number: int, delays: tuple[float, ...], permanent: float
) -> tuple[Attempt, ...]:
    """Draw attempts that fail; with the given probability, the last one fails for good."""
    ends = "temporary", "temporary", "error"
    attempts = [Attempt(rng.choice(ends), rng.choice(delays)) for _ in range(number)]
    attempts += [Attempt("permanent")] if rng.random() < permanent else []
    return tuple(attempts)


def _draw_user(rng: random.Random, theme: Theme, length: float) -> list[Step]:
    steps = []
    for name in NAMES[: rng.randint(1, 3)]:
        at, exists = rng.choice((0.0, rng.uniform(0, length / 2))), False
        for _ in range(rng.randint(1, 8)):
            kind = rng.choice(theme.user) if exists else "create"
            exists = kind != "delete"
            steps.append(Step(at, kind, name))
            at += rng.choice((0.0, 0.02, 0.2, 1.0, rng.uniform(0, length / 4)))
    return steps


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
            "streaming_list": rng.random() < theme.streaming,
            "server_timeout": rng.choice((None, 20.0)),
        },
    }


def _add_admission(plan: Plan, length: float) -> Plan:
    """Add webhooks to some plans, rollouts and rotations; half of these are spared all faults."""
    rng = random.Random(f"admission {plan.seed}")
    if rng.random() > 0.6:
        return plan
    # What replaces replicas before the next ones are ready is no rollout.
    steps = [step for step in plan.steps if step.kind != "upgrade"]
    if rng.random() < 0.5:
        steps = [step for step in steps if step.kind not in _FAULTS]
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
    name = rng.choice(NAMES)
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


def _add_reconciler(plan: Plan, length: float) -> Plan:
    """Let some operators keep parts of each object, which users delete, edit and orphan."""
    rng = random.Random(f"reconciler {plan.seed}")
    if rng.random() > 0.25:
        return plan
    attempts: tuple[Attempt, ...] = ()
    if rng.random() < 0.4:
        attempts = _draw_attempts(rng, rng.randint(1, 3), (0.0, 0.3, 1.0, 5.0), 0.0)
    seconds = rng.choice((0.0, 0.05, 0.5, 3.0))
    keeper = HandlerPlan("keeper", "reconcile", attempts, seconds, is_sync=False)
    steps = list(plan.steps)
    for _ in range(rng.choice((0, 1, 3, 6))):
        what = rng.choice(sorted(SPOILING))
        steps.append(Step(rng.uniform(0, length), what, rng.choice(NAMES)))
    if rng.random() < 0.4:  # what users do overtakes the responses to applies
        at, name = rng.uniform(0, length), rng.choice(NAMES)
        late = Fault("late", (), ("PATCH",), PARTS, seconds=3.0)
        steps += [Step(at, "fault", None, 4.0, late), Step(at, "update", name)]
        steps += [Step(at + rng.uniform(0.1, 4.0), what, name) for what in sorted(SPOILING)]
    upgraded = (*plan.upgraded, keeper) if plan.upgraded else ()
    return dataclasses.replace(
        plan, handlers=(*plan.handlers, keeper), steps=_sort(steps), upgraded=upgraded
    )


def _add_shards(plan: Plan, length: float) -> Plan:
    """Let the replicas of some operators share the work: they come, go, stall, and are cut off."""
    rng = random.Random(f"shards {plan.seed}")
    is_chosen = plan.mode == "lease" and plan.replicas > 1 and rng.random() < 0.5
    if plan.mode != "shards" and not is_chosen:
        return plan
    replicas = max(plan.replicas, rng.randint(2, 4))
    steps = list(plan.steps)
    late = rng.sample(range(replicas), rng.choice((0, 0, 1, 1, 2)) % replicas)
    steps += [Step(rng.uniform(0, 0.5), "stop", one, rng.uniform(3, length)) for one in late]
    for _ in range(rng.choice((1, 2, 4, 8))):
        steps += draw_move(rng, rng.uniform(0, length + 10.0), rng.randrange(replicas))
    if rng.random() < 0.4:
        steps.append(Step(rng.uniform(0, length), "crowd", rng.choice((10, 25))))
    shared: dict[str, Any] = {}
    if rng.random() < 0.25:
        shared = rng.choice(({"shard_by": "namespace"}, {"unsharded": [PLURAL]}))
    settings = {**plan.settings, "leadership": shared} if shared else plan.settings
    is_mutual = rng.random() < 0.5
    handlers, upgraded = (
        tuple(
            dataclasses.replace(handler, is_mutual=is_mutual and handler.kind == "reconcile")
            for handler in version
        )
        for version in (plan.handlers, plan.upgraded)
    )
    some = (rng.randrange(replicas),)
    return dataclasses.replace(
        plan,
        mode="shards",
        replicas=replicas,
        handlers=handlers,
        upgraded=upgraded,
        steps=_sort(steps),
        settings=settings,
        leaders=some if rng.random() < 0.2 else (),
        canaries=some if rng.random() < 0.15 else (),
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
    steps = [*plan.steps, *(Step(at - 4.0, "create", name) for name in NAMES)]
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


def _add_late_definition(plan: Plan) -> Plan:
    """Let some late kinds be defined while credentials are lost, some time after the start."""
    rng = random.Random(f"late definition {plan.seed}")
    if not plan.is_late or rng.random() > 0.5:
        return plan
    at = rng.uniform(13.0, 20.0)
    steps = [
        dataclasses.replace(step, at=at) if step.kind == "define" else step for step in plan.steps
    ]
    steps += [
        Step(at - 1.0, "fault", None, 0.0, Fault("cut")),
        Step(at - 1.0, "fault", None, rng.choice((1.5, 5.0)), Fault("status", status=401)),
    ]
    steps += [Step(at + 0.1, "create", "one"), Step(at + 0.4, "create", "two")]
    return dataclasses.replace(plan, steps=_sort(steps), is_hosted=True)


def _add_mismatch(plan: Plan, length: float) -> Plan:
    """Let an object cease to match, or match for a while, when most else is over."""
    rng = random.Random(f"mismatch {plan.seed}")
    is_choosy = any(plan.kind == "daemon" and plan.is_choosy for plan in plan.handlers)
    if not is_choosy or rng.random() > 0.5:
        return plan
    at, name = length + rng.uniform(2.0, 10.0), rng.choice(NAMES)
    steps = [Step(at - 2.0, "create", name), Step(at, "toggle", name)]
    steps += [Step(at + 5.0, "toggle", name)] if rng.random() < 0.5 else []
    return dataclasses.replace(plan, steps=_sort([*plan.steps, *steps]))


def _add_guards(plan: Plan, length: float) -> Plan:
    """Let another operator have its finalizer on an object, which then outlives ours."""
    rng = random.Random(f"guards {plan.seed}")
    if rng.random() > 0.25:
        return plan
    steps = list(plan.steps)
    for name in rng.sample(NAMES, rng.randint(1, 2)):
        at = rng.uniform(0.0, length / 2)
        steps += [Step(at, "create", name), Step(at + rng.choice((0.0, 0.02, 3.0)), "guard", name)]
        if rng.random() < 0.7:
            steps.append(Step(at + rng.uniform(0.0, length / 2), "delete", name))
        if rng.random() < 0.7:
            steps.append(Step(at + rng.uniform(0.0, length / 2), "unguard", name))
    return dataclasses.replace(plan, steps=_sort(steps))


def _vary(plan: Plan, vary: Callable[[HandlerPlan, int], Iterable[HandlerPlan]]) -> Plan:
    """Let handlers of some plans be others; the same ones in both versions."""
    handlers, upgraded = (
        tuple(other for handler in version for other in vary(handler, plan.seed))
        for version in (plan.handlers, plan.upgraded)
    )
    return dataclasses.replace(plan, handlers=handlers, upgraded=upgraded)


def _vary_events(plan: HandlerPlan, seed: int) -> Iterable[HandlerPlan]:
    """Let some event handlers change their objects."""
    rng = random.Random(f"events {seed} {plan.id}")
    if plan.kind != "event" or rng.random() > 0.4:
        return (plan,)
    return (dataclasses.replace(plan, effect=rng.choice(("status", "fn"))),)


def _stack(plan: HandlerPlan, seed: int) -> Iterable[HandlerPlan]:
    """Let some functions have several decorators, with one id."""
    rng = random.Random(f"stack {seed} {plan.id}")
    if plan.kind not in _STACKED or rng.random() > 0.15:
        return (plan,)
    kinds = [plan.kind, *rng.sample(_STACKED, rng.randint(1, 2))]
    return [dataclasses.replace(plan, kind=kind) for kind in dict.fromkeys(kinds)]


def _vary_background(plan: HandlerPlan, seed: int) -> Iterable[HandlerPlan]:
    """Let some timers and daemons fail, wait before their first call, or not end when asked to."""
    is_varied = random.Random(f"background {seed}").random() <= 0.6
    if plan.kind not in BACKGROUND_KINDS or not is_varied:
        return (plan,)
    rng = random.Random(f"background {seed} {plan.id}")
    varied = dataclasses.replace(
        plan,
        attempts=_draw_attempts(rng, rng.choice((0, 0, 1, 2, 4)), (0.3, 1.0, 5.0, 15.0), 0.1),
        effect=rng.choice((plan.effect, "count-fn", "count")),
        initial_delay=rng.choice((0.0, 0.0, 0.3, 4.0)),
        is_sharp=plan.kind == "timer" and rng.random() < 0.4,
        is_stubborn=plan.kind == "daemon" and rng.random() < 0.25,
    )
    return (varied,)


def _sort(steps: list[Step]) -> tuple[Step, ...]:
    return tuple(sorted(steps, key=lambda step: step.at))
