"""The task of a replica that keeps the managed webhook configurations and conversions up to date.

Manual: "Admission control", "Managed configurations".
:mod:`webop.admission.configurations.building` builds the webhooks of one replica,
:mod:`webop.admission.configurations.replica_agreement` decides what follows for all replicas,
:mod:`webop.admission.configurations.stored_configurations` writes it into the cluster.

Each replica checks the configurations when its handlers, its server or the resources of the cluster
have changed; every two seconds in a rollout; otherwise after a third of
``settings.admission.replica_lifetime``, but at least once a minute. By then, it has repaired
configurations that somebody has deleted or edited.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from webop.admission.configurations.building import (
    Exclusions,
    build_client_config,
    build_configuration,
    list_dangers,
)
from webop.admission.configurations.crd_conversions import SharedConversions
from webop.admission.configurations.replica_agreement import (
    Attendance,
    Decision,
    Json,
    Notes,
    Offer,
    ReplicaRecord,
    build_key,
    build_offer,
    decide,
    describe_place,
    follow,
    parse_bundle,
)
from webop.admission.configurations.stored_configurations import (
    Configuration,
    Plan,
    SharedConfigurations,
)
from webop.admission.conversion_reviews import PATH
from webop.aio.backoff import Backoff, Once
from webop.aio.concurrency import wait_and_clear
from webop.client.api import Client
from webop.client.self_review import review_self
from webop.context.operator_context import OperatorContext
from webop.errors import (
    TRANSIENT_ERRORS,
    APIConflictError,
    APIError,
    ConfigurationError,
    LoginError,
)
from webop.handlers.model import WebhookType
from webop.identities import detect_process, is_in_pod
from webop.models.versions import collect_versions
from webop.servers.base import WebhookClientConfig

logger = logging.getLogger(__name__)

_TRANSIENT = (*TRANSIENT_ERRORS, APIConflictError, LoginError)
_RETRY_PAUSE = 1.0  # seconds; the client has retried for a while already
_PAUSES = (2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds; after each refusal in a row
_AFTERMATH = 30.0  # seconds; API servers may still call webhooks that were removed, and retry
_POLLING = 2.0  # seconds; between checks during a rollout
_LONGEST_PAUSE = 60.0  # seconds; between renewals of the record


class ConfigurationManager:
    """One replica's share in the webhook configurations that all replicas keep.

    Attributes:
        is_applied: set when the record of the replica is in the cluster, and all webhooks for which
            the replicas agree. A replica that waits for the others is ready: they wait for it, too.
        is_alone: whether no other replica took calls when this one read the records last.
        problem: why the last update failed; empty if it succeeded.
        is_refused: whether the API server refuses the updates, so that retries do not help.
    """

    def __init__(
        self, operator: OperatorContext, client: Client, is_ready: Callable[[], bool]
    ) -> None:
        self._is_ready = is_ready
        self._operator = operator
        self._client = client
        self._name = operator.settings.admission.managed or ""
        self._handlers = operator.registry.select_webhooks()
        self._converts = tuple(collect_versions(operator.registry.select_converters()))
        self._conversions = SharedConversions(client, self._converts)
        self._shared = SharedConfigurations(
            client, self._name, operator.identity, self._conversions
        )
        self._is_in_pod = is_in_pod()
        self._key = ""  # of the record; known with the first offer
        self._since = self._renewed = follow()
        self._mine: ReplicaRecord | None = None
        self._config: WebhookClientConfig | None = None
        self._secret: tuple[str, str] | None = None
        self._username: str | None = None
        self._offer: Offer | None = None
        self._attendance = Attendance()
        self._next_check = self._next_renewal = 0.0
        self._trusted: frozenset[str] = frozenset()
        self._checked = asyncio.Condition()
        self._changed = asyncio.Event()
        self._adjusting = asyncio.Lock()
        self._is_retired = False
        self._is_withdrawn = False
        self._occupant = ""  # why other operators have the webhooks
        self._state = ""  # why other webhooks are in force
        self._foreign_until = 0.0  # API servers may call webhooks of other replicas until then
        self._last: Mapping[WebhookType, Configuration] = {}  # as read
        self._warned = Once()
        self.is_applied = asyncio.Event()
        self.is_alone = False
        self.problem = ""
        self.is_refused = False
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

    def is_elsewhere(self) -> bool:
        """Return whether a webhook that this replica does not know may be another replica's.

        In a rollout that removes or renames a handler, or takes a resource from it, calls of the
        old webhook meet new replicas. Calls of a new webhook can meet replicas that have retired;
        these do not read the configurations any more.
        """
        is_leaving = self._is_retired or self._is_withdrawn
        # The last known state counts while the API server does not respond.
        return is_leaving or bool(self._state) or time.monotonic() < self._foreign_until

    async def run(self) -> None:
        """Keep the configurations up to date, until cancelled.

        Raises:
            APIError: the API server refuses the first version of the configurations: by RBAC,
                or because of their content. Later refusals and outages are retried, and are in
                :attr:`problem` meanwhile.
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
                    self.is_refused = not isinstance(exc, _TRANSIENT)
                    if self.is_refused and not self.is_applied.is_set():
                        raise
                    verb = "update" if self.is_applied.is_set() else "write"
                    text = f"Cannot {verb} the webhook configurations {self._name}; retrying: {exc}"
                    self._note_problem(logging.WARNING, str(exc), text)
                    pause = backoff.next() if self.is_refused else _RETRY_PAUSE
                else:
                    self.is_refused = bool(self._occupant)
                    self._note_problem(logging.ERROR, self._occupant, self._occupant)
                    pause = max(0.0, self._next_check - time.monotonic())
                if not self.is_refused:
                    backoff.reset()
            await wait_and_clear(self._changed, pause)

    def _note_problem(self, level: int, problem: str, text: str) -> None:
        if problem and problem != self.problem:
            logger.log(level, "%s", text)
        self.problem = problem

    async def retire(self) -> None:
        """Hand the webhooks over to the other replicas, while this one still gets calls.

        From now on, the others decide without it. Its CAs stay trusted until it withdraws. If no
        other replica remains, nothing changes, and `is_alone` is set.
        """
        async with self._adjusting:
            if self._offer is not None and not self._is_withdrawn:
                self._is_retired = True
                await self._shared.settle(self._plan)

    async def withdraw(self, *, is_asked: bool) -> None:
        """Remove this replica from the configurations, for good.

        Webhooks stay as long as there are other live replicas. Without these, only the persistent
        webhooks stay if somebody has asked the operator to stop, else all of them.
        """
        async with self._adjusting:
            self._is_withdrawn = True
            if self._offer is not None:
                decide = partial(self._plan, is_leaving=True, is_final=is_asked)
                decision = await self._shared.settle(decide)
                heir = decision.newest if decision is not None else None
                if heir is not None and heir.address != self._offer.record.address:
                    logger.info(
                        "The webhooks %r lead to %s at %s. If it does not run any more, remove "
                        "them: webop uninstall --managed %s",
                        *(self._name, heir.identity, heir.place, self._name),
                    )

    async def _adjust(self, config: WebhookClientConfig) -> None:
        """Check and update the configurations, if something has changed or a check is due."""
        self._report_absent()
        if self._operator.settings.admission.exempt_account and self._username is None:
            self._username = (await review_self(self._client)).username
        async with self._adjusting:  # an update must not be written after the withdrawal
            offer, now = self._build_offer(config), time.monotonic()
            if self._is_withdrawn or (offer == self._offer and now < self._next_check):
                return
            # A container that restarts has the key of its killed predecessor, and so its record. No
            # two live processes have it: containers of one pod cannot listen at the same address.
            if not self._key:
                process = f"{self._operator.identity}/{detect_process()}"
                self._key = build_key(f"{process} {describe_place(offer.record.address)}")
            self._offer, self._next_check = offer, 0.0  # due until all has succeeded
            is_due = now >= self._next_renewal
            if is_due:
                self._renewed = follow()
            jitter = random.uniform(0.9, 1)  # noqa: S311 - not for cryptography
            if not self.is_applied.is_set():
                await self._shared.settle(partial(self._plan, is_new=True))
            decision = await self._shared.settle(self._plan)
            if is_due:
                self._attendance.renewals += 1
                self._next_renewal = now + self._renewal * jitter
            is_changing = decision is None or not (
                decision.is_own
                and self._mine
                and self._mine.is_ready
                and all(decision.converts.values())
                and not self._conversions.missing
            )
            interval = min(_POLLING, self._renewal) * jitter if is_changing else math.inf
            self._next_check = min(now + interval, self._next_renewal)
            if decision is None:  # it waits until the others die
                return
            self._report(decision)
        async with self._checked:
            self.is_applied.set()
            self._trusted = frozenset(offer.record.cas)
            self._checked.notify_all()

    @property
    def _renewal(self) -> float:
        return min(self._operator.settings.admission.replica_lifetime / 3, _LONGEST_PAUSE)

    def _plan(
        self,
        found: Mapping[WebhookType, Configuration],
        *,
        is_new: bool = False,
        is_leaving: bool = False,
        is_final: bool = False,
    ) -> Plan | None:
        """Plan the configurations with this replica, or without it if it leaves.

        A new one has not written both configurations yet. Return None if they stay as they are: it
        was never there, or others have them.
        """
        offer = self._offer
        assert offer is not None  # noqa: S101 - for the type checker
        if not is_leaving:
            # Restore what somebody has deleted: without the records, each one would decide alone.
            found = {k: one if one.version else self._last.get(k, one) for k, one in found.items()}
        present, notes = found[WebhookType.VALIDATING].records, found[WebhookType.VALIDATING].notes
        texts = {key: text for key, text in present.items() if key != self._key}
        others = self._attendance.select(texts, self._renewal)
        acting = [record for record in others.values() if not record.is_retired]
        if not self.is_applied.is_set():
            if self._key not in present:
                self._occupant = self._find_occupant(acting, notes)
                if is_leaving or self._occupant:
                    return None
            self._since = follow(*(record.since for record in acting))
        self._last, self.is_alone = found, not acting
        records = {key: present[key] for key in others}
        self._mine = None
        if not is_leaving:
            record = replace(
                offer.record,
                identity=self._operator.identity,
                since=self._since,
                renewed=self._renewed,
                lifetime=self._operator.settings.admission.replica_lifetime,
                is_ready=not is_new and self._is_ready(),
            )
            self._mine = record.retire() if self._is_retired and acting else record
            records[self._key] = self._mine.encode()
        webhooks = {kind: found[kind].webhooks for kind in found}
        decision = decide(
            webhooks, others.values(), offer, self._mine, notes=notes, is_final=is_final
        )
        return records, decision

    def _find_occupant(self, acting: Collection[ReplicaRecord], notes: Notes) -> str:
        """Return why the webhooks are those of others; empty if they are not, or may be taken.

        Replicas at another address serve them. Or this replica is outside of pods, and pods serve
        them, or have done so.
        """
        assert self._offer is not None  # noqa: S101 - for the type checker
        if self._operator.settings.admission.take_over:
            return ""
        if notes.has_pods and not self._is_in_pod:
            reason = "they belong to pods, also while none of these runs."
        elif acting and not any(record.address == self._offer.record.address for record in acting):
            other = max(acting, key=lambda record: record.since)
            reason = (
                f"{other.identity} serves them at {other.place}. Waiting until it stops "
                f"(if it was killed: {other.lifetime:g} seconds)."
            )
        else:
            return ""
        return (
            f"Not serving the webhooks {self._name!r}: {reason} Take them over with --take-over or "
            "settings.admission.take_over; or, if that is another operator, use another name in "
            "settings.admission.managed."
        )

    def _build_offer(self, config: WebhookClientConfig) -> Offer:
        exclusions = self._build_exclusions()
        resources = self._operator.cluster_view.resources
        webhooks = dict[WebhookType, list[Json]]()
        persistent = dict[tuple[WebhookType, str], bool]()
        for kind in WebhookType:
            owners = [
                handler
                for handler in self._handlers
                if handler.reason is kind
                and handler.selector
                and handler.selector.select(resources)
            ]
            webhooks[kind] = build_configuration(
                reason=kind,
                name=self._name,
                handlers=self._handlers,
                resources=resources,
                client_config=config,
                exclusions=exclusions,
            )["webhooks"]
            for webhook, handler in zip(webhooks[kind], owners, strict=True):
                stays = self._is_in_pod if handler.persistent is None else handler.persistent
                persistent[kind, webhook["name"]] = stays
        return build_offer(
            webhooks,
            persistent,
            build_client_config(config, PATH),
            is_in_pod=self._is_in_pod,
            converts=self._converts,
        )

    def _build_exclusions(self) -> Exclusions:
        admission = self._operator.settings.admission
        namespace = self._client.vault.default_namespace if admission.exempt_namespace else None
        username = self._username if admission.exempt_account else None
        for name, value in (("exempt_namespace", namespace), ("exempt_account", username)):
            if getattr(admission, name) and value is None:
                self._warn_once(
                    f"settings.admission.{name} has no effect: the operator does not know its own "
                    f"{name.removeprefix('exempt_')}."
                )
        return Exclusions(namespace=namespace, username=username, secret=self._secret)

    def _report(self, decision: Decision) -> None:
        """Log who has died or taken over, and while other webhooks are in force than its own."""
        assert self._offer is not None  # noqa: S101 - for the type checker
        if dead := sorted(self._attendance.dead):
            logger.info("Removed the records of dead replicas: %s.", ", ".join(dead))
        newest, state = decision.newest, ""
        is_taken = newest is not None and newest.address != self._offer.record.address
        if newest is not None and is_taken:
            place = f"{newest.identity} at {newest.place}"
            state = f"The webhooks {self._name!r} were taken over by {place}."
        elif not decision.is_own:
            state = (
                "Waiting until all replicas serve the same webhooks; those in force stay meanwhile."
                " (A replica that was killed counts for up to "
                f"{self._operator.settings.admission.replica_lifetime:g} seconds.)"
            )
        if state != self._state:
            level = logging.WARNING if is_taken else logging.INFO
            logger.log(level, "%s", state or "The webhooks of this replica are in force.")
        self._state = state
        if state:
            self._foreign_until = time.monotonic() + _AFTERMATH

    def _report_absent(self) -> None:
        """Warn once of each handler that has no webhook, or a dangerous one."""
        view = self._operator.cluster_view
        for handler in self._handlers:
            if handler.selector and (absence := view.explain_absence(handler.selector)):
                self._warn_once(f"{handler} is not in the webhook configurations: {absence}")
        for text in list_dangers(self._handlers, view.resources):
            self._warn_once(text)

    def _warn_once(self, text: str) -> None:
        if self._warned.is_new(text):
            logger.warning(text)
