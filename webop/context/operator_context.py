"""The context that all parts of one operator share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from webop.context.child_store import ChildStore, Names
from webop.context.cluster_view import ClusterView
from webop.context.indexes import Indexes
from webop.context.memos import Memos
from webop.context.ownership import Ownership
from webop.context.pausing import Pausing
from webop.events.loggers import Poster
from webop.handlers.registry import OperatorRegistry
from webop.lifecycles import LifeCycleFn
from webop.settings.groups import OperatorSettings
from webop.telemetry.counters import CallCounters

if TYPE_CHECKING:
    from webop.client.objects import AsyncClient


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """The context of one operator: its settings, its handlers and its state in memory."""

    settings: OperatorSettings
    registry: OperatorRegistry
    memos: Memos
    lifecycle: LifeCycleFn
    identity: str
    poster: Poster
    client: AsyncClient | None = None
    cluster_view: ClusterView = field(default_factory=ClusterView)
    indices: Indexes = field(default_factory=Indexes)
    pausing: Pausing = field(default_factory=Pausing)
    ownership: Ownership = field(default_factory=Ownership)
    counters: CallCounters = field(default_factory=CallCounters)
    children: ChildStore = field(default_factory=ChildStore)

    def forget(self, uid: str) -> None:
        """Forget an object that is gone, or that another replica handles."""
        self.memos.forget(uid)
        self.children.forget(uid)
        self.counters.misfits.pop(uid, None)

    @property
    def child_names(self) -> Names:
        """The labels and the annotation of the children of reconcilers."""
        return Names.build(self.settings.persistence.prefix, self.settings.operator.name)
