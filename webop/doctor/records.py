"""The webhook configurations in the cluster: which are webop's, what is in them, who keeps them.

A *record* is one webhook in a configuration.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webop.admission.managed.configurations import GROUP, KINDS
from webop.admission.managed.marks import PREFIX, Mark, decode_mark
from webop.client.calls import MERGE_PATCH
from webop.doctor.findings import (
    Finding,
    approve,
    complain,
    describe_names,
    describe_seconds,
    note,
    warn,
)
from webop.doctor.visit import Visit
from webop.errors import APIError, APIForbiddenError, APINotFoundError
from webop.handling.handlers import WebhookType

Json = dict[str, Any]

_SUBJECT = "configurations"
_RESOURCES = ", ".join(resource.plural for resource in KINDS.values())
_REPLICAS = "replicas"
_LONGEST_RENEWAL = 60.0  # seconds; marks are renewed three times in a lifetime, at least so often


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
    """A webhook configuration, as it was read."""

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


async def list_names(visit: Visit) -> list[str] | Finding:
    """Return the names of the operator's configurations; or what prevents to know them."""
    registry = visit.options.registry
    if visit.options.managed:
        return [visit.options.managed]
    if visit.settings.admission.managed and (registry is None or registry.select_webhooks()):
        return [visit.settings.admission.managed]
    names: dict[str, None] = {}
    try:
        for resource in KINDS.values():
            answer = await visit.read(resource.get_url()) or {}
            names.update(dict.fromkeys(select_marked(answer.get("items") or ())))
    except APIForbiddenError:
        rule = f"{{apiGroups: [{GROUP}], resources: [{_RESOURCES}], verbs: [list]}}"
        return warn(
            _SUBJECT,
            "this account may not list them",
            f"Name them: --managed NAME, as in settings.admission.managed; or grant {rule}.",
        )
    if not names and registry is not None and not registry.select_webhooks():
        return note(_SUBJECT, "none, and these handlers have no webhooks")
    if not names:
        return warn(
            _SUBJECT,
            "no replica of webop keeps any in this cluster",
            "Set settings.admission.managed in the operator; or, if they are made by hand, name "
            "them: --managed NAME.",
        )
    return list(names)


async def fetch_configurations(visit: Visit, name: str) -> list[Configuration] | Finding:
    """Read both configurations of a name; or tell why they cannot be read."""
    try:
        return [
            parse_configuration(reason, name, await _fetch(visit, reason, name)) for reason in KINDS
        ]
    except APIForbiddenError as exc:
        return note(_SUBJECT, f"{name} cannot be read: {exc}", "Run it as the operator's account.")


async def _fetch(visit: Visit, reason: WebhookType, name: str) -> Json | None:
    """Read a configuration as somebody who may get it; or, as operators, may patch it.

    An empty patch changes nothing, and returns the object.
    """
    path = KINDS[reason].get_url(name=name)
    try:
        return await visit.read(path)
    except APIForbiddenError as forbidden:
        try:
            return await visit.ask("PATCH", path, {}, content_type=MERGE_PATCH, is_dry=True)
        except APINotFoundError:
            return None
        except APIError:
            raise forbidden from None


def check_replicas(found: Configuration, now: dt.datetime) -> Iterator[Finding]:
    """Check that the records are kept by live replicas, all of them by all alike."""
    alive = [mark for mark in found.marks if mark.is_alive(now)]
    if not alive:
        if found.records:
            yield _describe_abandoned(found, now)
        elif found.marks:
            yield note(_REPLICAS, "none, and no webhooks either", f"Remove it: {found.removal}")
        return
    names = describe_names(sorted(mark.identity for mark in alive))
    if len({frozenset(mark.served.items()) for mark in alive}) > 1:
        text = f"{len(alive)} alive, with different handlers: a rollout is under way ({names})"
        yield note(_REPLICAS, text)
    else:
        yield approve(_REPLICAS, f"{len(alive)} alive ({names})")
    for mark in alive:
        age = (now - mark.renewed).total_seconds()
        if age > 2 * min(mark.lifetime / 3, _LONGEST_RENEWAL):
            yield warn(
                _REPLICAS,
                f"{mark.identity} was heard of {describe_seconds(age)} ago, which is too long",
                "See whether it still runs, and what its log says about the API server.",
            )
    yield from _check_orphans(found, alive)


def _describe_abandoned(found: Configuration, now: dt.datetime) -> Finding:
    if not found.marks:
        return warn(
            _REPLICAS,
            "none keeps it: it is made by hand, or was left by an operator that has ended",
            f"See below whether it is served. If it is not to be: {found.removal}",
        )
    last = max(mark.renewed for mark in found.marks).astimezone(dt.UTC)
    age = describe_seconds((now - last).total_seconds())
    is_required = has_required(found.records)
    effect = "objects are refused (Fail)" if is_required else "nothing is checked (Ignore)"
    return complain(
        _REPLICAS,
        f"it is kept by nobody since {last:%Y-%m-%d %H:%M:%S} UTC ({age} ago): {effect}",
        f"Start the operator; or, if there is to be none any more: {found.removal}",
        is_failure=is_required,
    )


def _check_orphans(found: Configuration, alive: Sequence[Mark]) -> Iterator[Finding]:
    served = {name for mark in alive for name in mark.served}
    present = {record.name for record in found.records}
    orphans = [record for record in found.records if record.name not in served]
    if orphans:
        names = describe_names(record.name for record in orphans)
        yield complain(
            "orphans",
            f"served by no live replica: {names}",
            "Wait a minute for the replicas to put it right, else restart them.",
            is_failure=has_required(orphans),
        )
    if waiting := sorted(served - present):
        yield note(
            "waiting", f"not in force before all replicas serve it: {describe_names(waiting)}"
        )
