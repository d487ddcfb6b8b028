"""Values in YAML that every parser reads alike.

``on``, ``y``, ``0123``, ``08`` and ``1e3`` are texts to some parsers, and not to others: those of
kubectl are not those of Python.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

# What PyYAML would write without quotes, or in several lines.
_is_doubtful = re.compile(
    r"|[yYnN]|[-+]?\.?\d[\w.+-]*|.*[\n\x85\u2028\u2029].*", re.DOTALL
).fullmatch


class _Dumper(yaml.SafeDumper):
    """Puts doubtful texts into quotes."""

    def choose_scalar_style(self) -> str:
        event: Any = self.event
        is_text = event.tag == "tag:yaml.org,2002:str"
        return '"' if is_text and _is_doubtful(event.value) else super().choose_scalar_style()


def dump(value: Any, *, is_flow: bool | None = None, width: int = 98) -> str:
    """Return a value as YAML without an end of line; what has no nested values is in one line."""
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=is_flow, sort_keys=False, width=width
    )
    return text.removesuffix("...\n").rstrip()
