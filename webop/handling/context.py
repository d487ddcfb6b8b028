"""What all flows of one operator share, handed around as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from webop.handling.duty import Duty
from webop.handling.indexes import Indexes
from webop.handling.insights import Insights
from webop.handling.registry import OperatorRegistry
from webop.handling.stores import Memos
from webop.lifecycles import LifeCycleFn
from webop.posting import Poster
from webop.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """The frozen context of one operator: what is configured, declared, and remembered."""

    settings: OperatorSettings
    registry: OperatorRegistry
    memos: Memos
    lifecycle: LifeCycleFn
    identity: str
    poster: Poster
    insights: Insights = field(default_factory=Insights)
    indices: Indexes = field(default_factory=Indexes)
    duty: Duty = field(default_factory=Duty)
