"""Admission webhooks: which of the webhook configurations decide about a write, and how.

Mutating ones are asked one after another, then the validating ones; mutating ones are not asked
again. The caller of :meth:`.Cluster.perform` makes the calls.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from webop.objects.label_selectors import Requirement, matches_labels

from .kinds import NAMESPACES, WEBHOOKS
from .messages import Json, Refusal
from .patches import apply_json_patch
from .store import Change, Store
from .targets import Target

Verdict = Json | Refusal | None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that is reviewed.

    Attributes:
        name: of the object; empty if webhooks are not told of it.
    """

    verb: str
    target: Target
    name: str
    options: Json
    is_dry: bool


class Review(dict[str, Any]):
    """An AdmissionReview to be sent (Kubernetes API, admission/v1).

    Attributes:
        webhook: to whom: the entry of the webhook configuration, with its clientConfig.
    """

    def __init__(self, webhook: Json, request: Json) -> None:
        super().__init__(apiVersion="admission.k8s.io/v1", kind="AdmissionReview", request=request)
        self.webhook = webhook


class Webhooks:
    """Which webhooks are called about an operation, and what becomes of their answers.

    Reviews come out of the steps of :meth:`.Cluster.perform`, so that the world can go on while a
    webhook thinks. The answer that is sent to the steps is an AdmissionReview, or a Refusal if the
    webhook could not be called; None admits the operation.
    """

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._known: dict[str, dict[str, Json]] | None = None

    def delay(self, later: Callable[[Callable[[], None]], None]) -> None:
        """Have changed webhook configurations in force some time later.

        Args:
            later: given a function, calls it then; functions in the order in which they came.
        """
        known = self._known = {
            resource: dict(self._store.tables[resource].objects) for resource in WEBHOOKS.values()
        }

        def note(change: Change) -> None:
            if (objects := known.get(change.resource)) is not None:
                later(lambda: take(objects, change))

        def take(objects: dict[str, Json], change: Change) -> None:
            objects.pop(change.key, None)
            if change.new is not None:
                objects[change.key] = change.new

        self._store.observers.append(note)

    def mutate(
        self,
        operation: Operation,
        old: Json | None,
        new: Json | None,
        fit: Callable[[Json], Json] = dict,
    ) -> Generator[Review, Verdict, Json | None]:
        """Ask the mutating webhooks one after another; return the changed object.

        Each sees what the one before has made of it; ``fit`` makes an object of a patched one.

        Raises:
            Refusal: the operation is denied.
        """
        for webhook in self._choose("Mutating", operation, old, new):
            if not _selects_object(webhook, old, new):
                continue
            response = yield from self._ask(webhook, operation, old, new)
            if response and response.get("patch") and new is not None:
                try:
                    patch = orjson.loads(base64.b64decode(response["patch"]))
                    new = fit(apply_json_patch(new, patch))
                except (ValueError, Refusal) as exc:
                    raise _fail(webhook, f"cannot apply its patch: {exc}") from exc
        return new

    def validate(
        self, operation: Operation, old: Json | None, new: Json | None
    ) -> Generator[Review, Verdict, None]:
        """Ask all validating webhooks, as kube-apiserver does at once; the first denial counts.

        Raises:
            Refusal: the operation is denied.
        """
        refusals = []
        for webhook in self._choose("Validating", operation, old, new):
            try:
                if _selects_object(webhook, old, new):
                    yield from self._ask(webhook, operation, old, new)
            except Refusal as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]

    def _choose(
        self, way: str, operation: Operation, old: Json | None, new: Json | None
    ) -> list[Json]:
        """Return the webhooks that are responsible, whatever the labels of the object."""
        resource = WEBHOOKS[way]
        objects = self._store.tables[resource].objects
        if self._known is not None:
            objects = self._known[resource]
        if not objects or operation.target.kind.resource in WEBHOOKS.values():
            return []
        labels = _get_namespace_labels(self._store, operation.target, old, new)
        return [
            webhook
            for name in sorted(objects)
            for webhook in objects[name].get("webhooks", ())
            if any(_concerns(rule, operation) for rule in webhook.get("rules", ()))
            and (labels is None or _matches_selector(webhook["namespaceSelector"], labels))
        ]

    def _ask(
        self, webhook: Json, operation: Operation, old: Json | None, new: Json | None
    ) -> Generator[Review, Verdict, Json | None]:
        """Return the response that allows it; None if there is none, and none is needed."""
        review = Review(webhook, _build_request(self._rng, operation, old, new))
        verdict = yield review
        if verdict is None:
            return None
        if isinstance(verdict, Refusal):
            problem = str(verdict)
        elif (response := verdict.get("response")) is None:
            problem = "the response is absent"
        elif response.get("uid") != review["request"]["uid"]:
            problem = f"expected response.uid={review['request']['uid']!r}"
        elif response.get("allowed"):
            return dict(response)
        else:
            raise _build_denial(webhook, response.get("status") or {})
        if webhook["failurePolicy"] == "Ignore":
            return None
        raise _fail(webhook, problem)


def _selects_object(webhook: Json, old: Json | None, new: Json | None) -> bool:
    states = [raw["metadata"].get("labels") or {} for raw in (old, new) if raw is not None]
    return any(_matches_selector(webhook["objectSelector"], labels) for labels in states)


def _get_namespace_labels(
    store: Store, target: Target, old: Json | None, new: Json | None
) -> dict[str, str] | None:
    """Return what namespace selectors are compared with; None for other objects of the cluster."""
    namespace: Json | None
    if target.kind.resource == NAMESPACES:
        namespace = new or old
    elif target.namespace:
        namespace = store.tables[NAMESPACES].objects.get(target.namespace)
    else:
        return None
    return (namespace or {"metadata": {}})["metadata"].get("labels") or {}


def _concerns(rule: Json, operation: Operation) -> bool:
    kind = operation.target.kind
    resources = {"*/*", kind.plural, "*"}
    if sub := operation.target.subresource:
        resources = {"*/*", f"{kind.plural}/{sub}", f"*/{sub}", f"{kind.plural}/*"}
    return (
        _has(rule, "operations", {"*", operation.verb})
        and _has(rule, "apiGroups", {"*", kind.group})
        and _has(rule, "apiVersions", {"*", kind.version})
        and _has(rule, "resources", resources)
        and rule["scope"] in {"*", "Namespaced" if kind.namespaced else "Cluster"}
    )


def _has(rule: Json, field: str, wanted: set[str]) -> bool:
    return not wanted.isdisjoint(rule.get(field) or ())


def _fail(webhook: Json, problem: str) -> Refusal:
    message = f'Internal error occurred: failed calling webhook "{webhook["name"]}": {problem}'
    return Refusal(500, "InternalError", message, {"causes": [{"message": problem}]})


def _build_denial(webhook: Json, status: Json) -> Refusal:
    """Return the answer to the user (the defaults are those of kube-apiserver)."""
    reason = status.get("message") or status.get("reason") or "without explanation"
    separator = " " if not (status.get("message") or status.get("reason")) else ": "
    message = f'admission webhook "{webhook["name"]}" denied the request{separator}{reason}'
    code = max(status.get("code") or 400, 400)
    return Refusal(code, status.get("reason") or "", message, status.get("details"))


def _build_request(
    rng: random.Random, operation: Operation, old: Json | None, new: Json | None
) -> Json:
    target, kind = operation.target, operation.target.kind
    named = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    resource = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    request: Json = {
        "uid": str(UUID(int=rng.getrandbits(128), version=4)),
        "kind": named,
        "resource": resource,
        "requestKind": named,
        "requestResource": resource,
        "operation": operation.verb,
        "userInfo": {"username": target.request.user, "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
        "dryRun": operation.is_dry,
        "options": {"apiVersion": "meta.k8s.io/v1", **operation.options},
    }
    if target.subresource:
        request["subResource"] = request["requestSubResource"] = target.subresource
    if operation.name:
        request["name"] = operation.name
    if target.namespace:
        request["namespace"] = target.namespace
    return request


def _matches_selector(selector: Json | None, labels: dict[str, str]) -> bool:
    """Tell whether labels match a LabelSelector (Kubernetes API, meta/v1)."""
    selector = selector or {}
    texts = (selector.get("matchLabels") or {}).items()
    wanted = [Requirement(key, frozenset({value})) for key, value in texts]
    for one in selector.get("matchExpressions") or ():
        values = frozenset(one["values"]) if one["operator"] in {"In", "NotIn"} else None
        wanted.append(Requirement(one["key"], values, one["operator"] in {"In", "Exists"}))
    return matches_labels(wanted, labels)
