"""Discovery of the resources that the cluster serves: at the start, and when its CRDs change.

Place in the flow: the observer calls :func:`discover`, and matches the selectors of the handlers
against the result (chapter "Resource specification").
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from webop.aio.concurrency import run_concurrently
from webop.client.http.requests import Call
from webop.errors import APIConnectionError
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from webop.client.api import Client

Broken = dict[tuple[str, str], str]

_AGGREGATED = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)


@dataclass(slots=True)
class Discovery:
    """The resources of the cluster, and the API groups that do not respond."""

    resources: frozenset[Resource] = frozenset()
    # All API groups of the cluster, also those that were not requested.
    groups: set[str] = field(default_factory=set)
    # The broken versions of groups, with the reasons. ``resources`` has those of their resources
    # that the server remembers, maybe none.
    broken: Broken = field(default_factory=dict)


async def discover(client: Client, groups: Collection[str] | None = None) -> Discovery:
    """Discover all resources of the cluster, or of some API groups ("" is the core group).

    One response for /api and one for /apis have everything (Kubernetes API: "Aggregated
    discovery").

    A group that is not available (its server is down) does not affect the others.

    Raises:
        APIError: the API server itself does not respond.
    """
    made = Discovery()
    needed = {"/api": groups is None or "" in groups, "/apis": groups is None or any(groups)}
    roots = [path for path, is_needed in needed.items() if is_needed]
    found = await run_concurrently(_scan_root(client, path, groups, made) for path in roots)
    made.resources = frozenset(_prefer(list(chain.from_iterable(found)), made.broken))
    return made


def _prefer(resources: list[Resource], broken: Broken) -> Iterator[Resource]:
    """Prefer one version of each kind, even if the preferred version of the group lacks the kind.

    Not if a version of the group does not respond, because it can be the one with the kind.
    """
    best: dict[tuple[str, str], Resource] = {}
    for one in sorted(resources, key=lambda each: not each.preferred):
        best.setdefault((one.group, one.plural), one)
    doubtful = {group for group, _ in broken}
    for one in resources:
        is_best = one is best[one.group, one.plural] and one.group not in doubtful
        yield replace(one, preferred=True) if is_best and not one.preferred else one


async def _scan_root(
    client: Client, path: str, groups: Collection[str] | None, made: Discovery
) -> list[Resource]:
    call = Call("GET", path, accept=_AGGREGATED)
    response = await client.perform(call)
    if not isinstance(response, dict) or response.get("kind") != "APIGroupDiscoveryList":
        raise APIConnectionError(
            f"Cannot {call.attempt}: the response is not an APIGroupDiscoveryList, which API "
            "servers send since Kubernetes 1.27"
        )
    return list(_parse_groups(response, groups, made))


def _parse_groups(
    response: Any, groups: Collection[str] | None, made: Discovery
) -> Iterator[Resource]:
    for item in response.get("items") or ():
        group = item["metadata"].get("name") or ""
        made.groups.add(group)
        if groups is not None and group not in groups:
            continue
        for index, version in enumerate(item.get("versions") or ()):
            name = version["version"]
            if version.get("freshness", "Current") != "Current":
                made.broken[group, name] = "its API service is not available"
            for data in version.get("resources") or ():
                kind = data.get("responseKind", {}).get("kind") or ""
                subresources = data.get("subresources") or ()
                yield Resource(
                    group=group,
                    version=name,
                    plural=data["resource"],
                    kind=kind,
                    singular=data.get("singularResource") or kind.lower(),
                    shortcuts=frozenset(data.get("shortNames") or ()),
                    categories=frozenset(data.get("categories") or ()),
                    subresources=frozenset(sub["subresource"] for sub in subresources),
                    namespaced=data.get("scope") == "Namespaced",
                    preferred=index == 0,  # the server sorts the versions
                    verbs=frozenset(data.get("verbs") or ()),
                )
