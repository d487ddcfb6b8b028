"""JSON texts of the stored state: compact, in UTF-8, and tolerant when read.

Kopf escapes what is not ASCII, which multiplies the size of such texts; each reads the other's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import orjson

logger = logging.getLogger(__name__)


def encode(value: Any) -> str:
    """Return the compact JSON text of a value."""
    try:
        return orjson.dumps(value, default=_simplify).decode("utf-8")
    except TypeError:
        # Long integers and lone surrogates, as in messages of errors about broken file names.
        return json.dumps(value, default=_simplify, separators=(",", ":"))


def build_place(key: str, raw: Mapping[str, Any]) -> str:
    """Return where a state is, for the log: the annotation or the field, and the object."""
    metadata = raw.get("metadata") or {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    return f"{key} of {namespace}/{name}" if namespace else f"{key} of {name}"


def decode(text: str, *, place: str) -> dict[str, Any] | None:
    """Return the mapping of a JSON text; None for null.

    A text that is not a mapping, as after a manual edit, counts as absent: it is logged with its
    place, and later overwritten.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = _decode_leniently(text)
    if value is None or isinstance(value, dict):
        return value
    logger.warning("The state in %s is not readable and is ignored: %.100r", place, text)
    return None


def _decode_leniently(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _simplify(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON.")
