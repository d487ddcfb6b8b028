"""Lists, with pages and versions, and the beginnings of watches.

Kubernetes API concepts: "Resource versions", "Retrieving large results sets in chunks",
"Streaming lists".
"""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass

import orjson

from .kinds import Kind
from .messages import (
    Json,
    Refusal,
    Response,
    refuse_body,
    refuse_options,
    refuse_version,
)
from .selectors import build_predicate, check_fields, requires_name
from .store import Store, Table, Watch

_MATCHES = {"", "Exact", "NotOlderThan"}


@dataclass(frozen=True, slots=True)
class _Page:
    """Which part of which version is wanted."""

    objects: dict[str, Json]
    version: int
    start: str = ""
    limit: int = 0


def list_objects(
    store: Store, kind: Kind, table: Table, prefix: str, query: dict[str, str]
) -> Response:
    """Answer a list.

    Raises:
        Refusal: the parameters contradict each other, or the version is gone, or not there yet.
    """
    is_selected = build_predicate(kind, query)
    # One object that is known by its key is not listed, but read.
    is_single = requires_name(query) and bool(prefix or not kind.namespaced)
    page = _choose_page(store, table, prefix, query, is_single=is_single)
    check_fields(kind, query)
    keys = [key for key in sorted(page.objects) if key.startswith(prefix) and key >= page.start]
    items: list[Json] = []
    count = 0
    for count, key in enumerate(keys, 1):  # noqa: B007  it is needed after the loop
        raw = kind.show(page.objects[key])
        if is_selected is None or is_selected(raw):
            items.append(raw)
            if len(items) == page.limit:
                break
    rest = keys[count:]
    metadata: Json = {"resourceVersion": str(page.version)}
    if rest:
        # The next page begins right after the last key, as that of etcd does.
        start = keys[count - 1].removeprefix(prefix) + "\0"
        metadata["continue"] = _build_token(page.version, start)
        if is_selected is None:
            metadata["remainingItemCount"] = len(rest)
    if not kind.is_custom:
        skipped = {"apiVersion", "kind"}
        items = [{key: raw[key] for key in raw if key not in skipped} for raw in items]
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.list_kind or f"{kind.kind}List",
        "metadata": metadata,
        "items": items,
    }
    return Response(200, body)


def open_watch(store: Store, kind: Kind, table: Table, prefix: str, query: dict[str, str]) -> Watch:
    """Begin a watch; a version that is too old is an error event, as in kube-apiserver.

    Raises:
        Refusal: the parameters contradict each other.
    """
    is_selected = build_predicate(kind, query)
    is_streaming = _parse_streaming(query)
    check_fields(kind, query)
    version = _parse_version(query.get("resourceVersion", ""), is_watch=True)
    bookmark = {"kind": kind.kind, "apiVersion": kind.api_version}
    wants_bookmarks = query.get("allowWatchBookmarks") in {"true", "1"}

    def begin(after: int, objects: dict[str, Json]) -> Watch:
        watch = Watch(
            table, after, prefix, is_selected, kind.show, bookmark if wants_bookmarks else None
        )
        table.watches[watch] = None
        try:
            watch.list_objects(objects)
        except Refusal:  # an object cannot be converted: the cache does not become up to date
            watch.fail(refuse_version(str(store.version), after))
        return watch

    if is_streaming is False and not version:
        return begin(store.version, {})
    if is_streaming or not version:
        if version is None:
            # The newest state is waited for, and with it go the events to other watches.
            table.advance(len(table.log))
        elif version <= store.version:
            table.advance_to(version)
        start = table.get_cached_version(store.version)
        watch = begin(start, table.get_objects_at(start))
        if is_streaming:
            if version is not None and version > store.version:
                watch.fail(refuse_version(str(version), store.version))
            watch.send_bookmark(start, is_end_of_list=True)
        return watch
    watch = begin(version, {})
    if version < table.oldest:
        message = f"too old resource version: {version} ({table.oldest})"
        watch.fail(Refusal(410, "Expired", message))
        return watch
    for change in itertools.islice(table.log, table.cached):
        watch.take(change)
    return watch


def _choose_page(
    store: Store, table: Table, prefix: str, query: dict[str, str], *, is_single: bool
) -> _Page:
    match = query.get("resourceVersionMatch", "")
    text = query.get("resourceVersion", "")
    token = query.get("continue", "")
    limit = _parse_limit(query.get("limit", ""))
    if is_single:
        limit = 0
    if query.get("sendInitialEvents"):
        raise refuse_options("sendInitialEvents: Forbidden: it is forbidden for list")
    _check_match(match, text, token)
    version = _parse_version(text)
    if token:
        wanted, start = _parse_token(token)
        if version:
            raise refuse_body("specifying resource version is not allowed when using continue")
        objects = _get_objects_at(store, table, wanted, token)
        return _Page(objects, wanted, prefix + start, limit)
    if version is None:
        return _Page(table.objects, store.version, "", limit)
    if version > store.version:
        raise refuse_version(text, store.version)
    if match == "Exact" or (version and limit and not match and not is_single):
        return _Page(_get_objects_at(store, table, version, ""), version, "", limit)
    table.advance_to(version)
    cached = table.get_cached_version(store.version)
    # Out of the cache, everything comes at once.
    return _Page(table.get_objects_at(cached), cached, "", limit if version else 0)


def _check_match(match: str, version: str, token: str) -> None:
    if match not in _MATCHES:
        raise refuse_options("resourceVersionMatch: Unsupported value")
    if match and not version:
        raise refuse_options("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match and token:
        raise refuse_options("resourceVersionMatch is forbidden when continue is provided")
    if match == "Exact" and version == "0":
        raise refuse_options('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')


def _get_objects_at(store: Store, table: Table, version: int, token: str) -> dict[str, Json]:
    if version < table.compacted:
        if token:
            message = "The provided continue parameter is too old to display a consistent list"
        else:
            message = f"The resourceVersion for the provided list is too old: {version}"
        refusal = Refusal(410, "Expired", message)
        if token:
            # Clients that accept an inconsistent list can continue with it.
            refusal.token = _build_token(store.version, _parse_token(token)[1])
        raise refusal
    return table.get_objects_at(version)


def _parse_streaming(query: dict[str, str]) -> bool | None:
    """Tell whether a list is wanted at the beginning of a watch; None if nothing is said."""
    wish = query.get("sendInitialEvents")
    match = query.get("resourceVersionMatch", "")
    if wish is None:
        if match:
            raise refuse_options(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            )
        # As the beginning of everything means the same, a bookmark ends the list there, too.
        return None if query.get("resourceVersion", "0") not in {"", "0"} else True
    if match != "NotOlderThan":
        raise refuse_options("sendInitialEvents requires resourceVersionMatch NotOlderThan")
    return wish in {"true", "1"}


def _parse_limit(text: str) -> int:
    try:
        return max(int(text or 0), 0)
    except ValueError:
        raise refuse_body(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _parse_version(text: str, *, is_watch: bool = False) -> int | None:
    """Return a resource version; None if there is none."""
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    problem = f'strconv.ParseUint: parsing "{text}": invalid syntax'
    if is_watch:
        raise Refusal(500, "", f"resourceVersion: Invalid value: {text!r}: {problem}")
    raise refuse_body(f"invalid resource version: {problem}")


def _build_token(version: int, start: str) -> str:
    content = orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"/{start}"})
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _parse_token(token: str) -> tuple[int, str]:
    try:
        content = orjson.loads(base64.urlsafe_b64decode(token + "=="))
        return int(content["rv"]), str(content["start"]).removeprefix("/")
    except (ValueError, KeyError, TypeError) as exc:
        raise refuse_body(f"invalid continue token: {exc}") from exc
