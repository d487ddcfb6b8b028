"""Errors of an object's fields: the causes of denials, also built from errors of pydantic.

The module does not import pydantic: it recognises its errors by their class and calls ``errors()``
(pydantic documentation, "Error handling"). No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError
    from typing_extensions import TypeIs

_MAX_CAUSES = 100
_MAX_SUMMARY = 1000  # characters
_MAX_PART = 250  # characters of a field's path, or of what is wrong with it

_LONGEST_VALUE = 50  # characters

_SECRET = re.compile(r"auth|pass|pwd|secret|token|key|credential|data\b", re.IGNORECASE)
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_OF_KEYS = "[key]"  # pydantic's name for errors in the keys of a mapping

# Pydantic's words before the texts of errors in the user's validators.
_PREFIX = re.compile(r"\A(?:Value error|Assertion failed), ")

# Types of pydantic's errors (their beginnings) of fields that hold no free text.
_OPEN = (
    *("int_", "float_", "bool_", "date", "enum", "literal_error", "uuid_", "finite_number"),
    *("greater_than", "less_than", "multiple_of"),
)

# By types of pydantic's errors.
_REASONS = {
    "missing": "FieldValueRequired",
    "extra_forbidden": "FieldValueForbidden",
    "enum": "FieldValueNotSupported",
    "literal_error": "FieldValueNotSupported",
}


@dataclass(frozen=True, slots=True)
class AdmissionCause:
    """One thing that is wrong with an object (Kubernetes API, meta/v1 StatusCause).

    Attributes:
        field: the path of the field as the API server writes it, such as "spec.items[0].size".
        message: what is wrong, for people.
        reason: for programs: "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden",
            "FieldValueNotSupported", "FieldValueTypeInvalid", "FieldValueDuplicate" and so on.
    """

    field: str
    message: str
    reason: str = "FieldValueInvalid"


def parse_causes(causes: Iterable[AdmissionCause | Mapping[str, str]]) -> list[AdmissionCause]:
    """Return causes that are given as :class:`AdmissionCause` or as mappings."""
    parsed = []
    for cause in causes:
        if isinstance(cause, Mapping):
            parsed.append(AdmissionCause(**cause))
        elif isinstance(cause, AdmissionCause):
            parsed.append(cause)
        else:
            raise TypeError(
                f"causes= must be webop.AdmissionCause, or mappings with 'field', 'message' and "
                f"optionally 'reason', got {cause!r:.99}."
            )
    return parsed


def is_validation_error(exc: object) -> TypeIs[ValidationError]:
    """Return whether this is a ``ValidationError`` of pydantic, or of a subclass."""
    return any(
        family.__name__ == "ValidationError"
        and family.__module__.partition(".")[0] in ("pydantic", "pydantic_core")
        for family in type(exc).__mro__
    )


def build_causes(
    errors: Sequence[Mapping[str, Any]], path: str = "", *, names_values: bool = False
) -> list[AdmissionCause]:
    """Return one cause per error of a validation, at most the first 100.

    Args:
        errors: the result of ``errors()`` of pydantic.
        path: the path of the validated part in the object, such as "spec".
        names_values: whether messages name wrong values that are simple.
    """
    return [
        AdmissionCause(
            field=(field := _shorten(render_path(error.get("loc", ()), path))),
            message=_shorten(
                _PREFIX.sub("", str(error.get("msg", "is not valid")), count=1)
                + (_name_value(error, field) if names_values else "")
            ),
            reason=_find_reason(str(error.get("type", ""))),
        )
        for error in errors[:_MAX_CAUSES]
    ]


def summarize(causes: Iterable[AdmissionCause], total: int) -> str:
    """Return the causes, the first ones of ``total``, as one text of limited length."""
    parts: list[str] = []
    size = 0
    for cause in causes:
        part = f"{cause.field}: {cause.message}" if cause.field else cause.message
        size += len(part)
        if size > _MAX_SUMMARY:
            break
        parts.append(part)
    if len(parts) < total:
        parts.append(f"and {total - len(parts)} more.")
    return "; ".join(parts)


def render_path(location: Iterable[str | int], path: str = "") -> str:
    """Return the path of a field as the API server writes it: "spec.items[0].labels[a/b]"."""
    for key in location:
        if key == _OF_KEYS:
            continue
        if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
            path = f"{path}.{key}" if path else key
        else:
            path = f"{path}[{key}]"
    return path


def _name_value(error: Mapping[str, Any], field: str) -> str:
    """Return the words that name a wrong number, date or word of a list; texts can be secrets."""
    value = error.get("input", ...)
    is_open = str(error.get("type")).startswith(_OPEN) and not _SECRET.search(field)
    if not (is_open and isinstance(value, str | int | float | None)):
        return ""
    if isinstance(value, str):
        if "@" in value:  # such as a URL with a password
            return ""
        value = value[: _LONGEST_VALUE + 1]
    return f", got {_shorten(repr(value), _LONGEST_VALUE)}"


def _find_reason(kind: str) -> str:
    other = "FieldValueTypeInvalid" if kind.endswith("_type") else "FieldValueInvalid"
    return _REASONS.get(kind, other)


def _shorten(text: str, limit: int = _MAX_PART) -> str:
    """Make a text short and one line: names of fields are users' input."""
    text = _CONTROL_CHARACTERS.sub(" ", text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
