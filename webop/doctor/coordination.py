"""Who acts, and who waits for nobody: the Lease, the peering, objects held by the finalizer."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Collection, Iterator

from webop.coordination.lease import Record
from webop.coordination.peers import build_creation_command, build_kinds, format_time, parse_peers
from webop.coordination.requests import LEASES
from webop.doctor.findings import (
    Finding,
    approve,
    describe_names,
    describe_seconds,
    fail,
    note,
    warn,
)
from webop.doctor.visit import Json, Visit
from webop.errors import APIForbiddenError
from webop.finalizers import Held, find_held
from webop.objects.resources import Resource

_TOO_LONG = dt.timedelta(seconds=60)  # of a deletion; handlers need some time


async def check_lease(visit: Visit, replicas: Collection[str]) -> Finding | None:
    """Check that a live replica holds the Lease, if the operator has one.

    Args:
        visit: what is known.
        replicas: the identities of those that are alive; empty if that is unknown.
    """
    leadership = visit.settings.leadership
    if leadership.lease_name is None:
        return None
    where, name = leadership.lease_namespace or visit.namespace, leadership.lease_name
    subject = f"Lease {where}/{name}"
    try:
        raw = await visit.read(LEASES.get_url(namespace=where, name=name))
    except APIForbiddenError as exc:
        return note(subject, f"unknown: {exc}")
    if raw is None:
        return warn(subject, "there is none: no replica has led yet", "Start the operator.")
    return judge_lease(subject, Record.parse(raw), visit.now, replicas)


def judge_lease(
    subject: str, record: Record, now: dt.datetime, replicas: Collection[str]
) -> Finding:
    """Judge who holds a Lease. Pure."""
    if not record.holder:
        return warn(subject, "nobody holds it: nobody acts", "Start the operator, or see its log.")
    try:
        age = (now - dt.datetime.fromisoformat(record.renewed_at)).total_seconds()
        since = f"has not renewed it for {describe_seconds(age)}"
    except (ValueError, TypeError):
        age, since = float("inf"), "has never renewed it"
    if age > (record.duration or 0):
        text = f"{record.holder} {since}: nobody acts"
        remedy = "Start the operator; if it runs, its log says why it cannot take the Lease."
        return fail(subject, text, remedy)
    if replicas and record.holder not in replicas:
        known = describe_names(sorted(replicas))
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
    subject = f"peering {peering.name}"
    kind = next((kind for kind in kinds if kind in visit.resources), None)
    if kind is None and peering.mandatory:
        remedy = "kubectl apply -f manifests/peering.yaml, from webop's repository."
        return [fail(subject, "the cluster has no kind for it: the operator pauses", remedy)]
    findings: list[Finding] = []
    for namespace in (namespaces or (None,)) if kind else ():
        assert kind is not None  # noqa: S101 - for the type checker
        try:
            raw = await visit.read(kind.get_url(namespace=namespace, name=peering.name))
        except APIForbiddenError as exc:
            findings.append(note(subject, f"unknown: {exc}"))
            continue
        place = f" in {namespace}" if namespace else ""
        if raw is not None:
            option = f"-n {namespace}" if namespace else "-A"
            resume = f"webop resume {option} --peering {peering.name} --id"
            findings += judge_peers(subject, raw, peering.priority, visit.now.timestamp(), resume)
        elif peering.mandatory:
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
        text = f"all pause each other, as they have the priority {priority}: "
        remedy = "Stop all but one, or give them different priorities: --priority."
        yield warn(subject, text + describe_names(equals), remedy)
    for peer in peers.values():
        if peer.priority > priority and peer not in alive:
            ended = f"ended at {format_time(peer.deadline)}, and pauses nobody any more"
            text = f"{peer.identity} (priority {peer.priority}) {ended}"
            remedy = f"To remove its record: {resume} {shlex.quote(peer.identity)}"
            yield note(subject, text, remedy)
    for identity, why in problems.items():
        yield note(subject, f"the record of {identity} is ignored: {why}")
    if not bosses and len(equals) < 2:
        yield approve(subject, f"nobody pauses an operator of priority {priority}")


async def check_finalizers(visit: Visit) -> list[Finding]:
    """Find objects that cannot go because of the finalizer, of custom and of handled kinds."""
    finalizer = visit.settings.persistence.finalizer
    handled = {
        resource
        for handler in visit.options.handlers
        for resource in (handler.selector.select(visit.resources) if handler.selector else ())
    }
    custom = {
        resource
        for resource in visit.resources
        if resource.preferred and "." in resource.group and not resource.group.endswith(".k8s.io")
    }
    kinds = [resource for resource in (*custom, *handled) if "list" in resource.verbs]
    search = await find_held(visit.client, kinds, visit.options.namespaces, finalizer)
    stuck: dict[Resource, list[Held]] = {}
    for one in search.held:
        is_orphan = visit.options.registry is not None and one.resource not in handled
        if one.deleted_at and (is_orphan or visit.now - one.deleted_at > _TOO_LONG):
            stuck.setdefault(one.resource, []).append(one)
    findings = [
        _describe_stuck(visit, held, finalizer, is_handled=resource in handled)
        for resource, held in stuck.items()
    ]
    if search.problems:
        kinds_unknown = describe_names(sorted(search.problems))
        findings.append(note("finalizers", f"this account may not list {kinds_unknown}"))
    return findings or [approve("finalizers", "no deletion waits for this operator")]


def _describe_stuck(visit: Visit, held: list[Held], finalizer: str, *, is_handled: bool) -> Finding:
    kind, oldest = held[0].kind, held[0].deleted_at or visit.now
    age = describe_seconds((visit.now - oldest).total_seconds())
    names = describe_names((one.path for one in held), 3)
    text = f"being deleted for {age}, held by {finalizer}: {names}"
    where = " ".join(f"-n {name}" for name in visit.options.namespaces) or "-A"
    release = f"webop finalizers release {where} {kind}"
    if visit.options.registry is None:
        return warn(kind, text, f"Start the operator; if there is none any more: {release}")
    if is_handled:
        remedy = f"See the log of the operator: it handles the deletion. To give up: {release}"
        return warn(kind, text, remedy)
    text += "; no handler in these files is for this kind"
    return warn(kind, text, f"If no other operator handles it: {release}")
