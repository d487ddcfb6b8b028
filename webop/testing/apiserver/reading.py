"""Lists, with pages, and the beginnings of watches: those that clients of webop ask for.

Kubernetes API concepts: "Retrieving large results sets in chunks", "Streaming lists". A list is of
the newest state, or it goes on with the pages of an earlier one. A watch begins with the newest
state, or after the version of an earlier list.
"""

from __future__ import annotations

import base64
import itertools

import orjson

from .kinds import Kind
from .messages import Json, Refusal, Response, refuse_body
from .selectors import build_predicate, requires_name
from .store import Store, Table, Watch


def list_objects(
    store: Store, kind: Kind, table: Table, prefix: str, query: dict[str, str]
) -> Response:
    """Answer a list.

    Raises:
        Refusal: a parameter means nothing, or the version of the pages is gone.
    """
    is_selected = build_predicate(kind, query)
    version, start, objects = store.version, "", table.objects
    limit = _parse_limit(query.get("limit", ""))
    if requires_name(query) and (prefix or not kind.namespaced):
        limit = 0  # one object that is known by its key is not listed, but read
    if token := query.get("continue", ""):
        version, start = _parse_token(token)
        objects = _get_objects_at(store, table, version, start)
    keys = [key for key in sorted(objects) if key.startswith(prefix) and key >= prefix + start]
    items: list[Json] = []
    count = 0
    for count, key in enumerate(keys, 1):  # noqa: B007  it is needed after the loop
        raw = kind.show(objects[key])
        if is_selected is None or is_selected(raw):
            items.append(raw)
            if len(items) == limit:
                break
    rest = keys[count:]
    metadata: Json = {"resourceVersion": str(version)}
    if rest:
        # The next page begins right after the last key, as that of etcd does.
        metadata["continue"] = _build_token(version, keys[count - 1].removeprefix(prefix) + "\0")
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
        Refusal: a parameter means nothing.
    """
    is_selected = build_predicate(kind, query)
    version = _parse_version(query.get("resourceVersion") or "0")
    wants_bookmarks = query.get("allowWatchBookmarks") in {"true", "1"}
    bookmark = {"kind": kind.kind, "apiVersion": kind.api_version} if wants_bookmarks else None
    if not version:
        # The newest state is waited for, and with it go the events to other watches.
        table.advance(len(table.log))
    watch = Watch(table, version or store.version, prefix, is_selected, kind.show, bookmark)
    table.watches[watch] = None
    if not version:
        try:
            watch.list_objects(table.objects)
        except Refusal:  # an object cannot be converted: the cache does not become up to date
            watch.fail(_refuse_version(store.version))
        watch.send_bookmark(store.version, is_end_of_list=True)
    elif version < table.oldest:
        message = f"too old resource version: {version} ({table.oldest})"
        watch.fail(Refusal(410, "Expired", message))
    else:
        for change in itertools.islice(table.log, table.cached):
            watch.take(change)
    return watch


def _get_objects_at(store: Store, table: Table, version: int, start: str) -> dict[str, Json]:
    if version < table.compacted:
        message = "The provided continue parameter is too old to display a consistent list"
        refusal = Refusal(410, "Expired", message)
        # Clients that accept an inconsistent list can continue with it.
        refusal.token = _build_token(store.version, start)
        raise refusal
    return table.get_objects_at(version)


def _refuse_version(version: int) -> Refusal:
    message = f"Timeout: Too large resource version: {version}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refusal(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def _parse_limit(text: str) -> int:
    try:
        return max(int(text or 0), 0)
    except ValueError:
        raise refuse_body(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _parse_version(text: str) -> int:
    if not text.isdecimal():
        problem = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise Refusal(500, "", f"resourceVersion: Invalid value: {text!r}: {problem}")
    return int(text)


def _build_token(version: int, start: str) -> str:
    content = orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"/{start}"})
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _parse_token(token: str) -> tuple[int, str]:
    try:
        content = orjson.loads(base64.urlsafe_b64decode(token + "=="))
        return int(content["rv"]), str(content["start"]).removeprefix("/")
    except (ValueError, KeyError, TypeError) as exc:
        raise refuse_body(f"invalid continue token: {exc}") from exc
