"""Check values by types, and convert them: options of decorators, and settings. Pure.

A type is a plain one, or ``Annotated`` with functions that return a value or raise. This takes a
fraction of the time that pydantic would take at import.
"""

from __future__ import annotations

import math
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

Check = Callable[[Any], Any]

LONGEST = 200  # characters of a value in messages

_WORDS = {bool: "True or False", str: "a string", abc.Mapping: "a mapping"}
_LISTS = (list, abc.Sequence, abc.Collection)


class UnfitValueError(ValueError):
    """A value does not fit its type.

    Args:
        words: what is wrong, such as "must be a number".
        value: the value.
        kind: the error that :meth:`build` makes of it; None is a wrong value of any type.
        path: of the wrong part in the value of an option, such as "['a']".
    """

    def __init__(
        self, words: str, value: object, kind: type[Exception] = TypeError, path: str = ""
    ) -> None:
        super().__init__(f"it {words}")
        self.words, self.value, self.path = words, value, path
        self.kind = ValueError if value is None else kind

    def build(self, name: str) -> Exception:
        """Return the error of an option, such as "labels['a'] must be a string, got 5."."""
        place = f"{name}{self.path or '='}"
        return self.kind(f"{place} {self.words}, got {repr(self.value)[:LONGEST]}.")


def must_be(
    words: str,
    kinds: Any = object,
    where: Callable[[Any], object] | None = None,
    kind: type[Exception] = TypeError,
) -> Check:
    """Return a check for instances of some classes that meet a condition, else of an error."""

    def check(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise UnfitValueError(f"must be {words}", value)
        if where is not None and not where(value):
            raise UnfitValueError(f"must be {words}", value, kind)
        return value

    return check


def number(
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    is_whole: bool = False,
) -> Check:
    """Return a check for numbers within limits."""

    def check(value: Any) -> Any:
        if not is_number(value) or (is_whole and value % 1):
            raise UnfitValueError(f"must be {'a whole number' if is_whole else 'a number'}", value)
        if not abs(value) <= math.inf:  # NaN
            words = "must be a number"
        elif value < least:
            words = f"must be greater than or equal to {least}"
        elif value > most:
            words = f"must be less than or equal to {most}"
        elif value <= above:
            words = f"must be greater than {above}"
        else:
            return int(value) if is_whole else value
        raise UnfitValueError(words, value, ValueError)

    return check


def is_number(value: object) -> bool:
    """Return whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_NUMBERS = {float: number(), int: number(is_whole=True)}


def convert(hint: Any, value: Any) -> Any:
    """Return a value as a type says, or raise an UnfitValueError."""
    kind, options = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        for check in options[1:]:
            value = check(value)
        return value
    if kind in (Union, UnionType):
        if value is None and NoneType in options:
            return None
        (hint,) = (option for option in options if option is not NoneType)
        return convert(hint, value)
    if kind is Literal:
        if value not in options:
            *others, last = sorted(map(repr, options))  # typing mixes equal ones in another order
            words = f"must be {', '.join(others)} or {last}"
            raise UnfitValueError(words, value, ValueError if isinstance(value, str) else TypeError)
        return value
    if kind in _NUMBERS:
        return _NUMBERS[kind](value)
    return value if kind is Any else _convert_instance(kind, options, value)


def _convert_instance(kind: Any, options: tuple[Any, ...], value: Any) -> Any:
    """Return a value as a class says, with the types of its items."""
    if kind in _LISTS:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, abc.Collection):
            raise UnfitValueError("must be a list", value)
        return [_convert_part(options[0], item, i) for i, item in enumerate(value)]
    if is_typeddict(kind):
        return _convert_fields(kind, value)
    if not isinstance(value, kind):
        words = _WORDS.get(kind, f"an instance of {kind.__name__}")
        raise UnfitValueError(f"must be {words}", value)
    if kind is abc.Mapping:
        return {
            _convert_part(options[0], key, key): _convert_part(options[1], item, key)
            for key, item in value.items()
        }
    return value


def _convert_fields(kind: Any, value: Any) -> dict[str, Any]:
    """Return a mapping with the keys of a TypedDict."""
    if not isinstance(value, Mapping):
        raise UnfitValueError("must be a mapping", value)
    hints = get_type_hints(kind, include_extras=True)
    for key in value:
        if key not in hints:
            raise UnfitValueError(f"must not have {key!r}", value)
    for key in hints:
        if key in kind.__required_keys__ and key not in value:
            raise UnfitValueError(f"must have {key!r}", value)
    return {key: _convert_part(hints[key], item, key) for key, item in value.items()}


def _convert_part(hint: Any, value: Any, key: object) -> Any:
    try:
        return convert(hint, value)
    except UnfitValueError as exc:
        exc.path = f"[{key!r}]{exc.path}"
        raise
