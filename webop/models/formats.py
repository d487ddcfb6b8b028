"""The formats of strings that API servers check (Kubernetes: "Structural schemas"). Pure.

Formats that are not here are accepted, as unknown ones are: isbn, creditcard, ssn, rgbcolor.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import re
from collections.abc import Callable
from typing import Final

_LONGEST: Final = 1000
_LONG: Final = {"base64", "byte", "uri"}
_LETTER: Final = r"[^\W_]"
_TIME: Final = r"(\d{2}):[0-5]\d:[0-5]\d(\.\d+)?(z|[+|-]\d{2}:\d{2})"
_HEX: Final = "[0-9a-fA-F]"
_UNITS: Final = "ns|nano(second)?s?|us|µs|micro(second)?s?|ms|milli(second)?s?|s|sec(ond)?s?"


def is_of_format(value: str, name: str) -> bool:
    """Return whether a text has a format; True for formats that are not checked."""
    check = _CHECKS.get(name)
    if check is None:
        return True
    # Values can be hostile, and not all patterns take linear time.
    return (len(value) <= _LONGEST or name in _LONG) and check(value)


def _build(pattern: str) -> Callable[[str], bool]:
    return lambda value: re.fullmatch(pattern, value) is not None


def _is_date(value: str) -> bool:
    try:
        dt.date.fromisoformat(value)
    except ValueError:
        return False
    return len(value) == len("2026-01-01")


def _is_moment(value: str) -> bool:
    day, _, time = value.lower().partition("t")
    match = re.fullmatch(_TIME, time)
    return _is_date(day) and match is not None and match[1] <= "23"


def _is_host(value: str) -> bool:
    *labels, last = value.split(".")
    inner = rf"{_LETTER}([-]|{_LETTER}){{0,62}}"
    is_right = all(re.fullmatch(inner, label) and label[-1] != "-" for label in labels)
    return is_right and len(value) <= 255 and bool(re.fullmatch(rf"{_LETTER}{{2,63}}", last))


def _is_base64(value: str) -> bool:
    try:
        base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except ValueError:
        return False
    return True


def _drop_zeros(value: str) -> str:
    return re.sub(r"(?<![\d:a-fA-F])0+(?=\d+\.|\d+$)", "", value) if "." in value else value


def _is_address(sign: str) -> Callable[[str], bool]:
    def check(value: str) -> bool:
        try:
            ipaddress.ip_address(_drop_zeros(value))
        except ValueError:
            return False
        return sign in value

    return check


def _is_network(value: str) -> bool:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return value.rpartition("/")[2].isdecimal() and "/" in value


def _build_uuid(digit: str = _HEX, variant: str = _HEX) -> Callable[[str], bool]:
    return _build(
        rf"{_HEX}{{8}}-?{_HEX}{{4}}-?{digit}{_HEX}{{3}}-?{variant}{_HEX}{{3}}-?{_HEX}{{12}}"
    )


_CHECKS: Final[dict[str, Callable[[str], bool]]] = {
    "date": _is_date,
    "date-time": _is_moment,
    "datetime": _is_moment,
    "duration": _build(
        r"P(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(\d+H)?(\d+M)?(\d+S)?)?)"
        rf"|([-+]?(\d+\.?\d*(ns|us|µs|ms|s|m|h))+|0|(-?\d+\s*({_UNITS}|m|min(ute)?s?|h|hrs?|hours?|d|days?|w|wks?|weeks?))+)"
    ),
    "email": _build(r"([^<>]*<)?[^\s@<>\"]+@[^\s@<>\".]+(\.[^\s@<>\".]+)*>?"),
    "hostname": _is_host,
    "ipv4": _is_address("."),
    "ipv6": _is_address(":"),
    "cidr": _is_network,
    "mac": _build(
        rf"{_HEX}{{2}}([:-])({_HEX}{{2}}\1){{4}}{_HEX}{{2}}|({_HEX}{{4}}\.){{2}}{_HEX}{{4}}"
    ),
    "uri": _build(r"(/|[a-zA-Z][-+.a-zA-Z0-9]*:)[^\s]*"),
    "uuid": _build_uuid(),
    "uuid3": _build_uuid("3"),
    "uuid4": _build_uuid("4", "[89abAB]"),
    "uuid5": _build_uuid("5", "[89abAB]"),
    "base64": _is_base64,  # as in Secrets, not in CRDs
    "byte": _build(r"(?=.)([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"),
    "quantity": _build(r"[-+]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?\d+)?"),
    "hexcolor": _build(rf"#?({_HEX}{{3}}|{_HEX}{{6}})"),
}
