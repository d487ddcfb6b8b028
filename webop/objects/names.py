"""Names of Kubernetes objects. Pure."""

import re
from collections.abc import Iterable
from typing import Final

SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain name (RFC 1123), such as ``auto.example.com``; of any length."""

LABEL: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label (RFC 1035), such as ``shop-operator``: a name that all objects can have."""

RFC1123_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label that can begin with a digit: a name that namespaces and Services can have."""

_NAME: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

is_label_key = re.compile(rf"((?=.{{1,253}}/){SUBDOMAIN.pattern}/)?{_NAME}").fullmatch
"""Whether a label or an annotation can have this name; that of an annotation in lower case."""
is_label_value = re.compile(f"({_NAME})?").fullmatch


def join_names(names: Iterable[str], limit: int = 5) -> str:
    """Return names separated by commas; beyond the limit, only the number of the others."""
    listed = list(dict.fromkeys(names))
    more = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {more} more" if more > 0 else "")
