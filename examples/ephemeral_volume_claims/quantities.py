"""Kubernetes quantities (``500Mi``, ``1G``, ``1.5Ti``, ``2e9``) as numbers. Pure.

The grammar is that of ``resource.Quantity`` (Kubernetes API, "Quantity").
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

_BINARY = {suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi"), 1)}
_BINARY |= {suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ti", "Pi", "Ei"), 4)}
_DECIMAL = {
    suffix: Decimal(1000) ** power
    for suffix, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6), strict=True)
}
_FACTORS = {"": Decimal(1), **_BINARY, **_DECIMAL}

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)


def parse_quantity(value: Any) -> Decimal:
    """Return the value of a quantity.

    Args:
        value: a string such as "1G", or an integer, as YAML has for ``size: 1000``.

    Raises:
        ValueError: this is not a quantity; the message has examples.
    """
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value))
    if match is None or not isinstance(value, (str, int)):
        raise ValueError(f"{value!r} is not a quantity, such as 500Mi, 1G or 1.5Ti.")
    number = Decimal(match["number"])
    if match["exponent"] is not None:
        return number.scaleb(int(match["exponent"]))
    return number * _FACTORS[match["suffix"] or ""]
