"""Whether the API server can call the webhooks: dry runs make it call them.

A dry run goes all the way but for the store (Kubernetes API concepts: "Dry-run").

Flow: for each webhook, find something that it is called for, an object or a place for one; send
the request; judge what the answer says about this webhook and others in
:mod:`webop.doctor.evidence`.
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


def build_query(selector: LabelSelector) -> str:
    """Return a selector as the ``labelSelector`` of a query."""
    requirements = _list_requirements(selector)
    return ",".join(
        _FORMS[form].format(key, ",".join(values)) for key, form, values in requirements
    )


def build_labels(selector: LabelSelector) -> dict[str, str]:
    """Return labels that a selector selects; for one that contradicts itself, just any."""
    wanted = {}
    for key, form, values in _list_requirements(selector):
        if form == "In":
            wanted[key] = values[0]
        elif form == "Exists":
            wanted.setdefault(key, "")
    return wanted


def _list_requirements(selector: LabelSelector) -> Iterator[tuple[str, str, list[str]]]:
    for key, value in ((selector or {}).get("matchLabels") or {}).items():
        yield key, "In", [value]
    for item in (selector or {}).get("matchExpressions") or ():
        yield item["key"], item["operator"], list(item.get("values") or ())


Attempt = tuple[str, str, Json, str]
"""A dry run: the method, the path, the body, and what it is."""

Target = tuple[Resource, str | None, bool, bool]
"""A resource, a subresource; whether a webhook is called for updates, and for creations."""


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
    excluded = {"Namespaced": False, "Cluster": True}.get(rule.get("scope", "*"))
    return (
        not {"*", resource.group}.isdisjoint(rule.get("apiGroups") or ())
        and not {"*", resource.version}.isdisjoint(rule.get("apiVersions") or ())
        and (excluded is None or resource.namespaced is not excluded)
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
    kept: Json = {key: value for key, value in (model or {}).items() if key != "status"}
    metadata = kept.get("metadata") or {}
    labels = {**build_labels(selector), **(metadata.get("labels") or {})}
    annotations = metadata.get("annotations") or {}
    kept["metadata"] = {
        "generateName": "webop-doctor-", "labels": labels, "annotations": annotations,
    }  # fmt: skip
    kept |= {"apiVersion": resource.api_version, "kind": resource.kind}
    where = f" in {namespace}" if namespace else ""
    path = resource.get_url(namespace=namespace)
    return "POST", path, kept, f"a CREATE of {resource.plural}{where}"


class Probing:
    """Attempts to make the API server call webhooks, with the answers."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._sent: dict[bytes, asyncio.Task[Answer]] = {}
        self._own: dict[tuple[str, str], Answer | str] = {}

    async def run(self, records: Iterable[Record]) -> None:
        """Try all webhooks."""
        chosen = list(records)
        # All are waited for: they share what they send.
        answers = await asyncio.gather(*map(self._try, chosen), return_exceptions=True)
        for record, answer in zip(chosen, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            self._own[record.reason, record.name] = answer

    def judge(self, records: Iterable[Record]) -> Iterator[Finding]:
        """Yield what is known of webhooks that have been tried."""
        everything = [answer for answer in self._own.values() if isinstance(answer, Answer)]
        for record in records:
            own = self._own[record.reason, record.name]
            yield judge(record, own, everything, self._visit.username)

    async def _try(self, record: Record) -> Answer | str:
        """Send a request that a webhook is called for; or say why there is none."""
        if (effects := record.webhook.get("sideEffects")) not in ("None", "NoneOnDryRun"):
            return f"it may have side effects even in a dry run (sideEffects {effects})"
        try:
            places = await self._list_places(record)
        except APIForbiddenError:
            return "its namespaces are unknown: this account may not list namespaces"
        targets = list(list_targets(record, self._visit.resources))
        for target in targets[:_TRIED_TARGETS]:
            attempt = await self._build(record, target, places)
            if attempt is not None:
                key = orjson.dumps(attempt)
                if key not in self._sent:  # each request only once
                    self._sent[key] = asyncio.ensure_future(self._send(attempt))
                return await self._sent[key]
        names = ", ".join(dict.fromkeys(resource.plural for resource, *_ in targets))
        if names:
            return f"there is no object of {names} that it is called for, and no place for one"
        return "it is called only for what a dry run cannot try, or is not in the cluster"

    async def _list_places(self, record: Record) -> list[str] | None:
        """Return the namespaces that a webhook is called for; None for all."""
        query = build_query(record.webhook.get("namespaceSelector"))
        if not query:
            return None
        found = await self._visit.read("/api/v1/namespaces", labelSelector=query) or {}
        return [item["metadata"]["name"] for item in found.get("items") or ()]

    async def _build(
        self, record: Record, target: Target, places: list[str] | None
    ) -> Attempt | None:
        """Return what to send about a kind of objects; None if there is no way."""
        visit, selector = self._visit, record.webhook.get("objectSelector")
        resource, subresource, updates, creates = target
        found = await self._find_object(resource, selector, places)
        if found is not None and updates:
            return build_update(resource, subresource, found)
        if not creates:
            return None
        present = found["metadata"].get("namespace") if found else None
        others = visit.options.namespaces or (visit.namespace, *(places or ()))
        served = (name for name in (present, *others) if name and name in (places or [name]))
        namespace = next(served, None) if resource.namespaced else None
        if resource.namespaced and namespace is None:
            return None
        return build_creation(resource, namespace, selector, found)

    async def _find_object(
        self, resource: Resource, selector: LabelSelector, places: list[str] | None
    ) -> Json | None:
        """Return an object that the webhook is called for, if there is one that can be read."""
        where: tuple[str | None, ...] = (None,)  # the whole cluster
        if resource.namespaced:
            where = self._visit.options.namespaces or (None, self._visit.namespace)
        query = {"limit": _LOOKED_AT, "labelSelector": build_query(selector)}
        for place in where:
            with contextlib.suppress(APIForbiddenError):
                answer = await self._visit.read(resource.get_url(namespace=place), **query)
                for item in (answer or {}).get("items") or ():
                    namespace = item["metadata"].get("namespace")  # without, it is called always
                    is_served = places is None or namespace is None or namespace in places
                    if is_served and "deletionTimestamp" not in item["metadata"]:
                        found: Json = item
                        return found
        return None

    async def _send(self, attempt: Attempt) -> Answer:
        method, path, body, description = attempt
        content_type, params = JSON if method == "POST" else MERGE_PATCH, {"dryRun": "All"}
        request = self._visit.client.request
        async with self._gate:
            try:
                await request(method, path, params=params, body=body, content_type=content_type)
            except APIError as exc:
                return read_answer(description, exc)
        return read_answer(description, None)
