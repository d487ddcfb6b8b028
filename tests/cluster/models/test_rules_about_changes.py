"""A comparison of definitions names each new rule that can refuse writes of stored objects."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.kit.operators import CRDS, Kind, Objects
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.errors import APIUnprocessableError
from webop.models.crd_comparison import compare

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("rule", "is_optional"),
    [
        ("self.replicas >= 3 || self.replicas > oldSelf.replicas", False),
        ("self.replicas >= 3 && self.name == oldSelf.name", False),
        ("self.replicas >= 3 && (!oldSelf.hasValue() || oldSelf.value().name == self.name)", True),
        ("!has(oldSelf.other) || self.replicas >= 3", False),
    ],
)
async def test_a_rule_with_old_self_that_makes_stored_values_invalid_is_named(
    client: Client, webop_namespace: str, rule: str, is_optional: bool
) -> None:
    kind = Kind(f"rules{abs(hash(rule)) % 10**8}.example.com", "rulers", "Ruler")
    old = kind.build_crd()
    text = {"type": "string"}
    fields = {"replicas": {"type": "integer"}, "name": text, "other": text}
    place = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    place["spec"] = {"type": "object", "properties": fields, "required": ["replicas", "name"]}
    new = copy.deepcopy(old)
    place = new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    more = {"optionalOldSelf": True} if is_optional else {}
    place["spec"]["x-kubernetes-validations"] = [{"rule": rule, **more}]
    await client.create(CRDS, None, old)
    try:
        await kind.wait_served(client)
        objects = Objects(client, kind, webop_namespace)
        await objects.create("stored", {"replicas": 1, "name": "a"})
        await client.patch(CRDS, None, kind.crd_name, {"spec": new["spec"]})

        async def is_refused() -> bool:  # what was allowed for the stored object before
            try:
                for other in ("x", "y"):
                    await objects.patch("stored", {"spec": {"other": other}})
            except APIUnprocessableError:
                return True
            return False

        await eventually(is_refused, "a refusal of a change of another field", 20)
    finally:
        await kind.undefine(client)
    assert compare(old, new) != []
