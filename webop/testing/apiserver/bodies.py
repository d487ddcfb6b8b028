"""The bodies of requests: objects of kinds, options of deletions. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from webop.models import structural

from .kinds import Kind
from .messages import Json, Refusal, Request, refuse_body

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
    if get_content_type(request) not in {"", "application/json"}:
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
    if not kind.is_custom:
        fault = next(structural.find_faults(structural.fit(raw, kind.schema), kind.schema), "")
        if fault:
            raise refuse_body(f"{kind.kind} cannot be handled as a {kind.kind}: {fault}")
    return raw


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
