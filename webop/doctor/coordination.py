"""Who acts, and who waits for nobody: the Lease, the peering, objects held by the finalizer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator

from webop.coordination.lease import Record
from webop.coordination.peers import build_creation_command, build_kinds, format_time, parse_peers
from webop.coordination.requests import LEASES
from webop.doctor.findings import Finding, approve, describe_seconds, fail, join_names, note, warn
from webop.doctor.visit import Json, Visit
from webop.finalizers import Held, find_held
from webop.objects.resources import Resource

_TOO_LONG = dt.timedelta(seconds=60)  # of a deletion; handlers need some time


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
        found = judge_lease(subject, Record.parse(found), visit.now, replicas)
    return [found]


def judge_lease(
    subject: str, record: Record, now: dt.datetime, replicas: Collection[str]
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
    peering, namespaces = visit.settings.peering, visit.options.namespaces
    if peering.standalone:
        return []
    kinds = build_kinds(clusterwide=not namespaces)
    subject, findings = f"peering {peering.name}", list[Finding]()
    kind = next((kind for kind in kinds if kind in visit.resources), None)
    if kind is None and peering.mandatory:
        remedy = "kubectl apply -f manifests/peering.yaml, from webop's repository."
        return [fail(subject, "the cluster has no kind for it: the operator pauses", remedy)]
    for namespace in namespaces or (None,):
        if kind is None:
            break
        found = await visit.look(subject, kind.get_url(namespace=namespace, name=peering.name))
        if isinstance(found, Finding):
            findings.append(found)
        elif found is not None:
            resume = f"webop resume {f'-n {namespace}' if namespace else '-A'}"
            resume += f" --peering {peering.name} --id"
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
        remedy = f"If it does not run any more: {resume} {peer.identity}"
        yield warn(subject, f"paused by {peer}", remedy)
    if len(equals) > 1:
        text = f"all pause each other, as they have the priority {priority}: {join_names(equals)}"
        remedy = "Stop all but one, or give them different priorities: --priority."
        yield warn(subject, text, remedy)
    for peer in peers.values():
        if peer.priority > priority and peer not in alive:
            ended = f"ended at {format_time(peer.deadline)}, and pauses nobody any more"
            text = f"{peer.identity} (priority {peer.priority}) {ended}"
            yield note(subject, text, f"To remove its record: {resume} {peer.identity}")
    for identity, why in problems.items():
        yield note(subject, f"the record of {identity} is ignored: {why}")
    if not bosses and len(equals) < 2:
        yield approve(subject, f"nobody pauses an operator of priority {priority}")


async def check_finalizers(visit: Visit) -> list[Finding]:
    """Find objects that cannot go because of the finalizer, of custom and of handled kinds."""
    finalizer, options = visit.settings.persistence.finalizer, visit.options
    handled = {
        resource
        for handler in options.handlers
        for resource in (handler.selector.select(visit.resources) if handler.selector else ())
    }
    custom = {
        resource
        for resource in visit.resources
        if resource.preferred and "." in resource.group and not resource.group.endswith(".k8s.io")
    }
    kinds = [resource for resource in (*custom, *handled) if "list" in resource.verbs]
    search = await find_held(visit.client, kinds, options.namespaces, finalizer)
    stuck: dict[Resource, list[Held]] = {}
    for one in search.held:
        is_orphan = options.registry is not None and one.resource not in handled
        if one.deleted_at and (is_orphan or visit.now - one.deleted_at > _TOO_LONG):
            stuck.setdefault(one.resource, []).append(one)
    findings = []
    for resource, held in stuck.items():
        kind, oldest = held[0].kind, held[0].deleted_at or visit.now
        age = describe_seconds((visit.now - oldest).total_seconds())
        names = join_names((one.path for one in held), 3)
        text = f"being deleted for {age}, held by {finalizer}: {names}"
        if options.registry is None:
            advice = "Start the operator; if there is none any more"
        elif resource in handled:
            advice = "See the log of the operator: it handles the deletion. To give up"
        else:
            text += "; no handler in these files is for this kind"
            advice = "If no other operator handles it"
        where = " ".join(f"-n {name}" for name in options.namespaces) or "-A"
        findings.append(warn(kind, text, f"{advice}: webop finalizers release {where} {kind}"))
    if search.problems:
        unknown = join_names(sorted(search.problems))
        findings.append(note("finalizers", f"this account may not list {unknown}"))
    return findings or [approve("finalizers", "no deletion waits for this operator")]
