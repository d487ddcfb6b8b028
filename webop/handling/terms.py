"""On which terms handlers are called: what is the same for all handlers of a cause. Pure."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webop.handling.handlers import ErrorsMode
from webop.lifecycles import LifeCycleFn, all_at_once
from webop.objects.patch import Patch
from webop.settings import OperatorSettings

if TYPE_CHECKING:
    from webop.handling.progress import HandlerState

Commit = Callable[[Mapping[str, "HandlerState"], Patch], Awaitable[None]]
"""Writes down how far the handlers have come, with the patch that they have made so far."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms handlers are executed, for all handlers of a cause alike.

    Attributes:
        settings: the operator's settings.
        lifecycle: who is next among those that are due.
        default_errors: how arbitrary exceptions are taken if the handler does not say.
        window: seconds within which the handlers that finish share one patch of the object.
        commit: writes down what is finished when the window closes while others still run.
        success_level: at which level of logging successes are reported.
    """

    settings: OperatorSettings
    lifecycle: LifeCycleFn = all_at_once
    default_errors: ErrorsMode = ErrorsMode.TEMPORARY
    window: float = 0.0
    commit: Commit | None = None
    success_level: int = logging.INFO
