"""The task of a replica that keeps the managed webhook configurations up to date.

Manual: "Admission control", "Managed configurations". :mod:`webop.admission.managed.configurations`
builds the webhooks of one replica, :mod:`webop.admission.managed.replicas` plans what follows for
all replicas, :mod:`webop.admission.managed.shared_configurations` writes it into the cluster.

Each replica checks both configurations when its handlers, its server or the resources of the
cluster have changed; every five seconds while its webhooks wait for other replicas; otherwise after
a third of ``settings.admission.replica_lifetime``, but at least once a minute. By then, it has
repaired configurations that somebody has deleted or edited.
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
    build_record,
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
_PAUSES = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds; after each refusal in a row
_AFTERMATH = 30.0  # seconds; API servers may still call webhooks that were removed, and retry
_POLLING = 5.0  # seconds; between checks while webhooks wait for other replicas


class ConfigurationManager:
    """One replica's share in the webhook configurations that all replicas keep.

    Attributes:
        is_applied: set when the record of the replica and its webhooks are in the cluster.
            Webhooks that wait for other replicas do not count: those wait for this one, too.
        is_alone: whether no other replica remains when this one stops; known when it retires.
        problem: why the last update failed; empty if it succeeded.
    """

    def __init__(self, operator: OperatorContext, client: Client) -> None:
        self._operator = operator
        self._client = client
        self._name = operator.settings.admission.managed or ""
        self._shared = SharedConfigurations(client, self._name)
        self._clock = ServerClock(client)
        self._handlers = operator.registry.select_webhooks()
        # The identity can be that of a pod, in which several processes run one after another.
        self._process = str(detect_process())
        self._key = build_key(f"{operator.identity}/{self._process}")
        self._since: dt.datetime | None = None  # when it was started; None before the first record
        self._config: WebhookClientConfig | None = None
        self._secret: tuple[str, str] | None = None
        self._offers: dict[WebhookType, tuple[ReplicaRecord, frozenset[str]]] = {}
        self._next_check = 0.0
        self._trusted: frozenset[str] = frozenset()
        self._checked = asyncio.Condition()
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
        """Set the address of the server, and the Secret that it needs to start."""
        self._config, self._secret = config, secret
        self._changed.set()

    async def confirm(self, config: WebhookClientConfig) -> None:
        """Wait until the configurations in the cluster contain the CAs of a config.

        For servers that change their certificates: first announce (yield) a config with the old
        and the new CAs, then wait here, then use the new certificate.

        Caveats:
            API servers watch the configurations, so they follow a moment later. If the config is
            never announced, this never returns.

        Raises:
            ConfigurationError: the ``caBundle`` is not base64 of text.
        """
        wanted = frozenset(parse_bundle(config.get("caBundle")))
        async with self._checked:
            await self._checked.wait_for(
                lambda: self.is_applied.is_set() and wanted <= self._trusted
            )

    def is_elsewhere(self, webhook: str, resource: Resource) -> bool:
        """Return whether another live replica may judge a resource at a webhook.

        In a rollout that removes or renames a handler, or takes a resource from it, calls of the
        old webhook meet new replicas. Calls of a new webhook can meet replicas that have retired;
        these do not read the records any more.

        Args:
            webhook: the last part of the path.
            resource: the resource of the review.
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
        """Keep the configurations up to date, until cancelled.

        Raises:
            APIError: the API server refuses the first version of the configurations: by RBAC
                (ADM-43), or because of their content. Later refusals and outages are retried
                and are in :attr:`problem` meanwhile.
            ConfigurationError: the first config that the server yields is not usable.
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
                        verb = "update" if self.is_applied.is_set() else "write"
                        text = "Cannot %s the webhook configurations %s; retrying: %s"
                        logger.warning(text, verb, self._name, exc)
                    self.problem = str(exc)
                    if is_transient:
                        backoff.reset()
                    requested = exc.retry_after if isinstance(exc, APIStatusError) else None
                    pause = max(_RETRY_PAUSE, requested or 0.0) if is_transient else backoff.next()
                else:
                    self.problem = ""
                    backoff.reset()
                    pause = max(0.0, self._next_check - time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def retire(self) -> None:
        """Hand the webhooks over to the other replicas, while this one still gets calls.

        Webhooks that only this replica serves are removed, and those that have waited for it are
        enabled. Its CAs stay trusted until it withdraws. If no other replica remains, nothing
        changes, and `is_alone` is set.

        Raises:
            APIError: the API server is not available, or refuses.
        """
        async with self._adjusting:
            if self._offers and not self._is_withdrawn:
                self._is_retired = True
                moment = self._clock.now_for_records(self._lifetime)
                plans = await self._shared.settle(self._plan_presence, moment)
                self.is_alone = not any(
                    self._list_remaining(plan.records) for plan in plans.values()
                )

    async def withdraw(self) -> None:
        """Remove this replica from the configurations, for good, at a graceful exit.

        Webhooks that other live replicas serve stay, with their address. Without other replicas,
        only the persistent webhooks stay (ADM-47).

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
                    self._clock.now_for_records(self._lifetime),
                )

    async def _adjust(self, config: WebhookClientConfig) -> None:
        """Check and update the configurations, if something has changed or a check is due."""
        self._report_absent()
        async with self._adjusting:  # an update must not be written after the withdrawal
            await self._clock.adjust(self._renewal)
            self._since = self._since or self._clock.now()
            offers = {kind: self._build_offer(kind, config, self._since) for kind in WebhookType}
            is_due = time.monotonic() >= self._next_check
            if self._is_withdrawn or (offers == self._offers and not is_due):
                return
            self._offers, self._next_check = offers, 0.0  # due until all has succeeded
            plans = await self._shared.settle(
                self._plan_presence, self._clock.now_for_records(self._lifetime)
            )
            self._clock.note_contact(self._lifetime)
        served = [(name, plan) for kind, plan in plans.items() for name in offers[kind][0].served]
        waiting = [name for name, plan in served if name in plan.deferred]
        self._report_waiting(waiting)
        until = time.monotonic() + self._renewal + _AFTERMATH
        for plan in plans.values():
            for key, record in plan.records.items():
                for webhook in record.served.values() if key != self._key else ():
                    self._elsewhere |= {(webhook.path, target): until for target in webhook.targets}
        interval = min(_POLLING, self._renewal) if waiting else self._renewal
        self._next_check = time.monotonic() + interval * random.uniform(0.9, 1)  # noqa: S311 - not for cryptography
        async with self._checked:
            self.is_applied.set()
            self._trusted = frozenset(parse_bundle(config.get("caBundle")))
            self._checked.notify_all()

    @property
    def _lifetime(self) -> float:
        """How long a record is valid after its renewal, in seconds."""
        return self._operator.settings.admission.replica_lifetime

    @property
    def _renewal(self) -> float:
        """How often the records are renewed, in seconds."""
        return get_renewal(self._lifetime)

    def _plan_presence(
        self, kind: WebhookType, found: Configuration, others: Mapping[str, ReplicaRecord]
    ) -> Plan:
        record, _ = self._offers[kind]
        if found.version is None and not record.served:
            return Plan((), {})
        if self._is_retired and self._list_remaining(found.records):
            record = record.retire()
        is_offered = all(offer.served for offer, _ in self._offers.values())
        record = dataclasses.replace(record, is_in_both=is_offered or self._key in others)
        return plan_presence(found, others, self._key, record, self._clock.now())

    def _list_remaining(self, records: Mapping[str, ReplicaRecord]) -> list[str]:
        """Return the keys of the other replicas that are not retired."""
        return [
            key for key, record in records.items() if key != self._key and not record.is_retired
        ]

    def _build_offer(
        self, kind: WebhookType, config: WebhookClientConfig, since: dt.datetime
    ) -> tuple[ReplicaRecord, frozenset[str]]:
        """Return this replica's record for a configuration, and its persistent webhooks."""
        exclusions = self._build_exclusions()

        def build(handlers: Sequence[WebhookHandler]) -> list[Json]:
            webhooks: list[Json] = build_configuration(
                reason=kind,
                name=self._name,
                handlers=handlers,
                resources=self._operator.cluster_view.resources,
                client_config=config,
                exclusions=exclusions,
            )["webhooks"]
            return webhooks

        webhooks = build(self._handlers)
        flags = [handler.persistent for handler in self._handlers for _ in build([handler])]
        named = zip(webhooks, flags, strict=True)
        record = build_record(
            webhooks,
            config,
            identity=self._operator.identity,
            process=self._process,
            since=since,
            renewed=since,
            lifetime=self._lifetime,
        )
        return record, frozenset(webhook["name"] for webhook, is_kept in named if is_kept)

    def _build_exclusions(self) -> Exclusions:
        admission = self._operator.settings.admission
        namespace = self._client.vault.default_namespace if admission.exempt_namespace else None
        username = self._clock.username if admission.exempt_account else None
        for name, value in (("exempt_namespace", namespace), ("exempt_account", username)):
            if getattr(admission, name) and value is None:
                self._warn_once(
                    f"settings.admission.{name} has no effect: the operator does not know its own "
                    f"{name.removeprefix('exempt_')}."
                )
        return Exclusions(namespace=namespace, username=username, secret=self._secret)

    def _report_waiting(self, names: list[str]) -> None:
        """Log which webhooks wait for other replicas, and when none does any more."""
        if names and names != self._waiting:
            logger.info(
                "Waiting for all replicas to serve these webhooks before enabling them: %s. "
                "(A replica that was killed counts for up to %g seconds.)",
                ", ".join(names),
                self._lifetime,
            )
        elif self._waiting and not names:
            logger.info("All webhooks are enabled.")
        self._waiting = names

    def _report_absent(self) -> None:
        """Warn once of each handler that has no webhook, or a dangerous one."""
        resources = self._operator.cluster_view.resources
        for handler in self._handlers:
            selector = handler.selector
            if selector is None or selector.select(resources):
                continue
            absence = f"{handler} is not in the webhook configurations: {selector}"
            text = f"{absence} is not in the cluster yet."
            text += selector.suggest(resources, self._operator.cluster_view.served_groups)
            if selector.is_ambiguous(resources):
                names = ", ".join(sorted(r.name for r in selector.find_candidates(resources)))
                text = f"{absence} is ambiguous: {names}."
            self._warn_once(text)
        for text in list_dangers(self._handlers, resources):
            self._warn_once(text)

    def _warn_once(self, text: str) -> None:
        if self._warned.is_new(text):
            logger.warning(text)
