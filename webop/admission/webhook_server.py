"""The webhook server of an operator, from its start to its last review.

Flow: :meth:`WebhookHost.run` calls the server in the settings with the function for reviews, and
passes each config that it yields to the manager of the webhook configurations. At the shutdown,
:meth:`WebhookHost.retire` makes the replica not ready while it still serves,
:meth:`WebhookHost.withdraw` removes it from the cluster's webhook configurations, and the caller
cancels :meth:`WebhookHost.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any

from webop.admission.configurations.replica_agreement import describe_place
from webop.admission.service import AdmissionService
from webop.context.operator_context import OperatorContext
from webop.errors import ConfigurationError, WebopError
from webop.objects.resources import Resource
from webop.servers.base import WebhookClientConfig, check_generator
from webop.servers.limits import ClusterAccess, Hosting, current_hosting
from webop.servers.local import WebhookServer

if TYPE_CHECKING:
    from webop.admission.configurations.management import ConfigurationManager

logger = logging.getLogger(__name__)

SECRETS = Resource("", "v1", "secrets", kind="Secret", singular="secret")
_EXIT_TIMEOUT = 5.0  # seconds; for the last requests to the API server
_SETTLE_SECONDS = 1.0  # seconds; until API servers know that webhooks were removed


class WebhookHost:
    """The admission part of one operator.

    Attributes:
        review: the function for reviews, for the app and for the webhook server.
        hosting: the link between the operator and the webhook server.
        manager: keeps the webhook configurations; None if they are not managed.
        address: where API servers reach the webhook server; empty until it listens.

    With ``is_hosted``, an ASGI server runs the app and serves reviews, also if the operator has no
    webhook server.
    """

    def __init__(self, operator: OperatorContext, *, is_hosted: bool) -> None:
        self._operator = operator
        self._is_hosted = is_hosted
        self._is_listening = False
        self._is_withdrawn = False
        self.hosting = Hosting(limits=operator.settings.admission)
        self.review = AdmissionService(operator, self.hosting)
        self.manager: ConfigurationManager | None = None
        self.address = ""

    @property
    def has_server(self) -> bool:
        """Whether there is a webhook server to run."""
        return self._is_called and self._get_server() is not None

    @property
    def _is_called(self) -> bool:
        """Whether API servers have anything to call."""
        return bool(self.review.ids or self.review.conversion.kinds)

    @property
    def is_managing(self) -> bool:
        """Whether there are webhook configurations to keep."""
        return self.has_server and bool(self._operator.settings.admission.managed)

    @property
    def is_serving(self) -> bool:
        """Whether API servers may send reviews."""
        return self._is_called and (self.has_server or self._is_hosted)

    def begin(self) -> None:
        """Apply the handlers and settings as the startup handlers have left them.

        Raises:
            ConfigurationError: there are webhooks, but no server for them.
        """
        self.review.update_handlers()
        admission = self._operator.settings.admission
        self.hosting.limits = admission
        if not self._is_called or self._get_server() is not None:
            return
        if not self._is_hosted:
            what = f"admission handlers ({', '.join(self.review.ids)})"
            if not self.review.ids:
                what = f"converters ({', '.join(self.review.conversion.kinds)})"
            raise ConfigurationError(
                f"There are {what}, but no webhook server. Set settings.admission.server in a "
                "startup handler, for example: settings.admission.server = "
                "webop.WebhookServer(port=9443)."
            )
        texts = []
        if admission.server is not None:
            texts.append(
                "settings.admission.server is ignored: the ASGI server serves the webhooks, and "
                "WebhookServer would open a second port."
            )
        if admission.managed:
            texts.append(
                f"The webhook configurations {admission.managed!r} are not managed: the address of "
                "this app is unknown. Set settings.admission.server to a function that yields it."
            )
        if texts:
            logger.warning(" ".join(texts))

    def connect(self, cluster: ClusterAccess, manager: ConfigurationManager | None) -> None:
        """Set the access to the cluster, before the server runs."""
        self.hosting.cluster = cluster
        self.manager = manager
        if manager is not None:
            self.hosting.confirm = manager.confirm
            self.hosting.is_elsewhere = manager.is_elsewhere

    async def run(self) -> None:
        """Run the webhook server of the settings until cancelled.

        Raises:
            WebopError: the server has exited; the operator must stop.
        """
        current_hosting.set(self.hosting)
        async with contextlib.AsyncExitStack() as stack:
            server = self._get_server()
            if hasattr(server, "__aenter__"):
                server = await stack.enter_async_context(server)
            configs: AsyncIterator[WebhookClientConfig] = server(self.review)
            check_generator(configs, "A webhook server")
            async for config in configs:
                if not isinstance(config, dict):
                    what = "A webhook server must yield a webop.WebhookClientConfig"  # type: ignore[unreachable]
                    raise ConfigurationError(f"{what}, got {config!r}.")
                if self.is_managing and str(config.get("url")).startswith("http:"):
                    raise ConfigurationError(
                        f"API servers call webhooks by HTTPS only, not at {config['url']}. "
                        "Remove insecure=True, or do not set settings.admission.managed."
                    )
                self.address = describe_place(config)
                self._report_address()
                if self.manager is not None:
                    self.manager.announce(config, self.hosting.secret)
                elif self.hosting.secret is not None:
                    self._warn_of_secrets("/".join(self.hosting.secret))
                self._is_listening = True
        self._is_listening = False
        kind = "The webhook server has exited."
        raise WebopError("The webhook server has exited; stopping the operator.", kind=kind)

    def _report_address(self) -> None:
        server, level, hint = self._get_server(), logging.INFO, ""
        if not self.is_managing:
            hint = (
                " API servers do not call them yet: set settings.admission.managed to a name such "
                "as 'auto.example.com', or write the webhook configurations yourself."
            )
            # Nobody else can know the CA of a certificate that is made at each start.
            if isinstance(server, WebhookServer) and not (
                server.insecure or server.certfile or server.cadump or self.hosting.secret
            ):
                level = logging.WARNING
        level = logging.DEBUG if self._is_listening else level
        logger.log(level, "Serving webhooks at %s.%s", self.address, hint)

    def _warn_of_secrets(self, secret: str) -> None:
        """Warn of webhooks for Secrets; managed configurations exclude the operator's Secret."""
        for handler in self._operator.registry.select_webhooks() if not self._is_listening else ():
            if handler.selector is not None and handler.selector.check(SECRETS):
                logger.warning(
                    "%s is called for Secrets. The operator needs the Secret %s to start. If that "
                    "Secret is deleted while the operator is down, it cannot start again. Exclude "
                    "the Secret by matchConditions in the webhook configuration, or let webop "
                    "manage the configuration: settings.admission.managed.",
                    handler,
                    secret,
                )

    async def retire(self) -> None:
        """Stop being ready, and keep serving for ``shutdown_delay``, while traffic drains.

        Load balancers and kube-proxies need time to notice. Until then, reviews are served, and
        each response closes its connection. The last replica stays ready, as its webhooks stay
        enabled until it withdraws. Kube-proxies send traffic to a terminating pod if there is no
        other, but only if it is ready (Kubernetes, "Virtual IPs and Service Proxies", "Traffic to
        terminating endpoints").
        """
        self.hosting.is_stopping = True
        delay = self._operator.settings.admission.shutdown_delay
        if self.is_serving and delay:
            logger.info("Serving webhooks for %g more seconds while traffic drains.", delay)
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(delay))
                if self.manager is not None:
                    problem = await _try(self.manager.retire())
                    if problem is not None:
                        text = "Cannot hand the webhooks over to other replicas: %s"
                        logger.debug(text, problem)

    async def withdraw(self, *, is_asked: bool) -> None:
        """Remove this replica from the webhook configurations; a failure is only logged.

        If it is the last one, its webhooks go only if somebody has asked the operator to stop.
        """
        self.hosting.is_stopping = True
        if self.manager is None or self._is_withdrawn:
            return
        self._is_withdrawn = True
        problem = await _try(self.manager.withdraw(is_asked=is_asked))
        if problem is not None:
            text = "Cannot remove this replica from the webhook configurations: %s"
            logger.warning(text, problem)
        else:
            delay = self._operator.settings.admission.shutdown_delay
            await asyncio.sleep(min(_SETTLE_SECONDS, delay))

    def describe(self) -> str:
        """Return how many webhooks there are, and which."""
        ids, kinds = self.review.ids, self.review.conversion.kinds
        many = "" if len(ids) == 1 else "s"
        text = f"{len(ids)} webhook{many} ({', '.join(ids)})" if ids else "no webhooks"
        return f"{text}, conversion of {', '.join(kinds)}" if kinds else text

    def list_obstacles(self) -> list[str]:
        """Return the reasons why the webhooks are not ready; empty if they are."""
        obstacles = []
        if self.hosting.is_stopping and not (self.manager and self.manager.is_alone):
            obstacles.append("the operator is stopping")
        if self.has_server and not self._is_listening:
            obstacles.append("the webhook server is not listening yet")
        if self.hosting.is_settling and not (self.manager and self.manager.is_alone):
            obstacles.append("API servers may not trust the new certificate yet")
        expiry = self.hosting.expiry
        if expiry is not None and expiry <= dt.datetime.now(dt.UTC):
            obstacles.append(f"the certificate of the webhook server has expired on {expiry}")
        if (manager := self.manager) is not None and not manager.is_applied.is_set():
            why = f": {manager.problem}" if manager.problem else ""
            obstacles.append(f"the webhook configurations are not applied yet{why}")
        elif manager is not None and manager.is_refused:
            obstacles.append(f"the webhook configurations cannot be updated: {manager.problem}")
        return obstacles

    def _get_server(self) -> Any:
        """Return the server of the settings; None for a plain one under an ASGI server."""
        server = self._operator.settings.admission.server
        return None if self._is_hosted and type(server) is WebhookServer else server


async def _try(action: Coroutine[Any, Any, None]) -> str | None:
    """Run an action of the shutdown, in limited time; return why it failed, or None."""
    try:
        async with asyncio.timeout(_EXIT_TIMEOUT):
            await action
    except (TimeoutError, WebopError) as exc:
        return str(exc) or f"no response in {_EXIT_TIMEOUT:g} seconds"
    return None
