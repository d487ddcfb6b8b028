"""Models: kinds of objects as pydantic classes, and what follows from them.

The names in :data:`__all__` are public; they are imported at first use, and with them pydantic,
which most time of a start goes to. Import them from here: ``from webop.models import Model``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webop.models.cel_rules import (
        CEL,
        Atomic,
        Embedded,
        Int32,
        Int64,
        ListKeys,
        Nullable,
        Quantity,
        Schemaless,
        Unique,
    )
    from webop.models.condition_fields import Condition, Conditions
    from webop.models.definitions import Column, Scale
    from webop.models.model import Metadata, Model, OneOf, Struct, resource

__all__ = [
    "CEL",
    "Atomic",
    "Column",
    "Condition",
    "Conditions",
    "Embedded",
    "Int32",
    "Int64",
    "ListKeys",
    "Metadata",
    "Model",
    "Nullable",
    "OneOf",
    "Quantity",
    "Scale",
    "Schemaless",
    "Struct",
    "Unique",
    "resource",
]

_MODULES = {
    "webop.models.condition_fields": ("Condition", "Conditions"),
    "webop.models.definitions": ("Column", "Scale"),
    "webop.models.model": ("Metadata", "Model", "OneOf", "Struct", "resource"),
}


def __getattr__(name: str) -> Any:
    """Import a public name at first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = (module for module, names in _MODULES.items() if name in names)
    value = getattr(importlib.import_module(next(found, "webop.models.cel_rules")), name)
    globals()[name] = value
    return value
