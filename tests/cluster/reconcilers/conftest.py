"""A reconciler with ConfigMaps as children, and what it has been called for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import webop
from tests.kit.operators import Json, is_no_fence
from tests.kit.waiting import eventually
from webop.client.api import Client

MAPS = webop.Resource("", "v1", "configmaps", kind="ConfigMap", namespaced=True)


def build_map(name: str, data: Json) -> Json:
    """Return a ConfigMap, without its namespace."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@dataclass
class Maps:
    """The ConfigMaps of a namespace, by the word of the API server."""

    client: Client
    namespace: str

    async def find(self, name: str) -> Json | None:
        """Read one; None if there is none."""
        try:
            return await self.client.get(MAPS, self.namespace, name)
        except webop.APINotFoundError:
            return None

    async def wait(self, name: str, condition: Callable[[Json | None], Any]) -> Json | None:
        """Wait until one is as it should be, and return it."""
        found: Json | None = await eventually(
            lambda: self.find(name), f"{name} as expected", check=condition
        )
        return found

    async def patch(self, name: str, patch: Json) -> None:
        """Change one, as a user does."""
        await self.client.patch(MAPS, self.namespace, name, patch)

    async def delete(self, name: str) -> None:
        """Delete one."""
        await self.client.delete(MAPS, self.namespace, name)

    async def create(self, name: str, data: Json, **metadata: Any) -> Json:
        """Create one, as a user does."""
        made = build_map(name, data)
        made["metadata"] |= metadata
        return await self.client.create(MAPS, self.namespace, made)


@dataclass
class Builder:
    """A reconciler that makes a ConfigMap of each page of a widget."""

    reasons: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)

    async def build(
        self, name: str, spec: webop.Spec, children: webop.Children, because: Any, **_: Any
    ) -> None:
        self.reasons.append((name, because))
        for page, text in (spec.get("pages") or {}).items():
            if await children.apply(build_map(f"{name}-{page}", {"text": text})):
                self.written.append(f"{name}-{page}")
        self.pruned += await children.prune()

    def why(self, name: str) -> list[tuple[str, ...]]:
        """Return the reasons of all calls for an object."""
        return [because for each, because in self.reasons if each == name]

    async def until_called(self, name: str, *because: str) -> None:
        """Wait for a call for a reason."""
        what = f"a call for {name} because of {because}, so far: {self.reasons}"
        await eventually(lambda: because in self.why(name), what)


@pytest.fixture
def maps(client: Client, webop_namespace: str) -> Maps:
    return Maps(client, webop_namespace)


@pytest.fixture
def builder() -> Builder:
    builder = Builder()
    decorate = webop.reconcile("widgets", id="build", owns=["configmaps"], when=is_no_fence)
    decorate(builder.build)
    return builder
