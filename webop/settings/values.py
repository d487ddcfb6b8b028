"""The types of settings: what they accept, in code and as the texts of variables."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, get_args

from webop.objects.names import LABEL, SUBDOMAIN
from webop.objects.rights import parse_right
from webop.objects.typed_values import convert, is_number, must_be, number

logger = logging.getLogger(__name__)

_FLAGS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


def parse(hint: Any, value: Any) -> Any:
    """Return a value as a type says, also of texts and of numbers of other classes.

    Raises:
        ValueError: it does not fit; the message says what it must be, such as "it must be …".
    """
    kind = hint
    while options := get_args(kind):
        kind = options[0]
    if kind is bool:
        value = _FLAGS.get(str(value).lower(), value)
    elif kind is float or (kind is int and isinstance(value, str)):
        with suppress(TypeError, ValueError, OverflowError):
            value = value if isinstance(value, int) else kind(value)
    return convert(hint, value)


def check_delays(value: Any) -> Any:
    """Refuse values that are not delays.

    Iterables can be infinite or stateful. Only lists and tuples are checked here.
    """
    is_single = isinstance(value, int | float)
    is_series = isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if not (is_single or is_series):
        raise ValueError("it must be a number of seconds, or an iterable of such numbers")
    for item in [value] if is_single else value if isinstance(value, list | tuple) else ():
        if not (is_number(item) and item >= 0):
            raise ValueError(f"{item!r} is not a number of seconds")
    return value


def _parse_level(value: Any) -> Any:
    """Return a level; it can also be named."""
    return logging.getLevelNamesMapping().get(str(value).upper(), value)


def _is_server(value: Any) -> bool:
    """Return whether this is a webhook server, or None (chapter "Admission control")."""
    is_class = isinstance(value, type) and hasattr(value, "__aenter__")
    return value is None or (callable(value) and not is_class)


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
    check = number(0)

    def warn(value: Any) -> Any:
        value = None if value is None else check(value)
        logger.warning("The setting %s has no effect in webop. Remove it.", name)
        return value

    return warn


_is_finite = must_be("a finite number", where=lambda value: value <= sys.float_info.max)
Seconds = Annotated[float, number(0), _is_finite]
Positive = Annotated[float, number(above=0), _is_finite]
Count = Annotated[int, number(1, is_whole=True)]
Delays = Annotated[float | Iterable[float], check_delays]
Level = Annotated[
    int,
    _parse_level,
    must_be("a number or the name of a level, such as 20 or INFO", int, is_number),
]
Server = Annotated[
    Any, must_be("a webhook server, such as webop.WebhookServer(port=9443)", where=_is_server)
]
_NAME = "a lower-case DNS name, such as auto.example.com"
_is_name = must_be(_NAME, str, lambda value: not value or SUBDOMAIN.fullmatch(value))
Subdomain = Annotated[str, _is_name] | None
Label = Annotated[
    str,
    must_be(
        "1 to 63 lowercase letters, digits and '-', and begin with a letter, such as shop-operator",
        str,
        LABEL.fullmatch,
    ),
]
Rights = Annotated[Sequence[str], _check_rights]
