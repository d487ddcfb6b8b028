"""The field ``spec.conversion`` of CustomResourceDefinitions, which all replicas keep.

Kubernetes: "Versions in CustomResourceDefinitions", "Webhook conversion".
:mod:`webop.admission.configurations.replica_agreement` decides it together with the webhooks. It is
written with the resource version that was read before the records of replicas, and every decision
that follows from new records changes it. So an outdated decision meets a conflict.

It stays when no replica is left: without it, API servers would only change ``apiVersion``, and drop
the fields that the other version does not have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from webop.admission.configurations.replica_agreement import Decision, Json, split_address
from webop.aio.backoff import Once
from webop.client.api import Client
from webop.errors import APIForbiddenError, APINotFoundError, ConfigurationError
from webop.objects.resources import CRDS

logger = logging.getLogger(__name__)

TIMEOUT = 10.0  # seconds; a request without an answer must not hold up the withdrawal

REVIEW_VERSIONS = ["v1"]


class SharedConversions:
    """The conversions of some kinds.

    Attributes:
        missing: the definitions that were not in the cluster when they were read last.
    """

    def __init__(self, client: Client, names: Iterable[str]) -> None:
        self._client = client
        self._names = (*names,)
        self._logged = Once()
        self.missing: frozenset[str] = frozenset()

    async def read(self) -> dict[str, Json]:
        """Return the definitions that are in the cluster."""
        found: dict[str, Json] = {}
        for name in self._names:
            try:
                found[name] = await self._client.get(CRDS, None, name, timeout=TIMEOUT)
            except APINotFoundError:
                if self._logged.is_new(name, "missing"):
                    logger.warning(
                        "The CustomResourceDefinition %s is not in the cluster yet: its objects "
                        "cannot be converted.",
                        name,
                    )
            except APIForbiddenError as exc:
                raise _explain(exc, name) from exc
        self.missing = frozenset(self._names) - found.keys()
        return found

    async def write(self, found: Mapping[str, Json], decision: Decision) -> None:
        """Write what was decided into definitions as they were read.

        Raises:
            APIConflictError: a definition has changed since.
        """
        for name, is_agreed in decision.converts.items():
            if name not in found:
                continue
            present = found[name]["spec"].get("conversion") or {}
            config = choose_config(present, decision.conversion, is_agreed=is_agreed)
            if config is None:
                continue
            version = found[name]["metadata"]["resourceVersion"]
            patch = {
                "metadata": {"resourceVersion": version},
                "spec": {"conversion": build_conversion({"caBundle": None, **config})},
            }
            try:
                await self._client.patch(CRDS, None, name, patch, timeout=TIMEOUT)
            except APIForbiddenError as exc:
                raise _explain(exc, name) from exc
            if self._logged.is_new(name, "written"):
                logger.info("API servers ask this operator for conversions of %s.", name)


def build_conversion(config: Mapping[str, Any]) -> Json:
    """Return the field for a ``clientConfig``.

    It has a ``url`` or a ``service``. The other one is null, so that each way to apply the field
    removes it if somebody else has written it: API servers refuse both.
    """
    return {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": {"url": None, "service": None, **config},
            "conversionReviewVersions": REVIEW_VERSIONS,
        },
    }


def choose_config(
    present: Mapping[str, Any], wanted: Mapping[str, Any], *, is_agreed: bool
) -> Json | None:
    """Return the ``clientConfig`` to write; None if the present field can stay as it is.

    Unless all replicas convert the kind (``is_agreed``), only the CAs follow the live replicas.
    """
    webhook = present.get("webhook") or {}
    former: Json = webhook.get("clientConfig") or {}
    try:
        is_there = split_address(former) == split_address(wanted)
    except ConfigurationError:  # there is none
        is_there = False
    is_trusted = is_there and (former.get("caBundle") or "") == (wanted.get("caBundle") or "")
    if is_trusted and webhook.get("conversionReviewVersions") == REVIEW_VERSIONS:
        return None
    return dict(wanted) if is_agreed or is_there else None


def _explain(exc: APIForbiddenError, name: str) -> APIForbiddenError:
    rule = (
        "{apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], "
        f"resourceNames: [{name}], verbs: [get, patch]}}"
    )
    exc.args = (f"{exc} Add this rule: {rule}.",)
    return exc
