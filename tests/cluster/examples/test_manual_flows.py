"""The examples of the manual, with shorter times.

``test_demo.py`` tests the tutorial with webhooks; here are its handlers without them.
"""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.operators import Objects, RunOperator
from webop.client.api import Client
from webop.errors import APINotFoundError
from webop.objects.resources import Resource

CLAIMS = Resource("", "v1", "persistentvolumeclaims", kind="PersistentVolumeClaim", namespaced=True)


def build_claim(name: str, size: str) -> dict[str, Any]:
    """Return a volume claim; the cluster of the test does not bind it."""
    resources = {"requests": {"storage": size}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources},
    }


def declare_tutorial(registry: webop.OperatorRegistry, client: Client) -> None:
    """Declare the handlers of the tutorial: a volume claim for each object."""

    @webop.on.create("widgets", registry=registry, id="create_fn")  # as it is called at the top
    async def create_fn(
        spec: webop.Spec, name: str, namespace: str, **_: Any
    ) -> dict[str, str] | None:
        if name.startswith("fence"):
            return None
        size = spec.get("size")
        if not size:
            raise webop.PermanentError(f"There must be a size, not {size!r}.")
        claim = build_claim(name, size)
        webop.adopt(claim)
        created = await client.create(CLAIMS, namespace, claim)
        return {"pvc-name": created["metadata"]["name"]}

    @webop.on.update("widgets", registry=registry, field="spec.size")
    async def update_fn(new: str, status: webop.Status, namespace: str, **_: Any) -> None:
        patch = {"metadata": {"annotations": {"wanted-size": new}}}  # unbound claims do not grow
        await client.patch(CLAIMS, namespace, status["create_fn"]["pvc-name"], patch)

    @webop.on.update("widgets", registry=registry, field="metadata.labels")
    async def relabel(diff: webop.Diff, status: webop.Status, namespace: str, **_: Any) -> None:
        labels = {field[0]: new for _op, field, _old, new in diff}
        patch = {"metadata": {"labels": labels}}
        await client.patch(CLAIMS, namespace, status["create_fn"]["pvc-name"], patch)


@pytest.mark.feature("TRB-04", "TRB-05", "RST-01", "HIE-03", "EVT-16", "D-33")
async def test_the_tutorial_works_from_the_creation_to_the_owner_reference(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects, client: Client
) -> None:
    declare_tutorial(registry, client)

    async def get_claim() -> dict[str, Any]:
        return await client.get(CLAIMS, objects.namespace, "my-claim")

    async with run_operator():
        await objects.create("my-claim", {"size": "1G"}, labels={"application": "some-app"})
        body = await objects.wait_handled("my-claim")
        assert body["status"]["create_fn"] == {"pvc-name": "my-claim"}
        claim = await get_claim()
        assert claim["spec"]["resources"]["requests"] == {"storage": "1G"}
        assert claim["metadata"]["labels"] == {"application": "some-app"}
        (owner,) = claim["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Widget", body["metadata"]["uid"])

        own = {"metadata": {"labels": {"of-others": "kept"}}}
        await client.patch(CLAIMS, objects.namespace, "my-claim", own)
        labels = {"application": None, "owner": "me"}
        await objects.patch("my-claim", {"metadata": {"labels": labels}, "spec": {"size": "2G"}})
        await objects.wait_handled("my-claim")
        await objects.pass_fence()
    claim = await get_claim()
    assert claim["metadata"]["labels"] == {"owner": "me", "of-others": "kept"}
    assert claim["metadata"]["annotations"] == {"wanted-size": "2G"}


@pytest.mark.feature("TRB-04", "ERR-04")
async def test_an_object_of_the_tutorial_without_a_size_gets_no_claim(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    client: Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    declare_tutorial(registry, client)
    async with run_operator():
        await objects.create("my-claim")
        body = await objects.wait_handled("my-claim")
    assert not body.get("status")
    with pytest.raises(APINotFoundError):
        await client.get(CLAIMS, objects.namespace, "my-claim")
    assert "There must be a size, not None." in caplog.text
