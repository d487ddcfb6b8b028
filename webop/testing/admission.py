"""Admission handlers in tests of users: called in the process of the test, with no cluster.

Flow: :class:`AdmissionClient` runs the app that is run in production (asgi-lifespan), and posts
to it what an API server would (httpx): first to the mutating webhooks, one after another, each of
which gets the object as the former ones have left it; then what has come of it to the validating
ones. The answers make an :class:`AdmissionResult`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote

import httpx
import orjson

from webop.admission.managed.configurations import build_typed_id
from webop.app import OperatorApp, create_app
from webop.errors import ConfigurationError, ReviewError, WebopError
from webop.handling.handlers import WebhookHandler, WebhookType
from webop.handling.options import check_names
from webop.handling.registry import OperatorRegistry
from webop.loading import load_sources
from webop.objects.resources import Resource
from webop.settings import AdmissionSettings, OperatorSettings
from webop.testing.registries import AdmissionRegistry, judges, replace_default_registry
from webop.testing.results import AdmissionResult, read_reason, read_result
from webop.testing.reviews import (
    ReviewOptions,
    ServerView,
    TargetOptions,
    find_resource,
    review,
    to_json,
)

try:
    from asgi_lifespan import LifespanManager
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"Tests of admission need {missing.name}: pip install 'webop[test]'."
    ) from missing

Json = dict[str, Any]

_HEADERS = {
    "Accept": "application/json, */*",
    "Content-Type": "application/json",
    "User-Agent": "kube-apiserver-admission",
}
_TARGET_NAMES = TargetOptions.__annotations__.keys()
_TIMEOUT = 10.0  # seconds; for the handlers of the start, and for those of the end

_DETACHED: dict[str, Any] = {"server": None, "managed": None, "shutdown_delay": 0.0}


class RequestOptions(TargetOptions, total=False):
    """The options of the requests of :class:`AdmissionClient`.

    Attributes:
        webhook: the id of the only handler to be asked; by default all that match are.
        headers: HTTP headers for the webhooks.
        timeout: the seconds that the webhooks are told to have.
    """

    webhook: str | None
    headers: Mapping[str, str] | None
    timeout: float | None


class AdmissionClient:
    """An async context manager that calls admission handlers as an API server does.

    ::

        async with AdmissionClient(modules=["handlers.py"]) as client:
            result = await client.create({"apiVersion": "example.com/v1", "kind": "Thing", ...})
            assert result.webhooks == ("fill-in", "check")
            assert result.object["spec"]["size"] == "1G"

    Handlers are called one after another, until one of them refuses. The startup and the cleanup
    handlers are called, too. The cluster is left alone, whatever other handlers there are: nothing
    is watched, indexes are empty, no webhook server is started (``settings.admission.server`` and
    ``.managed`` stay None whatever is assigned).

    What only API servers judge is not judged: schemas, defaults, ``scope``, ``failure_policy``,
    ``namespace_selector``, ``match_conditions``, ``reinvocation_policy``. All else that handlers
    ask for is.

    Args:
        registry: the handlers; by default those of the default registry. Handlers that are loaded
            here go to it, or else to a copy of the default one.
        settings: the settings, as the startup handlers find them; by default those of the
            environment.
        modules: files (``handlers.py``) and modules (``package.module``) to import before.
        memo: the operator's memo.
        resources: kinds of resources, for handlers that ask for them by their short names or
            categories, and for kinds whose plural is not the usual one.
        timeout: the seconds for the startup handlers, and for the cleanup handlers; None for no
            limit.
    """

    def __init__(
        self,
        registry: OperatorRegistry | None = None,
        settings: OperatorSettings | None = None,
        modules: Iterable[str] = (),
        *,
        memo: Any = None,
        resources: Iterable[Resource] = (),
        timeout: float | None = _TIMEOUT,
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._modules = [modules] if isinstance(modules, str) else list(modules)
        self._memo = memo
        self._resources = list(resources)
        self._timeout = timeout
        self._stack = AsyncExitStack()
        self._running: _Running | None = None

    async def __aenter__(self) -> Self:
        """Import the modules, and call the startup handlers.

        Raises:
            WebopError: a module cannot be imported, or a startup handler has failed.
        """
        if self._running is not None:
            raise WebopError("The client runs already.")
        async with AsyncExitStack() as stack:
            self._running = await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Call the cleanup handlers.

        Raises:
            WebopError: one of them has failed.
        """
        self._running = None
        await self._stack.__aexit__(exc_type, exc, traceback)

    async def create(
        self, obj: Mapping[str, Any], **options: Unpack[RequestOptions]
    ) -> AdmissionResult:
        """Ask to create an object.

        Args:
            obj: the object as it is sent to the API server.
            options: see :class:`RequestOptions`.

        Raises:
            ReviewError: a webhook has no answer but an error: there is no such handler, it is not
                for such objects, it has taken too long; with the reason and the HTTP status.
            ConfigurationError: it is not clear what the object is.
        """
        return await self._admit("CREATE", obj, None, options)

    async def update(
        self,
        old: Mapping[str, Any],
        new: Mapping[str, Any],
        **options: Unpack[RequestOptions],
    ) -> AdmissionResult:
        """Ask to change an object; errors as for :meth:`create`.

        Args:
            old: the object as it is stored.
            new: the object as it is sent to the API server.
            options: see :class:`RequestOptions`.
        """
        return await self._admit("UPDATE", new, old, options)

    async def delete(
        self, obj: Mapping[str, Any], **options: Unpack[RequestOptions]
    ) -> AdmissionResult:
        """Ask to delete an object; errors as for :meth:`create`.

        Args:
            obj: the object as it is stored.
            options: see :class:`RequestOptions`.
        """
        return await self._admit("DELETE", None, obj, options)

    async def connect(
        self, obj: Mapping[str, Any] | None = None, **options: Unpack[RequestOptions]
    ) -> AdmissionResult:
        """Ask to connect to an object, such as for ``kubectl exec``; errors as for :meth:`create`.

        ::

            await client.connect(
                {"apiVersion": "v1", "kind": "PodExecOptions", "command": ["ls"]},
                resource="pods", subresource="exec", namespace="default", name="my-pod",
            )

        Args:
            obj: what is asked for, such as PodExecOptions.
            options: see :class:`RequestOptions`; ``resource`` is needed.
        """
        return await self._admit("CONNECT", obj, None, options)

    async def send(
        self,
        request: Mapping[str, Any],
        webhook: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AdmissionResult:
        """Send a review as it is, such as one of :func:`webop.testing.review`, in one request.

        Args:
            request: the review.
            webhook: the id of the handler; by default all that match are called at once.
            headers: HTTP headers.
            timeout: the seconds that the app is told to have.

        Raises:
            ReviewError: there is no answer but an error; with the reason and the HTTP status.
        """
        running = self._get_running()
        calls: list[str] = []
        token = judges.set(calls)
        try:
            answer = await running.http.post(
                f"/{quote(webhook or '')}",
                content=orjson.dumps(request),
                headers=_HEADERS | dict(headers or {}),
                params={} if timeout is None else {"timeout": f"{timeout:g}s"},
            )
        finally:
            judges.reset(token)
        if answer.status_code != 200:
            raise ReviewError(read_reason(answer), status=answer.status_code)
        return read_result(request, answer.json()["response"], calls)

    async def _admit(
        self,
        operation: str,
        new: Mapping[str, Any] | None,
        old: Mapping[str, Any] | None,
        options: RequestOptions,
    ) -> AdmissionResult:
        check_names(f"{operation.lower()}()", options, RequestOptions)
        body, before = to_json(new), to_json(old)
        target = self._aim(operation, body or before or {}, options)
        view = ServerView(operation, options.get("subresource"))
        body = body and view.prepare(body, options.get("namespace"))
        before = before and view.prepare(before, options.get("namespace"))
        mutating, validating = self._find_paths(target, options.get("webhook"))
        result = AdmissionResult(allowed=True, object=body)
        for path in mutating:
            result = await self._ask(path, before, result, target, options)
        changes = result.patch
        if result.allowed and result.object is not None:
            result = replace(result, object=view.complete(result.object, before))
        for path in validating:
            result = await self._ask(path, before, result, target, options)
        if len(result.patch) > len(changes):
            raise ReviewError(
                f"Validating webhook {result.webhooks[-1]!r} may not return a patch.", status=500
            )
        return result

    async def _ask(
        self,
        path: str,
        old: Json | None,
        so_far: AdmissionResult,
        target: ReviewOptions,
        options: RequestOptions,
    ) -> AdmissionResult:
        """Go on with one webhook more, unless one of the former has refused."""
        if not so_far.allowed:
            return so_far
        later = await self.send(
            review(so_far.object, old, **target),
            path,
            headers=options.get("headers"),
            timeout=options.get("timeout"),
        )
        return so_far.followed_by(later)

    def _aim(
        self, operation: str, body: Mapping[str, Any], options: RequestOptions
    ) -> ReviewOptions:
        """Return the options of the reviews, with the resource as well as it is known."""
        given = options.get("resource")
        found = find_resource(body, given, options.get("kind"))
        for known in self._resources:
            same_name = found == known or (given is None and found.kind == known.kind)
            if same_name and found.api_version == known.api_version:
                found = known
        target = {key: value for key, value in options.items() if key in _TARGET_NAMES}
        target |= {"operation": operation, "resource": found}
        return target  # type: ignore[return-value]  # the names are those of the type

    def _find_paths(
        self, target: ReviewOptions, webhook: str | None
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Return where an API server sends requests: for mutation, then for validation."""
        handlers = self._get_running().registry.select_webhooks()
        ids = {which: {h.id for h in handlers if h.reason is which} for which in WebhookType}
        shared = set.intersection(*ids.values())
        paths: dict[WebhookType, dict[str, None]] = {which: {} for which in WebhookType}
        for handler in handlers:
            if _is_asked(handler, target) and webhook in (None, handler.id):
                path = build_typed_id(handler) if handler.id in shared else handler.id
                paths[handler.reason][path] = None
        if webhook is not None and not any(paths.values()):
            return (), (webhook,)  # the app says best why this cannot be
        return tuple(paths[WebhookType.MUTATING]), tuple(paths[WebhookType.VALIDATING])

    async def _start(self, stack: AsyncExitStack) -> _Running:
        """Start the app."""
        if self._registry is None:  # what is imported for good must not be gone after the test
            load_sources(
                each for each in self._modules if not (each.endswith(".py") or "/" in each)
            )
        with replace_default_registry(self._registry) as origin:
            load_sources(self._modules)
            registry = AdmissionRegistry(origin)
            app = create_app(
                registry=registry,
                settings=detach(self._settings or OperatorSettings.from_environment()),
                modules=(),
                clusterwide=True,
                memo=self._memo,
            )
            await stack.enter_async_context(Lifespan(app, self._timeout))
        if self._resources and app.operator is not None:
            app.operator.context.cluster_view.update(self._resources)
        transport = httpx.ASGITransport(app=app)
        http = httpx.AsyncClient(transport=transport, base_url="http://webop")
        return _Running(registry, await stack.enter_async_context(http))

    def _get_running(self) -> _Running:
        if self._running is None:
            raise WebopError("The client does not run: use it within `async with client:`.")
        return self._running


@dataclass(frozen=True)
class _Running:
    """What there is as long as a client runs."""

    registry: OperatorRegistry
    http: httpx.AsyncClient


def _is_asked(handler: WebhookHandler, target: ReviewOptions) -> bool:
    """Tell whether an API server asks a handler, by the rules in its webhook configuration."""
    resource = target.get("resource")
    return (
        isinstance(resource, Resource)
        and handler.selector is not None
        and handler.selector.check(resource)
        and (not handler.operations or target.get("operation") in handler.operations)
        and handler.subresource in ("*", target.get("subresource"))
    )


class Lifespan:
    """The lifespan of an app, whose time-outs say what has taken so long."""

    def __init__(self, app: OperatorApp, timeout: float | None) -> None:
        self._manager = LifespanManager(app, startup_timeout=timeout, shutdown_timeout=timeout)
        self._timeout = timeout

    async def __aenter__(self) -> None:
        try:
            await self._manager.__aenter__()
        except TimeoutError:
            raise self._explain("startup") from None

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._manager.__aexit__(exc_type, exc, traceback)
        except TimeoutError:
            raise self._explain("cleanup") from None

    def _explain(self, activity: str) -> WebopError:
        return WebopError(
            f"The {activity} handlers have not finished in {self._timeout:g} s; for more time, "
            "there is timeout=."
        )


class _DetachedSettings(AdmissionSettings):
    """Settings of admission where nobody but the test sends reviews."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _DETACHED.get(name, value))


def detach(settings: OperatorSettings) -> OperatorSettings:
    """Return the settings without a server of webhooks, and without configurations of them.

    They share all sections but that one.
    """
    admission = _DetachedSettings.model_construct(**(dict(settings.admission) | _DETACHED))
    return settings.model_copy(update={"admission": admission})
