"""Parsing of sizes: the grammar of resource.Quantity in Kubernetes."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.rows import rows

_EXAMPLE = Path(__file__).parents[3] / "examples" / "ephemeral_volume_claims"
parse_quantity: Callable[[Any], Decimal] = runpy.run_path(str(_EXAMPLE / "quantities.py"))[
    "parse_quantity"
]


@rows(
    ("text", "number"),
    [
        ("0", "0"),
        ("-5G", "-5000000000"),
        ("1.", "1"),
        (".5k", "500"),
        ("1E", "1000000000000000000"),
        ("500Mi", "524288000"),
        ("1.5Ti", "1649267441664"),
        ("500m", "0.5"),
        ("1n", "0.000000001"),
        ("1e3", "1000"),
        ("12e-1", "1.2"),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str | int, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


_WRONG_TEXTS = """
    | |plenty|1 G| 1G|1K|1g|1mi|1GB|G|.|-|1e|1Gi3|1e99999999|0x10|1_000|\u0661G|NaN|Infinity
""".strip().split("|")


@rows("value", [*_WRONG_TEXTS, "1G\n", "9" * 1000, None, True, 1.5, [], {"size": "1G"}])
def test_anything_else_is_refused_with_an_example_of_a_quantity(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity, such as 500Mi, 1G or 1\.5Ti"):
        parse_quantity(value)
