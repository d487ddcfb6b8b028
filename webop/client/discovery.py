"""Discovery of the resources that the cluster serves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from webop.aio.concurrency import run_concurrently
from webop.client.http.requests import Call
from webop.errors import APIConnectionError, APIError, APINotFoundError
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from webop.client.api import Client

_AGGREGATED = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)


@dataclass(frozen=True, slots=True)
class Discovery:
    """The resources of the cluster, and the API groups that do not respond.

    Attributes:
        resources: the resources. A version of a group that does not respond has those that the
            server remembers, or that were discovered before, maybe none.
        groups: all API groups of the cluster, also those that were not requested.
        broken: the versions of groups that do not respond: their API service is not available.
        etag: of the response; empty if there are several, or if the server sends none.
        parts: what each path shows, by the path and the requested groups.
    """

    resources: frozenset[Resource] = frozenset()
    groups: frozenset[str] = frozenset()
    broken: frozenset[tuple[str, str]] = frozenset()
    etag: bytes = b""
    parts: Mapping[tuple[str, frozenset[str] | None], Discovery] = field(default_factory=dict)


_NOTHING = Discovery()


async def discover(
    client: Client, groups: Collection[str] | None = None, former: Discovery = _NOTHING
) -> Discovery:
    """Discover all resources of the cluster, or of some API groups ("" is the core group).

    One response for /api and one for /apis have everything (Kubernetes API: "Aggregated
    discovery"). If their ETags are those of a former discovery, that is returned.

    A group that is not available (its server is down) does not affect the others. An API server
    that has just started shows no custom resources for some seconds. So kinds that seem to be gone
    are asked for separately, and kept until the API server denies that they exist.

    Raises:
        APIError: the API server itself does not respond.
    """
    chosen = None if groups is None else frozenset(groups)
    needed = {"/api": chosen is None or "" in chosen, "/apis": chosen is None or any(chosen)}
    keys = [(path, chosen) for path, is_needed in needed.items() if is_needed]
    scans = (_scan(client, *key, former.parts.get(key, _NOTHING)) for key in keys)
    parts = dict(zip(keys, await run_concurrently(scans), strict=True))
    if parts and all(part is former.parts.get(key) for key, part in parts.items()):
        return former
    found = parts.values()
    broken = frozenset(version for part in found for version in part.broken)
    resources = frozenset(resource for part in found for resource in part.resources)
    kept = {each for each in former.resources if (each.group, each.version) in broken}
    all_groups = frozenset(group for part in found for group in part.groups)
    shown = {(each.group, each.plural) for each in resources | kept}
    known = {each for each in former.resources if chosen is None or each.group in chosen}
    absent = {each for each in known if (each.group, each.plural) not in shown}
    versions = sorted({(each.group, each.version) for each in absent})
    answers = await run_concurrently(_list_plurals(client, *version) for version in versions)
    served = dict(zip(versions, answers, strict=True))
    doubtful = set[Resource]()
    for each in absent:
        plurals = served[each.group, each.version]
        if plurals is None or each.plural in plurals:
            doubtful.add(each)
    if doubtful:
        groups_kept = all_groups | {each.group for each in doubtful}
        return Discovery(resources | kept | doubtful, groups_kept, broken)  # without ETags
    return Discovery(resources | kept, all_groups, broken, parts=parts)


async def _list_plurals(client: Client, group: str, version: str) -> list[str] | None:
    """Return the plural names of the kinds in a version; None if nobody can tell."""
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        response = await client.perform(Call("GET", path, is_retried=False))
    except APINotFoundError:
        return []
    except APIError:
        return None
    return [each["name"] for each in response.get("resources") or ()]


async def _scan(
    client: Client, path: str, groups: frozenset[str] | None, former: Discovery
) -> Discovery:
    call = Call("GET", path, accept=_AGGREGATED, etag=former.etag)
    etag, response = await client.perform(call)
    if response is None and former.etag:
        return former
    if not isinstance(response, dict) or response.get("kind") != "APIGroupDiscoveryList":
        raise APIConnectionError(
            f"Cannot {call.attempt}: the response is not an APIGroupDiscoveryList, which API "
            "servers send since Kubernetes 1.27"
        )
    items = {item["metadata"].get("name") or "": item for item in response.get("items") or ()}
    resources: list[Resource] = []
    broken: set[tuple[str, str]] = set()
    for group, item in items.items():
        if groups is None or group in groups:
            for index, version in enumerate(item.get("versions") or ()):
                resources += _parse_version(group, index, version)
                if version.get("freshness", "Current") != "Current":
                    broken.add((group, version["version"]))
    preferring = _prefer(resources, doubtful={group for group, _ in broken})
    return Discovery(frozenset(preferring), frozenset(items), frozenset(broken), etag)


def _prefer(resources: list[Resource], doubtful: Collection[str]) -> Iterator[Resource]:
    """Prefer one version of each kind, even if the preferred version of the group lacks the kind.

    Not in doubtful groups: a version that does not respond can be the one with the kind.
    """
    best: dict[tuple[str, str], Resource] = {}
    for one in sorted(resources, key=lambda each: not each.preferred):
        best.setdefault((one.group, one.plural), one)
    for one in resources:
        is_best = one is best[one.group, one.plural] and one.group not in doubtful
        yield replace(one, preferred=True) if is_best and not one.preferred else one


def _parse_version(group: str, index: int, version: Any) -> Iterator[Resource]:
    for data in version.get("resources") or ():
        kind = data.get("responseKind", {}).get("kind") or ""
        subresources = data.get("subresources") or ()
        yield Resource(
            group=group,
            version=version["version"],
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
