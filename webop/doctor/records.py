"""The webhook configurations in the cluster: which are webop's, who keeps them, for which handlers.

A *record* is one webhook in a configuration.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from webop.admission.managed.configurations import GROUP, KINDS, build_configuration
from webop.admission.managed.marks import PREFIX, Mark, decode_mark
from webop.client.calls import MERGE_PATCH
from webop.doctor.findings import Finding, approve, describe_seconds, fail, join_names, note, warn
from webop.doctor.visit import Json, Visit
from webop.errors import APIError, APIForbiddenError, APINotFoundError
from webop.handling.handlers import WebhookType
from webop.servers.base import WebhookClientConfig

_SUBJECT, _REPLICAS = "configurations", "replicas"
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


def has_required(records: Iterable[Record]) -> bool:
    """Tell whether objects are refused if nobody answers for these records."""
    return any(record.is_required for record in records)


async def list_names(visit: Visit) -> list[str] | Finding:
    """Return the names of the operator's configurations; or why they are unknown."""
    options, registry = visit.options, visit.options.registry
    declared = visit.settings.admission.managed if registry is None or options.webhooks else None
    if name := options.managed or declared:
        return [name]
    names: dict[str, None] = {}
    try:
        for resource in KINDS.values():
            for body in (await visit.read(resource.get_url()) or {}).get("items") or ():
                if any(key.startswith(PREFIX) for key in body["metadata"].get("annotations") or ()):
                    names[body["metadata"]["name"]] = None
    except APIForbiddenError:
        plurals = ", ".join(resource.plural for resource in KINDS.values())
        rule = f"{{apiGroups: [{GROUP}], resources: [{plurals}], verbs: [list]}}"
        remedy = f"Name them: --managed NAME, as in settings.admission.managed; or grant {rule}."
        return warn(_SUBJECT, "this account may not list them", remedy)
    if names:
        return list(names)
    if registry is not None and not options.webhooks:
        return note(_SUBJECT, "none, and these handlers have no webhooks")
    remedy = "Set settings.admission.managed; or, if they are made by hand: --managed NAME."
    return warn(_SUBJECT, "no replica of webop keeps any in this cluster", remedy)


async def fetch_configurations(visit: Visit, name: str) -> list[Configuration] | Finding:
    """Read the configurations of a name; those of one kind need not be there."""
    try:
        return [await _fetch_configuration(visit, reason, name) for reason in KINDS]
    except APIForbiddenError as exc:
        return note(_SUBJECT, f"{name}: {exc}", "Run it as the operator's account.")


async def _fetch_configuration(visit: Visit, reason: WebhookType, name: str) -> Configuration:
    """Read a configuration as somebody who may get it; or, as operators, may patch it.

    An empty patch changes nothing, and returns the object.
    """
    path, params = KINDS[reason].get_url(name=name), {"dryRun": "All"}
    request = visit.client.request
    try:
        body = await visit.read(path)
    except APIForbiddenError as forbidden:
        try:
            body = await request("PATCH", path, params=params, body={}, content_type=MERGE_PATCH)
        except APINotFoundError:
            body = None
        except APIError:
            raise forbidden from None
    return parse_configuration(reason, name, body)


def check_replicas(found: Configuration, now: dt.datetime) -> Iterator[Finding]:
    """Check that the records are kept by live replicas, all of them by all alike."""
    alive = [mark for mark in found.marks if mark.is_alive(now)]
    if not alive:
        if found.records:
            yield _describe_abandoned(found, now)
        elif found.marks:
            yield note(_REPLICAS, "none, and no webhooks either", f"Remove it: {found.removal}")
        return
    names = join_names(sorted(mark.identity for mark in alive))
    if len({frozenset(mark.served.items()) for mark in alive}) > 1:
        text = f"{len(alive)} alive, with different handlers: a rollout is under way ({names})"
        yield note(_REPLICAS, text)
    else:
        yield approve(_REPLICAS, f"{len(alive)} alive ({names})")
    for mark in alive:
        age = (now - mark.renewed).total_seconds()
        if age > 2 * min(mark.lifetime / 3, _LONGEST_RENEWAL):
            text = f"{mark.identity} renewed its record {describe_seconds(age)} ago, which is late"
            yield warn(_REPLICAS, text, "See its log, and whether it still runs.")
    served = {name for mark in alive for name in mark.served}
    if orphans := [record for record in found.records if record.name not in served]:
        text = f"served by no live replica: {join_names(record.name for record in orphans)}"
        remedy = "Wait a minute until the replicas correct it, else restart them."
        yield fail("orphans", text, remedy).soften(is_required=has_required(orphans))
    if waiting := sorted(served - {record.name for record in found.records}):
        yield note("waiting", f"not enabled until all replicas serve it: {join_names(waiting)}")


def _describe_abandoned(found: Configuration, now: dt.datetime) -> Finding:
    if not found.marks:
        text = "none keeps it: it was made by hand, or left by an operator that has ended"
        return warn(_REPLICAS, text, f"If nobody needs it: {found.removal}")
    last = max(mark.renewed for mark in found.marks).astimezone(dt.UTC)
    age = describe_seconds((now - last).total_seconds())
    is_required = has_required(found.records)
    effect = "objects are refused (Fail)" if is_required else "nothing is checked (Ignore)"
    text = f"no replica has kept it since {last:%Y-%m-%d %H:%M:%S} UTC ({age} ago): {effect}"
    remedy = f"Start the operator; or, if nobody needs it any more: {found.removal}"
    return fail(_REPLICAS, text, remedy).soften(is_required=is_required)


def check_handlers(visit: Visit, found: Configuration) -> Iterator[Finding]:
    """Compare the webhooks that the handlers need with those that are configured."""
    made = build_configuration(
        reason=found.reason,
        name=found.name,
        handlers=visit.options.webhooks,
        resources=visit.resources,
        client_config=WebhookClientConfig(url="https://localhost"),
    )
    expected = {webhook["name"] for webhook in made["webhooks"]}
    present = {record.name for record in found.records}
    waiting = {name for mark in found.marks for name in mark.served}
    if missing := sorted(expected - present - waiting):
        text = f"not configured, so these handlers are never called: {join_names(missing)}"
        remedy = "Start the operator with these files; if it runs, its log says why not."
        yield fail("handlers", text, remedy)
    if unknown := sorted(present - expected):
        text = f"configured without a handler in these files: {join_names(unknown)}"
        remedy = "Name all files of the operator; check that its replicas run this version."
        yield warn("handlers", text, remedy)
