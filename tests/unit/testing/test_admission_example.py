"""The handlers of the example, tested as their author would do it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from webop.testing import AdmissionClient

Json = dict[str, Any]

_HANDLERS = (
    Path(__file__).parents[3] / "examples" / "ephemeral_volume_claims" / "handlers.py"
).resolve()


@pytest.fixture
def fresh_imports() -> Iterator[None]:
    """The example's modules are gone after the test, as are their folders."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in sys.modules.keys() - modules.keys():
        if str(_HANDLERS.parent) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
async def client(fresh_imports: None) -> AsyncIterator[AdmissionClient]:
    async with AdmissionClient(modules=[str(_HANDLERS)]) as connected:
        yield connected


def build_claim(size: object = None) -> Json:
    return {
        "apiVersion": "kopf.dev/v1",
        "kind": "EphemeralVolumeClaim",
        "metadata": {"name": "my-claim", "namespace": "default"},
        "spec": {} if size is None else {"size": size},
    }


async def test_a_claim_without_a_size_is_given_one(client: AdmissionClient) -> None:
    result = await client.create(build_claim())
    assert result.webhooks == ("default-size", "check-size")
    assert result.object is not None
    assert result.object["spec"] == {"size": "1G"}


async def test_a_doubtful_size_draws_a_warning(client: AdmissionClient) -> None:
    result = await client.create(build_claim("2Ti"), dry_run=True)
    assert result.allowed
    assert result.warnings == ["spec.size: '2Ti' is large. You pay for it until you delete it."]


@pytest.mark.parametrize("size", ["plenty", "0", "-5G"])
async def test_an_impossible_size_is_refused(client: AdmissionClient, size: str) -> None:
    result = await client.create(build_claim(size))
    assert result.webhooks == ("default-size", "check-size")
    assert (result.allowed, result.code) == (False, 422)


async def test_a_size_can_only_grow(client: AdmissionClient) -> None:
    assert (await client.update(build_claim("1G"), build_claim("2G"))).allowed
    result = await client.update(build_claim("2G"), build_claim("1G"))
    assert result.message == "spec.size: volumes can only grow, not shrink from 2G to 1G."
    kept = await client.update(build_claim("2G"), build_claim())
    assert kept.object is not None
    assert kept.object["spec"] == {"size": "2G"}


async def test_deletions_are_nobodys_business(client: AdmissionClient) -> None:
    assert (await client.delete(build_claim("1G"))).webhooks == ()
