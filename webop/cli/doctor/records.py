"""Check what replicas keep in the cluster: webhook configurations, Lease, peering, finalizers."""

from __future__ import annotations

import datetime as dt
import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from webop.admission.configurations.building import KINDS, build_configuration
from webop.admission.configurations.replica_agreement import ReplicaRecord, build_digest
from webop.admission.configurations.stored_configurations import (
    Configuration,
    find_managed,
    parse_configuration,
)
from webop.cli.doctor.check_context import Context, Json
from webop.cli.doctor.finalizer_removal import HeldObject, find_held
from webop.cli.doctor.findings import (
    Finding,
    approve,
    describe_seconds,
    fail,
    note,
    warn,
)
from webop.cli.doctor.shard_checks import check_sharers, measure_age
from webop.coordination import lease_content
from webop.coordination.peer_records import (
    build_creation_command,
    build_kinds,
    parse_peers,
    select_rivals,
)
from webop.coordination.timed_requests import LEASES
from webop.errors import APIForbiddenError
from webop.handlers.model import WebhookType
from webop.objects.names import join_names

_TOO_LONG = dt.timedelta(seconds=60)  # a deletion is stuck after that; handlers need some time

TAKE_OVER = (
    "If the replica that served them was killed, another one serves them after 180 s; or start one "
    "with --take-over."
)

_WAITING = {
    "HandlerFailed": "in the last hour, a handler failed and is not retried",
    "Misfit": "in the last hour, an object did not fit the model of its handlers",
}
_CORRECT = "If this is not fixed yet, correct the object or the operator. All of them:"
_UNMANAGED = "Set settings.admission.managed. If you wrote them yourself, use --managed NAME."

Found = dict[tuple[str, WebhookType], Configuration]  # by the name and the kind


def has_required(webhooks: Iterable[Json]) -> bool:
    """Return whether failing webhooks block requests (failurePolicy Fail, the default)."""
    return any(webhook.get("failurePolicy") != "Ignore" for webhook in webhooks)


async def find_configurations(context: Context) -> tuple[Found, list[Finding]]:
    """Return the webhook configurations of the operator, with findings; set ``context.names``."""
    subject, found, findings = "configurations", Found(), list[Finding]()
    if context.is_known and not context.registry.needs_webhook_server and not context.managed:
        return found, [note(subject, "none needed: these handlers have no webhooks")]
    try:
        named = [context.managed] if context.managed else await find_managed(context.client)
    except APIForbiddenError:
        remedy = "Name them with --managed NAME, as in settings.admission.managed."
        return found, [warn(subject, "this account is not allowed to list them", remedy)]
    context.names = list(named)
    if context.is_known and not context.managed:
        text = "webop does not register these webhooks: settings.admission.managed is not set"
        findings.append(warn(subject, text, _UNMANAGED))
    if not context.names:
        return found, findings or [warn(subject, "the cluster has none of webop", _UNMANAGED)]
    for name in context.names:
        try:
            both = {(name, kind): await _fetch(context, kind, name) for kind in KINDS}
        except APIForbiddenError as exc:
            remedy = "Use an account that may get or patch them, such as the operator's."
            findings.append(note(subject, f"{name}: {exc}", remedy))
            continue
        found |= both
        if all(one.version is None for one in both.values()):
            text = f"the webhook configurations {name} do not exist: no webhook is called"
            remedy = "Start the operator, or read its log. For another name: --managed NAME."
            findings.append((fail if context.managed else warn)("existence", text, remedy))
    if context.is_known and len(context.names) > 1:
        text = f"the cluster has several operators: {join_names(context.names)}"
        findings.append(warn("handlers", text, "Choose the one of these files: --managed NAME."))
    return found, findings


async def _fetch(context: Context, reason: WebhookType, name: str) -> Configuration:
    """Return a configuration; with an empty patch if the account may patch but not get it."""
    try:
        body = await context.read(KINDS[reason].get_url(name=name)) or None
    except APIForbiddenError:
        body = await context.client.patch(KINDS[reason], None, name, {})
    return parse_configuration(body)


def describe_replicas(records: Iterable[ReplicaRecord], now: dt.datetime) -> str:
    """Return replicas with the age of their records: a killed one has a live record for minutes."""
    ages = {one.identity: (now - dt.datetime.fromisoformat(one.renewed)) for one in records}
    return join_names(
        f"{identity} (renewed its record {describe_seconds(age.total_seconds())} ago)"
        for identity, age in sorted(ages.items())
    )


def _is_silent(record: ReplicaRecord, now: dt.datetime) -> bool:
    """Return whether a replica has missed a renewal of its record: one comes at least a minute."""
    two_renewals = min(record.lifetime * 2 / 3, 120.0)
    return not record.is_retired and not replace(record, lifetime=two_renewals).is_fresh(now)


def check_replicas(
    found: Mapping[WebhookType, Configuration], command: str, now: dt.datetime
) -> Iterator[Finding]:
    """Check that live replicas maintain the webhooks, and that all serve the same ones."""
    subject, remedy = "replicas", f"If the webhooks are no longer needed: {command}"
    webhooks = {kind: found[kind].webhooks for kind in found}
    everything = [webhook for several in webhooks.values() for webhook in several]
    noted, is_required = found[WebhookType.VALIDATING], has_required(everything)
    live = noted.list_live(now)
    effect = (
        "requests fail (failurePolicy Fail)"
        if is_required
        else "requests are not checked (failurePolicy Ignore)"
    )
    if not live and not everything:
        yield note(subject, "none, and no webhooks", f"To remove the configurations: {command}")
        return
    if not live:
        text = f"none: the operator does not run, or it did not write this configuration: {effect}"
        if renewed := max((one.renewed for one in noted.list_records()), default=None):
            last = dt.datetime.fromisoformat(renewed).astimezone(dt.UTC)
            age = describe_seconds((now - last).total_seconds())
            text = f"none has been alive since {last:%Y-%m-%d %H:%M:%S} UTC ({age} ago): {effect}"
        yield (fail if is_required else warn)(subject, text, f"Start the operator. {remedy}")
        return
    digests = {record.digest for record in live if not record.is_retired}
    is_changing = len(digests) > 1
    how = ", with different handlers: a rollout is in progress" if is_changing else ""
    text = f"{describe_replicas(live, now)}{how}"
    if silent := [one.identity for one in live if _is_silent(one, now)]:
        text = f"{text}; probably killed: {join_names(sorted(silent))}"
        yield warn(subject, text, TAKE_OVER)
    else:
        yield (note if is_changing else approve)(subject, text)
    places = sorted({record.place for record in live if not record.is_retired})
    if len(places) > 1:
        text = f"replicas at several addresses, API servers call the newest: {'; '.join(places)}"
        yield warn(subject, text, "Stop the replicas that have taken over (--take-over).")
    if digests and build_digest(webhooks) not in digests:
        text = "no live replica serves exactly the webhooks in force"
        remedy = "Wait a minute for the replicas to correct it. If they do not, read their logs."
        yield warn("orphans", text, remedy)


def check_handlers(
    context: Context, name: str, reason: WebhookType, found: Configuration
) -> Iterator[Finding]:
    """Compare the webhooks of the handlers with those in the configuration."""
    made = build_configuration(
        reason=reason,
        name=name,
        handlers=context.registry.select_webhooks(),
        resources=context.resources,
        client_config={"url": "https://localhost"},
    )
    expected = {webhook["name"] for webhook in made["webhooks"]}
    present = {webhook["name"] for webhook in found.webhooks}
    if missing := sorted(expected - present):
        text = f"never called, since they are not in the configuration: {join_names(missing)}"
        remedy = (
            "Start the operator with these files. If it runs, read its log for the reason. In a "
            "rollout, new webhooks wait until the last replica without them has retired."
        )
        yield fail("handlers", text, remedy)
    if unknown := sorted(present - expected):
        text = f"in the configuration, but not in these files: {join_names(unknown)}"
        remedy = "Name all files of the operator. Check that its replicas run this version."
        yield warn("handlers", text, remedy)


async def check_lease(context: Context) -> list[Finding]:
    """Check that a live replica holds the Lease, if the operator elects a leader."""
    leadership = context.settings.leadership
    if leadership.lease_name is None or leadership.sharded:
        return []
    where, name = leadership.lease_namespace or context.namespace, leadership.lease_name
    if sharers := await check_sharers(context, where, name):
        return sharers
    raw = await context.read(LEASES.get_url(namespace=where, name=name))
    return [judge_lease(f"Lease {where}/{name}", raw, context.now, context.replicas)]


def judge_lease(subject: str, raw: Json, now: dt.datetime, replicas: Collection[str]) -> Finding:
    """Return a finding about the holder of a Lease, which is empty if it does not exist. Pure.

    The replicas are those with a live record at the webhooks; empty if unknown.
    """
    record = lease_content.Record.parse(raw)
    if not record.holder:
        text = (
            "it has no holder: no replica leads"
            if raw
            else "it does not exist: no replica has led yet"
        )
        return warn(subject, text, "Start the operator, or read its log.")
    age = measure_age(record, now)
    if age > (record.duration or 0):
        since = f"has not renewed it for {describe_seconds(age)}"
        since = since if math.isfinite(age) else "has never renewed it"
        remedy = "Start the operator. If it runs, its log says why it cannot acquire the Lease."
        return fail(subject, f"{record.holder} {since}: no replica leads", remedy)
    if replicas and record.holder not in replicas:
        known = join_names(sorted(replicas))
        text = f"the holder {record.holder} has no record at the webhooks, as these have: {known}"
        remedy = (
            "If these were killed, it serves the webhooks after 180 s. If it is another operator, "
            "give each operator its own Lease: settings.leadership.lease_name."
        )
        return warn(subject, text, remedy)
    return approve(subject, f"{record.holder} holds it")


async def check_peering(context: Context) -> list[Finding]:
    """Check that the peering objects exist, and that no peer pauses the operator."""
    peering, findings = context.settings.peering, list[Finding]()
    if peering.standalone:
        return []
    subject, ours = f"peering {peering.name}", build_kinds(clusterwide=not context.namespaces)[0]
    for namespace in context.namespaces or (None,):
        paths = [one.get_url(namespace=namespace, name=peering.name) for one in context.peerings]
        found = [raw for path in paths if (raw := await context.read(path))]
        where = f"-n {namespace}" if namespace else "-A"
        resume = f"webop resume {where} --peering {peering.name}"
        for raw in found:
            findings += judge_peers(subject, raw, peering.priority, context.now, resume)
        if peering.mandatory and not found:
            remedy = build_creation_command(ours, namespace, peering.name)
            if not paths:
                remedy = f"kubectl apply -f manifests/peering.yaml (of webop), and {remedy}"
            text = f"it does not exist ({where}): the operator pauses"
            findings.append(fail(subject, text, remedy))
    return findings


def judge_peers(
    subject: str, raw: Json, priority: int, now: dt.datetime, resume: str
) -> Iterator[Finding]:
    """Yield findings about the records of a peering object, for an operator's priority. Pure."""
    peers, problems = parse_peers(raw.get("status"))
    for identity, why in problems.items():
        yield note(subject, f"ignored the record of {identity}: {why}")
    rivals = select_rivals(peers.values(), "", priority, now.timestamp())
    stronger = [peer for peer in rivals if peer.priority > priority]
    for peer in stronger:
        remedy = f"If it no longer runs: {resume} --id {shlex.quote(peer.identity)}"
        yield warn(subject, f"paused by {peer}", remedy)
    if not stronger and len(rivals) > 1:
        equals = join_names(peer.identity for peer in rivals)
        text = f"these pause each other, since all have the priority {priority}: {equals}"
        remedy = "Stop all but one, or give them different priorities (--priority)."
        yield warn(subject, text, remedy)
    elif not stronger:
        yield approve(subject, f"no peer pauses an operator with priority {priority}")


async def check_finalizers(context: Context) -> list[Finding]:
    """Find objects, of custom and of handled kinds, whose deletion the finalizer blocks."""
    finalizer = context.settings.persistence.finalizer
    custom = [one for one in context.resources if one.preferred and "." in one.group]
    kinds = [one for one in custom if not one.group.endswith(".k8s.io")]
    kinds = [one for one in (*kinds, *context.handled) if "list" in one.verbs]
    handled = context.handled if context.registry else kinds  # all, if the handlers are unknown
    search = await find_held(context.client, kinds, context.namespaces, finalizer)
    stuck: dict[str, list[HeldObject]] = {}
    for one in search.held:
        age = context.now - (one.deleted_at or context.now)
        if one.deleted_at and (age > _TOO_LONG or one.resource not in handled):
            stuck.setdefault(one.resource.plural_name, []).append(one)
    findings = []
    for kind, held in stuck.items():
        age = context.now - (held[0].deleted_at or context.now)
        names = join_names((one.path for one in held), 3)
        since = describe_seconds(age.total_seconds())
        text = f"being deleted for {since}, held by {finalizer}: {names}"
        if held[0].resource not in handled:
            text += "; these files have no handler for this kind"
        where = " ".join(f"-n {name}" for name in context.namespaces) or "-A"
        remedy = (
            "Start the operator, or read its log. If no operator handles it any more: "
            f"webop uninstall {where} --finalizer {shlex.quote(finalizer)} {kind}"
        )
        findings.append(warn(kind, text, remedy))
    forbidden = {one.plural for one, exc in search.problems if isinstance(exc, APIForbiddenError)}
    if forbidden:
        unknown = join_names(sorted(forbidden))
        findings.append(note("finalizers", f"this account is not allowed to list {unknown}"))
    for resource, exc in search.problems:
        if not isinstance(exc, APIForbiddenError):
            remedy = "The operator cannot list them, either: repair what the error names."
            findings.append(warn(resource.plural_name, f"unknown: {exc}", remedy))
    text = f"no deletion has waited for {finalizer} for more than a minute"
    return findings or [approve("finalizers", text)]


async def check_events(context: Context) -> list[Finding]:
    """Find handled objects that wait for a change: only their Events say so."""
    kinds = {(one.api_version, one.kind): one for one in context.handled}
    places = list(context.namespaces)
    if places and not all(one.namespaced for one in context.handled):
        places.append("default")  # has the Events of objects without a namespace
    findings: list[Finding] = []
    for reason, words in (_WAITING if kinds else {}).items():
        found: dict[str, dict[str, str]] = {}
        for where in [f"namespaces/{name}/" for name in places] or [""]:
            path, selector = f"/api/v1/{where}events", f"reason={reason}"
            events = await context.read(path, fieldSelector=selector, limit="500")
            for event in events.get("items", ()):
                about = event["involvedObject"]
                if one := kinds.get((about.get("apiVersion"), about.get("kind"))):
                    namespace = about.get("namespace") if one.namespaced else None
                    name = "/".join(filter(None, (namespace, about.get("name"))))
                    found.setdefault(one.plural_name, {})[name] = event.get("message") or ""
        for kind, texts in found.items():
            named = join_names((f"{name} ({text:.200})" for name, text in texts.items()), 3)
            remedy = f"{_CORRECT} kubectl get events -A --field-selector reason={reason}"
            findings.append(warn(kind, f"{words}: {named}", remedy))
    return findings
