"""Both at work at once, on the same objects, each with a prefix of its own."""

from __future__ import annotations

import pytest

from tests.kit.operators import Json, get_annotations
from tests.kopf.relay import KOPF, WEBOP, Relay

PREFIXES = {1: "one.example.com", 2: "two.example.com"}


def is_handled_by_both(body: Json) -> bool:
    annotations = get_annotations(body)
    version = f'"x":{body["spec"]["x"]}'
    return all(
        version in annotations.get(f"{prefix}/last-handled-configuration", "")
        for prefix in PREFIXES.values()
    )


@pytest.mark.feature("CFG-66", "D-61")
async def test_two_operators_with_their_own_prefixes_do_not_wake_each_other(relay: Relay) -> None:
    relay.write(f"""
PREFIX = {PREFIXES}[TURN]

@kopf.on.startup()
def configure(settings, **_):
    settings.persistence.finalizer = PREFIX + '/finalizer'
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=PREFIX)

@kopf.on.create(KIND)
@kopf.on.update(KIND)
@kopf.on.delete(KIND)
def handler(reason, retry, **kwargs):
    note(reason, kwargs)
    if not retry:
        raise kopf.TemporaryError('once more', delay=0.3)
""")
    async with relay.run(KOPF), relay.run(WEBOP):
        await relay.objects.create("one", {"x": 1})
        await relay.objects.wait("one", is_handled_by_both)
        await relay.objects.patch("one", {"spec": {"x": 2}})
        body = await relay.objects.wait("one", is_handled_by_both)
        await relay.objects.create("two", {"x": 1})  # another one's time is time to wake up in
        await relay.objects.wait("two", is_handled_by_both)
        assert (await relay.objects.get("one"))["metadata"] == body["metadata"]
        await relay.objects.remove("one")

    annotations = get_annotations(body)
    assert set(annotations) == {
        f"{prefix}/{name}"
        for prefix in PREFIXES.values()
        for name in ("last-handled-configuration", "kopf-managed")
    }
    expected = ["create", "create", "delete", "delete", "update", "update"]
    for turn in PREFIXES:
        assert relay.list_handlers("one", turn) == expected
