"""What replicas leave in the cluster: webhook configurations, the Lease, peerings, finalizers."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence

from webop.admission.managed.configurations import KINDS, build_configuration
from webop.admission.managed.replica_records import PREFIX
from webop.admission.managed.replicas import Configuration, parse_configuration
from webop.coordination import lease
from webop.coordination.peers import build_creation_command, build_kinds, parse_peers, select_rivals
from webop.coordination.requests import LEASES
from webop.doctor.context import Context, Json
from webop.doctor.findings import Finding, approve, describe_seconds, fail, join_names, note, warn
from webop.errors import APIForbiddenError
from webop.finalizers import HeldObject, find_held
from webop.handling.handlers import WebhookType

_TOO_LONG = dt.timedelta(seconds=60)  # of a deletion; handlers need some time

Found = dict[tuple[str, WebhookType], Configuration]  # by the name and the kind


def has_required(webhooks: Iterable[Json]) -> bool:
    """Tell whether objects are refused if nobody answers (failurePolicy Fail, the default)."""
    return any(webhook.get("failurePolicy") != "Ignore" for webhook in webhooks)


async def find_configurations(visit: Context) -> tuple[Found, list[Finding]]:
    """Return the operator's configurations, and what is wrong with them; set their names."""
    subject, found, findings = "configurations", Found(), list[Finding]()
    if visit.registry and not visit.registry.select_webhooks() and not visit.managed:
        return found, [note(subject, "none, and these handlers have no webhooks")]
    try:
        visit.names = await _list_names(visit)
    except APIForbiddenError:
        remedy = "Name them: --managed NAME, as in settings.admission.managed."
        return found, [warn(subject, "this account may not list them", remedy)]
    if not visit.names:
        remedy = "Set settings.admission.managed; or, if they are made by hand: --managed NAME."
        return found, [warn(subject, "no replica of webop keeps any in this cluster", remedy)]
    for name in visit.names:
        try:
            both = {(name, kind): await _fetch(visit, kind, name) for kind in KINDS}
        except APIForbiddenError as exc:
            remedy = "Run it as an account that may get or patch it, such as the operator's."
            findings.append(note(subject, f"{name}: {exc}", remedy))
            continue
        found |= both
        if all(one.version is None for one in both.values()):
            text = f"there are no webhook configurations {name}: nothing is checked"
            remedy = "Start the operator, or see its log. Other names: --managed NAME."
            findings.append((fail if visit.managed else warn)("existence", text, remedy))
    if visit.registry and len(visit.names) > 1:
        text = f"there are several operators in the cluster: {join_names(visit.names)}"
        findings.append(warn("handlers", text, "Say which one has these: --managed NAME."))
    return found, findings


async def _list_names(visit: Context) -> Sequence[str]:
    if name := visit.managed or visit.settings.admission.managed:
        return [name]
    lists = [await visit.read(kind.get_url()) for kind in KINDS.values()]
    everything = [body["metadata"] for listed in lists for body in listed.get("items") or ()]
    kept = (one for one in everything if PREFIX in " ".join(one.get("annotations") or ()))
    return list(dict.fromkeys(one["name"] for one in kept))


async def _fetch(visit: Context, reason: WebhookType, name: str) -> Configuration:
    """Read it; for operators, who may only patch it, an empty patch returns it."""
    try:
        body = await visit.read(KINDS[reason].get_url(name=name)) or None
    except APIForbiddenError:
        body = await visit.client.patch(KINDS[reason], None, name, {})
    return parse_configuration(body, is_alive=lambda _: True)


def check_replicas(found: Configuration, command: str, now: dt.datetime) -> Iterator[Finding]:
    """Check that webhooks are kept by live replicas, all of them by all alike; or be removed."""
    subject, remedy = "replicas", f"If nobody needs it: {command}"
    records, is_required = list(found.records.values()), has_required(found.webhooks)
    alive = [record for record in records if record.is_alive(now)]
    if found.webhooks and not records:
        text = "none keeps it: it was made by hand, or left by an operator that has ended"
        yield warn(subject, text, remedy)
    elif records and not alive and not found.webhooks:
        yield note(subject, "none, and no webhooks either", remedy)
    elif records and not alive:
        last = max(record.renewed for record in records).astimezone(dt.UTC)
        age = describe_seconds((now - last).total_seconds())
        effect = "objects are refused (Fail)" if is_required else "nothing is checked (Ignore)"
        text = f"no replica has kept it since {last:%Y-%m-%d %H:%M:%S} UTC ({age} ago): {effect}"
        yield (fail if is_required else warn)(subject, text, f"Start the operator. {remedy}")
    if not alive:
        return
    names = join_names(sorted(record.identity for record in alive))
    is_changing = len({frozenset(record.served.items()) for record in alive}) > 1
    how = ", with different handlers: a rollout is under way" if is_changing else ""
    yield (note if is_changing else approve)(subject, f"{len(alive)} alive{how} ({names})")
    served = {name for record in alive for name in record.served}
    if orphans := [webhook for webhook in found.webhooks if webhook["name"] not in served]:
        text = f"served by no live replica: {join_names(one['name'] for one in orphans)}"
        remedy = "Wait a minute until the replicas correct it, else restart them."
        yield (fail if has_required(orphans) else warn)("orphans", text, remedy)
    if waiting := sorted(served - {webhook["name"] for webhook in found.webhooks}):
        yield note("waiting", f"not enabled until all replicas serve it: {join_names(waiting)}")


def check_handlers(
    visit: Context, name: str, reason: WebhookType, found: Configuration
) -> Iterator[Finding]:
    """Compare the webhooks that the handlers need with those that are configured."""
    made = build_configuration(
        reason=reason,
        name=name,
        handlers=visit.registry.select_webhooks(),
        resources=visit.resources,
        client_config={"url": "https://localhost"},
    )
    expected = {webhook["name"] for webhook in made["webhooks"]}
    present = {webhook["name"] for webhook in found.webhooks}
    waiting = {name for record in found.records.values() for name in record.served}
    if missing := sorted(expected - present - waiting):
        text = f"not configured, so these handlers are never called: {join_names(missing)}"
        remedy = "Start the operator with these files; if it runs, its log says why not."
        yield fail("handlers", text, remedy)
    if unknown := sorted(present - expected):
        text = f"configured without a handler in these files: {join_names(unknown)}"
        remedy = "Name all files of the operator; check that its replicas run this version."
        yield warn("handlers", text, remedy)


async def check_lease(visit: Context) -> list[Finding]:
    """Check that a live replica holds the Lease, if the operator has one."""
    leadership = visit.settings.leadership
    if leadership.lease_name is None:
        return []
    where, name = leadership.lease_namespace or visit.namespace, leadership.lease_name
    raw = await visit.read(LEASES.get_url(namespace=where, name=name))
    return [judge_lease(f"Lease {where}/{name}", raw, visit.now, visit.replicas)]


def judge_lease(subject: str, raw: Json, now: dt.datetime, replicas: Collection[str]) -> Finding:
    """Judge who holds a Lease; the live replicas are none if they are unknown. Pure."""
    record = lease.Record.parse(raw)
    if not record.holder:
        text = "nobody holds it: nobody acts" if raw else "there is none: no replica has led yet"
        return warn(subject, text, "Start the operator, or see its log.")
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


async def check_peering(visit: Context) -> list[Finding]:
    """Check that the peering objects are there, and that nobody in them pauses the operator."""
    peering, findings = visit.settings.peering, list[Finding]()
    if peering.standalone:
        return []
    subject, ours = f"peering {peering.name}", build_kinds(clusterwide=not visit.namespaces)[0]
    for namespace in visit.namespaces or (None,):
        paths = [one.get_url(namespace=namespace, name=peering.name) for one in visit.peerings]
        found = [raw for path in paths if (raw := await visit.read(path))]
        where = f"-n {namespace}" if namespace else "-A"
        resume = f"webop resume {where} --peering {peering.name}"
        for raw in found:
            findings += judge_peers(subject, raw, peering.priority, visit.now, resume)
        if peering.mandatory and not found:
            remedy = build_creation_command(ours, namespace, peering.name)
            if not paths:
                remedy = f"kubectl apply -f manifests/peering.yaml (of webop), and {remedy}"
            findings.append(fail(subject, f"there is none ({where}): the operator pauses", remedy))
    return findings


def judge_peers(
    subject: str, raw: Json, priority: int, now: dt.datetime, resume: str
) -> Iterator[Finding]:
    """Judge the records of a peering object, for an operator of a priority. Pure."""
    peers, problems = parse_peers(raw.get("status"))
    for identity, why in problems.items():
        yield note(subject, f"the record of {identity} is ignored: {why}")
    rivals = select_rivals(peers.values(), "", priority, now.timestamp())
    bosses = [peer for peer in rivals if peer.priority > priority]
    for peer in bosses:
        remedy = f"If it does not run any more: {resume} --id {shlex.quote(peer.identity)}"
        yield warn(subject, f"paused by {peer}", remedy)
    if not bosses and len(rivals) > 1:
        equals = join_names(peer.identity for peer in rivals)
        text = f"all pause each other, as they have the priority {priority}: {equals}"
        remedy = "Stop all but one, or give them different priorities: --priority."
        yield warn(subject, text, remedy)
    elif not bosses:
        yield approve(subject, f"nobody pauses an operator of priority {priority}")


async def check_finalizers(visit: Context) -> list[Finding]:
    """Find objects that cannot go because of the finalizer, of custom and of handled kinds."""
    finalizer = visit.settings.persistence.finalizer
    custom = [one for one in visit.resources if one.preferred and "." in one.group]
    kinds = [one for one in custom if not one.group.endswith(".k8s.io")]
    kinds = [one for one in (*kinds, *visit.handled) if "list" in one.verbs]
    handled = visit.handled if visit.registry else kinds  # maybe, if the handlers are not known
    search = await find_held(visit.client, kinds, visit.namespaces, finalizer)
    stuck: dict[str, list[HeldObject]] = {}
    for one in search.held:
        age = visit.now - (one.deleted_at or visit.now)
        if one.deleted_at and (age > _TOO_LONG or one.resource not in handled):
            stuck.setdefault(one.kind, []).append(one)
    findings = []
    for kind, held in stuck.items():
        age = visit.now - (held[0].deleted_at or visit.now)
        names = join_names((one.path for one in held), 3)
        since = describe_seconds(age.total_seconds())
        text = f"being deleted for {since}, held by {finalizer}: {names}"
        if held[0].resource not in handled:
            text += "; no handler in these files is for this kind"
        where = " ".join(f"-n {name}" for name in visit.namespaces) or "-A"
        remedy = "Start the operator, or see its log. If no operator handles it any more: "
        findings.append(warn(kind, text, f"{remedy}webop finalizers release {where} {kind}"))
    if search.problems:
        unknown = join_names(sorted(search.problems))
        findings.append(note("finalizers", f"this account may not list {unknown}"))
    return findings or [approve("finalizers", "no deletion waits for this operator")]
