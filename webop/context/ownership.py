"""Which objects this replica handles, if replicas divide them by shards.

:mod:`webop.coordination.members` decides; the streams of the reactor follow.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from webop.objects.resources import Resource, Selector
from webop.objects.shards import build_shard_selector, find_shard
from webop.settings.groups import LeadershipSettings


class Follower(Protocol):
    """A part of the reactor with objects of shards (:class:`webop.reactor.stream.Stream`)."""

    def gain(self, shards: frozenset[int]) -> None:
        """Begin to handle the objects of these shards."""

    def leave(self, shards: frozenset[int]) -> None:
        """Begin no new work on the objects of these shards; running work can finish."""

    def stay(self, shards: frozenset[int]) -> None:
        """Go on with the objects of shards that were left."""

    def lose(self, shards: frozenset[int]) -> None:
        """Forget the objects of these shards: other replicas handle them."""

    def list_busy(self, shards: frozenset[int]) -> set[int]:
        """Return those of these shards that have work which runs, or is not written."""


class Ownership:
    """The shards of this replica."""

    def __init__(self) -> None:
        self.is_divided = False  # then all objects belong to this replica
        self.owned = frozenset[int]()
        self.leaving = frozenset[int]()  # those of them that it is about to give up
        self.seconds: defaultdict[int, float] = defaultdict(float)  # of turns, by shard
        self._has_namespaces = False
        self._undivided: tuple[Selector, ...] = ()
        self._followers: list[Follower] = []

    def divide(self, settings: LeadershipSettings) -> None:
        """Own nothing until :meth:`follow`, except if the settings say that nothing is divided."""
        self.is_divided = settings.sharded
        self._has_namespaces = settings.shard_by == "namespace"
        self._undivided = settings.unsharded

    def find(self, resource: Resource, raw: Mapping[str, Any]) -> int:
        """Return the shard of an object."""
        divisor = self.get_divisor(resource)
        return find_shard(raw["metadata"].get(divisor) or "") if divisor else 0

    def get_divisor(self, resource: Resource) -> str:
        """Return what the shards of a kind depend on: "uid" or "namespace"; "" for shard 0."""
        if not self.is_divided or self._is_undivided(resource):
            return ""
        return "namespace" if self._has_namespaces and resource.namespaced else "uid"

    def handles(self, shard: int) -> bool:
        """Return whether this replica handles the objects of a shard."""
        return not self.is_divided or (shard in self.owned and shard not in self.leaving)

    def build_selector(self, resource: Resource) -> str:
        """Return the ``shardSelector`` of the own objects of a kind; empty for all objects."""
        divisor = self.get_divisor(resource)
        return build_shard_selector(divisor, self.owned) if divisor else ""

    def wants(self, resource: Resource) -> bool:
        """Return whether this replica can own objects of a kind."""
        if not self.is_divided:
            return True
        return 0 in self.owned if self._is_undivided(resource) else bool(self.owned)

    def _is_undivided(self, resource: Resource) -> bool:
        return any(one.check(resource) for one in self._undivided)

    @contextlib.contextmanager
    def followed(self, follower: Follower) -> Iterator[None]:
        """Tell a stream about all changes."""
        self._followers.append(follower)
        try:
            yield
        finally:
            self._followers.remove(follower)

    def follow(self, shards: frozenset[int]) -> None:
        """Own these shards from now on, and no others."""
        lost, gained = self.owned - shards, shards - self.owned
        self.owned, self.leaving = shards, self.leaving & shards
        for follower in [*self._followers]:
            if lost:
                follower.lose(lost)
            if gained:
                follower.gain(gained)

    def leave(self, shards: frozenset[int]) -> None:
        """Begin to give up shards; they stay in ``owned`` until :meth:`follow`."""
        self.leaving |= shards
        for follower in [*self._followers]:
            follower.leave(shards)

    def stay(self, shards: frozenset[int]) -> None:
        """Keep shards that were being left."""
        self.leaving -= shards
        for follower in [*self._followers]:
            follower.stay(shards)

    def list_idle(self) -> frozenset[int]:
        """Return the shards that are being left, and have no more work."""
        busy = set[int]().union(*(one.list_busy(self.leaving) for one in self._followers))
        return self.leaving - busy
