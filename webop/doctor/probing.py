"""Whether the API server can call the webhooks: dry runs make it call them.

A dry run goes all the way but for the store (Kubernetes API concepts: "Dry-run"). For each webhook,
find something that it is called for, an object or a place for one; send the request; judge what the
answer says about this webhook and others in :mod:`webop.doctor.evidence`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import orjson

from webop.client.calls import JSON, MERGE_PATCH
from webop.doctor.evidence import Answer, judge, read_answer
from webop.doctor.findings import Finding
from webop.doctor.records import Record
from webop.doctor.visit import Json, Visit
from webop.errors import APIError, APIForbiddenError
from webop.objects.resources import Resource

_AT_ONCE = 4  # requests; a webhook that does not answer takes 30 s
_LOOKED_AT = "50"  # objects of a kind
_TRIED_TARGETS = 5  # kinds of objects for one webhook
_FORMS = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}

LabelSelector = Mapping[str, Any] | None  # meta/v1; None and an empty one select everything

Attempt = tuple[str, str, Json, str]
"""A dry run: the method, the path, the body, and what it is."""

Target = tuple[Resource, str | None, bool, bool]
"""A resource, a subresource; whether a webhook is called for updates, and for creations."""


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
        operations = set(rule.get("operations") or ())
        updates, creates = (not operations.isdisjoint({"*", one}) for one in ("UPDATE", "CREATE"))
        for name in rule.get("resources") or ():
            plural, _, subresource = name.partition("/")
            can_create = creates and not subresource
            if subresource not in ("", "status") or not (updates or can_create):
                continue
            for resource in sorted(resources, key=lambda resource: resource.name):
                is_known = not subresource or subresource in resource.subresources
                if is_known and plural in ("*", resource.plural) and _is_in_rule(rule, resource):
                    yield resource, subresource or None, updates, can_create


def _is_in_rule(rule: Json, resource: Resource) -> bool:
    scope = "Namespaced" if resource.namespaced else "Cluster"
    return (
        not {"*", resource.group}.isdisjoint(rule.get("apiGroups") or ())
        and not {"*", resource.version}.isdisjoint(rule.get("apiVersions") or ())
        and rule.get("scope", "*") in ("*", scope)
    )


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
    made = {
        **{key: value for key, value in (model or {}).items() if key != "status"},
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "generateName": "webop-doctor-",
            "labels": {**build_labels(selector), **(metadata.get("labels") or {})},
            "annotations": metadata.get("annotations") or {},
        },
    }
    where = f" in {namespace}" if namespace else ""
    path = resource.get_url(namespace=namespace)
    return "POST", path, made, f"a CREATE of {resource.plural}{where}"


async def probe(visit: Visit, records: Collection[Record]) -> list[Finding]:
    """Make the API server call webhooks, if that is wished; return a finding for each."""
    if not visit.options.is_probing:
        return []
    attempts = await asyncio.gather(*(_prepare(visit, record) for record in records))
    requests = {orjson.dumps(one): one for one in attempts if not isinstance(one, str)}
    gate = asyncio.Semaphore(_AT_ONCE)
    sent = await asyncio.gather(*(_send(visit, one, gate) for one in requests.values()))
    answers = dict(zip(requests, sent, strict=True))
    return [
        judge(
            record,
            one if isinstance(one, str) else answers[orjson.dumps(one)],
            sent,
            visit.username,
        )
        for record, one in zip(records, attempts, strict=True)
    ]


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
    for name in (present, *(visit.options.namespaces or (visit.namespace, *(places or ())))):
        if name and (places is None or name in places):
            return build_creation(resource, name, selector, found)
    return None


async def _find_object(
    visit: Visit, resource: Resource, selector: LabelSelector, places: list[str] | None
) -> Json | None:
    """Return an object that the webhook is called for, if there is one that can be read."""
    where: Iterable[str | None] = (None,)  # the whole cluster
    if resource.namespaced:
        where = visit.options.namespaces or (None, visit.namespace)
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
