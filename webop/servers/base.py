"""What a webhook server is to the framework, and the framework to a webhook server.

A server takes reviews from the API servers by whatever way it has, calls the given function with
them, and yields the configs by which the API servers reach it (manual, "Custom servers/tunnels").
This module is imported by users' handler files: it costs nothing to import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Protocol, TypedDict

Headers = Mapping[str, str]
SSLPeer = Mapping[str, Any]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class UserInfo(TypedDict, total=False):
    """Who has sent a request to the API server: the ``userInfo`` of a review.

    The fields are those of UserInfo in authentication.k8s.io/v1.
    """

    username: str
    uid: str
    groups: list[str]
    extra: dict[str, list[str]]


class WebhookClientConfigService(TypedDict, total=False):
    """A Kubernetes Service that leads to the webhook server; ``path`` and ``port`` may be absent.

    The fields are those of ServiceReference in admissionregistration.k8s.io/v1.
    """

    namespace: str | None
    name: str | None
    path: str | None
    port: int | None


class WebhookClientConfig(TypedDict, total=False):
    """How API servers reach the webhook server: the ``clientConfig`` of managed webhooks.

    Either ``url`` or ``service``; the ids of the handlers are appended to the path of either.
    """

    url: str | None
    service: WebhookClientConfigService | None
    #: The authorities to trust, in base64 of PEM; absent means the default ones.
    caBundle: str | None


class WebhookFn(Protocol):
    """The framework's function that webhook servers call with each review.

    Raises:
        ReviewError: this is not a usable review; its ``status`` is what to answer over HTTP.
    """

    async def __call__(
        self,
        request: Mapping[str, Any],
        *,
        webhook: str | None = None,
        headers: Headers | None = None,
        sslpeer: SSLPeer | None = None,
    ) -> dict[str, Any]:
        """Judge an AdmissionReview with a request; return the one with the response.

        Args:
            request: the review as it came, parsed from JSON.
            webhook: the id of the only handler to run; None runs all that match.
            headers: of the HTTP request; given to the handlers.
            sslpeer: the verified client certificate, as ``ssl.SSLSocket.getpeercert()`` has it.
        """
        ...


class WebhookServerProtocol(Protocol):
    """Anything that serves webhooks: a coroutine-generator function or a callable object.

    Optionally, it is an async context manager: whatever its ``__aenter__`` returns is then called
    instead, and its ``__aexit__`` cleans up (manual, "System resource cleanup").
    """

    def __call__(self, fn: WebhookFn, /) -> AsyncIterator[WebhookClientConfig]:
        """Serve until closed, yielding a config at first and whenever the endpoint changes."""
        ...
