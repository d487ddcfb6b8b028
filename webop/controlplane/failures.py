"""What can go wrong with a local control plane; each message names the remedy."""

from __future__ import annotations

from webop.errors import WebopError


class ClusterError(WebopError):
    """A local control plane cannot be had, started or reached."""


class SourceError(ClusterError):
    """One source of the binaries cannot give them; the next one is tried."""
