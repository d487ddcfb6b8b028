"""Waiting for the cluster: until an object meets a condition, until a kind is served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from webop.client.discovery import discover
from webop.client.http.requests import Call
from webop.errors import APIConnectionError, APIStatusError
from webop.objects.resources import Resource
from webop.objects.status_conditions import find_condition, is_outdated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webop.client.api import Client

_POLLING = 0.2  # seconds
_NOT_YET = frozenset({404, 429, 503})


async def wait_served(
    client: Client, definition: Mapping[str, Any], timeout: float
) -> set[Resource]:
    """Wait until all versions of a CRD are served; return those that are not in time.

    The condition "Established" of a definition says nothing of new versions, but the discovery
    does. After that, lists can be refused for a second, while the storage begins.
    """
    spec, deadline = definition["spec"], asyncio.get_running_loop().time() + timeout
    group, plural = spec["group"], spec["names"]["plural"]
    served = (one["name"] for one in spec["versions"] if one.get("served"))
    missing = {Resource(group, version, plural) for version in served}
    while True:
        for kind in missing & (await discover(client, {group})).resources:
            try:
                await client.perform(Call("GET", kind.get_url(), {"limit": "1"}, is_retried=False))
            except APIConnectionError:
                continue
            except APIStatusError as exc:  # others are answers, such as a missing permission
                if exc.status in _NOT_YET:
                    continue
            missing.discard(kind)
        if not missing or asyncio.get_running_loop().time() > deadline:
            return missing
        await asyncio.sleep(_POLLING)


def describe(obj: dict[str, Any] | None, wish: str) -> str:
    """Return a text: the current state of an object with regard to a condition."""
    if obj is None:
        return "the object does not exist"
    condition = find_condition(obj, wish.partition("=")[0])
    if condition is None:
        version = obj["metadata"].get("resourceVersion")
        return f"the last state seen has the resource version {version}"
    why = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    age = ", for an older generation" if is_outdated(obj, condition) else ""
    return f"the condition is {condition.get('status')}{age} ({why})"
