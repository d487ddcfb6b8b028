"""The link between an operator and its webhook server, beyond the function for reviews.

Users create servers, and servers can call other servers, always with the function for reviews only.
So the link is the context variable :data:`current_hosting`, set around the call of the server. A
server without an operator, as in a script, gets the defaults. Users' handler files import this
module, so it must be cheap to import.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from webop.servers.base import WebhookClientConfig
from webop.servers.overload import OverloadGate
from webop.telemetry.counters import ReviewCounters


class ServingLimits(Protocol):
    """The limits of servers; ``settings.admission`` implements them.

    They are read at each use, so that changes in a startup handler count.
    """

    max_body: int  # bytes; the largest review
    max_held_bytes: int  # bytes; the memory of all reviews
    max_connections: int  # open at once, per listener
    max_reviews: int  # served at once
    max_calls: int  # of one handler at once
    read_timeout: float  # seconds to receive a request, from its first byte
    idle_timeout: float  # seconds after which a connection without requests is closed
    review_timeout: float  # seconds for a review without ``?timeout=``
    drain_timeout: float  # seconds for reviews in flight when a server stops


@dataclass(slots=True)
class DefaultLimits:
    """The limits of servers that run without an operator, and the defaults of the settings."""

    # API servers accept objects of up to 3 MiB, and an update has both states.
    max_body: int = 7 * 1024 * 1024
    # With the operator's own 80 MiB, this fits into the 256 MiB of the sample Deployment.
    max_held_bytes: int = 128 * 1024 * 1024
    max_connections: int = 320
    max_reviews: int = 1000
    max_calls: int = 100
    read_timeout: float = 10.0
    # API servers keep idle connections for 90 seconds, and must be the first to close them: a
    # request on a connection that this server is closing would fail.
    idle_timeout: float = 120.0
    review_timeout: float = 30.0  # the longest that Kubernetes allows
    drain_timeout: float = 10.0


class ClusterAccess(Protocol):
    """Access to the API server, for servers that detect the cluster or share certificates."""

    @property
    def namespace(self) -> str | None:
        """The operator's namespace: that of its pod, or of the kubeconfig's current context."""

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the decoded JSON of the response.

        Raises:
            APIError: see the client: APINotFoundError, APIConflictError, etc.
        """

    async def fetch_certificate(self) -> bytes | None:
        """Return the certificate of the API server in PEM; None if it has none."""


async def _confirm_at_once(_: WebhookClientConfig) -> None:
    """Return at once: without managed configurations, there is nothing to wait for."""


@dataclass(slots=True)
class Hosting:
    """The two-way link between an operator and its webhook server.

    Attributes:
        limits: the limits of requests and connections.
        cluster: access to the API server; None without an operator.
        confirm: waits until the managed configurations in the cluster contain the CAs of the
            given config; returns at once without managed configurations.
        is_stopping: set by the operator when it begins to stop. From then on, each response closes
            its connection; new connections are still accepted.
        expiry: set by the server: until when its certificate is valid; None if unknown.
        is_settling: set by the server: whether API servers may not trust its certificate yet.
        secret: set by the server: the namespace and name of the Secret that it needs to start.
        gate: refuses reviews beyond the limits.
        counters: counts the reviews, for metrics.
    """

    limits: ServingLimits = field(default_factory=DefaultLimits)
    cluster: ClusterAccess | None = None
    confirm: Callable[[WebhookClientConfig], Awaitable[None]] = _confirm_at_once
    is_stopping: bool = False
    expiry: dt.datetime | None = None
    is_settling: bool = False
    secret: tuple[str, str] | None = None
    gate: OverloadGate = field(init=False)
    counters: ReviewCounters = field(default_factory=ReviewCounters)

    def __post_init__(self) -> None:
        """Create the gate, which reads the current limits."""
        self.gate = OverloadGate(lambda: self.limits)


current_hosting: ContextVar[Hosting] = ContextVar("current_hosting")


def get_hosting() -> Hosting:
    """Return the current hosting; the defaults without an operator."""
    hosting = current_hosting.get(None)
    return Hosting() if hosting is None else hosting
