"""What the framework itself has to say about an object carries the object's reference."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import webop
from tests.kit.operators import Kind, Objects, RunOperator
from webop.client.api import Client


@pytest.mark.feature("LOG-03", "LOG-10")
async def test_troubles_with_an_object_are_told_with_its_reference(
    client: Client,
    gizmos: Kind,
    run_operator: RunOperator,
    webop_namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    objects = Objects(client, gizmos, webop_namespace)

    @webop.on.create(gizmos.group, "v1", gizmos.plural)
    def spoil(patch: webop.Patch, **_: Any) -> None:
        patch.spec["odd"] = {1, 2}

    @webop.on.create(gizmos.group, "v1", gizmos.plural)
    def lose(**_: Any) -> str:
        return "for a status that the schema does not know"

    with caplog.at_level(logging.WARNING, logger="webop.reactor"):
        async with run_operator():
            created = await objects.create("one")
            await objects.wait_handled("one")
    told = [record for record in caplog.records if record.name.startswith("webop.reactor")]
    words = ("that JSON cannot represent", "Patching failed with inconsistencies")
    assert all(any(word in record.getMessage() for record in told) for word in words)
    reference = {
        "apiVersion": gizmos.resource.api_version,
        "kind": "Gizmo",
        "name": "one",
        "uid": created["metadata"]["uid"],
        "namespace": webop_namespace,
    }
    assert all(getattr(record, "k8s_ref", None) == reference for record in told)
