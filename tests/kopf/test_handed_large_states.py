"""States that do not fit into an annotation as plain text."""

from __future__ import annotations

import base64
import random

import pytest

from tests.kit.operators import DIFFBASE, get_annotations
from tests.kopf.relay import KOPF, WEBOP, Relay

KIB = 1024
HANDLERS = """
@kopf.on.create(KIND, labels={'relay': kopf.ABSENT})
@kopf.on.update(KIND, labels={'relay': kopf.ABSENT})
def handler(old, reason, **kwargs):
    size = None if old is None else len(old.get('spec', {}))
    note('handler', {**kwargs, 'reason': reason, 'old': size, 'new': None, 'diff': None})
"""


@pytest.mark.feature("CON-02", "CFG-38", "CFG-65")
async def test_a_compressed_state_is_plain_again_when_kopf_has_handled_it(relay: Relay) -> None:
    relay.write(HANDLERS)
    spec = {"x": "ж" * 70 * KIB}
    async with relay.run(WEBOP) as command:
        body = await relay.objects.make("one", spec, annotations={"applied": "ж" * 55 * KIB})
        assert "zlib" in get_annotations(body)[DIFFBASE]
        await command.stop()
    async with relay.run(WEBOP) as command:
        await relay.pass_fence()
        body = await relay.objects.change("one", {"spec": {"y": 1}})
        assert "zlib" in get_annotations(body)[DIFFBASE]
        await command.stop()
    (call,) = relay.read_calls("one", turn=2)
    assert (call["reason"], call["old"]) == ("update", 1)

    smaller = {"metadata": {"annotations": {"applied": None}}, "spec": {"x": "y"}}
    await relay.objects.patch("one", smaller)
    async with relay.run(KOPF) as command:
        body = await relay.objects.wait_handled("one")
        await relay.pass_fence()
        await command.stop()
    (call,) = relay.read_calls("one", turn=3)
    assert (call["reason"], call["old"]) == ("update", 0)
    assert set(get_annotations(body)) == {DIFFBASE}

    async with relay.run(WEBOP):
        await relay.pass_fence()
    assert not relay.read_calls("one", turn=4)
    assert await relay.objects.get("one") == body


@pytest.mark.feature("CON-02", "CON-04", "CON-05", "CFG-38")
async def test_a_state_of_which_there_is_only_a_digest_is_handled_once(relay: Relay) -> None:
    relay.write(HANDLERS)
    noise = base64.b85encode(random.Random(1).randbytes(240 * KIB)).decode()
    async with relay.run(WEBOP) as command:
        await relay.objects.create("one", {"x": noise})
        body = await relay.objects.wait(
            "one", lambda body: "sha256" in get_annotations(body).get(DIFFBASE, "")
        )
        await relay.pass_fence()
        await command.stop()
    assert "Only its digest is stored" in command.output
    async with relay.run(WEBOP) as command:
        await relay.pass_fence()
        assert await relay.objects.get("one") == body
        await relay.objects.patch("one", {"spec": {"y": 1}})
        body = await relay.objects.wait(
            "one", lambda other: get_annotations(other)[DIFFBASE] != get_annotations(body)[DIFFBASE]
        )
        await command.stop()
    async with relay.run(WEBOP):
        await relay.pass_fence()
        await relay.objects.change("one", {"spec": {"x": "small"}})
        await relay.objects.change("one", {"spec": {"x": "other"}})

    calls = [(c["turn"], c["reason"], c["old"]) for c in relay.read_calls("one")]
    assert calls == [(1, "create", None), (2, "update", 0), (3, "update", 0), (3, "update", 2)]
