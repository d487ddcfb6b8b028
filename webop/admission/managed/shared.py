"""The two webhook configurations in the cluster: read, planned anew, written, all replicas alike.

The only permissions are the verbs ``create`` and ``patch``: an empty patch changes nothing and
returns the object, this is how it is read. What is written holds only if nobody else has written
since (by the resource version); otherwise all is read and planned again.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import random
from collections.abc import Callable, Iterator, Mapping

from webop.admission.managed.marks import Json, Mark
from webop.admission.managed.replicas import (
    Configuration,
    Plan,
    build_annotations,
    build_patch,
    is_same,
    parse_configuration,
)
from webop.client.api import Client
from webop.errors import APIConflictError, APIForbiddenError
from webop.handling.handlers import WebhookType
from webop.identities import is_former_self
from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

Decide = Callable[[WebhookType, Configuration, Mapping[str, Mark]], Plan]

_CONFLICTS = 50  # in a row
_CONFLICT_PAUSE = 0.01  # seconds; grows with each one
_LONGEST_CONFLICT_PAUSE = 0.2

_KINDS = {
    WebhookType.VALIDATING: Resource(
        group="admissionregistration.k8s.io",
        version="v1",
        plural="validatingwebhookconfigurations",
        kind="ValidatingWebhookConfiguration",
        namespaced=False,
    ),
    WebhookType.MUTATING: Resource(
        group="admissionregistration.k8s.io",
        version="v1",
        plural="mutatingwebhookconfigurations",
        kind="MutatingWebhookConfiguration",
        namespaced=False,
    ),
}

_RULE = (
    "The rule to add: {apiGroups: [admissionregistration.k8s.io], resources: "
    "[validatingwebhookconfigurations, mutatingwebhookconfigurations], verbs: [create, patch]}."
)


class SharedConfigurations:
    """The validating and the mutating configuration of a name, as all replicas change them.

    Args:
        client: the client of the API server.
        name: of both of them.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    async def settle(self, decide: Decide, now: dt.datetime) -> dict[WebhookType, Plan]:
        """Bring both to what is planned for them, and return the plans.

        Args:
            decide: plans for one of the two, as it was found, with the replicas of the other.
                It is called again whenever another replica has written in between.
            now: the time to judge by which replicas are alive.

        Raises:
            APIError: the API server is not available, refuses, or others write all the time.
        """
        for attempt in range(1, _CONFLICTS + 1):
            found = {kind: await self._read(kind, now) for kind in _KINDS}
            plans = {kind: decide(kind, found[kind], _get_others(found, kind)) for kind in _KINDS}
            try:
                written = {
                    kind: await self._write(kind, found[kind], plans[kind]) for kind in _KINDS
                }
                # The plan of the one is made with the other in view: that must still be so.
                for kind in _KINDS:
                    if not written[kind] and any(written.values()):
                        await self._check_unchanged(kind, found[kind], now)
            except APIConflictError:
                # Each round has a winner, so that all get there; chance spares them some rounds.
                longest = min(_CONFLICT_PAUSE * attempt, _LONGEST_CONFLICT_PAUSE)
                await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 - not for cryptography
            else:
                return plans
        raise self._build_conflict("others change it all the time")

    async def _read(self, kind: WebhookType, now: dt.datetime) -> Configuration:
        def is_alive(mark: Mark) -> bool:
            return mark.is_alive(now) and not is_former_self(mark.process)

        return parse_configuration(await self._patch(kind, {}), is_alive)

    async def _check_unchanged(
        self, kind: WebhookType, found: Configuration, now: dt.datetime
    ) -> None:
        if (await self._read(kind, now)).version != found.version:
            raise self._build_conflict("it has changed meanwhile")

    async def _write(self, kind: WebhookType, found: Configuration, plan: Plan) -> bool:
        """Write a plan if that changes anything; tell whether it does.

        Raises:
            APIConflictError: the configuration is not as it was found any more.
        """
        if found.version is not None:
            patch = build_patch(found, plan)
            if patch is None:
                return False
            if await self._patch(kind, patch) is None:
                raise self._build_conflict("it is gone meanwhile")
        elif plan.marks:
            await self._create(kind, plan)
        else:
            return False
        place = f"{_KINDS[kind].plural}/{self._name}"
        if found.stale:
            logger.info("Replicas in %s that are gone without notice: %d.", place, len(found.stale))
        if not is_same(found.webhooks, plan.webhooks):
            names = ", ".join(webhook["name"] for webhook in plan.webhooks)
            logger.info("Webhooks in %s: %s.", place, names or "none")
        return True

    async def _patch(self, kind: WebhookType, patch: Json) -> Json | None:
        with _explain_permissions():
            return await self._client.patch_merge(_KINDS[kind], None, self._name, patch)

    async def _create(self, kind: WebhookType, plan: Plan) -> None:
        resource = _KINDS[kind]
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": self._name, "annotations": build_annotations(plan.marks)},
            "webhooks": list(plan.webhooks),
        }
        with _explain_permissions():
            await self._client.create(resource, None, body)

    def _build_conflict(self, reason: str) -> APIConflictError:
        text = f"Cannot change the webhook configurations {self._name!r}: {reason}"
        return APIConflictError(text, status=409, reason="Conflict")


def _get_others(
    found: Mapping[WebhookType, Configuration], kind: WebhookType
) -> Mapping[str, Mark]:
    """Return the replicas that the other configuration knows of."""
    (other,) = found.keys() - {kind}
    return found[other].marks


@contextlib.contextmanager
def _explain_permissions() -> Iterator[None]:
    """Add to a lack of permissions what to do about it (ADM-43)."""
    try:
        yield
    except APIForbiddenError as exc:
        exc.args = (f"{exc} {_RULE}",)
        raise
