"""The two webhook configurations in the cluster: read them, plan the changes, write them.

All replicas do so. They need the verbs ``create`` and ``patch`` only: an empty patch changes
nothing and returns the object. A write succeeds only if nobody else has written since the read
(by the resource version); after a conflict, the replica reads and plans again.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import Callable, Iterator, Mapping

from webop.admission.managed.configurations import KINDS
from webop.admission.managed.replica_records import Json, ReplicaRecord
from webop.admission.managed.replicas import (
    Configuration,
    Plan,
    build_annotations,
    build_patch,
    is_same,
    parse_configuration,
)
from webop.backoff import Backoff
from webop.client.api import Client
from webop.errors import APIConflictError, APIForbiddenError
from webop.handling.handlers import WebhookType
from webop.identities import is_former_self

logger = logging.getLogger(__name__)

Decide = Callable[[WebhookType, Configuration, Mapping[str, ReplicaRecord]], Plan]

# Seconds after each of 50 conflicts in a row. In each round, one replica wins, so all succeed in
# the end; the jitter saves rounds.
_CONFLICT_PAUSES = [min(0.005 * number, 0.1) for number in range(1, 50)]

_RULE = (
    "{{apiGroups: [admissionregistration.k8s.io], resources: "
    "[validatingwebhookconfigurations, mutatingwebhookconfigurations], {}}}"
)


class SharedConfigurations:
    """The validating and the mutating configuration of one name, which all replicas change."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    async def settle(self, decide: Decide, now: dt.datetime) -> dict[WebhookType, Plan]:
        """Change both configurations as planned, and return the plans.

        Args:
            decide: plans one configuration, given its present state and the records in the
                other one. It is called again after each conflict.
            now: the time for judging which records are fresh.

        Raises:
            APIError: the API server is not available or refuses; or the conflicts do not end.
        """
        backoff = Backoff(_CONFLICT_PAUSES, is_endless=False, jitter=1.0)
        while True:
            found = {kind: await self._read(kind, now) for kind in KINDS}
            records = [found[kind].records for kind in KINDS]
            others = dict(
                zip(KINDS, reversed(records), strict=True)
            )  # each kind, those of the other
            plans = {kind: decide(kind, found[kind], others[kind]) for kind in KINDS}
            try:
                written = {
                    kind: await self._write(kind, found[kind], plans[kind]) for kind in KINDS
                }
                # Each plan depends on the other configuration, which must still be the same.
                unwritten = [kind for kind in KINDS if any(written.values()) and not written[kind]]
                for kind in unwritten:
                    if (await self._read(kind, now)).version != found[kind].version:
                        raise self._build_conflict("another replica has changed them")
            except APIConflictError:
                pause = backoff.next()
                if pause is None:
                    raise self._build_conflict("other replicas keep changing them") from None
                await asyncio.sleep(pause)
            else:
                return plans

    async def _read(self, kind: WebhookType, now: dt.datetime) -> Configuration:
        def is_alive(record: ReplicaRecord) -> bool:
            return record.is_alive(now) and not is_former_self(record.process)

        return parse_configuration(await self._patch(kind, {}), is_alive)

    async def _write(self, kind: WebhookType, found: Configuration, plan: Plan) -> bool:
        """Write a plan if it changes anything; return whether it does."""
        if found.version is not None:
            patch = build_patch(found, plan)
            if patch is None:
                return False
            if await self._patch(kind, patch) is None:
                raise self._build_conflict("one was deleted meanwhile")
        elif plan.records:
            resource = KINDS[kind]
            body = {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {"name": self._name, "annotations": build_annotations(plan.records)},
                "webhooks": list(plan.webhooks),
            }
            with _explain_permissions(self._name):
                await self._client.create(resource, None, body)
        else:
            return False
        place = f"{KINDS[kind].plural}/{self._name}"
        if found.stale:
            logger.info("Removed records of dead replicas from %s: %d.", place, len(found.stale))
        if not is_same(found.webhooks, plan.webhooks):
            names = ", ".join(webhook["name"] for webhook in plan.webhooks)
            logger.info("Webhooks in %s: %s.", place, names or "none")
        return True

    async def _patch(self, kind: WebhookType, patch: Json) -> Json | None:
        with _explain_permissions(self._name):
            return await self._client.patch(KINDS[kind], None, self._name, patch)

    def _build_conflict(self, reason: str) -> APIConflictError:
        text = f"Cannot change the webhook configurations {self._name!r}: {reason}"
        return APIConflictError(text, status=409, reason="Conflict")


@contextlib.contextmanager
def _explain_permissions(name: str) -> Iterator[None]:
    """Add the missing RBAC rules to a "forbidden" error (ADM-43)."""
    try:
        yield
    except APIForbiddenError as exc:
        patch = _RULE.format(f"resourceNames: [{name}], verbs: [patch]")
        exc.args = (f"{exc} Add these rules: {_RULE.format('verbs: [create]')}, {patch}.",)
        raise
