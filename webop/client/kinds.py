"""Kinds by their names, as handlers name them: found by discovery, remembered until one is missing.

Place in the flow: :class:`webop.client.objects.AsyncClient` asks for the resource of each request.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeAlias

from webop.client.discovery import Discovery, discover
from webop.errors import APINotFoundError, ConfigurationError
from webop.objects.resources import Resource, Selector, parse_selector

if TYPE_CHECKING:
    from webop.client.api import Client

KindName: TypeAlias = str | tuple[str, ...] | Resource
"""A name as in decorators: "pods", "example.com/v1/databases", ("example.com", "v1", "databases").

Also the ``resource`` that handlers are given.
"""


class Kinds:
    """The kinds of a cluster, by their names.

    Guarantees: the cluster is asked when a name is not known. Whoever asks meanwhile waits for the
    same answer.
    """

    def __init__(self, requests: Client) -> None:
        self._requests = requests
        self._found: dict[Selector | KindName, Resource] = {}
        self._known = Discovery()
        self._asked_at = 0.0
        self._asking = asyncio.Lock()

    async def find(self, kind: KindName | Selector) -> Resource:
        """Return the resource of a name.

        Raises:
            TypeError: it cannot be the name of one kind.
            ConfigurationError: several kinds have the name.
            APINotFoundError: no kind of the cluster has it.
            APIError: the API server does not say which kinds there are.
        """
        if isinstance(kind, Resource):
            return kind
        if not isinstance(kind, str | tuple | Selector):
            raise TypeError(
                "A kind is named by a string such as 'pods' or 'example.com/v1/databases', by a "
                f"tuple as in decorators, or by a webop.Resource, got {kind!r}."
            )
        if (found := self._found.get(kind)) is None:
            found = self._found[kind] = await self._select(_parse(kind))
        return found

    def forget(self) -> None:
        """Ask the cluster anew: it does not serve a kind any more, or only another version."""
        self._found.clear()
        self._known = Discovery()

    async def _select(self, selector: Selector) -> Resource:
        needed_at = time.monotonic()
        found = selector.find_candidates(self._known.resources)
        if not found:
            async with self._asking:
                if self._asked_at < needed_at:
                    self._asked_at = time.monotonic()
                    self._known = await discover(self._requests)
            found = selector.find_candidates(self._known.resources)
        if len(found) == 1:
            return next(iter(found))
        if found:
            names = ", ".join(sorted(resource.name for resource in found))
            raise ConfigurationError(f"{selector} is ambiguous: name one of {names}.")
        broken = ", ".join(sorted("/".join(version) for version in self._known.broken))
        raise APINotFoundError(
            f"There is no kind {selector} in the cluster."
            + selector.suggest(self._known.resources, self._known.groups)
            + (f" These API groups do not answer: {broken}." if broken else ""),
            status=404,
        )


def _parse(kind: str | tuple[str, ...] | Selector) -> Selector:
    if isinstance(kind, Selector):
        return kind
    selector = parse_selector(*(kind.split("/") if isinstance(kind, str) else kind))
    if not selector.is_specific:
        raise TypeError(f"The client needs one kind, got {selector}.")
    return selector
