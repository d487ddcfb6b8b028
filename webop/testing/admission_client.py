"""Call admission handlers in tests of users, in the process of the test, without a cluster.

Flow: :class:`AdmissionClient` runs the same app as production, and hands the reviews of an API
server to its service: first for the mutating webhooks, one after another, each with the
object as the previous one left it; then the result for the validating webhooks. The responses make
an :class:`AdmissionResult`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, Unpack

import orjson

from webop.admission.configurations.building import build_typed_id
from webop.app import OperatorApp, create_app
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.errors import ReviewError, WebopError
from webop.handlers.model import WebhookType
from webop.handlers.options import parse_options
from webop.handlers.registry import OperatorRegistry
from webop.objects.resources import Resource
from webop.runtime.loading import load_sources
from webop.servers.http.review_head import RequestHeaders, compute_budget
from webop.settings.groups import AdmissionSettings, OperatorSettings
from webop.testing.admission_results import AdmissionResult, read_result
from webop.testing.registries import AdmissionRegistry, called, replace_default_registry
from webop.testing.review_building import (
    Object,
    TargetOptions,
    complete,
    find_resource,
    review,
    to_json,
)

if TYPE_CHECKING:
    from webop.admission.webhook_server import WebhookHost
    from webop.controlplane.cluster import LocalCluster

_TARGET = TargetOptions.__annotations__.keys()
_TIMEOUT = 10.0  # seconds; for the startup handlers, and for the cleanup handlers
_DETACHED: dict[str, Any] = {"server": None, "managed": None, "shutdown_delay": 0.0}


class RequestOptions(TargetOptions, total=False):
    """The options of the requests of :class:`AdmissionClient`."""

    webhook: str | None
    """The id of the only handler to call; by default all that match"""
    headers: Mapping[str, str] | None
    """The HTTP headers of the reviews"""
    timeout: float | None
    """The seconds that the API server would wait"""


class AdmissionClient:
    """An async context manager that calls admission handlers like an API server.

    ::

        async with AdmissionClient(modules=["handlers.py"]) as client:
            result = await client.create({"apiVersion": "example.com/v1", "kind": "Database", ...})
            assert result.webhooks == ("set_engine", "check_size")
            assert result.object["spec"]["engine"] == "postgres"

    It calls the handlers one after another, until one of them denies. Startup handlers run before,
    cleanup handlers after. There is no cluster: nothing is watched, indexes are empty, no webhook
    server runs (``settings.admission.server`` and ``.managed`` ignore assignments and stay None).
    Checks of the API server are missing: schemas, ``scope``, ``namespace_selector``,
    ``match_conditions`` and the like.

    Args:
        registry: the handlers; by default a copy of the default registry. Handlers of ``modules``
            go to it.
        settings: the settings for startup handlers; by default those of the environment.
        modules: files (``handlers.py``) and modules (``package.module``) to import.
        memo: the operator's memo.
        resources: kinds, for handlers that name them by short names or categories, and for
            kinds with an unusual plural.
        cluster: the cluster that the ``client`` of handlers uses, such as the fixture
            ``webop_cluster``; by default none, and requests of that client fail.
        timeout: the seconds for startup handlers, and for cleanup handlers; None for no limit.

    Raises:
        TypeError: an argument has the wrong type.
    """

    def __init__(  # noqa: PLR0913 - the options of an operator
        self,
        registry: OperatorRegistry | None = None,
        settings: OperatorSettings | None = None,
        modules: Iterable[str | os.PathLike[str]] = (),
        *,
        memo: Any = None,
        resources: Iterable[Resource] = (),
        cluster: LocalCluster | None = None,
        timeout: float | None = _TIMEOUT,
    ) -> None:
        self._registry = registry
        self._settings = settings
        sources = [modules] if isinstance(modules, str) else modules
        self._modules = [os.fspath(each) for each in sources]
        self._memo = memo
        self._resources = list(resources)
        checks: list[tuple[str, object, Any]] = [
            ("registry", registry, OperatorRegistry),
            ("settings", settings, OperatorSettings),
            ("timeout", timeout, int | float),
        ]
        checks += [("each of resources", each, Resource) for each in self._resources]
        for name, value, kind in checks:
            if value is not None and not isinstance(value, kind):
                expected = getattr(kind, "__name__", kind)
                raise TypeError(f"{name} must be of the type {expected}, got {value!r}.")
        self._timeout = timeout
        self._vault: Vault | None = None
        if cluster is not None:
            info = ConnectionInfo(
                server=cluster.server, ca_data=cluster.ca_data, token=cluster.token
            )
            self._vault = Vault({"cluster": info})
        self._handlers = OperatorRegistry()
        self._stack = AsyncExitStack()
        self._app: OperatorApp | None = None

    async def __aenter__(self) -> Self:
        """Import the modules and call the startup handlers; raise their errors."""
        if self._app is not None:
            raise WebopError("This AdmissionClient runs already.")
        async with AsyncExitStack() as stack:
            self._app = await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Call the cleanup handlers; raise their errors."""
        self._app = None
        await self._stack.aclose()

    async def create(self, obj: Object, **options: Unpack[RequestOptions]) -> AdmissionResult:
        """Request the creation of an object, given as a client sends it to the API server.

        Raises:
            ReviewError: a webhook responds with an error: there is no such handler, it is not
                for such objects, or it took too long; has the reason and the HTTP status.
            ConfigurationError: the kind of the object is unknown.
        """
        return await self._admit("CREATE", obj, None, options)

    async def update(
        self, old: Object, new: Object, **options: Unpack[RequestOptions]
    ) -> AdmissionResult:
        """Request a change of an object from its stored state; errors as for :meth:`create`.

        ``new`` is the whole object after the change, also with ``subresource="status"``.
        """
        return await self._admit("UPDATE", new, old, options)

    async def delete(self, obj: Object, **options: Unpack[RequestOptions]) -> AdmissionResult:
        """Request the deletion of a stored object; errors as for :meth:`create`."""
        return await self._admit("DELETE", None, obj, options)

    async def connect(
        self, obj: Object | None = None, **options: Unpack[RequestOptions]
    ) -> AdmissionResult:
        """Request a connection, like ``kubectl exec``; needs ``resource`` and ``subresource``."""
        return await self._admit("CONNECT", obj, None, options)

    async def send(
        self,
        request: Mapping[str, Any],
        webhook: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AdmissionResult:
        """Send a review unchanged, such as one of :func:`webop.testing.review`, in one request.

        It goes to one handler, or to all matching ones; errors as for :meth:`create`.
        """
        host = self._get_host()
        given: RequestOptions = {"webhook": webhook, "headers": headers, "timeout": timeout}
        parse_options("send()", given, RequestOptions)
        sent = {"Host": "webop", "Accept": "application/json, */*"}
        sent |= {"Content-Type": "application/json", **(headers or {})}
        raw = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in sent.items()]
        seconds = host.hosting.limits.review_timeout if timeout is None else timeout
        budget = compute_budget(seconds)
        calls: dict[str, None] = {}
        token = called.set(calls)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(budget) as deadline:
                    answer = await host.review(
                        orjson.loads(orjson.dumps(request)),
                        webhook=webhook,
                        headers=RequestHeaders(raw),
                    )
        finally:
            called.reset(token)
        if deadline.expired():  # also if a handler has ignored its cancellation
            name = "The webhooks" if webhook is None else f"The webhook {webhook}"
            text = f"{name} did not answer within {budget:g} s of the {seconds:g} s given."
            raise ReviewError(text, status=504)
        return read_result(request, answer["response"], calls)

    def _get_host(self) -> WebhookHost:
        if self._app is None or self._app.operator is None:
            raise WebopError("This AdmissionClient does not run. Use it within `async with`.")
        return self._app.operator.webhooks

    async def _admit(
        self,
        operation: str,
        new: Object | None,
        old: Object | None,
        options: RequestOptions,
    ) -> AdmissionResult:
        self._get_host()
        parse_options(f"{operation.lower()}()", options, RequestOptions)
        if operation == "UPDATE" and (new is None or old is None):
            raise TypeError("update() needs both states of the object: the old and the new one.")
        body, before, namespace = to_json(new), to_json(old), options.get("namespace")
        for each in (body, before):  # API servers set the namespace of the URL
            if each and namespace and operation != "CONNECT":
                each["metadata"] = (each.get("metadata") or {}) | {"namespace": namespace}
        resource = find_resource(body or before or {}, options, self._resources)
        target = _select(options, _TARGET) | {"operation": operation, "resource": resource}
        paths = self._find_paths(operation, resource, options)
        result = AdmissionResult(allowed=True, object=body)
        for reason in (WebhookType.MUTATING, WebhookType.VALIDATING):
            if reason is WebhookType.VALIDATING and result.allowed and result.object is not None:
                result = replace(result, object=complete(result.object, before, operation))
            for path in paths[reason]:
                if result.allowed:
                    document = review(result.object, before, **target)
                    how = _select(options, ("headers", "timeout"))
                    result = result.followed_by(await self.send(document, path, **how))
        return result

    def _find_paths(
        self, operation: str, resource: Resource, options: RequestOptions
    ) -> dict[WebhookType, list[str]]:
        """Return the webhook paths that match, by the rules of webhook configurations."""
        handlers = self._handlers.select_webhooks()
        ids = [{h.id for h in handlers if h.reason is reason} for reason in WebhookType]
        paths: dict[WebhookType, list[str]] = {reason: [] for reason in WebhookType}
        webhook = options.get("webhook")
        for handler in handlers:
            path = build_typed_id(handler) if all(handler.id in one for one in ids) else handler.id
            is_asked = (
                webhook in (None, handler.id)
                and handler.selector is not None
                and handler.selector.check(resource)
                and (not handler.operations or operation in handler.operations)
                and handler.subresource in ("*", options.get("subresource"))
            )
            if is_asked and path not in paths[handler.reason]:
                paths[handler.reason].append(path)
        if webhook is not None and not any(paths.values()):
            paths[WebhookType.VALIDATING] = [webhook]  # the app explains the error best
        return paths

    async def _start(self, stack: AsyncExitStack) -> OperatorApp:
        if self._registry is None:  # modules (not files) stay imported
            load_sources(
                each for each in self._modules if not (each.endswith(".py") or "/" in each)
            )
        with replace_default_registry(self._registry) as origin:
            load_sources(self._modules)
            self._handlers = AdmissionRegistry(origin)
            app = create_app(
                registry=self._handlers,
                settings=_detach(self._settings or OperatorSettings.from_environment()),
                modules=(),
                clusterwide=True,
                memo=self._memo,
                vault=self._vault,
            )
            lifespan = app.lifespan()
            await self._limit(lifespan.__aenter__(), "startup")
            stack.push_async_callback(
                lambda: self._limit(lifespan.__aexit__(None, None, None), "cleanup")
            )
        if self._resources and app.operator is not None:
            app.operator.context.cluster_view.update(self._resources)
        return app

    async def _limit(self, step: Awaitable[Any], activity: str) -> None:
        try:
            await asyncio.wait_for(step, self._timeout)
        except TimeoutError:
            raise WebopError(
                f"The {activity} handlers did not finish in {self._timeout:g} s. Set a longer "
                "timeout=."
            ) from None


def _select(options: RequestOptions, names: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key in names}


class _DetachedSettings(AdmissionSettings):
    """Settings of admission without a server: only the test sends reviews."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _DETACHED.get(name, value))


def _detach(settings: OperatorSettings) -> OperatorSettings:
    """Return a copy of the settings without a webhook server."""
    admission = _DetachedSettings()
    vars(admission).update(vars(settings.admission) | _DETACHED)
    return settings.copy(admission=admission)
