"""The types of settings: what they accept, in code and as the texts of variables.

A type is a plain one, or ``Annotated`` with a function that converts a value or says what it must
be. :func:`parse` applies them; it needs no pydantic, which takes longer to import than the rest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from webop.objects.names import LABEL, SUBDOMAIN
from webop.objects.rights import parse_right

logger = logging.getLogger(__name__)

_FLAGS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


def parse(hint: Any, value: Any) -> Any:
    """Return a value as a type says.

    Raises:
        ValueError: it does not fit; the message says what it must be, such as "it must be …".
    """
    kind, options = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        if value is None and NoneType in options:
            return None
        (hint,) = (option for option in options if option is not NoneType)
        return parse(hint, value)
    if kind is Annotated:
        return options[1](value)
    if kind is Literal:
        if value not in options:
            names = f"{', '.join(map(repr, options[:-1]))} or {options[-1]!r}"
            raise ValueError(f"it must be {names}")
        return value
    if hint in _PLAIN:
        return _PLAIN[hint](value)
    if not isinstance(value, hint):
        raise ValueError(f"it must be an instance of {hint.__name__}")  # noqa: TRY004 - one kind
    return value


def number(
    kind: Callable[[Any], Any] = float,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> Callable[[Any], Any]:
    """Return a check for numbers within limits, also as texts; int for whole ones."""
    plain = "it must be a whole number" if kind is int else "it must be a number"

    def check(value: Any) -> Any:
        if isinstance(value, bool):  # it is not a number of anything
            raise ValueError(plain)  # noqa: TRY004 - one kind of error
        try:
            found = kind(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(plain) from None
        if kind is int and not isinstance(value, str) and found != value:
            raise ValueError(plain)
        if not math.isfinite(found):
            raise ValueError("it must be a finite number")
        if found < least:
            raise ValueError(f"it must be greater than or equal to {least}")
        if found > most:
            raise ValueError(f"it must be less than or equal to {most}")
        if found <= above:
            raise ValueError(f"it must be greater than {above}")
        return found

    return check


def text(least: int = 0, most: int | None = None) -> Callable[[Any], str]:
    """Return a check for strings of a length."""

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("it must be a string")  # noqa: TRY004 - one kind of error
        if len(value) < least:
            raise ValueError(f"it must have at least {least} character")
        if most is not None and len(value) > most:
            raise ValueError(f"it must have at most {most} characters")
        return value

    return check


def _parse_flag(value: Any) -> bool:
    found = _FLAGS.get(str(value).lower())
    if found is None or not isinstance(value, bool | int | str):
        raise ValueError("it must be True or False")
    return found


_PLAIN: dict[Any, Callable[[Any], Any]] = {
    bool: _parse_flag,
    int: number(int),
    float: number(),
    str: text(),
}


def check_delays(value: Any) -> Any:
    """Refuse values that are not delays.

    Iterables can be infinite or stateful. Only lists and tuples are checked here.
    """
    is_number = isinstance(value, int | float)
    is_series = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if not (is_number or is_series):
        raise ValueError("it must be a number of seconds, or an iterable of such numbers")
    for item in [value] if is_number else value if isinstance(value, list | tuple) else ():
        if isinstance(item, bool) or not (isinstance(item, int | float) and item >= 0):
            raise ValueError(f"{item!r} is not a number of seconds")
    return value


def _parse_level(value: Any) -> Any:
    """Return a level; it can also be named."""
    level = logging.getLevelNamesMapping().get(value.upper()) if isinstance(value, str) else value
    if level is None and str(value).isalpha():
        raise ValueError("it must be a number or the name of a level, such as 20 or INFO")
    return _PLAIN[int](value if level is None else level)


def _check_server(value: Any) -> Any:
    """Refuse values that are not webhook servers (chapter "Admission control")."""
    is_class = isinstance(value, type) and hasattr(value, "__aenter__")
    if value is None or (callable(value) and not is_class):
        return value
    raise ValueError("it must be a webhook server, such as webop.WebhookServer(port=9443)")


def _check_subdomain(value: Any) -> Any:
    """Refuse strings that cannot be the name of a webhook configuration (RFC 1123, subdomain)."""
    if _PLAIN[str](value) and not SUBDOMAIN.fullmatch(value):
        raise ValueError("it must be a lower-case DNS name, such as auto.example.com")
    return value


def _check_label(value: Any) -> Any:
    """Refuse strings that not all objects can have as their name (RFC 1035, label)."""
    if not (isinstance(value, str) and LABEL.fullmatch(value)):
        text = "it must be 1 to 63 lowercase letters, digits and '-'"
        raise ValueError(f"{text}, and begin with a letter, such as shop-operator")
    return value


def _check_rights(value: Any) -> Any:
    """Refuse values that are not rights: a list, or one string separated by spaces."""
    texts = value.split() if isinstance(value, str) else value or ()
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it must be a list of strings such as 'secrets:get,list'")
    for text in texts:
        parse_right(text)
    return tuple(texts)


def without_effect(name: str) -> Callable[[Any], Any]:
    """Return a check for a time that Kopf has, but webop does not need: it logs a warning."""
    check = number(least=0)

    def warn(value: Any) -> Any:
        value = None if value is None else check(value)
        logger.warning("The setting %s has no effect in webop. Remove it.", name)
        return value

    return warn


Seconds = Annotated[float, number(least=0)]
Positive = Annotated[float, number(above=0)]
Count = Annotated[int, number(int, least=1)]
Delays = Annotated[float | Iterable[float], check_delays]
Level = Annotated[int, _parse_level]
Server = Annotated[Any, _check_server]
Subdomain = Annotated[str, _check_subdomain] | None
Label = Annotated[str, _check_label]
Rights = Annotated[Sequence[str], _check_rights]
