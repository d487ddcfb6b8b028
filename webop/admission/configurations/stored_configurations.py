"""The two webhook configurations in the cluster: read them, and write what was decided.

With them, the conversions are written (:mod:`webop.admission.configurations.crd_conversions`).

All replicas do so. They need the verbs ``create`` and ``patch`` only: an empty patch changes
nothing and returns the object. The records of replicas are in the validating configuration, which
is written first. A write succeeds only if nobody else has written since the read (by the resource
version); after a conflict, the replica reads and decides again. A replica that writes the
validating one also writes the mutating one, with a note of the version, so no outdated decision
overwrites it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from webop.admission.configurations.building import KINDS
from webop.admission.configurations.crd_conversions import TIMEOUT, SharedConversions
from webop.admission.configurations.replica_agreement import (
    NOTES,
    PREFIX,
    Decision,
    Json,
    Notes,
    ReplicaRecord,
    decode_record,
    is_same,
)
from webop.aio.backoff import Backoff
from webop.client.api import Client
from webop.errors import APIConflictError, APIForbiddenError
from webop.handlers.model import WebhookType

logger = logging.getLogger(__name__)

MARK = "webop.dev/written-by"
"""The annotation of managed configurations: the replica that wrote it last, and with the records of
which version of the validating configuration."""

# Seconds after each of 50 conflicts in a row. In each round, one replica wins, so all succeed in
# the end; the jitter saves rounds.
_CONFLICT_PAUSES = [min(0.005 * number, 0.1) for number in range(1, 50)]

_RULE = (
    "{{apiGroups: [admissionregistration.k8s.io], resources: "
    "[validatingwebhookconfigurations, mutatingwebhookconfigurations], {}}}"
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration as it was read.

    Attributes:
        version: its resource version; None if the object does not exist.
        webhooks: the webhooks in force.
        annotations: those of replicas, and their notes.
    """

    version: str | None = None
    webhooks: Sequence[Json] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> dict[str, str]:
        """The annotations of replicas."""
        return {key: text for key, text in self.annotations.items() if key.startswith(PREFIX)}

    @property
    def notes(self) -> Notes:
        """The notes of replicas beside their records."""
        return Notes.parse(self.annotations)

    def list_records(self) -> list[ReplicaRecord]:
        """Return the records of replicas, also of dead ones."""
        return [decode_record(text) for text in self.records.values()]

    def list_live(self, now: dt.datetime) -> list[ReplicaRecord]:
        """Return the records that were renewed lately, for people (ReplicaRecord.is_fresh)."""
        return [record for record in self.list_records() if record.is_fresh(now)]


# The records of replicas, and what was decided.
Plan = tuple[dict[str, str], Decision]
Decide = Callable[[Mapping[WebhookType, Configuration]], Plan | None]


async def find_managed(client: Client) -> dict[str, dict[WebhookType, Json]]:
    """Return the configurations that replicas keep, or have kept, by their names."""
    found: dict[str, dict[WebhookType, Json]] = {}
    for kind, resource in KINDS.items():
        listed = await client.request("GET", resource.get_url())
        for body in listed.get("items") or ():
            names = body["metadata"].get("annotations") or {}
            if any(name == MARK or name.startswith(PREFIX) for name in names):
                found.setdefault(body["metadata"]["name"], {})[kind] = body
    return found


def parse_configuration(body: Json | None) -> Configuration:
    """Parse an object of the API server; None stands for no object."""
    if body is None:
        return Configuration()
    annotations = body["metadata"].get("annotations") or {}
    kept = {key: text for key, text in annotations.items() if key.startswith((PREFIX, *NOTES))}
    return Configuration(body["metadata"]["resourceVersion"], body.get("webhooks") or (), kept)


class SharedConfigurations:
    """The validating and the mutating configuration of one name, which all replicas change."""

    def __init__(
        self, client: Client, name: str, identity: str, conversions: SharedConversions
    ) -> None:
        self._client = client
        self._name = name
        self._identity = identity
        self._conversions = conversions

    async def settle(self, decide: Decide) -> Decision | None:
        """Change the configurations and the conversions as decided.

        After a conflict, ``decide`` is called again. Return its last decision; None for none.

        Raises:
            APIError: the API server is not available or refuses; or the conflicts do not end.
        """
        backoff = Backoff(_CONFLICT_PAUSES, is_endless=False, jitter=1.0)
        while True:
            definitions = await self._conversions.read()  # before the records
            found = {kind: parse_configuration(await self._patch(kind, {})) for kind in KINDS}
            plan = decide(found)
            try:
                if plan is not None:
                    await self._write(found, *plan)
                    await self._conversions.write(definitions, plan[1])
            except APIConflictError:
                pause = backoff.next()
                if pause is None:
                    raise self._build_conflict("other replicas keep changing them") from None
                await asyncio.sleep(pause)
            else:
                return None if plan is None else plan[1]

    async def _write(
        self,
        found: Mapping[WebhookType, Configuration],
        records: Mapping[str, str],
        decision: Decision,
    ) -> None:
        note, is_written = self._identity, False
        kept: Mapping[str, str] = {**records, **decision.notes.encode()}
        for kind in (WebhookType.VALIDATING, WebhookType.MUTATING):
            present, webhooks = found[kind], decision.webhooks[kind]
            if kind is not WebhookType.VALIDATING:
                kept = present.annotations
            is_changed = not is_same(present.webhooks, webhooks)
            if present.annotations == kept and not is_changed and not is_written:
                continue
            if present.version is None and not kept and not webhooks:
                continue
            annotations: Json = {**dict.fromkeys(present.annotations), **kept, MARK: note}
            body: Json = {"metadata": {"annotations": annotations}}
            if is_changed or present.version is None:
                body["webhooks"] = list(webhooks)
            version = await self._send(kind, present.version, body)
            note, is_written = f"{self._identity} {version}", True
            if is_changed:
                names = ", ".join(webhook["name"] for webhook in webhooks)
                place = f"{KINDS[kind].plural}/{self._name}"
                logger.info("Webhooks in %s: %s.", place, names or "none")

    async def _send(self, kind: WebhookType, version: str | None, body: Json) -> str:
        """Create or change a configuration; return its new version."""
        resource = KINDS[kind]
        if version is None:
            body["metadata"]["name"] = self._name
            made = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
            with _explain_permissions(self._name):
                written: Json | None = await self._client.create(
                    resource, None, made, timeout=TIMEOUT
                )
        else:
            body["metadata"]["resourceVersion"] = version
            written = await self._patch(kind, body)
        if written is None:
            raise self._build_conflict("one was deleted meanwhile")
        return str(written["metadata"]["resourceVersion"])

    async def _patch(self, kind: WebhookType, patch: Json) -> Json | None:
        with _explain_permissions(self._name):
            return await self._client.patch(KINDS[kind], None, self._name, patch, timeout=TIMEOUT)

    def _build_conflict(self, reason: str) -> APIConflictError:
        text = f"Cannot change the webhook configurations {self._name!r}: {reason}"
        return APIConflictError(text, status=409, reason="Conflict")


@contextlib.contextmanager
def _explain_permissions(name: str) -> Iterator[None]:
    """Add the missing RBAC rules to a "forbidden" error."""
    try:
        yield
    except APIForbiddenError as exc:
        patch = _RULE.format(f"resourceNames: [{name}], verbs: [patch]")
        exc.args = (f"{exc} Add these rules: {_RULE.format('verbs: [create]')}, {patch}.",)
        raise
