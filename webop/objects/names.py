"""Names of Kubernetes objects. Pure."""

import re
from typing import Final

SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain name (RFC 1123), such as ``auto.example.com``; of any length."""
