"""Kinds by their names: found by discovery, and cached until one is missing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeAlias

from webop.client.discovery import Discovery, discover
from webop.errors import APIError, APIStatusError, ConfigurationError
from webop.models.definitions import select_kind
from webop.objects.resources import Resource, Selector

if TYPE_CHECKING:
    from pydantic import BaseModel

    from webop.client.api import Client

KindName: TypeAlias = str | tuple[str, ...] | Resource
"""A name as in decorators: "pods", "example.com/v1/databases", ("example.com", "v1", "databases").

Also the ``resource`` that handlers are given.
"""

Kind: TypeAlias = "KindName | type[BaseModel]"
"""A name of a kind, or its model."""


class Kinds:
    """The kinds of a cluster, by their names.

    Guarantees: an unknown name causes one discovery. Concurrent calls wait for its result, or get
    the same error.
    """

    def __init__(self, requests: Client) -> None:
        self._requests = requests
        self._found: dict[Selector | Kind, Resource] = {}
        self._known = Discovery()
        self._failure: APIError | None = None
        self._asked_at = 0.0
        self._asking = asyncio.Lock()

    async def find(self, kind: Kind | Selector) -> Resource:
        """Return the resource of a name.

        Raises:
            TypeError: this cannot be the name of one kind.
            ConfigurationError: several kinds have the name.
            APINotFoundError: no kind of the cluster has the name.
            APIError: the discovery failed, for all API groups or for some.
        """
        if isinstance(kind, Resource):
            return kind
        if not isinstance(kind, str | tuple | Selector | type):
            raise TypeError(
                "A kind must be a string such as 'pods' or 'example.com/v1/databases', a tuple as "
                f"in decorators, a model, or a webop.Resource, got {kind!r}."
            )
        if (found := self._found.get(kind)) is None:
            found = self._found[kind] = await self._select(_parse(kind))
        return found

    def forget(self) -> None:
        """Clear the cache: the cluster no longer serves a kind, or only another version of it."""
        self._found.clear()
        self._known = Discovery()
        self._asked_at = 0.0

    async def _select(self, selector: Selector) -> Resource:
        needed_at = time.monotonic()
        found = selector.find_candidates(self._known.resources)
        if not found:
            async with self._asking:
                if self._asked_at < needed_at:
                    await self._ask()
            if self._failure is not None:
                raise self._failure
            found = selector.find_candidates(self._known.resources)
        if len(found) == 1:
            return next(iter(found))
        if found:
            names = ", ".join(sorted(resource.name for resource in found))
            raise ConfigurationError(f"{selector} is ambiguous: use one of {names}.")
        broken = [name for name in self._known.broken if selector.group in (None, name[0])]
        names = ", ".join(sorted(map("/".join, broken)))
        message = (
            f"There is no kind {selector} in the cluster."
            + selector.suggest(self._known.resources, self._known.groups)
            + (f" These API groups do not respond and may have it: {names}." if broken else "")
        )
        raise APIStatusError.of(status := 503 if broken else 404)(message, status=status)

    async def _ask(self) -> None:
        began = time.monotonic()
        try:
            self._known, self._failure = await discover(self._requests), None
        except APIError as exc:
            self._failure = exc
        self._asked_at = began  # not if this was cancelled: then the next call discovers


def _parse(kind: str | tuple[str, ...] | type[BaseModel] | Selector) -> Selector:
    if isinstance(kind, Selector):
        return kind
    selector = select_kind(kind)
    if not selector.is_specific:
        raise TypeError(f"The client needs one kind, got {selector}.")
    return selector
