"""The two configurations that replicas share, written by several of them in between each other."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from tests.admission.planning import NOW, Actor, Cluster, build_webhook
from webop.admission.managed.replica_records import ReplicaRecord
from webop.admission.managed.replicas import Configuration, Plan, plan_exit
from webop.admission.managed.shared_configurations import SharedConfigurations
from webop.errors import APIConflictError
from webop.handling.handlers import WebhookType

Json = dict[str, Any]


class TwoConfigurations:
    """What the client of an API server with the two configurations does; others come in between."""

    def __init__(self) -> None:
        self.clusters = {kind: Cluster() for kind in WebhookType}
        self.before_read: dict[WebhookType, list[Callable[[], None]]] = {}

    async def patch(self, resource: Any, _: None, name: str, patch: Json) -> Json | None:
        is_validating = resource.plural.startswith("validating")
        kind = WebhookType.VALIDATING if is_validating else WebhookType.MUTATING
        if not patch and self.before_read.get(kind):
            self.before_read[kind].pop(0)()
        body = self.clusters[kind].body
        if body is None or not patch:
            return body
        if patch["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise APIConflictError("it has changed", status=409)
        self.clusters[kind].merge(patch)
        return body


async def test_the_last_two_that_exit_in_between_each_other_leave_nothing() -> None:
    both = TwoConfigurations()
    validating, mutating = (both.clusters[kind] for kind in WebhookType)
    one = {kind: Actor(both.clusters[kind], "one", build_webhook("x")) for kind in WebhookType}
    two = {kind: Actor(both.clusters[kind], "two", build_webhook("x")) for kind in WebhookType}
    for kind in WebhookType:
        one[kind].look()
        two[kind].look()
    one[WebhookType.VALIDATING].leave()  # and is about to leave the other one

    def leave_with_two() -> None:
        two[WebhookType.VALIDATING].elsewhere = mutating.find().records
        two[WebhookType.VALIDATING].leave()
        two[WebhookType.MUTATING].leave()

    # One of them has read the first configuration by now, and not the second one.
    both.before_read[WebhookType.MUTATING] = [leave_with_two]

    def decide(
        kind: WebhookType, found: Configuration, others: Mapping[str, ReplicaRecord]
    ) -> Plan:
        return plan_exit(found, others, one[kind].key, one[kind].persistent_names)

    shared = SharedConfigurations(both, "x")  # type: ignore[arg-type]
    await shared.settle(decide, NOW + dt.timedelta(seconds=10))
    assert (validating.names, mutating.names) == ("", "")
    assert not validating.find().records
    assert not mutating.find().records
