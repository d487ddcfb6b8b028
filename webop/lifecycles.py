"""In which order, and how many at a time, the handlers of one cause are called.

A lifecycle gets the handlers that are due and returns those to be called now (REF-30). The
default, :func:`asap`, goes one by one, those with the fewest attempts first; what is left over
is gone on with at once. Set another one by :func:`set_default_lifecycle` or ``lifecycle=``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

LifeCycleFn = Callable[..., Sequence[Any]]


def all_at_once(handlers: Sequence[Any], **_: Any) -> Sequence[Any]:
    """Call all handlers, one after another."""
    return handlers


def one_by_one(handlers: Sequence[Any], **_: Any) -> Sequence[Any]:
    """Call the first handler, in the order of declaration."""
    return handlers[:1]


def randomized(handlers: Sequence[Any], **_: Any) -> Sequence[Any]:
    """Call one handler, whichever."""
    return [random.choice(handlers)] if handlers else []  # noqa: S311  not for secrets


def shuffled(handlers: Sequence[Any], **_: Any) -> Sequence[Any]:
    """Call all handlers, in a random order."""
    return random.sample(list(handlers), k=len(handlers))


def asap(handlers: Sequence[Any], *, state: Any, **_: Any) -> Sequence[Any]:
    """Call the handler with the fewest attempts so far, in the order of declaration."""
    return [min(handlers, key=lambda handler: state[handler.id].retries)] if handlers else []


_default: LifeCycleFn = asap


def get_default_lifecycle() -> LifeCycleFn:
    """Return the lifecycle of operators that are given none."""
    return _default


def set_default_lifecycle(lifecycle: LifeCycleFn | None) -> None:
    """Set the lifecycle of operators that are given none; None resets it."""
    global _default  # noqa: PLW0603  the manual's documented global
    _default = asap if lifecycle is None else lifecycle
