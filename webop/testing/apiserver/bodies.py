"""The bodies of requests: objects of kinds, options of deletions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from webop.models import structural
from webop.models.keywords import LIST_KEYS, LIST_TYPE
from webop.objects.typed_values import is_number

from .kinds import Kind
from .messages import Json, Refusal, Request, refuse_body

APPLY = "application/apply-patch+yaml"
_BODY_LIMIT = 3 * 1024 * 1024
_DELETE_OPTIONS = {"propagationPolicy", "dryRun"}


def parse_body(request: Request) -> Any:
    """Return the JSON of a body; None if it is empty.

    Raises:
        Refusal: it is too long, or no JSON.
    """
    if not request.body:
        return None
    check_size(request)
    try:
        return orjson.loads(request.body)
    except orjson.JSONDecodeError as exc:
        raise refuse_body(f"json parse error: {exc}") from exc


def write_whole_numbers(request: Request, value: Any) -> Any:
    """Return what was made of a body as it is stored: 1.0 as 1."""
    has_any = request.body is not None and b".0" in request.body
    return _make_whole(value) if has_any else value


def _make_whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _make_whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_size(request: Request) -> None:
    """Refuse a body that is too long."""
    if request.body is not None and len(request.body) > _BODY_LIMIT:
        message = f"Request entity too large: limit is {_BODY_LIMIT}"
        raise Refusal(413, "RequestEntityTooLarge", message)


def parse_object(kind: Kind, request: Request) -> Json:
    """Return the object that a body holds.

    Raises:
        Refusal: it is no object of this kind.
    """
    if get_content_type(request) not in {"", "application/json", APPLY}:
        raise refuse_content_type("application/json")
    raw = write_whole_numbers(request, parse_body(request))
    if not isinstance(raw, dict):
        raise refuse_body(f"the object provided is unrecognized (must be of type {kind.kind})")
    if not kind.is_custom:
        raw = {"apiVersion": kind.api_version, "kind": kind.kind, **raw}
        if raw["kind"] != kind.kind:
            raise refuse_body(f'no kind "{raw["kind"]}" is registered')
    elif not raw.get("kind"):
        raise refuse_body("the object provided is unrecognized: Object 'Kind' is missing")
    if raw.get("apiVersion", "") != kind.api_version:
        raise refuse_body("the API version in the data does not match the expected API version")
    if get_content_type(request) == APPLY:
        return raw
    if not kind.is_custom and (fault := find_misfit(kind, structural.fit(raw, kind.schema))):
        raise refuse_body(f"{kind.kind} cannot be handled as a {kind.kind}: {fault}")
    if unknown := find_unknown(kind, request, raw):
        raise refuse_body(unknown)
    return raw


def check_config(kind: Kind, config: Json) -> None:
    """Refuse a configuration that server-side apply cannot compare with objects."""
    if isinstance(config["metadata"], dict) and config["metadata"].get("managedFields"):
        raise refuse_body("metadata.managedFields must be nil")
    checks: tuple[structural.Check, ...] = (structural.check_unknown, structural.check_keys)
    if kind.is_custom:  # the keys of built-in kinds have zero values
        checks = (*checks, _check_items)
    for fault in structural.find_faults(config, kind.whole_schema, "", checks, _is_typed):
        about = f"({kind.api_version}, Kind={kind.kind})"
        message = f"failed to create typed patch object {about}: .{fault.lstrip('.')}"
        raise Refusal(500, "", message)


def find_nulls(kind: Kind, raw: Json) -> list[str]:
    """Return the nulls that server-side apply leaves, although the schema has none."""
    content = {key: value for key, value in raw.items() if key != "metadata"}

    def fits(value: Any, schema: Json) -> bool:
        return value is not None or "default" in schema

    return (
        list(structural.find_faults(content, kind.schema, "", (), fits)) if kind.is_custom else []
    )


def _check_items(value: Any, schema: Json, path: str) -> Iterator[str]:
    """Yield the items of a set or map that are null, or have no keys."""
    keys = schema.get(LIST_KEYS) or () if schema.get(LIST_TYPE) == "map" else ()
    if not isinstance(value, list) or schema.get(LIST_TYPE) not in {"set", "map"}:
        return
    known = (schema.get("items") or {}).get("properties") or {}
    needed = [key for key in keys if "default" not in known.get(key, {})]
    for index, item in enumerate(value):
        if item is None or not all(key in item for key in needed):
            yield f"{path}[{index}]: item of an associative list omits keys"


def _is_typed(value: Any, schema: Json) -> bool:
    """Return whether server-side apply can compare a value: not all of its types count."""
    kind = schema.get("type")
    if value is None or kind is None:
        return True
    if kind == "string" and schema.get("format", "byte") not in {"byte", "base64"}:
        return not isinstance(value, (dict, list))
    if kind in {"integer", "number"}:
        return is_number(value)
    return structural.has_type(value, schema)


def find_misfit(kind: Kind, fitted: Json) -> str:
    """Return what an object of a built-in kind cannot be decoded for; nothing if it can."""
    return next(structural.find_faults(fitted, kind.schema, "", (structural.check_format,)), "")


def find_unknown(kind: Kind, request: Request, raw: Json) -> str:
    """Return that there are unknown fields, if the request is strict with them."""
    if request.query.get("fieldValidation") != "Strict":
        return ""
    schema = kind.whole_schema
    faults = structural.find_faults(raw, schema, "", (structural.check_unknown,))
    found = [
        path.strip(".")
        for path, _, text in (fault.partition(": ") for fault in faults)
        if text == structural.UNKNOWN
    ]
    names = ", ".join(f'unknown field "{path}"' for path in found)
    return f"strict decoding error: {names}" if names else ""


def parse_delete_options(request: Request) -> Json:
    """Return the DeleteOptions of a body, or those of the query.

    Raises:
        Refusal: they mean nothing.
    """
    options = parse_body(request)
    if options is None:
        # Those of the query count only if there is no body.
        options = {key: value for key, value in request.query.items() if key in _DELETE_OPTIONS}
    if not isinstance(options, dict) or options.get("kind", "DeleteOptions") != "DeleteOptions":
        raise refuse_body("these are no DeleteOptions")
    policy = options.get("propagationPolicy")
    if policy not in {None, "Background", "Foreground", "Orphan"}:
        message = f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: {policy}'
        raise Refusal(422, "Invalid", message, {"group": "meta.k8s.io", "kind": "DeleteOptions"})
    return options


def get_content_type(request: Request) -> str:
    """Return the media type of a body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip()


def refuse_content_type(accepted: str) -> Refusal:
    """Return the refusal of a body in another format."""
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{accepted}"
    )
    return Refusal(415, "UnsupportedMediaType", message)
