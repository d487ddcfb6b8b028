"""What an operator gives to the webhook servers that it runs, and what it hears from them.

Servers are made by users and called with nothing but the function for reviews, maybe from within
other servers. So what else there is between them and the operator is in :data:`current_hosting`,
a context variable that is set around the call of the server. A server that runs on its own, as in
a script, gets the defaults. This module is imported by users' handler files: it imports little.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from webop.counters import ReviewCounters
from webop.servers.base import WebhookClientConfig
from webop.servers.overload import OverloadGate


class ServingLimits(Protocol):
    """How much servers take, and for how long; ``settings.admission`` satisfies it.

    Read at use, so that changes in a startup handler count.
    """

    max_body: int  # the largest review that is taken, in bytes
    max_held_bytes: int  # how many bytes the bodies of all reviews in memory may have together
    max_connections: int  # how many connections a listener keeps open at once
    max_reviews: int  # how many reviews are served at once
    max_calls: int  # how many calls of one handler run at once
    read_timeout: float  # seconds for a whole request to come, from its first byte on
    idle_timeout: float  # seconds after which a connection without requests is closed
    review_timeout: float  # seconds for a review whose client gives no ``?timeout=``
    drain_timeout: float  # seconds that reviews in flight have when a server stops


@dataclass(slots=True)
class DefaultLimits:
    """The limits of servers that run without an operator, and the defaults of the settings."""

    # An object is at most 3 MiB for the API server, and an update comes with both of its states.
    max_body: int = 7 * 1024 * 1024
    # Decoded objects take up to ten times the memory of their texts: with the operator's own
    # 80 MiB, this fits the 256 MiB of the sample Deployment.
    max_held_bytes: int = 16 * 1024 * 1024
    max_connections: int = 256
    max_reviews: int = 1000
    max_calls: int = 100
    read_timeout: float = 10.0
    # API servers keep idle connections for 90 seconds. They must be the first to close: a request
    # that meets a connection being closed by the server fails.
    idle_timeout: float = 120.0
    review_timeout: float = 30.0  # the longest that Kubernetes allows
    drain_timeout: float = 10.0


class ClusterAccess(Protocol):
    """The API server, for servers that need it: to detect the cluster, to share certificates."""

    @property
    def namespace(self) -> str | None:
        """The namespace of the operator: of its pod, or of the current context of kubeconfig."""

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, return the decoded JSON of the answer.

        Raises:
            APIError: as the client raises them: APINotFoundError, APIConflictError, etc.
        """

    async def fetch_certificate(self) -> bytes | None:
        """Return the certificate that the API server shows, in PEM; None if it shows none."""


async def _confirm_at_once(_: WebhookClientConfig) -> None:
    """Without managed configurations, there is nobody to wait for."""


@dataclass(slots=True)
class Hosting:
    """The two-way link between an operator and its webhook server.

    Attributes:
        limits: of the requests.
        cluster: the API server; None without an operator.
        confirm: waits until the managed configurations in the cluster trust (``caBundle``) what
            the given config trusts; at once if there are none.
        is_stopping: set by the operator when it begins to stop: every answer closes its
            connection then, while new ones are still accepted.
        expiry: set by the server: until when its certificate is valid; None if not known.
        secret: set by the server: the namespace and the name of the Secret that it needs to start.
        gate: refuses what is too much at once.
        tally: where the reviews are counted.
    """

    limits: ServingLimits = field(default_factory=DefaultLimits)
    cluster: ClusterAccess | None = None
    confirm: Callable[[WebhookClientConfig], Awaitable[None]] = _confirm_at_once
    is_stopping: bool = False
    expiry: dt.datetime | None = None
    secret: tuple[str, str] | None = None
    gate: OverloadGate = field(init=False)
    tally: ReviewCounters = field(default_factory=ReviewCounters)

    def __post_init__(self) -> None:
        """Let the gate read the limits of the moment."""
        self.gate = OverloadGate(lambda: self.limits)


current_hosting: ContextVar[Hosting] = ContextVar("current_hosting")


def get_hosting() -> Hosting:
    """Return the hosting of the moment; the defaults if a server runs on its own."""
    hosting = current_hosting.get(None)
    return Hosting() if hosting is None else hosting
