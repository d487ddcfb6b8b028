"""The webhook server of an operator, from its start to its last review.

Flow: :meth:`WebhookHost.run` calls the server of the settings with the service that judges
reviews, and hands each config that it yields to the manager of the webhook configurations.
:meth:`WebhookHost.retire` and :meth:`WebhookHost.withdraw` are the way out: not ready any more,
but serving; then out of the cluster; then closed by whoever runs :meth:`WebhookHost.run`.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from webop.admission.serve import AdmissionService
from webop.errors import ConfigurationError, WebopError
from webop.handling.context import OperatorContext
from webop.objects.resources import Resource
from webop.servers.base import WebhookClientConfig, check_generator
from webop.servers.hosting import ClusterAccess, Hosting, current_hosting
from webop.servers.local import WebhookServer

if TYPE_CHECKING:
    from webop.admission.managed.management import ConfigurationManager

logger = logging.getLogger(__name__)

SECRETS = Resource("", "v1", "secrets", kind="Secret", singular="secret")
_EXIT_TIMEOUT = 5.0  # seconds; for the last requests on the way out
_SETTLE_SECONDS = 1.0  # for API servers to take notice that webhooks are removed


class WebhookHost:
    """What there is of admission in one operator.

    Attributes:
        review: judges reviews; for the app, which serves it itself, and for the server.
        hosting: what the server is given, and tells.
        manager: keeps the webhook configurations; None if they are not managed.

    If it is hosted, an ASGI server runs the app, and serves reviews also without a webhook server
    of the operator's own.
    """

    def __init__(self, operator: OperatorContext, *, is_hosted: bool) -> None:
        self._operator = operator
        self._is_hosted = is_hosted
        self._is_listening = False
        self._is_withdrawn = False
        self.hosting = Hosting(limits=operator.settings.admission)
        self.review = AdmissionService(operator, self.hosting)
        self.manager: ConfigurationManager | None = None

    @property
    def has_server(self) -> bool:
        """Whether there is a webhook server to run."""
        return bool(self.review.ids) and self._get_server() is not None

    @property
    def is_managing(self) -> bool:
        """Whether there are webhook configurations to keep."""
        return self.has_server and bool(self._operator.settings.admission.managed)

    @property
    def is_serving(self) -> bool:
        """Whether reviews may come."""
        return bool(self.review.ids) and (self.has_server or self._is_hosted)

    def begin(self) -> None:
        """Take over what the startup handlers have registered and set.

        Raises:
            ConfigurationError: there are webhooks, but nobody to serve them (ADM-48).
        """
        self.review.take_handlers()
        admission = self._operator.settings.admission
        self.hosting.limits = admission
        if not self.review.ids or self._get_server() is not None:
            return
        if not self._is_hosted:
            raise ConfigurationError(
                f"There are admission handlers ({', '.join(self.review.ids)}), but no webhook "
                "server. Set settings.admission.server in a startup handler, for example: "
                "settings.admission.server = webop.WebhookServer(port=9443)."
            )
        texts = []
        if admission.server is not None:
            texts.append(
                "settings.admission.server is ignored: the ASGI server serves the webhooks, and "
                "WebhookServer would open a second port."
            )
        if admission.managed:
            texts.append(
                f"The webhook configurations {admission.managed!r} are not managed: nobody knows "
                "at which address API servers reach this app. Set settings.admission.server to a "
                "function that yields it."
            )
        if texts:
            logger.warning(" ".join(texts))

    def connect(self, cluster: ClusterAccess, manager: ConfigurationManager | None) -> None:
        """Take the ways to the cluster, before the server is run."""
        self.hosting.cluster = cluster
        self.manager = manager
        if manager is not None:
            self.hosting.confirm = manager.confirm
            self.review.is_elsewhere = manager.is_elsewhere

    async def run(self) -> None:
        """Run the webhook server of the settings; its end is the end of the operator (ADM-49).

        Raises:
            WebopError: the server has ended by itself.
        """
        current_hosting.set(self.hosting)
        async with _enter(self._get_server()) as server:
            configs: AsyncIterator[WebhookClientConfig] = server(self.review)
            check_generator(configs, "A webhook server")
            async for config in configs:
                if not isinstance(config, dict):
                    what = "A webhook server must yield a webop.WebhookClientConfig"  # type: ignore[unreachable]
                    raise ConfigurationError(f"{what}, got {config!r}.")
                if self.is_managing and str(config.get("url")).startswith("http:"):
                    raise ConfigurationError(
                        f"API servers do not call webhooks at {config['url']}: they need HTTPS. "
                        "Remove insecure=True, or do not set settings.admission.managed."
                    )
                where = config.get("url") or config.get("service")
                log = logger.debug if self._is_listening else logger.info
                hint = (
                    ""
                    if self.is_managing
                    else " As settings.admission.managed is not set, they are called only if you "
                    "write the webhook configurations."
                )
                log("Webhooks are served at %s.%s", where, hint)
                if self.manager is not None:
                    self.manager.announce(config, self.hosting.secret)
                elif self.hosting.secret is not None:
                    self._warn_of_secrets("/".join(self.hosting.secret))
                self._is_listening = True
        self._is_listening = False
        kind = "The webhook server has exited."
        raise WebopError("The webhook server has exited, and so does the operator.", kind=kind)

    def _warn_of_secrets(self, secret: str) -> None:
        """Warn of webhooks for Secrets whose configuration others write; managed ones are safe."""
        for handler in self._operator.registry.select_webhooks() if not self._is_listening else ():
            if handler.selector is not None and handler.selector.check(SECRETS):
                logger.warning(
                    "%s is called for Secrets. The operator needs the Secret %s to start, so it "
                    "can never start again if that Secret is lost while the operator is down: "
                    "exclude it by matchConditions in the webhook configuration, or have webop "
                    "manage the configuration: settings.admission.managed.",
                    handler,
                    secret,
                )

    async def retire(self) -> None:
        """Be not ready any more, but serve, until nobody sends reviews here any more.

        Load balancers and kube-proxies take their time to notice; whoever comes meanwhile is
        served, and told to open a new connection for the next review. The last replica stays
        ready, as its webhooks stay in force until it withdraws: kube-proxies send traffic to a
        terminating pod if there is no other, but only if it is ready (Kubernetes, "Virtual IPs and
        Service Proxies", "Traffic to terminating endpoints").
        """
        self.hosting.is_stopping = True
        delay = self._operator.settings.admission.shutdown_delay
        if self.is_serving and delay:
            logger.info("Serving webhooks for %g more seconds while traffic drains.", delay)
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(delay))
                if self.manager is not None:
                    group.create_task(self._hand_over(self.manager))

    async def _hand_over(self, manager: ConfigurationManager) -> None:
        problem = await _try(manager.retire())
        if problem is not None:
            logger.debug("The webhooks are not handed over before the exit: %s", problem)

    async def withdraw(self) -> None:
        """Take the webhooks out of the cluster; to fail in that is no reason to fail in all."""
        self.hosting.is_stopping = True
        if self.manager is None or self._is_withdrawn:
            return
        self._is_withdrawn = True
        problem = await _try(self.manager.withdraw())
        if problem is not None:
            logger.warning("The webhooks stay in the cluster after the exit: %s", problem)
        else:
            delay = self._operator.settings.admission.shutdown_delay
            await asyncio.sleep(min(_SETTLE_SECONDS, delay))

    def describe(self) -> str:
        """Return how many webhooks there are, and which."""
        ids = self.review.ids
        many = "" if len(ids) == 1 else "s"
        return f"{len(ids)} webhook{many} ({', '.join(ids)})" if ids else "no webhooks"

    def list_obstacles(self) -> list[str]:
        """Return what keeps the webhooks from being ready, in words; nothing if they are."""
        obstacles = []
        if self.hosting.is_stopping and not (self.manager and self.manager.is_alone):
            obstacles.append("the operator is stopping")
        if self.has_server and not self._is_listening:
            obstacles.append("the webhook server is not listening yet")
        expiry = self.hosting.expiry
        if expiry is not None and expiry <= dt.datetime.now(dt.UTC):
            obstacles.append(f"the certificate of the webhook server has expired on {expiry}")
        if self.manager is not None and not self.manager.is_applied.is_set():
            why = f": {self.manager.problem}" if self.manager.problem else ""
            obstacles.append(f"the webhook configurations are not applied yet{why}")
        return obstacles

    def _get_server(self) -> Any:
        """Return the server of the settings; None for a plain one beside an ASGI server."""
        server = self._operator.settings.admission.server
        return None if self._is_hosted and type(server) is WebhookServer else server


async def _try(farewell: Coroutine[Any, Any, None]) -> str | None:
    """Do something on the way out, in limited time; return why it has not worked."""
    try:
        async with asyncio.timeout(_EXIT_TIMEOUT):
            await farewell
    except (TimeoutError, WebopError) as exc:
        return str(exc) or f"no answer in {_EXIT_TIMEOUT:g} seconds"
    return None


@asynccontextmanager
async def _enter(server: Any) -> AsyncIterator[Any]:
    """Enter a webhook server if it is a context manager; it may give a substitute (ADM-65)."""
    if hasattr(server, "__aenter__"):
        async with server as entered:
            yield entered
    else:
        yield server
