"""Names of Kubernetes objects. Pure."""

import re
from collections.abc import Iterable
from typing import Final

SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain name (RFC 1123), such as ``auto.example.com``; of any length."""

LABEL: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label (RFC 1035), such as ``shop-operator``: a name that all objects can have."""


def join_names(names: Iterable[str], limit: int = 5) -> str:
    """Return names separated by commas; beyond the limit, only the number of the others."""
    listed = list(dict.fromkeys(names))
    more = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {more} more" if more > 0 else "")
