"""What tests see of handlers from outside: who is at work on an object, what an index has."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import webop


class Crowd:
    """Counts who is at work on each object, and the most of them at once."""

    def __init__(self) -> None:
        self.present: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()

    @contextlib.contextmanager
    def enter(self, who: str) -> Iterator[None]:
        self.entries[who] += 1
        self.present[who] += 1
        self.most[who] = max(self.most[who], self.present[who])
        try:
            yield
        finally:
            self.present[who] -= 1


class Names:
    """An index of the names of objects, and what resources it was filled from.

    Attributes:
        served: the versions, with whether they have a status endpoint.
    """

    def __init__(self, plural: str) -> None:
        self.served: set[tuple[str, bool]] = set()
        self._index: Any = ()
        webop.on.startup()(self._look)
        webop.index(plural, id="names")(self._add)

    def __call__(self) -> set[str]:
        return set(self._index)

    def _look(self, names: Any, **_: Any) -> None:
        self._index = names

    async def _add(self, name: str, resource: webop.Resource, **_: Any) -> dict[str, str]:
        self.served.add((resource.version, "status" in resource.subresources))
        return {name: name}
