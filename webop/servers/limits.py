"""The link between an operator and its webhook server, beyond the function for reviews.

Users create servers, and servers can call other servers, always with the function for reviews only.
So the link is the context variable :data:`current_hosting`, set around the call of the server. A
server without an operator, as in a script, gets the defaults. Users' handler files import this
module, so it must be cheap to import.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from webop.errors import ReviewError
from webop.servers.base import WebhookClientConfig
from webop.telemetry.counters import ReviewCounters

MAX_HEAD = 64 * 1024  # bytes of the URL, the headers and the trailers of a request
MAX_HEADERS = 1024
_LARGEST = 5  # bytes of memory per byte of text: of a review with few values


class ServingLimits(Protocol):
    """The limits of servers, and their defaults; ``settings.admission`` implements them.

    They are read at each use, so that changes in a startup handler count.
    """

    # Bytes of a review. API servers accept objects of up to 3 MiB, and an update has both states.
    max_body: int = 7 * 1024 * 1024
    # Bytes of memory of all reviews. With the operator's own 80 MiB, this fits into the 256 MiB of
    # the sample Deployment.
    max_held_bytes: int = 128 * 1024 * 1024
    max_connections: int = 320  # open at once, per listener
    max_reviews: int = 1000  # served at once
    max_calls: int = 100  # of one handler at once
    read_timeout: float = 10.0  # seconds to receive a request, from its first byte
    # Seconds after which a connection without requests is closed. API servers keep idle connections
    # for 90 seconds, and must be the first to close them: a request on a connection that this
    # server is closing would fail.
    idle_timeout: float = 120.0
    # Seconds for a review without ``?timeout=``: the longest that Kubernetes allows.
    review_timeout: float = 30.0
    drain_timeout: float = 10.0  # seconds for reviews in flight when a server stops


class DefaultLimits(ServingLimits):
    """The limits of servers that run without an operator."""

    def __init__(self, **limits: Any) -> None:
        """Change some of the defaults, by their names."""
        self.__dict__.update(limits)


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


class OverloadGate:
    """Counts the reviews being served, and refuses those beyond the limits, so that clients retry.

    An operator has one gate, and so has a server without an operator. The HTTP side counts the
    memory that reviews take; the admission side counts reviews and calls of handlers. The limits
    are read at each use, so that changes count.
    """

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._held = 0
        self._shares: dict[object, int] = {}  # of the bytes held, by peer
        self._reviews = 0
        #: The running calls, by the ids of the handlers.
        self.calls: dict[str, int] = {}

    @property
    def share(self) -> int:
        """The bytes of memory that one review, or all reviews of one peer, may take at most.

        It is half of the budget, so that one peer cannot keep out all others; but at least what a
        review of the largest size with few values takes, and then it is the budget.
        """
        limits = self._hosting.limits
        return max(limits.max_held_bytes // 2, _LARGEST * limits.max_body)

    def hold(self, size: int, peer: object, share: int) -> None:
        """Count bytes that a review takes; the caller must release as many.

        Args:
            size: in bytes.
            peer: who sent the review: the address without the port.
            share: that of a peer, see :attr:`share`; the caller reads it once per review.

        Raises:
            ReviewError: they do not fit (429), and are not counted.
        """
        mine = self._shares.get(peer, 0) + size
        if self._held + size > (budget := max(self._hosting.limits.max_held_bytes, share)):
            raise _refuse(f"Reviews take more than {budget} bytes of memory", "max_held_bytes")
        if mine > share:
            text = f"Reviews from one address take more than {share} bytes of memory"
            raise _refuse(text, "max_held_bytes")
        self._held += size
        self._shares[peer] = mine

    def release(self, size: int, peer: object) -> None:
        """Subtract bytes of reviews that are not in memory any more."""
        self._held -= size
        if left := self._shares.pop(peer, 0) - size:
            self._shares[peer] = left

    def enter(self, calls: Mapping[str, int]) -> Iterable[str]:
        """Count a review and the calls of its handlers; the caller must call :meth:`leave`.

        Args:
            calls: the ids of the handlers, each with its number of cancelled calls that still
                occupy threads.

        Returns:
            The argument for :meth:`leave`.

        Raises:
            ReviewError: the operator or one of the handlers is at its limit (429); nothing is
                counted.
        """
        limits = self._hosting.limits
        if self._reviews >= limits.max_reviews:
            raise _refuse(f"{limits.max_reviews} reviews are being served", "max_reviews")
        for key, abandoned in calls.items():
            if self.calls.get(key, 0) + abandoned >= limits.max_calls:
                raise _refuse(f"Webhook {key!r} is busy with {limits.max_calls} calls", "max_calls")
        self._reviews += 1
        for key in calls:
            self.calls[key] = self.calls.get(key, 0) + 1
        return calls

    def leave(self, calls: Iterable[str]) -> None:
        """Subtract a review that has entered, and the calls of its handlers."""
        self._reviews -= 1
        for key in calls:
            self.calls[key] -= 1


def _refuse(what: str, setting: str) -> ReviewError:
    """Build a refusal that makes API servers retry soon."""
    text = f"{what}, which is the limit (settings.admission.{setting}); try again."
    return ReviewError(text, status=429, retry_after=1)


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
        is_elsewhere: returns whether a webhook that is not known here may be that of a replica of
            another version (during a rollout).
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
    is_elsewhere: Callable[[], bool] = lambda: False
    is_stopping: bool = False
    expiry: dt.datetime | None = None
    is_settling: bool = False
    secret: tuple[str, str] | None = None
    gate: OverloadGate = field(init=False)
    counters: ReviewCounters = field(default_factory=ReviewCounters)

    def __post_init__(self) -> None:
        """Create the gate, which reads the current limits."""
        self.gate = OverloadGate(self)


current_hosting: ContextVar[Hosting] = ContextVar("current_hosting")


def get_hosting() -> Hosting:
    """Return the current hosting; the defaults without an operator."""
    hosting = current_hosting.get(None)
    return Hosting() if hosting is None else hosting
