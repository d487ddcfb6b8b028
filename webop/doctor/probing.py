"""Whether the API server can call the webhooks: dry runs make it call them.

A dry run goes all the way but for the store (Kubernetes API concepts: "Dry-run"). For each webhook,
find something that it is called for, an object or a place for one; send the request. The API server
names the webhook that has denied it, or could not be called. A webhook whose answer is required
must have given one if the request goes through.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import orjson

from webop.client.calls import JSON, MERGE_PATCH
from webop.doctor.findings import RENEW, Finding, approve, fail, note, warn
from webop.doctor.records import Record
from webop.doctor.visit import Json, Visit
from webop.errors import APIError, APIForbiddenError, APIStatusError
from webop.handling.handlers import WebhookType
from webop.objects.resources import Resource

_AT_ONCE = 4  # requests; a webhook that does not answer takes 30 s
_LOOKED_AT = "50"  # objects of a kind
_TRIED_TARGETS = 5  # kinds of objects for one webhook
_FORMS = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}
_TEXT_LIMIT = 250  # characters of a reason

_DENIED = re.compile(r'admission webhook "([^"]+)" denied the request')
_UNCALLED = re.compile(r'failed calling webhook "([^"]+)": (?:failed to call webhook: )?(.*)')
_REFUSING_USERNAME = re.compile(r'request\.userInfo\.username != ("(?:[^"\\]|\\.)*")')

LabelSelector = Mapping[str, Any] | None  # meta/v1; None and an empty one select everything
Attempt = tuple[str, str, Json, str]  # a dry run: the method, the path, the body, and what it is
# A resource, a subresource; whether a webhook is called for updates, and for creations.
Target = tuple[Resource, str | None, bool, bool]


class Outcome(enum.Enum):
    """How a dry run has ended; if it says nothing about webhooks, with what to do."""

    ALLOWED = enum.auto()
    DENIED = enum.auto()  # by a webhook
    UNCALLED = enum.auto()  # a webhook could not be called
    # By the schema, after mutating webhooks and before validating ones; by RBAC, before all.
    INVALID = "Create an object of this kind to try it on, and run the doctor again."
    FORBIDDEN = "Run the doctor with an account that may do this, or with --no-probe."
    OTHER = "Try the same by kubectl --dry-run=server, and see what the API server says."


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a dry run."""

    description: str
    outcome: Outcome
    culprit: str = ""
    reason: str = ""


# Reasons, what they mean, what to do; the first that is found counts. The texts are those of
# k8s.io/apiserver, and of Go's net, crypto/x509 and net/http; those of webop itself come first, as
# they can have the words of others in them.
_CAUSES = (
    (r"There is no webhook '|There are no webhooks for|Webhook '.*' is for ",
     "the operator does not serve this webhook",
     "Wait for the end of a rollout; else restart the operator, or correct the configuration."),
    (r"The review is too large", "the object is too large for the operator",
     "Raise settings.admission.max_body."),
    (r"did not answer within|has taken too long", "a handler takes too long",
     "See the log; make it faster, or raise timeout_seconds=."),
    (r"the limit \(settings\.admission\.max_", "the operator has too many reviews at once",
     "Find the handler that hangs in the log; or raise the limit, or the number of replicas."),
    (r"certificate has expired or is not", "the certificate has expired, or is not valid yet",
     "Renew it, or restart the operator if it made it; compare the clocks."),
    (r"certificate is (not )?valid for|IP SANs|Common Name", "the certificate is for another name",
     "Make one for <service>.<namespace>.svc, or for the host of the URL."),
    (r"x509:|failed to verify|unknown auth", "the caBundle does not trust the certificate", RENEW),
    (r"gave HTTP response to HTTPS|not look like a TLS", "what answers does not speak TLS",
     "Let the Service lead to the port of the webhook server."),
    (r"connection refused", "nobody listens there",
     "Start the operator; if it runs, compare its port with the targetPort or the URL."),
    (r"no endpoints available", "no pod behind the Service is ready",
     "See why: kubectl get pods, kubectl logs; and whether the selector of the Service fits."),
    (r"no service port", "the Service has no such port",
     "Add it, or correct service_port= of the webhook server."),
    (r"service \"[^\"]*\" not found", "the Service does not exist",
     "Create it, or correct service= and namespace= of the server."),
    (r"no such host", "the API server does not know the host",
     "Give one that it can resolve by host=, or use a Service."),
    (r"could not find the requested resource", "who answers does not know this webhook (404)",
     "Check that all replicas run the same version, and where the Service or the URL leads."),
    (r"deadline exceeded|timeout|no route to|unreachable", "it does not answer in time",
     "Let firewalls and NetworkPolicies pass the API server; see the log for slow handlers."),
    (r"connection reset|EOF|broken pipe", "the connection is cut",
     "See the log of the operator, and of what is in between."),
    (r"webhook response|get version/kind|unmarshal", "what answers is not an AdmissionReview",
     "Correct where the Service or the URL leads."),
    (r"an error on the server|^(?!Post )", "it answers with an error", "See the operator's log."),
    (r"", "it cannot be called", "See the operator's log."),
)  # fmt: skip


def read_answer(description: str, error: APIError | None) -> Answer:
    """Return how a dry run has ended, by the error that it has ended with, if any."""
    if error is None:
        return Answer(description, Outcome.ALLOWED)
    text = " ".join(str(error).split())
    if found := _UNCALLED.search(text):
        return Answer(description, Outcome.UNCALLED, found[1], found[2][:_TEXT_LIMIT])
    if found := _DENIED.search(text):
        return Answer(description, Outcome.DENIED, found[1])
    status = error.status if isinstance(error, APIStatusError) else 0
    outcome = {403: Outcome.FORBIDDEN, 422: Outcome.INVALID}.get(status, Outcome.OTHER)
    return Answer(description, outcome, reason=text[:_TEXT_LIMIT])


def classify(reason: str) -> tuple[str, str]:
    """Return why a webhook cannot be called, by the API server's words, and what to do."""
    found = (cause for cause in _CAUSES if re.search(cause[0], reason, re.IGNORECASE))
    return next(found)[1:]


def judge(
    record: Record, own: Answer | str, everything: Iterable[Answer], username: str | None
) -> Finding:
    """Say whether the API server can call a webhook: any answer can name it, its own or another."""
    name, about = record.name, [one for one in everything if one.culprit == record.name]
    if uncalled := [one for one in about if one.outcome is Outcome.UNCALLED]:
        what, remedy = classify(uncalled[0].reason)
        return fail(name, f"{what}: {uncalled[0].reason}", remedy)
    if about:
        return approve(name, f"reached: it has denied {about[0].description}")
    if isinstance(own, str):
        return note(name, f"not tried: {own}")
    what = own.description
    if own.outcome is Outcome.DENIED:
        return note(name, f"not tried: {own.culprit} has denied {what}")
    if own.outcome is Outcome.UNCALLED:
        text = f"unknown: {what} has failed at another webhook, {own.culprit}"
        return warn(name, text, "Repair that one first, and run the doctor again.")
    # The schema is checked between the mutating and the validating webhooks.
    is_late = own.outcome is Outcome.INVALID and record.reason is WebhookType.MUTATING
    if own.outcome is not Outcome.ALLOWED and not is_late:
        text = f"unknown: {what} failed before this check: {own.reason}"
        return warn(name, text, str(own.outcome.value))
    return _judge_passed(record, what, username)


def _judge_passed(record: Record, what: str, username: str | None) -> Finding:
    """Judge a webhook by a request that has gone through: was it called?"""
    if not record.is_required:
        return note(record.name, f"unknown: {what} passes anyway (failurePolicy Ignore)")
    for condition in record.webhook.get("matchConditions") or ():
        # Known to be fulfilled is only the one that exempts the operator.
        found = _REFUSING_USERNAME.fullmatch(condition.get("expression", ""))
        if not found or username is None or found[1] == f'"{username}"':
            text = f"unknown: {what} has passed, but matchConditions may have exempted it"
            return note(record.name, text)
    return approve(record.name, f"reached by {what}")


def _list_requirements(selector: LabelSelector) -> Iterator[tuple[str, str, list[str]]]:
    for key, value in ((selector or {}).get("matchLabels") or {}).items():
        yield key, "In", [value]
    for item in (selector or {}).get("matchExpressions") or ():
        yield item["key"], item["operator"], list(item.get("values") or ())


def build_query(selector: LabelSelector) -> str:
    """Return a selector as the ``labelSelector`` of a query."""
    needs = _list_requirements(selector)
    return ",".join(_FORMS[form].format(key, ",".join(values)) for key, form, values in needs)


def build_labels(selector: LabelSelector) -> dict[str, str]:
    """Return labels that a selector selects; for one that contradicts itself, just any."""
    needs = list(_list_requirements(selector))
    present = {key: "" for key, form, _ in needs if form == "Exists"}
    return present | {key: values[0] for key, form, values in needs if form == "In"}


def list_targets(record: Record, resources: Collection[Resource]) -> Iterator[Target]:
    """Return what a webhook can be tried with, of the resources of the cluster.

    Only main bodies and their status can: the operations on other subresources do something else.
    """
    for rule in record.webhook.get("rules") or ():
        groups, versions, operations = (
            set(rule.get(key) or ()) for key in ("apiGroups", "apiVersions", "operations")
        )
        updates, creates = (not operations.isdisjoint({"*", one}) for one in ("UPDATE", "CREATE"))
        chosen = [
            resource
            for resource in sorted(resources, key=lambda resource: resource.name)
            if {"list", "patch"} <= resource.verbs
            and not groups.isdisjoint({"*", resource.group})
            and not versions.isdisjoint({"*", resource.version})
            and rule.get("scope", "*") in ("*", "Namespaced" if resource.namespaced else "Cluster")
        ]
        for resource, name in product(chosen, rule.get("resources") or ()):
            plural, _, part = name.partition("/")
            is_there = not part or (part == "status" and part in resource.subresources)
            if (
                plural in ("*", resource.plural)
                and is_there
                and (updates or (creates and not part))
            ):
                yield resource, part or None, updates, creates and not part


def build_update(resource: Resource, subresource: str | None, body: Json) -> Attempt:
    """Return a change of an object that changes nothing but an annotation."""
    namespace, name = body["metadata"].get("namespace"), body["metadata"]["name"]
    path = resource.get_url(namespace=namespace, name=name, subresource=subresource)
    change: Json = {"metadata": {"annotations": {"webop.dev/doctor": "probe"}}}
    what = "/".join(filter(None, (resource.plural, subresource)))
    where = "/".join(filter(None, (namespace, name)))
    return "PATCH", path, change, f"an UPDATE of {what} {where}"


def build_creation(
    resource: Resource, namespace: str | None, selector: LabelSelector, model: Json | None
) -> Attempt:
    """Return a creation of an object, which resembles the model if there is one."""
    metadata = (model or {}).get("metadata") or {}
    labels = {**build_labels(selector), **(metadata.get("labels") or {})}
    annotations = metadata.get("annotations") or {}
    kept = {"generateName": "webop-doctor-", "labels": labels, "annotations": annotations}
    made = {key: value for key, value in (model or {}).items() if key != "status"}
    made |= {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": kept}
    where = f" in {namespace}" if namespace else ""
    path = resource.get_url(namespace=namespace)
    return "POST", path, made, f"a CREATE of {resource.plural}{where}"


async def probe(visit: Visit, records: Collection[Record]) -> list[Finding]:
    """Make the API server call webhooks, if that is wished; return a finding for each."""
    if not visit.is_probing:
        return []
    attempts = await asyncio.gather(*(_prepare(visit, record) for record in records))
    requests = {orjson.dumps(one): one for one in attempts if not isinstance(one, str)}
    gate = asyncio.Semaphore(_AT_ONCE)
    sent = await asyncio.gather(*(_send(visit, one, gate) for one in requests.values()))
    answers = dict(zip(requests, sent, strict=True))
    own = [one if isinstance(one, str) else answers[orjson.dumps(one)] for one in attempts]
    judged = zip(records, own, strict=True)
    return [judge(record, answer, sent, visit.username) for record, answer in judged]


async def _prepare(visit: Visit, record: Record) -> Attempt | str:
    """Return a request that a webhook is called for; or say why there is none."""
    if (effects := record.webhook.get("sideEffects")) not in ("None", "NoneOnDryRun"):
        return f"it may have side effects even in a dry run (sideEffects {effects})"
    places: list[str] | None = None  # the namespaces that it is called for; None for all
    if query := build_query(record.webhook.get("namespaceSelector")):
        try:
            found = await visit.read("/api/v1/namespaces", labelSelector=query) or {}
        except APIForbiddenError:
            return "its namespaces are unknown: this account may not list namespaces"
        places = [item["metadata"]["name"] for item in found.get("items") or ()]
    targets = list(list_targets(record, visit.resources))
    for target in targets[:_TRIED_TARGETS]:
        if attempt := await _build(visit, record, target, places):
            return attempt
    if names := ", ".join(dict.fromkeys(resource.plural for resource, *_ in targets)):
        return f"there is no object of {names} that it is called for, and no place for one"
    return "it is called only for what a dry run cannot try, or is not in the cluster"


async def _build(
    visit: Visit, record: Record, target: Target, places: list[str] | None
) -> Attempt | None:
    """Return what to send about a kind of objects; None if there is no way."""
    selector = record.webhook.get("objectSelector")
    resource, subresource, updates, creates = target
    found = await _find_object(visit, resource, selector, places)
    if found is not None and updates:
        return build_update(resource, subresource, found)
    if not creates or not resource.namespaced:
        return build_creation(resource, None, selector, found) if creates else None
    present = found["metadata"].get("namespace") if found else None
    for name in (present, *(visit.namespaces or (visit.namespace, *(places or ())))):
        if name and (places is None or name in places):
            return build_creation(resource, name, selector, found)
    return None


async def _find_object(
    visit: Visit, resource: Resource, selector: LabelSelector, places: list[str] | None
) -> Json | None:
    """Return an object that the webhook is called for, if there is one that can be read."""
    where: Iterable[str | None] = (None,)  # the whole cluster
    if resource.namespaced:
        where = visit.namespaces or (None, visit.namespace)
    query = {"limit": _LOOKED_AT, "labelSelector": build_query(selector)}
    for place in where:
        with contextlib.suppress(APIForbiddenError):
            answer: Json = await visit.read(resource.get_url(namespace=place), **query) or {}
            for item in answer.get("items") or ():
                namespace = item["metadata"].get("namespace")  # without, it is called always
                is_served = places is None or namespace is None or namespace in places
                if is_served and "deletionTimestamp" not in item["metadata"]:
                    return dict(item)
    return None


async def _send(visit: Visit, attempt: Attempt, gate: asyncio.Semaphore) -> Answer:
    method, path, body, what = attempt
    form, params = JSON if method == "POST" else MERGE_PATCH, {"dryRun": "All"}
    async with gate:
        try:
            await visit.client.request(method, path, params=params, body=body, content_type=form)
        except APIError as exc:
            return read_answer(what, exc)
    return read_answer(what, None)
