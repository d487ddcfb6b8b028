"""The webhook configurations as they are in the cluster, and which of them are of webop. Pure.

A *record* is one webhook in a configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webop.admission.managed.marks import PREFIX, Mark, decode_mark
from webop.handling.handlers import WebhookType
from webop.objects.resources import Resource

Json = dict[str, Any]

GROUP = "admissionregistration.k8s.io"
KINDS = {
    WebhookType.VALIDATING: Resource(
        GROUP,
        "v1",
        "validatingwebhookconfigurations",
        kind="ValidatingWebhookConfiguration",
        namespaced=False,
    ),
    WebhookType.MUTATING: Resource(
        GROUP,
        "v1",
        "mutatingwebhookconfigurations",
        kind="MutatingWebhookConfiguration",
        namespaced=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Record:
    """One webhook in a configuration."""

    reason: WebhookType
    webhook: Json

    @property
    def name(self) -> str:
        """Its name, such as "check.auto.kopf.dev"."""
        return str(self.webhook["name"])

    @property
    def config(self) -> Json:
        """Where it leads."""
        config: Json = self.webhook.get("clientConfig") or {}
        return config

    @property
    def is_required(self) -> bool:
        """Whether objects are refused without its verdict (failurePolicy Fail, the default)."""
        return str(self.webhook.get("failurePolicy")) != "Ignore"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration, as it was read.

    Attributes:
        reason: which of the two kinds.
        name: its name.
        records: its webhooks.
        marks: what the replicas have left on it, alive or not.
        is_there: whether there is such an object.
    """

    reason: WebhookType
    name: str
    records: Sequence[Record] = ()
    marks: Sequence[Mark] = ()
    is_there: bool = False

    @property
    def title(self) -> str:
        """What to call it."""
        return f"{KINDS[self.reason].kind} {self.name}"

    @property
    def removal(self) -> str:
        """The command that removes it."""
        return f"kubectl delete {KINDS[self.reason].plural} {self.name}"


def parse_configuration(reason: WebhookType, name: str, body: Json | None) -> Configuration:
    """Return what there is in an object of the API server; None stands for no object."""
    if body is None:
        return Configuration(reason, name)
    annotations = body["metadata"].get("annotations") or {}
    texts = [text for key, text in annotations.items() if key.startswith(PREFIX)]
    marks = [mark for mark in map(decode_mark, texts) if mark is not None]
    records = [Record(reason, webhook) for webhook in body.get("webhooks") or ()]
    return Configuration(reason, name, records, marks, is_there=True)


def select_marked(bodies: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the configurations that carry marks of replicas of webop."""
    return [
        body["metadata"]["name"]
        for body in bodies
        if any(key.startswith(PREFIX) for key in body["metadata"].get("annotations") or {})
    ]


def has_required(records: Iterable[Record]) -> bool:
    """Tell whether objects are refused if nobody answers for these records."""
    return any(record.is_required for record in records)
