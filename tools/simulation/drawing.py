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
from tools.simulation.replicas import PARTS
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
        _draw_handlers(rng, theme),
        steps,
        _draw_settings(rng, theme, mode),
        has_status=rng.random() < 0.3,
        is_late=is_late,
        is_hosted=name == "lockouts" or rng.random() < 0.5,
        discovery_lag=rng.choice((0.0, 0.5, 3.0)) if name == "kinds" else 0.0,
    )
    for about, add in _ADDITIONS.items():
        add(plan, random.Random(f"{about} {seed}"), length)
    _add_shards(plan, random.Random(f"shards {seed}"), length)
    if theme.has_webhooks and mode != "peering":
        _add_admission(plan, random.Random(f"admission {seed}"), length)
    plan.steps.sort(key=_get_time)
    return plan


def _vary(plan: Plan, vary: Callable[[HandlerPlan], Iterable[HandlerPlan]]) -> None:
    """Let handlers be others; the same ones in both versions."""
    for handlers in (plan.handlers, plan.upgraded):
        handlers[:] = [other for handler in handlers for other in vary(handler)]


def _get_time(step: Step) -> float:
    return step.at


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
            "streaming_list": rng.random() < 0.6,
            "server_timeout": rng.choice((None, 20.0)),
        },
    }


def _add_admission(plan: Plan, rng: random.Random, length: float) -> None:
    """Add webhooks to some plans, rollouts and rotations; half of these are spared all faults."""
    if rng.random() > 0.6:
        return
    # What replaces replicas before the next ones are ready is no rollout.
    steps = [step for step in plan.steps if step.kind != "upgrade"]
    if rng.random() < 0.5:
        steps = [step for step in steps if step.kind not in _FAULTS]
    for _ in range(rng.choice((0, 0, 1, 2))):
        steps.append(Step(rng.uniform(0, length), "stop", rng.randrange(plan.replicas), 1.0))
    if rng.random() < 0.6:
        steps.append(Step(rng.uniform(0, length), "rollout", None, 60.0))
    plan.steps = steps
    plan.admission = AdmissionPlan(
        pace=rng.choice((0.5, 2.0, 5.0)),
        seconds=rng.choice((0.0, 0.05, 0.5)),
        lifetime=rng.choice((90.0, 120.0)),
        shutdown_delay=rng.choice((6.0, 10.0)),
        shrinks=rng.random() < 0.25,
        is_persistent=rng.random() < 0.25,
        lag=rng.choice((0.0, 0.3, 1.0)),
    )


def _add_meddling(plan: Plan, rng: random.Random, length: float) -> None:
    """Let users annotate objects, and overwrite what one handler has written before the next."""
    if rng.random() > 0.3:
        return
    kind = rng.choice(("create", "update"))
    effect = rng.choice(("status", "result", "fn"))
    quick = HandlerPlan(f"quick-{kind}", kind, effect=effect)
    plan.handlers[:0] = [
        quick,
        HandlerPlan(f"slow-{kind}", kind, seconds=rng.choice((1.0, 3.0))),
    ]
    for step in sorted(plan.steps, key=_get_time):
        if step.kind in {"create", "update", "replace"} and rng.random() < 0.6:
            delay = rng.choice((0.3, 0.6, 1.5, rng.uniform(0, length / 4)))
            what = rng.choice(("meddle", "meddle", "annotate"))
            plan.steps.append(Step(step.at + delay, what, step.target))


def _add_upgrade(plan: Plan, rng: random.Random, length: float) -> None:
    """Let some operators be replaced by versions with other handlers, or restarted while users act.

    In between, a handler has failed for the first time, and users change what it waits for.
    """
    if rng.random() > 0.35:
        return
    name = rng.choice(NAMES)
    begin, fails = rng.uniform(0.0, length / 2), rng.choice((2.0, 5.0, 15.0))
    attempts = tuple(Attempt("temporary", fails) for _ in range(rng.choice((1, 2, 4))))
    kind = rng.choice(("create", "update"))
    waiting = HandlerPlan(
        f"waiting-{kind}", kind, attempts, subs=rng.choice((0, 2)), is_choosy=rng.random() < 0.25
    )
    plan.handlers.insert(0, HandlerPlan("noting-update", "update"))
    plan.handlers.insert(rng.randrange(len(plan.handlers) + 1), waiting)
    at, down = begin + rng.choice((0.3, 1.0, 3.0)), rng.choice((0.5, 2.0, 20.0))
    plan.steps += [
        Step(max(0.0, begin - 1.0), "create", name),
        Step(begin, "update", name),
        Step(at, rng.choice(("upgrade", "upgrade", "kill", "stop")), 0, down),
    ]
    for _ in range(rng.randint(0, 3)):
        what = rng.choice(("update", "label", "annotate", "delete"))
        plan.steps.append(Step(at + rng.uniform(-0.2, 1.2) * down, what, name))
    upgraded = plan.upgraded = [handler for handler in plan.handlers if rng.random() > 0.2]
    if upgraded and rng.random() < 0.6:
        number = rng.randrange(len(upgraded))
        other = not upgraded[number].is_choosy
        upgraded[number] = dataclasses.replace(upgraded[number], is_choosy=other)
    if rng.random() < 0.6 or not upgraded:
        mixed = THEMES["mixed"]
        upgraded.insert(0, _draw_handler(rng, mixed, rng.choice(mixed.pool), "new"))


def _add_reconciler(plan: Plan, rng: random.Random, length: float) -> None:
    """Let some operators keep parts of each object, which users delete, edit and orphan."""
    if rng.random() > 0.25:
        return
    attempts: tuple[Attempt, ...] = ()
    if rng.random() < 0.4:
        attempts = _draw_attempts(rng, rng.randint(1, 3), (0.0, 0.3, 1.0, 5.0), 0.0)
    keeper = HandlerPlan("keeper", "reconcile", attempts, rng.choice((0.0, 0.05, 0.5, 3.0)))
    plan.handlers.append(keeper)
    plan.upgraded += [keeper] if plan.upgraded else []
    for _ in range(rng.choice((0, 1, 3, 6))):
        what = rng.choice(sorted(SPOILING))
        plan.steps.append(Step(rng.uniform(0, length), what, rng.choice(NAMES)))
    if rng.random() < 0.4:  # what users do overtakes the responses to applies
        at, name = rng.uniform(0, length), rng.choice(NAMES)
        late = Fault("late", (), ("PATCH",), PARTS, seconds=3.0)
        plan.steps += [Step(at, "fault", None, 4.0, late), Step(at, "update", name)]
        for what in sorted(SPOILING):
            plan.steps.append(Step(at + rng.uniform(0.1, 4.0), what, name))


def _add_shards(plan: Plan, rng: random.Random, length: float) -> None:
    """Let the replicas of some operators share the work: they come, go, stall, and are cut off."""
    is_chosen = plan.mode == "lease" and plan.replicas > 1 and rng.random() < 0.5
    if plan.mode != "shards" and not is_chosen:
        return
    replicas = max(plan.replicas, rng.randint(2, 4))
    steps = plan.steps
    late = rng.sample(range(replicas), rng.choice((0, 0, 1, 1, 2)) % replicas)
    steps += [Step(rng.uniform(0, 0.5), "stop", one, rng.uniform(3, length)) for one in late]
    for _ in range(rng.choice((1, 2, 4, 8))):
        steps += draw_move(rng, rng.uniform(0, length + 10.0), rng.randrange(replicas))
    if rng.random() < 0.4:
        steps.append(Step(rng.uniform(0, length), "crowd", rng.choice((10, 25))))
    if rng.random() < 0.5:
        _vary(plan, lambda each: [dataclasses.replace(each, is_mutual=each.kind == "reconcile")])
    some = (rng.randrange(replicas),)
    plan.mode, plan.replicas = "shards", replicas
    plan.leaders = some if rng.random() < 0.2 else ()
    plan.canaries = some if rng.random() < 0.15 else ()


def _add_peers(plan: Plan, rng: random.Random, length: float) -> None:
    """Let operators of others join some peerings: they leave, or vanish without notice."""
    if plan.mode != "peering" or rng.random() < 0.4:
        return
    if rng.random() < 0.7:
        spared = {"fault", "pause", "unlock", "lag"}
        plan.steps = [step for step in plan.steps if step.kind not in spared]
    for _ in range(rng.randint(1, 2)):
        kind, priority = rng.choice(("peer", "lost peer")), rng.choice((-1, 0, 1, 100))
        at = rng.uniform(0, length)
        plan.steps.append(Step(at, kind, priority, rng.choice((5.0, 30.0, 70.0))))


def _add_kind_changes(plan: Plan, rng: random.Random, length: float) -> None:
    """Let the kind change, with objects in indexes, while a handler runs and an object goes."""
    if plan.is_late or rng.random() > 0.2:
        return
    guards = {"delete", "daemon", "timer"} if rng.random() < 0.7 else set()
    _vary(plan, lambda handler: [handler] if handler.kind not in guards else [])
    plan.handlers[:0] = [
        HandlerPlan("index-all", "index"),
        HandlerPlan("index-general", "index", seconds=0.05, is_general=True),
        HandlerPlan("watching", "event"),
        HandlerPlan("slow-update", "update", seconds=3.0),
    ]
    at = rng.uniform(5.0, 5.0 + length)
    plan.steps += [Step(at - 4.0, "create", name) for name in NAMES]
    plan.steps += [
        Step(at - rng.choice((0.1, 1.0, 2.5)), "update", "one"),
        Step(at, rng.choice(("alter", "regroup", "regroup"))),
        Step(at + rng.uniform(0.0, 3.0), rng.choice(("delete", "update")), "two"),
        Step(at + rng.uniform(3.0, 20.0), rng.choice(("alter", "regroup"))),
    ]


def _add_late_definition(plan: Plan, rng: random.Random, _: float) -> None:
    """Let some late kinds be defined while credentials are lost, some time after the start."""
    if not plan.is_late or rng.random() > 0.5:
        return
    at = rng.uniform(13.0, 20.0)
    plan.steps = [
        dataclasses.replace(step, at=at) if step.kind == "define" else step
        for step in sorted(plan.steps, key=_get_time)
    ]
    plan.steps += [
        Step(at - 1.0, "fault", None, 0.0, Fault("cut")),
        Step(at - 1.0, "fault", None, rng.choice((1.5, 5.0)), Fault("status", status=401)),
        Step(at + 0.1, "create", "one"),
        Step(at + 0.4, "create", "two"),
    ]
    plan.is_hosted = True


def _add_mismatch(plan: Plan, rng: random.Random, length: float) -> None:
    """Let an object cease to match, or match for a while, when most else is over."""
    is_choosy = any(each.kind == "daemon" and each.is_choosy for each in plan.handlers)
    if not is_choosy or rng.random() > 0.5:
        return
    at, name = length + rng.uniform(2.0, 10.0), rng.choice(NAMES)
    plan.steps += [Step(at - 2.0, "create", name), Step(at, "toggle", name)]
    plan.steps += [Step(at + 5.0, "toggle", name)] if rng.random() < 0.5 else []


def _add_guards(plan: Plan, rng: random.Random, length: float) -> None:
    """Let another operator have its finalizer on an object, which then outlives ours."""
    if rng.random() > 0.25:
        return
    for name in rng.sample(NAMES, rng.randint(1, 2)):
        at, half = rng.uniform(0.0, length / 2), length / 2
        plan.steps.append(Step(at, "create", name))
        plan.steps.append(Step(at + rng.choice((0.0, 0.02, 3.0)), "guard", name))
        if rng.random() < 0.7:
            plan.steps.append(Step(at + rng.uniform(0.0, half), "delete", name))
        if rng.random() < 0.7:
            plan.steps.append(Step(at + rng.uniform(0.0, half), "unguard", name))


def _vary_handlers(plan: Plan, rng: random.Random, _: float) -> None:
    """Let some handlers change their objects, fail, or share a function with others."""
    is_varied = rng.random() <= 0.6

    def vary(handler: HandlerPlan) -> Iterable[HandlerPlan]:
        if handler.kind in BACKGROUND_KINDS and is_varied:
            return [_vary_background(handler, plan.seed)]
        if handler.kind == "event":
            rng = random.Random(f"events {plan.seed} {handler.id}")
            if rng.random() <= 0.4:
                return [dataclasses.replace(handler, effect=rng.choice(("status", "fn")))]
        if handler.kind in _STACKED:  # several decorators, with one id
            rng = random.Random(f"stack {plan.seed} {handler.id}")
            if rng.random() <= 0.15:
                kinds = dict.fromkeys([handler.kind, *rng.sample(_STACKED, rng.randint(1, 2))])
                return [dataclasses.replace(handler, kind=kind) for kind in kinds]
        return [handler]

    _vary(plan, vary)


def _vary_background(plan: HandlerPlan, seed: int) -> HandlerPlan:
    """Let a timer or daemon fail, wait before its first call, or not end when asked to."""
    rng = random.Random(f"background {seed} {plan.id}")
    return dataclasses.replace(
        plan,
        attempts=_draw_attempts(rng, rng.choice((0, 0, 1, 2, 4)), (0.3, 1.0, 5.0, 15.0), 0.1),
        effect=rng.choice((plan.effect, "count-fn", "count")),
        initial_delay=rng.choice((0.0, 0.0, 0.3, 4.0)),
        is_sharp=plan.kind == "timer" and rng.random() < 0.4,
        is_stubborn=plan.kind == "daemon" and rng.random() < 0.25,
    )


_ADDITIONS = {
    "meddling": _add_meddling,
    "upgrade": _add_upgrade,
    "peers": _add_peers,
    "kind changes": _add_kind_changes,
    "mismatch": _add_mismatch,
    "guards": _add_guards,
    "late definition": _add_late_definition,
    "reconciler": _add_reconciler,
    "background": _vary_handlers,
}
"""What is added to some plans, in this order, each by random numbers of its own."""
