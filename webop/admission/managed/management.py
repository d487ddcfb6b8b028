"""Keeping the webhook configurations in the cluster as the replicas and their handlers need them.

Chapter "Admission control", "Managed configurations". What one replica wants there is built in
:mod:`webop.admission.managed.configurations`; what follows for all of them, in
:mod:`webop.admission.managed.replicas`; how it gets into the cluster, in
:mod:`webop.admission.managed.shared_configurations`.

Timing: each replica looks at both configurations whenever its handlers, its server or the resources
of the cluster have changed; every five seconds while webhooks of its own have to wait for others;
otherwise every third of ``settings.admission.replica_lifetime``, every minute at most. So long it
takes until configurations that somebody has deleted or edited are as they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import random
import time
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from webop.admission.managed.configurations import Exclusions, build_configuration, list_dangers
from webop.admission.managed.replica_records import (
    Json,
    ReplicaRecord,
    build_key,
    get_renewal,
    parse_bundle,
)
from webop.admission.managed.replicas import (
    Configuration,
    Plan,
    build_mark,
    plan_exit,
    plan_presence,
)
from webop.admission.managed.server_clock import ServerClock
from webop.admission.managed.shared_configurations import SharedConfigurations
from webop.backoff import Backoff, Once
from webop.client.api import Client
from webop.errors import (
    APIConflictError,
    APIConnectionError,
    APIError,
    APIServerError,
    APIStatusError,
    APITooManyRequestsError,
    ConfigurationError,
)
from webop.handling.context import OperatorContext
from webop.handling.handlers import WebhookHandler, WebhookType
from webop.identities import detect_process
from webop.objects.resources import Resource
from webop.servers.base import WebhookClientConfig

logger = logging.getLogger(__name__)

_TRANSIENT = (APIConnectionError, APIServerError, APITooManyRequestsError, APIConflictError)
_RETRY_PAUSE = 1.0  # seconds; the client has retried for a while already
_PAUSES = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds; after refusals in a row
_AFTERMATH = 30.0  # seconds; for calls of webhooks that are gone: API servers repeat them
_POLLING = 5.0  # seconds; between looks while webhooks wait for other replicas


class ConfigurationManager:
    """The part of one replica in the webhook configurations that all replicas share.

    Attributes:
        is_applied: set once the replica is known to the others, and all is in force that is to be
            by now. What has to wait for other replicas does not count: they wait for this one.
        is_alone: whether no other replica stays when this one stops; known when it retires.
        problem: why the last attempt to keep it so has failed; empty if it has not.
    """

    def __init__(self, operator: OperatorContext, client: Client) -> None:
        self._operator = operator
        self._client = client
        self._name = operator.settings.admission.managed or ""
        self._shared = SharedConfigurations(client, self._name)
        self._clock = ServerClock(client)
        self._handlers = operator.registry.select_webhooks()
        # Identities can be those of pods, while processes come and go.
        self._process = str(detect_process())
        self._key = build_key(f"{operator.identity}/{self._process}")
        self._since: dt.datetime | None = None  # None until it is known to others
        self._config: WebhookClientConfig | None = None
        self._secret: tuple[str, str] | None = None
        self._offers: dict[WebhookType, tuple[ReplicaRecord, frozenset[str]]] = {}
        self._next_look = 0.0
        self._trusted: frozenset[str] = frozenset()
        self._looked = asyncio.Condition()
        self._changed = asyncio.Event()
        self._adjusting = asyncio.Lock()
        self._is_retired = False
        self._is_withdrawn = False
        self._waiting: list[str] = []
        # Until when paths and targets count as served by others.
        self._elsewhere: dict[tuple[str, str], float] = {}
        self._warned = Once()
        self.is_applied = asyncio.Event()
        self.is_alone = False
        self.problem = ""
        operator.cluster_view.subscribe(self._changed.set)

    def announce(self, config: WebhookClientConfig, secret: tuple[str, str] | None = None) -> None:
        """Take over where the server is reached from now on, and which Secret it needs to start."""
        self._config, self._secret = config, secret
        self._changed.set()

    async def confirm(self, config: WebhookClientConfig) -> None:
        """Wait until the configurations in the cluster trust the authorities of a config.

        For servers that change their certificates: the config is to be announced (yielded) with
        the old and the new authorities first; the new certificate may be shown after this.

        Caveats:
            API servers learn of it by watching, thus a moment later. If the config is never
            announced, this never returns.

        Raises:
            ConfigurationError: the ``caBundle`` is not base64 of text.
        """
        wanted = frozenset(parse_bundle(config.get("caBundle")))
        async with self._looked:
            await self._looked.wait_for(
                lambda: self.is_applied.is_set() and wanted <= self._trusted
            )

    def is_elsewhere(self, webhook: str, resource: Resource) -> bool:
        """Tell whether other live replicas may judge a resource at a webhook (the end of a path).

        In a rollout that removes or renames a handler, or takes a resource from it, calls of the
        old webhook meet new replicas. Those of a new one can meet replicas that have retired:
        these do not know any more who else there is.
        """
        if self._is_retired or self._is_withdrawn:
            return True
        ending, now = f"/{quote(webhook)}", time.monotonic()
        wanted = f"{resource.group}/{resource.version}/{resource.plural}/"
        return any(
            path.endswith(ending) and f"{target}/".startswith(wanted) and now < end
            for (path, target), end in self._elsewhere.items()
        )

    async def run(self) -> None:
        """Keep the configurations as they have to be.

        Raises:
            APIError: the API server refuses the configurations at first: by RBAC (ADM-43), or
                because of what is in them. Later refusals, and an API server that is not
                available, are a :attr:`problem`, and it is tried again.
            ConfigurationError: at first, the server yields what is not a usable config.
        """
        backoff = Backoff(_PAUSES)
        while True:
            self._changed.clear()
            pause = None
            is_known = self._operator.cluster_view.is_known
            if self._config is not None and is_known and not self._is_withdrawn:
                try:
                    await self._adjust(self._config)
                except (APIError, ConfigurationError) as exc:
                    is_transient = isinstance(exc, _TRANSIENT)
                    if not self.is_applied.is_set() and not is_transient:
                        raise
                    if self.problem != str(exc):
                        state = "kept up" if self.is_applied.is_set() else "configured yet"
                        logger.warning("The webhooks are not %s, to be retried: %s", state, exc)
                    self.problem = str(exc)
                    if is_transient:
                        backoff.reset()
                    wish = exc.retry_after if isinstance(exc, APIStatusError) else None
                    pause = max(_RETRY_PAUSE, wish or 0.0) if is_transient else backoff.next()
                else:
                    self.problem = ""
                    backoff.reset()
                    pause = max(0.0, self._next_look - time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def retire(self) -> None:
        """Hand the webhooks over to the other replicas, while calls still come here.

        What only this replica serves goes now, and what has waited for it comes into force. Its
        authorities stay trusted until it withdraws. Without others that stay, nothing changes, and
        `is_alone` is set.

        Raises:
            APIError: the API server is not available, or refuses.
        """
        async with self._adjusting:
            if self._offers and not self._is_withdrawn:
                self._is_retired = True
                moment = self._clock.judge(self._lifetime)
                plans = await self._shared.settle(self._plan_presence, moment)
                self.is_alone = not any(self._list_heirs(plan.marks) for plan in plans.values())

    async def withdraw(self) -> None:
        """Leave the configurations, for good: for a graceful exit.

        The webhooks that other live replicas serve stay, led to those; if there are none, only
        the persistent webhooks stay (ADM-47).

        Raises:
            APIError: the API server is not available, or refuses.
        """
        async with self._adjusting:
            self._is_withdrawn = True
            if self._offers:
                await self._shared.settle(
                    lambda kind, found, others: plan_exit(
                        found, others, self._key, self._offers[kind][1]
                    ),
                    self._clock.judge(self._lifetime),
                )

    async def _adjust(self, config: WebhookClientConfig) -> None:
        """Look at the configurations, if there is a reason to, and put them right."""
        self._report_absent()
        async with self._adjusting:  # what is on its way must not come after the withdrawal
            await self._clock.adjust(self._renewal)
            self._since = self._since or self._clock.tell()
            offers = {kind: self._build_offer(kind, config, self._since) for kind in WebhookType}
            is_due = time.monotonic() >= self._next_look
            if self._is_withdrawn or (offers == self._offers and not is_due):
                return
            self._offers, self._next_look = offers, 0.0  # until all has succeeded
            plans = await self._shared.settle(
                self._plan_presence, self._clock.judge(self._lifetime)
            )
            self._clock.note_contact(self._lifetime)
        served = [(name, plan) for kind, plan in plans.items() for name in offers[kind][0].served]
        waiting = [name for name, plan in served if name in plan.deferred]
        self._report_waiting(waiting)
        until = time.monotonic() + self._renewal + _AFTERMATH
        for plan in plans.values():
            for key, mark in plan.marks.items():
                for webhook in mark.served.values() if key != self._key else ():
                    self._elsewhere |= {(webhook.path, target): until for target in webhook.targets}
        interval = min(_POLLING, self._renewal) if waiting else self._renewal
        self._next_look = time.monotonic() + interval * random.uniform(0.9, 1)  # noqa: S311 - not for cryptography
        async with self._looked:
            self.is_applied.set()
            self._trusted = frozenset(parse_bundle(config.get("caBundle")))
            self._looked.notify_all()

    @property
    def _lifetime(self) -> float:
        """For how long a mark that is not renewed holds, in seconds."""
        return self._operator.settings.admission.replica_lifetime

    @property
    def _renewal(self) -> float:
        """How often the marks are renewed, in seconds."""
        return get_renewal(self._lifetime)

    def _plan_presence(
        self, kind: WebhookType, found: Configuration, others: Mapping[str, ReplicaRecord]
    ) -> Plan:
        mark, _ = self._offers[kind]
        if found.version is None and not mark.served:
            return Plan((), {})
        if self._is_retired and self._list_heirs(found.marks):
            mark = mark.retire()
        is_offered = all(offer.served for offer, _ in self._offers.values())
        mark = dataclasses.replace(mark, is_in_both=is_offered or self._key in others)
        return plan_presence(found, others, self._key, mark, self._clock.tell())

    def _list_heirs(self, marks: Mapping[str, ReplicaRecord]) -> list[str]:
        """Return the other replicas that stay."""
        return [key for key, mark in marks.items() if key != self._key and not mark.is_retired]

    def _build_offer(
        self, kind: WebhookType, config: WebhookClientConfig, since: dt.datetime
    ) -> tuple[ReplicaRecord, frozenset[str]]:
        """Return what this replica has for a configuration, and what of it is persistent."""
        exemptions = self._build_exemptions()

        def build(handlers: Sequence[WebhookHandler]) -> list[Json]:
            webhooks: list[Json] = build_configuration(
                reason=kind,
                name=self._name,
                handlers=handlers,
                resources=self._operator.cluster_view.resources,
                client_config=config,
                exemptions=exemptions,
            )["webhooks"]
            return webhooks

        webhooks = build(self._handlers)
        flags = [handler.persistent for handler in self._handlers for _ in build([handler])]
        named = zip(webhooks, flags, strict=True)
        mark = build_mark(
            webhooks,
            config,
            identity=self._operator.identity,
            process=self._process,
            since=since,
            renewed=since,
            lifetime=self._lifetime,
        )
        return mark, frozenset(webhook["name"] for webhook, is_kept in named if is_kept)

    def _build_exemptions(self) -> Exclusions:
        admission = self._operator.settings.admission
        namespace = self._client.vault.default_namespace if admission.exempt_namespace else None
        username = self._clock.username if admission.exempt_account else None
        for name, value in (("exempt_namespace", namespace), ("exempt_account", username)):
            if getattr(admission, name) and value is None:
                self._warn_once(
                    f"settings.admission.{name} has no effect: the operator cannot tell its own "
                    f"{name.removeprefix('exempt_')}."
                )
        return Exclusions(namespace=namespace, username=username, secret=self._secret)

    def _report_waiting(self, names: list[str]) -> None:
        """Say what waits for other replicas, and when nothing does any more."""
        if names and names != self._waiting:
            logger.info(
                "In force when all replicas serve it, but not yet: %s. (Replicas that were killed "
                "count as such for up to %g seconds.)",
                ", ".join(names),
                self._lifetime,
            )
        elif self._waiting and not names:
            logger.info("All webhooks are in force.")
        self._waiting = names

    def _report_absent(self) -> None:
        """Say once what is wrong: handlers that nobody asks, and those that are asked too much."""
        resources = self._operator.cluster_view.resources
        for handler in self._handlers:
            selector = handler.selector
            if selector is None or selector.select(resources):
                continue
            text = f"{handler} is not in the configurations: {selector} is not in the cluster yet."
            text += selector.suggest(resources, self._operator.cluster_view.served_groups)
            if selector.is_ambiguous(resources):
                names = ", ".join(sorted(r.name for r in selector.find_candidates(resources)))
                text = f"{handler} is not in the configurations: {selector} is ambiguous: {names}."
            self._warn_once(text)
        for text in list_dangers(self._handlers, resources):
            self._warn_once(text)

    def _warn_once(self, text: str) -> None:
        if self._warned.is_new(text):
            logger.warning(text)
