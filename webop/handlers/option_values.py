"""Check the values of options by their types, and convert them.

A type is a plain one, or ``Annotated`` with functions of a value and its place that return the
value or raise. This takes a fraction of the time that pydantic would take at import.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from webop.settings.base import LONGEST

Check = Callable[[Any, str], Any]

_WORDS = {bool: "True or False", str: "a string", abc.Mapping: "a mapping"}
_LISTS = (list, abc.Sequence, abc.Collection)


def build_error(
    place: str, words: str, value: object, kind: type[Exception] = TypeError
) -> Exception:
    """Return the error of a value, such as "labels['a'] must be a string, got 5."."""
    shown = place if place.endswith("]") else f"{place}="
    kind = ValueError if value is None else kind  # it is a wrong value of any type
    return kind(f"{shown} {words}, got {repr(value)[:LONGEST]}.")


def must_be(words: str, kinds: Any = object, where: Callable[[Any], object] | None = None) -> Check:
    """Return a check for instances of some classes that meet a condition."""

    def check(value: Any, place: str) -> Any:
        if isinstance(value, kinds) and (where is None or where(value)):
            return value
        raise build_error(place, f"must be {words}", value)

    return check


def number(least: float = 0, most: float | None = None, *, is_whole: bool = False) -> Check:
    """Return a check for numbers within limits."""

    def check(value: Any, place: str) -> Any:
        if not is_number(value) or (is_whole and not isinstance(value, int)):
            words = "a whole number" if is_whole else "a number"
            raise build_error(place, f"must be {words}", value)
        if not value >= least:
            words = f"must be greater than or equal to {least}"
            raise build_error(place, words, value, ValueError)
        if most is not None and value > most:
            raise build_error(place, f"must be less than or equal to {most}", value, ValueError)
        return value

    return check


def is_number(value: object) -> bool:
    """Return whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def convert(hint: Any, value: Any, place: str) -> Any:
    """Return a value as a type says.

    Args:
        hint: the type.
        value: of the option, or of a part of it.
        place: the name of the option; for a part, with its path: "labels['a']".

    Raises:
        TypeError: it is of a wrong type.
        ValueError: it is of the right type, but invalid.
    """
    kind, options = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        for check in options[1:]:
            value = check(value, place)
        return value
    if kind in (Union, UnionType):
        if value is None and NoneType in options:
            return None
        (hint,) = (option for option in options if option is not NoneType)
        return convert(hint, value, place)
    if kind is Literal:
        if value not in options:
            error = ValueError if isinstance(value, str) else TypeError
            words = f"must be {', '.join(map(repr, options[:-1]))} or {options[-1]!r}"
            raise build_error(place, words, value, error)
        return value
    return value if kind is Any else _convert_instance(kind, options, value, place)


def _convert_instance(kind: Any, options: tuple[Any, ...], value: Any, place: str) -> Any:
    """Return a value as a class says, with the types of its items."""
    if kind in _LISTS:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, abc.Collection):
            raise build_error(place, "must be a list", value)
        return [convert(options[0], item, f"{place}[{i}]") for i, item in enumerate(value)]
    if kind is float:
        return number(float("-inf"))(value, place)
    if is_typeddict(kind):
        return _convert_fields(kind, value, place)
    if not isinstance(value, kind):
        raise build_error(
            place, f"must be {_WORDS.get(kind, f'an instance of {kind.__name__}')}", value
        )
    if kind is abc.Mapping:
        paths = ((f"{place}[{key!r}]", key, item) for key, item in value.items())
        return {
            convert(options[0], key, path): convert(options[1], item, path)
            for path, key, item in paths
        }
    return value


def _convert_fields(kind: Any, value: Any, place: str) -> dict[str, Any]:
    """Return a mapping with the keys of a TypedDict."""
    if not isinstance(value, Mapping):
        raise build_error(place, "must be a mapping", value)
    hints = get_type_hints(kind, include_extras=True)
    for key in value:
        if key not in hints:
            raise TypeError(f"{place}[{key!r}] is unknown: remove it.")
    for key in hints:
        if key in kind.__required_keys__ and key not in value:
            raise TypeError(f"{place}[{key!r}] is missing.")
    return {key: convert(hints[key], item, f"{place}[{key!r}]") for key, item in value.items()}
