"""The interface between the framework and webhook servers.

A webhook server receives reviews from API servers, calls the framework's function with each, and
yields the configs by which API servers reach it (manual, "Custom servers/tunnels"). Users' handler
files import this module, so it must be cheap to import.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypedDict
from urllib.parse import quote

from webop.errors import ConfigurationError

Headers = Mapping[str, str]
"""The argument ``headers`` of admission handlers: the HTTP headers; in upper or lower case."""
SSLPeer = Mapping[str, Any]
"""The argument ``sslpeer`` of admission handlers: the verified certificate of the client, as
``ssl.SSLSocket.getpeercert()`` returns it; the argument is None without one."""
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
"""The argument ``operation`` of admission handlers, and the option of this name."""


class UserInfo(TypedDict, total=False):
    """The user who sent a request to the API server: the ``userInfo`` of a review.

    The fields are those of UserInfo in authentication.k8s.io/v1.
    """

    username: str
    uid: str
    groups: list[str]
    extra: dict[str, list[str]]


class WebhookClientConfigService(TypedDict, total=False):
    """The Kubernetes Service in front of the webhook server; ``path`` and ``port`` are optional.

    The fields are those of ServiceReference in admissionregistration.k8s.io/v1.
    """

    namespace: str | None
    name: str | None
    path: str | None
    port: int | None


class WebhookClientConfig(TypedDict, total=False):
    """How API servers reach the webhook server: the ``clientConfig`` of managed webhooks.

    It has either ``url`` or ``service``. The ids of the handlers are appended to the path.
    """

    url: str | None
    service: WebhookClientConfigService | None
    caBundle: str | None
    """The CA certificates to trust, in base64 of PEM; absent means the default ones."""


def get_reachable_address(addr: str) -> str:
    """Return the address to connect to for a server that listens on an address.

    Clients cannot connect to catch-all addresses (0.0.0.0, ::); use the loopback for these.
    """
    loopbacks = {"": "localhost", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - none is bound
    with contextlib.suppress(ValueError):  # "::" has several forms
        return loopbacks.get(str(ipaddress.ip_address(addr)), addr)
    return loopbacks.get(addr, addr)


def build_url(scheme: str, host: str, port: int, path: str | None) -> str:
    """Build the URL of a server, in the shortest form."""
    netloc = f"[{host}]" if ":" in host else host
    if port != (443 if scheme == "https" else 80):
        netloc = f"{netloc}:{port}"
    stripped = quote((path or "").strip("/"))
    return f"{scheme}://{netloc}/{stripped}" if stripped else f"{scheme}://{netloc}"


def check_generator(value: Any, what: str) -> None:
    """Check that a function has returned an asynchronous generator.

    Raises:
        ConfigurationError: it has not, such as a function with ``return`` instead of ``yield``.
    """
    if not isinstance(value, AsyncIterable):
        if asyncio.iscoroutine(value):
            value.close()
        raise ConfigurationError(
            f"{what} must be an asynchronous generator: an `async def` with `yield`, not `return`; "
            f"got {value!r}."
        )


class WebhookFn(Protocol):
    """The framework's function that webhook servers call with each review.

    Raises:
        ReviewError: this is not a usable review; respond with its HTTP ``status``.
    """

    async def __call__(
        self,
        request: Mapping[str, Any],
        *,
        webhook: str | None = None,
        headers: Headers | None = None,
        sslpeer: SSLPeer | None = None,
    ) -> dict[str, Any]:
        """Judge an AdmissionReview with a request; return an AdmissionReview with the response.

        Args:
            request: the review, parsed from JSON.
            webhook: the id of the handler to call; None calls all that match.
            headers: of the HTTP request, for the handlers.
            sslpeer: the verified client certificate, as ``ssl.SSLSocket.getpeercert()`` has it.
        """
        ...


class WebhookServerProtocol(Protocol):
    """Anything that serves webhooks: an async generator function or a callable object.

    It can be an async context manager. Then the result of its ``__aenter__`` is called, and its
    ``__aexit__`` cleans up. See docs/howto/webhook_servers.md.
    """

    def __call__(self, fn: WebhookFn, /) -> AsyncIterator[WebhookClientConfig]:
        """Serve until closed; yield a config at first, and again whenever it changes."""
        ...


@dataclass(eq=False, repr=False)
class BaseWebhookServer(abc.ABC):
    """The base class of webop's webhook servers; subclasses implement :meth:`serve`.

    Each call of the server runs :meth:`serve` in a separate task and returns an iterator over the
    configs that it yields. The task is cancelled when the iterator is closed, and when the context
    of the server is left (manual, "System resource cleanup"); waiting iterators then end.
    """

    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _ending: set[asyncio.Task[None]] = field(default_factory=set, init=False)  # of the tasks

    def __post_init__(self) -> None:  # noqa: B027  for them only
        """Exist for subclasses, which call it if they have their own."""

    @abc.abstractmethod
    def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Call a function for each review until cancelled; then clean up.

        Yields:
            The config for the API servers, at first and whenever it changes. The code after a
            ``yield`` runs when the operator has received the config.

        Raises:
            ConfigurationError: the server cannot start with these options.
        """

    async def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        """Call a function for each review until the returned generator is closed.

        Raises:
            ConfigurationError: (on the first step) the server cannot start with these options.
        """
        configs: asyncio.Queue[WebhookClientConfig | None] = asyncio.Queue()
        is_taken = asyncio.Event()

        async def run() -> None:
            generator = self.serve(fn)
            check_generator(generator, f"serve() of {type(self).__name__}")
            async with contextlib.aclosing(generator) as served:
                async for config in served:
                    is_taken.clear()
                    configs.put_nowait(config)
                    await is_taken.wait()

        task = asyncio.create_task(run(), name="webhook server")
        task.add_done_callback(lambda _: configs.put_nowait(None))
        self._tasks.add(task)
        try:
            while (config := await configs.get()) is not None:
                yield config
                is_taken.set()
            if not task.cancelled():
                task.result()
        finally:
            await self._stop({task})
            self._tasks.discard(task)
            self._ending.discard(task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stop(set(self._tasks))

    async def _stop(self, tasks: set[asyncio.Task[None]]) -> None:
        """Cancel each task once, as a second time would interrupt its cleanup; wait for all.

        The cancelled tasks are remembered, as ``cancelling()`` is also true while a timeout inside
        the task expires.
        """
        for task in tasks - self._ending:
            self._ending.add(task)
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
