"""The same handlers and objects, with the client for tests and with a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import webop
from tests.kit.managed_webhooks import Site, open_site
from tests.kit.operators import Json, Kind
from webop.client.api import Client
from webop.testing import AdmissionClient, AdmissionResult, LocalCluster

_KIND = Kind("conformance.webop.dev", "packets", "Packet", has_status=True)
# What differs from run to run, and what only a server that stores objects knows.
_OWN = ("uid", "creationTimestamp", "resourceVersion", "managedFields", "generation")


@pytest.fixture
async def site(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str
) -> AsyncIterator[Site]:
    await _KIND.define(client)
    async with open_site(webop_cluster, client, webop_namespace, _KIND) as opened:
        yield opened


class Recorder:
    """Handlers that take down what they are given; the same twice, for the two ways."""

    def __init__(self) -> None:
        self.registry = webop.OperatorRegistry()
        self.seen: list[Json] = []
        names: Any = (_KIND.group, "v1", _KIND.plural)
        mutate, validate = webop.on.mutate, webop.on.validate
        mutate(*names, id="first", registry=self.registry)(self.fill)
        mutate(*names, id="second", registry=self.registry)(self.count)
        validate(*names, id="check", registry=self.registry)(self.check)
        validate(*names, id="state", subresource="status", registry=self.registry)(self.check)

    def note(self, name: str, kwargs: Json) -> None:
        """Keep what should be alike."""
        if "sentinel" in (kwargs["name"] or ""):
            return
        keys = ("operation", "subresource", "dryrun", "namespace")
        bodies = {key: clean(kwargs[key]) for key in ("old", "new")}
        known = {key: bool(kwargs[key]) for key in ("name", "uid")}
        user = {key: kwargs["userinfo"].get(key) for key in ("username", "groups")}
        chosen = {key: kwargs[key] for key in keys}
        self.seen.append({"handler": name, **chosen, **bodies, "known": known, "user": user})

    def fill(self, patch: webop.Patch, **kwargs: Any) -> None:
        self.note("first", kwargs)
        patch.spec["steps"] = ["first"]
        patch.spec["gone"] = None
        patch.spec["a/b~c"] = 1
        patch.meta.labels["conformance.webop.dev/dry"] = "yes" if kwargs["dryrun"] else "no"

    def count(self, spec: webop.Spec, patch: webop.Patch, **kwargs: Any) -> None:
        self.note("second", {**kwargs, "spec": spec})
        patch.fns.append(lambda body: body["spec"]["steps"].append("second"))

    async def check(self, spec: webop.Spec, warnings: list[str], **kwargs: Any) -> None:
        self.note("check", {**kwargs, "spec": spec})
        warnings.append(f"{kwargs['operation']} of {len(spec)}")
        if spec.get("bad"):
            raise webop.AdmissionError(
                "It is bad.",
                code=422,
                reason="Invalid",
                causes=[webop.AdmissionCause("spec.bad", "Never.")],
            )


def clean(body: Any) -> Json | None:
    """Return an object without what cannot be alike."""
    if body is None:
        return None
    meta = {key: value for key, value in body["metadata"].items() if key not in _OWN}
    if "generateName" in meta and "name" in meta:
        meta["name"] = meta["generateName"]
    return {**body, "metadata": meta}


def compare(site: Site, answer: httpx.Response, result: AdmissionResult) -> None:
    """Compare what the user of either gets to know."""
    assert result.allowed is (answer.status_code < 300), (answer.text, result)
    warnings = [text.partition(' - "')[2][:-1] for text in answer.headers.get_list("warning")]
    assert result.warnings == warnings
    if result.allowed:
        if result.object is not None:
            assert clean(result.object) == clean(answer.json())
            assert set(_OWN[:2]) <= result.object["metadata"].keys()
        return
    status = answer.json()
    assert (result.code, result.reason) == (answer.status_code, status["reason"])
    name = f"{result.webhooks[-1]}.{site.name}"
    assert status["message"] == f'admission webhook "{name}" denied the request: {result.message}'
    causes = status["details"]["causes"]
    assert [(cause.field, cause.message) for cause in result.causes] == [
        (cause["field"], cause["message"]) for cause in causes
    ]


async def test_the_client_is_like_a_real_api_server(site: Site) -> None:
    real, tested = Recorder(), Recorder()
    namespace = site.objects.namespace
    path = _KIND.resource.get_url(namespace=namespace)
    head: Json = {"apiVersion": _KIND.resource.api_version, "kind": _KIND.kind}

    def build(spec: Json, **metadata: Any) -> Json:
        return {**head, "metadata": metadata, "spec": spec}

    async with AdmissionClient(tested.registry) as client, site.run(real.registry):
        await site.wait_for_names("check state", "first second")

        async def create(body: Json, *, dry_run: bool = False) -> None:
            query = "?dryRun=All" if dry_run else ""
            answer = await site.send("POST", f"{path}{query}", body)
            result = await client.create(body, namespace=namespace, dry_run=dry_run)
            compare(site, answer, result)

        await create(build({"gone": 1, "x": [1, {"y": None}]}, name="one"))
        await create(build({"bad": True}, name="two", labels={"a": "b"}))
        await create(build({}, name="dry"), dry_run=True)
        await create(build({"x": 1}, generateName="made-"))

        stored = await site.objects.get("one")
        changed = {**stored, "spec": {**stored["spec"], "x": 2, "gone": 3}}
        answer = await site.send("PUT", f"{path}/one", changed)
        compare(site, answer, await client.update(stored, changed))

        stored = answer.json()
        changed = {**stored, "status": {"phase": "Done"}}
        answer = await site.send("PUT", f"{path}/one/status", changed)
        compare(site, answer, await client.update(stored, changed, subresource="status"))

        stored = answer.json()
        changed = {**stored, "spec": {"bad": 1}}
        answer = await site.send("PUT", f"{path}/one", changed)
        compare(site, answer, await client.update(stored, changed))

        answer = await site.send("DELETE", f"{path}/one")
        compare(site, answer, await client.delete(stored))
    assert tested.seen == real.seen
    assert len(real.seen) > 15
