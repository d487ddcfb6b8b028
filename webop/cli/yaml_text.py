"""Write YAML that all parsers read in the same way.

``on``, ``y``, ``0123``, ``08`` and ``1e3`` are strings to some parsers and not to others; kubectl's
parser and Python's differ.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

# Strings that PyYAML would write without quotes, or in several lines.
_is_ambiguous = re.compile(
    r"|[yYnN]|[-+]?\.?\d[\w.+-]*|.*[\n\x85\u2028\u2029].*", re.DOTALL
).fullmatch


class _Dumper(yaml.SafeDumper):
    """Quotes ambiguous strings."""

    def choose_scalar_style(self) -> str:
        event: Any = self.event
        is_text = event.tag == "tag:yaml.org,2002:str"
        return '"' if is_text and _is_ambiguous(event.value) else super().choose_scalar_style()


def dump(value: Any, *, is_flow: bool | None = None, width: int = 98) -> str:
    """Return a value as YAML without a final newline; flat lists and mappings are in one line."""
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=is_flow, sort_keys=False, width=width
    )
    return text.removesuffix("...\n").rstrip()
