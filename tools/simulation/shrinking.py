"""The shortest history that still goes wrong: steps, handlers and replicas are taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tools.simulation.plans import HandlerPlan, Plan
from tools.simulation.world import Verdict, run


def find_rule(verdict: Verdict) -> str:
    """Return the name of the first rule that was broken; nothing if none was."""
    return verdict.violations[0].partition(":")[0] if verdict.violations else ""


def shrink(plan: Plan, note: Callable[[Plan], None], limit: int = 400) -> Plan:
    """Return a plan as short as possible that breaks the same rule."""
    rule = find_rule(run(plan))
    note(plan)
    tried = 0
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for candidate in _propose(plan):
            if tried >= limit:
                return plan
            tried += 1
            if find_rule(run(candidate)) == rule:
                plan, is_shorter = candidate, True
                note(plan)
                break
    return plan


def _propose(plan: Plan) -> Iterator[Plan]:
    """Make simpler plans, those first that save most."""
    for field in ("steps", "handlers", "upgraded"):
        items = getattr(plan, field)
        size = len(items)
        while size:
            for start in range(0, len(items), size):
                yield _change(plan, field, items[:start] + items[start + size :])
            size //= 2
    if plan.replicas > 1:
        yield replace(plan, replicas=plan.replicas - 1)
    if plan.mode != "alone" and plan.replicas == 1:
        yield replace(plan, mode="alone")
    yield from _simplify_handlers(plan)
    for section, values in plan.settings.items():
        for name in values:
            if name not in {"default_backoff", "request_timeout"}:  # the rules need them
                rest = {key: value for key, value in values.items() if key != name}
                yield replace(plan, settings={**plan.settings, section: rest})


def _simplify_handlers(plan: Plan) -> Iterator[Plan]:
    usual = HandlerPlan("", "")
    for field in ("handlers", "upgraded"):
        handlers = getattr(plan, field)
        for number, handler in enumerate(handlers):
            for name in ("attempts", "seconds", "subs", "effect", "is_sync", "is_choosy"):
                simpler = replace(handler, **{name: getattr(usual, name)})
                if simpler != handler:
                    changed = [*handlers[:number], simpler, *handlers[number + 1 :]]
                    yield _change(plan, field, changed)


def _change(plan: Plan, field: str, value: Any) -> Plan:
    return replace(plan, **{field: value})
