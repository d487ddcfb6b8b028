"""What replicas leave in the cluster: webhook configurations, the Lease, peerings, finalizers.

A *record* is one webhook in a configuration.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from webop.admission.managed.configurations import GROUP, KINDS, build_configuration
from webop.admission.managed.marks import PREFIX, Mark, decode_mark
from webop.client.calls import MERGE_PATCH
from webop.coordination import lease
from webop.coordination.peers import build_creation_command, build_kinds, parse_peers
from webop.coordination.requests import LEASES
from webop.doctor.findings import (
    Finding,
    approve,
    build_rule,
    describe_seconds,
    fail,
    join_names,
    note,
    warn,
)
from webop.doctor.visit import Json, Visit
from webop.errors import APIError, APIForbiddenError, APINotFoundError
from webop.finalizers import Held, find_held
from webop.handling.handlers import WebhookType
from webop.objects.resources import Resource
from webop.servers.base import WebhookClientConfig

_TOO_LONG = dt.timedelta(seconds=60)  # of a deletion; handlers need some time
_SUBJECT, _REPLICAS = "configurations", "replicas"


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


async def find_configurations(visit: Visit) -> tuple[list[str], list[Configuration], list[Finding]]:
    """Return the names of the operator's configurations, these, and what is wrong with them."""
    registry, webhooks = visit.registry, visit.webhooks
    names = dict.fromkeys(filter(None, [visit.managed]))
    if not names and (registry is None or webhooks):
        names = dict.fromkeys(filter(None, [visit.settings.admission.managed]))
    try:
        for kind in () if names else KINDS.values():
            for body in (await visit.read(kind.get_url()) or {}).get("items") or ():
                if any(key.startswith(PREFIX) for key in body["metadata"].get("annotations") or ()):
                    names[body["metadata"]["name"]] = None
    except APIForbiddenError:
        rule = build_rule(GROUP, (kind.plural for kind in KINDS.values()), ["list"])
        remedy = f"Name them: --managed NAME, as in settings.admission.managed; or grant {rule}."
        return [], [], [warn(_SUBJECT, "this account may not list them", remedy)]
    if not names and registry is not None and not webhooks:
        return [], [], [note(_SUBJECT, "none, and these handlers have no webhooks")]
    if not names:
        remedy = "Set settings.admission.managed; or, if they are made by hand: --managed NAME."
        text = "no replica of webop keeps any in this cluster"
        return [], [], [warn(_SUBJECT, text, remedy)]
    found, findings = list[Configuration](), list[Finding]()
    for name in names:
        try:
            found += (both := [await _fetch_configuration(visit, kind, name) for kind in KINDS])
        except APIForbiddenError as exc:
            remedy = "Run it as an account that may get or patch it, such as the operator's."
            findings.append(note(_SUBJECT, f"{name}: {exc}", remedy))
            continue
        if not any(one.is_there for one in both):
            text = f"there are no webhook configurations {name}: nothing is checked"
            remedy = "Start the operator, or see its log. Other names: --managed NAME."
            findings.append(fail("existence", text, remedy))
    return list(names), found, findings


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
        handlers=visit.webhooks,
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


async def check_lease(visit: Visit, replicas: Collection[str]) -> list[Finding]:
    """Check that a live replica holds the Lease, if the operator has one."""
    leadership = visit.settings.leadership
    if leadership.lease_name is None:
        return []
    where, name = leadership.lease_namespace or visit.namespace, leadership.lease_name
    subject = f"Lease {where}/{name}"
    found = await visit.look(subject, LEASES.get_url(namespace=where, name=name))
    if found is None:
        found = warn(subject, "there is none: no replica has led yet", "Start the operator.")
    if not isinstance(found, Finding):
        found = judge_lease(subject, lease.Record.parse(found), visit.now, replicas)
    return [found]


def judge_lease(
    subject: str, record: lease.Record, now: dt.datetime, replicas: Collection[str]
) -> Finding:
    """Judge who holds a Lease; the live replicas are none if they are unknown. Pure."""
    if not record.holder:
        return warn(subject, "nobody holds it: nobody acts", "Start the operator, or see its log.")
    try:
        age = (now - dt.datetime.fromisoformat(record.renewed_at)).total_seconds()
        since = f"has not renewed it for {describe_seconds(age)}"
    except (ValueError, TypeError):
        age, since = float("inf"), "has never renewed it"
    if age > (record.duration or 0):
        remedy = "Start the operator; if it runs, its log says why it cannot take the Lease."
        return fail(subject, f"{record.holder} {since}: nobody acts", remedy)
    if replicas and record.holder not in replicas:
        known = join_names(sorted(replicas))
        text = f"{record.holder} holds it, which is none of the live replicas: {known}"
        remedy = "Give each operator a Lease of its own: settings.leadership.lease_name."
        return warn(subject, text, remedy)
    return approve(subject, f"{record.holder} holds it")


async def check_peering(visit: Visit) -> list[Finding]:
    """Check that the peering objects are there, and that nobody in them pauses the operator."""
    peering, namespaces = visit.settings.peering, visit.namespaces
    if peering.standalone:
        return []
    kinds = build_kinds(clusterwide=not namespaces)
    subject, findings = f"peering {peering.name}", list[Finding]()
    kind = next((kind for kind in kinds if kind in visit.resources), None)
    if kind is None:
        remedy = "kubectl apply -f manifests/peering.yaml, from webop's repository."
        absent = fail(subject, "the cluster has no kind for it: the operator pauses", remedy)
        return [absent] if peering.mandatory else []
    for namespace in namespaces or (None,):
        found = await visit.look(subject, kind.get_url(namespace=namespace, name=peering.name))
        if isinstance(found, Finding):
            findings.append(found)
        elif found is not None:
            where = f"-n {namespace}" if namespace else "-A"
            resume = f"webop resume {where} --peering {peering.name} --id"
            findings += judge_peers(subject, found, peering.priority, visit.now.timestamp(), resume)
        elif peering.mandatory:
            place = f" in {namespace}" if namespace else ""
            remedy = build_creation_command(kind, namespace, peering.name)
            findings.append(fail(subject, f"there is none{place}: the operator pauses", remedy))
    return findings


def judge_peers(
    subject: str, raw: Json, priority: int, now: float, resume: str
) -> Iterator[Finding]:
    """Judge the records of a peering object, for an operator of a priority. Pure."""
    peers, problems = parse_peers(raw.get("status"))
    alive = [peer for peer in peers.values() if peer.deadline > now]
    equals = [peer.identity for peer in alive if peer.priority == priority]
    bosses = [peer for peer in alive if peer.priority > priority]
    for peer in bosses:
        remedy = f"If it does not run any more: {resume} {shlex.quote(peer.identity)}"
        yield warn(subject, f"paused by {peer}", remedy)
    if len(equals) > 1:
        text = f"all pause each other, as they have the priority {priority}: {join_names(equals)}"
        remedy = "Stop all but one, or give them different priorities: --priority."
        yield warn(subject, text, remedy)
    for identity, why in problems.items():
        yield note(subject, f"the record of {identity} is ignored: {why}")
    if not bosses and len(equals) < 2:
        yield approve(subject, f"nobody pauses an operator of priority {priority}")


async def check_finalizers(visit: Visit) -> list[Finding]:
    """Find objects that cannot go because of the finalizer, of custom and of handled kinds."""
    finalizer, known = visit.settings.persistence.finalizer, visit.resources
    selectors = [handler.selector for handler in visit.handlers if handler.selector]
    handled = {one for selector in selectors for one in selector.select(known)}
    groups = {one.group for one in known if "." in one.group and not one.group.endswith(".k8s.io")}
    custom = {one for one in known if one.preferred and one.group in groups}
    kinds = [kind for kind in (*custom, *handled) if "list" in kind.verbs]
    search = await find_held(visit.client, kinds, visit.namespaces, finalizer)
    stuck: dict[Resource, list[Held]] = {}
    for one in search.held:
        is_orphan = visit.registry is not None and one.resource not in handled
        if one.deleted_at and (is_orphan or visit.now - one.deleted_at > _TOO_LONG):
            stuck.setdefault(one.resource, []).append(one)
    findings = []
    for resource, held in stuck.items():
        kind, oldest = held[0].kind, held[0].deleted_at or visit.now
        age = describe_seconds((visit.now - oldest).total_seconds())
        names = join_names((one.path for one in held), 3)
        text = f"being deleted for {age}, held by {finalizer}: {names}"
        if visit.registry is not None and resource not in handled:
            text += "; no handler in these files is for this kind"
        where = " ".join(f"-n {name}" for name in visit.namespaces) or "-A"
        remedy = "Start the operator, or see its log. If no operator handles it any more: "
        findings.append(warn(kind, text, f"{remedy}webop finalizers release {where} {kind}"))
    if search.problems:
        unknown = join_names(sorted(search.problems))
        findings.append(note("finalizers", f"this account may not list {unknown}"))
    return findings or [approve("finalizers", "no deletion waits for this operator")]
