"""Filters of changes beside Kopf: who is called for what, and which states are stored."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.operators import DIFFBASE, Json, Kind, Objects, define_kinds, get_annotations
from tests.kopf.relay import KOPF, WEBOP, Relay
from webop.client.api import Client

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

CRITERIA: list[Json] = [
    {},
    *({"value": value} for value in ("A", "PRESENT", "ABSENT", "is_a")),
    *(
        {"old": old, "new": new}
        for old, new in itertools.product(
            (None, "A", "PRESENT", "ABSENT"), (None, "B", "PRESENT", "ABSENT")
        )
        if old or new
    ),
    {"old": "is_a", "new": "is_b"},
]

# Left out is what the text decides otherwise: a value callback gets None for what is absent, and
# on.field without any filter is for all objects (here, all have labels).
COMBINATIONS: dict[str, Json] = {
    f"c{number}": {"decorator": decorator, **criteria}
    for number, (decorator, criteria) in enumerate(
        itertools.product(("update", "field"), CRITERIA), start=1
    )
}

HISTORIES: dict[str, tuple[Json, Json]] = {
    "edited": ({"field": "A"}, {"field": "B"}),
    "added": ({}, {"field": "B"}),
    "removed": ({"field": "A"}, {"field": None}),
    "aside": ({"field": "A"}, {"other": 1}),
    "elsewhere": ({}, {"other": 1}),
}

HANDLERS = f"""
NAMED = {{
    'PRESENT': kopf.PRESENT,
    'ABSENT': kopf.ABSENT,
    'is_a': lambda value, **_: value == 'A',
    'is_b': lambda value, **_: value == 'B',
}}

def declare(key, decorator, **criteria):
    @getattr(kopf.on, decorator)(
        KIND,
        id=key,
        field='spec.field',
        labels={{'combination': key}},
        **{{name: NAMED.get(value, value) for name, value in criteria.items()}},
    )
    async def handler(reason, **kwargs):
        note(reason, kwargs)

for key, options in {COMBINATIONS!r}.items():
    declare(key, **options)
"""


@pytest.fixture(scope="session")
def kinds(webop_cluster: LocalCluster) -> dict[str, Kind]:
    sides = (KOPF, WEBOP)
    made = [Kind(f"{side}.webop.dev", f"{side}things", f"{side.title()}Thing") for side in sides]
    return dict(zip(sides, define_kinds(webop_cluster, made), strict=True))


async def settle(relay: Relay) -> dict[str, Json]:
    """Wait until the objects do not change while others are handled; return them by names."""
    objects = relay.objects
    before: Any = None
    while True:
        await relay.pass_fence()
        url = objects.resource.get_url(namespace=objects.namespace)
        found = await objects.client.request("GET", url, params={"labelSelector": "combination"})
        if found["items"] == before:
            return {body["metadata"]["name"]: body for body in found["items"]}
        before = found["items"]


async def play(relay: Relay, side: str) -> dict[str, tuple[list[Any], Any]]:
    """Play all histories for all handlers; return the calls and the stored spec by objects."""
    played = {f"{key}-{history}": (key, history) for key in COMBINATIONS for history in HISTORIES}
    relay.write(HANDLERS)
    async with relay.run(side):
        for name, (key, history) in played.items():
            spec = HISTORIES[history][0]
            await relay.objects.create(name, spec, labels={"combination": key})
        await settle(relay)
        for name, (_, history) in played.items():
            await relay.objects.patch(name, {"spec": HISTORIES[history][1]})
        bodies = await settle(relay)
    calls: dict[str, list[Any]] = {}
    for call in relay.read_calls():
        told = (call["handler"], call["old"], call["new"], call["diff"])
        calls.setdefault(call["name"], []).append(told)
    return {
        f"{COMBINATIONS[key]} {history}": (
            calls.get(name, []),
            json.loads(get_annotations(bodies[name]).get(DIFFBASE, "{}")).get("spec"),
        )
        for name, (key, history) in played.items()
    }


@pytest.mark.feature("FLT-08", "FLT-09", "FLT-10", "FLT-12", "FLT-13", "FLT-14", "FLT-15", "FLT-25")
async def test_the_same_handlers_are_called_for_the_same_changes_of_a_field(
    relay: Relay, kinds: dict[str, Kind], client: Client, webop_namespace: str
) -> None:
    sides = {}
    for side, kind in kinds.items():
        folder = relay.folder / side
        folder.mkdir()
        objects = Objects(client, kind, webop_namespace)
        sides[side] = Relay(folder, relay.kubeconfig, objects)
    by_kopf, by_webop = await asyncio.gather(*(play(sides[s], s) for s in (KOPF, WEBOP)))
    assert by_webop == by_kopf
    edited = by_webop["{'decorator': 'field', 'old': 'A', 'new': 'B'} edited"]
    assert edited == ([("update", "A", "B", [["change", [], "A", "B"]])], {"field": "B"})
