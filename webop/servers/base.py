"""What a webhook server is to the framework, and the framework to a webhook server.

A server takes reviews from the API servers by whatever way it has, calls the given function with
them, and yields the configs by which the API servers reach it (manual, "Custom servers/tunnels").
This module is imported by users' handler files: it costs nothing to import.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from typing import Any, Literal, Protocol, Self, TypedDict

from webop.errors import ConfigurationError

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
    #: The CA certificates to trust, in base64 of PEM; absent means the default ones.
    caBundle: str | None


def check_generator(value: Any, what: str) -> None:
    """Refuse what a function has returned that must be an asynchronous generator.

    Raises:
        ConfigurationError: it is none; the function has ``return`` instead of ``yield``.
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


class BaseWebhookServer(abc.ABC):
    """What all webhook servers of webop have in common; a subclass has :meth:`serve`.

    Each call of the server runs :meth:`serve` in one task of its own, and returns an iterator of
    what that yields. The task is cancelled when the iterator is closed, and when the context of
    the server is left (manual, "System resource cleanup"): iterators that wait then end.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()  # those that were cancelled

    @abc.abstractmethod
    def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Serve reviews by a function until cancelled; clean up then.

        Yields:
            The config for the API servers, at first and whenever it changes. The code after a
            ``yield`` runs when the operator has taken the config.

        Raises:
            ConfigurationError: it cannot be started with these options.
        """

    def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        """Serve reviews by a function until the returned generator is closed.

        Raises:
            ConfigurationError: (on the first step) it cannot be started with these options.
        """
        return self._run(fn)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stop(set(self._tasks))

    async def _run(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
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

    async def _stop(self, tasks: set[asyncio.Task[None]]) -> None:
        """Cancel each task once, as a second time would cut its cleaning up; wait for their ends.

        What was cancelled is remembered here: ``cancelling()`` is also true while a timeout inside
        of the task expires.
        """
        for task in tasks - self._ending:
            self._ending.add(task)
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
