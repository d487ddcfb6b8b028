"""Lifecycles: the order in which the handlers of one cause are called.

A lifecycle gets the handlers that are due and returns those to call now. webop asks again
until all are called. The default, :func:`asap`, returns the handler with the fewest attempts. Set
another one with :func:`set_default_lifecycle` or ``lifecycle=``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

__all__ = [
    "LifeCycleFn",
    "all_at_once",
    "asap",
    "get_default_lifecycle",
    "one_by_one",
    "randomized",
    "set_default_lifecycle",
    "shuffled",
]

LifeCycleFn = Callable[..., Sequence[Any]]
"""A function that gets the handlers that are due, and returns those to call now."""


def all_at_once(handlers: Sequence[Any], **_: Any) -> Sequence[Any]:
    """Call all handlers, one after another."""
    return handlers


def one_by_one(handlers: Sequence[Any], **_: Any) -> Sequence[Any]:
    """Call the first handler, in the order of declaration."""
    return handlers[:1]


def randomized(handlers: Sequence[Any], **_: Any) -> Sequence[Any]:
    """Call one handler at random."""
    return [random.choice(handlers)] if handlers else []  # noqa: S311  not for secrets


def shuffled(handlers: Sequence[Any], **_: Any) -> Sequence[Any]:
    """Call all handlers, in a random order."""
    return random.sample(list(handlers), k=len(handlers))


def asap(handlers: Sequence[Any], *, state: Any, **_: Any) -> Sequence[Any]:
    """Call the handler with the fewest attempts so far, in the order of declaration."""
    return [min(handlers, key=lambda handler: state[handler.id].retries)] if handlers else []


_default: LifeCycleFn = asap


def get_default_lifecycle() -> LifeCycleFn:
    """Return the default lifecycle of operators."""
    return _default


def set_default_lifecycle(lifecycle: LifeCycleFn | None) -> None:
    """Set the default lifecycle of operators; None restores :func:`asap`."""
    global _default  # noqa: PLW0603  the manual's documented global
    _default = asap if lifecycle is None else lifecycle
