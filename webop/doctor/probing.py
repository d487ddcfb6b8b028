"""Whether the API server can call the webhooks: it is let try, by dry runs.

A dry run goes all the way but for the store (Kubernetes API concepts: "Dry-run").

Flow: for each webhook, something that it is asked about is looked for, an object or a place for
one; the request is sent; what the answer tells about this webhook and others is judged in
:mod:`webop.doctor.evidence`. All but :class:`Probing` is pure.

Label selectors are those of the Kubernetes API, meta/v1 LabelSelector. None and an empty one
select everything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from webop.client.calls import JSON, MERGE_PATCH
from webop.doctor.evidence import Answer, judge, read_answer
from webop.doctor.findings import Finding
from webop.doctor.records import Json, Record
from webop.doctor.visit import Visit
from webop.errors import APIError, APIForbiddenError
from webop.objects.resources import Resource

_AT_ONCE = 4  # requests; a webhook that does not answer takes 30 s
_LOOKED_AT = 50  # objects of a kind
_TRIED_TARGETS = 5  # kinds of objects for one webhook
_NAME_LABEL = "kubernetes.io/metadata.name"

ANNOTATION = "webop.dev/doctor"

LabelSelector = Mapping[str, Any] | None


def build_query(selector: LabelSelector) -> str:
    """Return a selector as the ``labelSelector`` of a query."""
    forms = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}
    return ",".join(
        forms[operator].format(key, ",".join(values))
        for key, operator, values in _list_requirements(selector)
    )


def build_labels(selector: LabelSelector) -> dict[str, str]:
    """Return labels that a selector selects; for one that contradicts itself, just any."""
    wanted = {}
    for key, operator, values in _list_requirements(selector):
        if operator == "In":
            wanted[key] = values[0]
        elif operator == "Exists":
            wanted.setdefault(key, "")
    return wanted


def matches_labels(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Tell whether labels are selected."""
    for key, operator, values in _list_requirements(selector):
        value = labels.get(key)
        is_in = value in values if operator in ("In", "NotIn") else value is not None
        if is_in is not (operator in ("In", "Exists")):
            return False
    return True


def _list_requirements(selector: LabelSelector) -> Iterator[tuple[str, str, list[str]]]:
    for key, value in ((selector or {}).get("matchLabels") or {}).items():
        yield key, "In", [value]
    for item in (selector or {}).get("matchExpressions") or ():
        yield item["key"], item["operator"], list(item.get("values") or ())


@dataclass(frozen=True, slots=True)
class Target:
    """Something that a webhook is asked about, and in which operations."""

    resource: Resource
    operations: frozenset[str]
    subresource: str | None = None

    def __str__(self) -> str:
        suffix = f"/{self.subresource}" if self.subresource else ""
        return f"{self.resource.plural}{suffix}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request to be made as a dry run."""

    method: str
    path: str
    body: Json
    content_type: str
    description: str


def list_targets(record: Record, resources: Collection[Resource]) -> Iterator[Target]:
    """Return what a webhook can be tried with, of the resources of the cluster.

    Only main bodies and their status can: the operations on other subresources do something else.
    """
    for rule in record.webhook.get("rules") or ():
        operations = set(rule.get("operations") or ())
        wanted = {"CREATE", "UPDATE"} if "*" in operations else operations & {"CREATE", "UPDATE"}
        for name in rule.get("resources") or ():
            plural, _, subresource = name.partition("/")
            if subresource not in ("", "status") or not wanted:
                continue
            for resource in _select(rule, plural, resources):
                if not subresource or subresource in resource.subresources:
                    yield Target(resource, frozenset(wanted), subresource or None)


def explain_impossible(record: Record) -> str:
    """Say why a webhook must not be tried; empty if it may be."""
    side_effects = record.webhook.get("sideEffects")
    if side_effects in ("None", "NoneOnDryRun"):
        return ""
    return f"it may have side effects even in a dry run (sideEffects {side_effects})"


def build_update(target: Target, body: Json) -> Attempt:
    """Return a change of an object that changes nothing but an annotation."""
    metadata = body["metadata"]
    namespace, name = metadata.get("namespace"), metadata["name"]
    return Attempt(
        "PATCH",
        target.resource.get_url(namespace=namespace, name=name, subresource=target.subresource),
        {"metadata": {"annotations": {ANNOTATION: "probe"}}},
        MERGE_PATCH,
        f"an UPDATE of {target} {'/'.join(filter(None, (namespace, name)))}",
    )


def build_creation(
    target: Target, namespace: str | None, selector: Json | None, model: Json | None
) -> Attempt:
    """Return a creation of an object."""
    resource = target.resource
    kept: Json = {} if model is None else model
    metadata = kept.get("metadata") or {}  # all but these two are of its own
    labels = {**build_labels(selector), **(metadata.get("labels") or {})}
    body: dict[str, Any] = {
        **{key: value for key, value in kept.items() if key != "status"},
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "generateName": "webop-doctor-",
            "labels": labels,
            "annotations": metadata.get("annotations") or {},
        },
    }
    where = f" in {namespace}" if namespace else ""
    path = resource.get_url(namespace=namespace)
    return Attempt("POST", path, body, JSON, f"a CREATE of {target}{where}")


def _select(rule: Json, plural: str, resources: Iterable[Resource]) -> list[Resource]:
    """Return the resources that a rule is for, in order of their names."""

    def contains(key: str, value: str) -> bool:
        return not {"*", value}.isdisjoint(rule.get(key) or ())

    excluded = {"Namespaced": False, "Cluster": True}.get(rule.get("scope", "*"))
    found = [
        resource
        for resource in resources
        if contains("apiGroups", resource.group)
        and contains("apiVersions", resource.version)
        and plural in ("*", resource.plural)
        and (excluded is None or resource.namespaced is not excluded)
    ]
    return sorted(found, key=lambda resource: resource.name)


class Probing:
    """Attempts to let the API server call webhooks, with what they have told."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._sent: dict[tuple[str, str, bytes], asyncio.Task[Answer]] = {}
        self._own: dict[tuple[str, str], Answer | str] = {}
        self._namespaces: dict[str, dict[str, str]] = {}  # their labels, if they may be read

    async def run(self, records: Iterable[Record]) -> None:
        """Try all webhooks."""
        with contextlib.suppress(APIForbiddenError):
            listed = await self._visit.read("/api/v1/namespaces") or {}
            metadata = [item["metadata"] for item in listed.get("items") or ()]
            self._namespaces = {item["name"]: item.get("labels") or {} for item in metadata}
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
        if reason := explain_impossible(record):
            return reason
        targets = list(list_targets(record, self._visit.resources))
        for target in targets[:_TRIED_TARGETS]:
            attempt = await self._build(record, target)
            if attempt is not None:
                key = attempt.method, attempt.path, orjson.dumps(attempt.body)
                if key not in self._sent:  # each request only once
                    self._sent[key] = asyncio.ensure_future(self._send(attempt))
                return await self._sent[key]
        if targets:
            names = ", ".join(dict.fromkeys(map(str, targets)))
            return f"there is nothing to try it on: an object of {names} that it is asked about"
        return "it is asked only about what a dry run cannot try, or is not in the cluster"

    async def _build(self, record: Record, target: Target) -> Attempt | None:
        """Return what to send about a kind of objects; None if there is no way."""
        found = await self._find_object(record, target)
        if found is not None and "UPDATE" in target.operations:
            return build_update(target, found)
        if "CREATE" not in target.operations or target.subresource:
            return None
        namespace = self._choose_namespace(record, found) if target.resource.namespaced else None
        if target.resource.namespaced and namespace is None:
            return None
        return build_creation(target, namespace, record.webhook.get("objectSelector"), found)

    async def _find_object(self, record: Record, target: Target) -> Json | None:
        """Return an object that the webhook is asked about, if there is one that can be read."""
        query = build_query(record.webhook.get("objectSelector"))
        params = {"limit": str(_LOOKED_AT), **({"labelSelector": query} if query else {})}
        places: Sequence[str | None] = [None]  # the whole cluster
        if target.resource.namespaced:
            places = self._visit.options.namespaces or (None, self._visit.namespace)
        for place in places:
            try:
                answer = await self._visit.read(target.resource.get_url(namespace=place), params)
            except APIForbiddenError:
                continue
            for item in (answer or {}).get("items") or ():
                metadata = item["metadata"]
                namespace = metadata.get("namespace")
                if "deletionTimestamp" not in metadata and self._is_served(record, namespace):
                    found: Json = item
                    return found
        return None

    def _choose_namespace(self, record: Record, found: Json | None) -> str | None:
        """Return a namespace whose objects the webhook is asked about."""
        visit = self._visit
        present = "" if found is None else found["metadata"].get("namespace", "")
        others = (visit.namespace, "default", *self._namespaces)
        candidates = (present, *(visit.options.namespaces or others))
        served = (name for name in candidates if name and self._is_served(record, name))
        return next(served, None)

    def _is_served(self, record: Record, namespace: str | None) -> bool:
        """Tell whether the webhook is asked about a namespace, or about what belongs to none."""
        if namespace is None:
            return True
        labels = self._namespaces.get(namespace, {_NAME_LABEL: namespace})
        return matches_labels(record.webhook.get("namespaceSelector"), labels)

    async def _send(self, attempt: Attempt) -> Answer:
        error: APIError | None = None
        async with self._gate:
            try:
                await self._visit.ask(
                    attempt.method,
                    attempt.path,
                    attempt.body,
                    content_type=attempt.content_type,
                    is_dry=True,
                )
            except APIError as exc:
                error = exc
        return read_answer(attempt.description, error)
