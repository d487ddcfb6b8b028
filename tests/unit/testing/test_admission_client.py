"""The client of admission handlers: what users see of their handlers in tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import webop
from webop.errors import ReviewError
from webop.testing import AdmissionClient, review

Json = dict[str, Any]
NAMES = ("example.com", "v1", "parcels")


def build(spec: Json | None = None, **metadata: Any) -> Json:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Parcel",
        "metadata": {"name": "one", "namespace": "here", **metadata},
        "spec": spec or {},
    }


async def test_an_object_is_mutated_by_one_handler_after_another_and_then_validated() -> None:
    seen: list[Any] = []

    @webop.on.validate(*NAMES, id="check")
    def check(spec: webop.Spec, warnings: list[str], audit_annotations: Any, **_: Any) -> None:
        seen.append(("check", dict(spec)))
        warnings.append("Checked.")
        audit_annotations["seen"] = "yes"

    @webop.on.mutate(*NAMES, id="first")
    def first(spec: webop.Spec, patch: webop.Patch, warnings: list[str], **_: Any) -> None:
        seen.append(("first", dict(spec)))
        patch.spec["size"] = 1
        warnings.append("Filled in.")

    @webop.on.mutate(*NAMES, id="second")
    async def second(spec: webop.Spec, patch: webop.Patch, **_: Any) -> None:
        seen.append(("second", dict(spec)))
        patch.spec["size"] = spec["size"] + 1
        patch.meta.labels["a/b"] = "c"

    sent = build({"x": "y"})
    async with AdmissionClient() as client:
        result = await client.create(sent)
    assert seen == [
        ("first", {"x": "y"}),
        ("second", {"x": "y", "size": 1}),
        ("check", {"x": "y", "size": 2}),
    ]
    assert result.allowed
    assert result.webhooks == ("first", "second", "check")
    assert result.warnings == ["Filled in.", "Checked."]
    assert result.audit_annotations == {"seen": "yes"}
    assert result.patch[0] == {"op": "add", "path": "/spec/size", "value": 1}
    assert sorted(result.patch[1:], key=lambda operation: str(operation["path"])) == [
        {"op": "add", "path": "/metadata/labels", "value": {"a/b": "c"}},
        {"op": "replace", "path": "/spec/size", "value": 2},
    ]
    assert result.object is not None
    assert result.object["spec"] == {"x": "y", "size": 2}
    assert result.object["metadata"]["labels"] == {"a/b": "c"}
    assert sent == build({"x": "y"})
    assert result.raise_for_denial() is result


async def test_the_object_has_for_validation_what_api_servers_set() -> None:
    seen: list[Any] = []

    @webop.on.mutate(*NAMES, id="fill")
    @webop.on.validate(*NAMES, id="check")
    def check(name: str | None, uid: str | None, namespace: str, **_: Any) -> None:
        seen.append((name, uid, namespace))

    body = build(generateName="one-")
    del body["metadata"]["name"], body["metadata"]["namespace"]
    async with AdmissionClient() as client:
        result = await client.create(body, namespace="there")
    assert result.object is not None
    meta = result.object["metadata"]
    assert seen == [(None, None, "there"), (meta["name"], meta["uid"], "there")]
    assert meta["name"].startswith("one-")


async def test_one_handler_can_be_asked_alone() -> None:
    for name in ("a", "b"):
        webop.on.validate(*NAMES, id=name)(lambda **_: None)
    async with AdmissionClient() as client:
        assert (await client.create(build(), webhook="b")).webhooks == ("b",)
        with pytest.raises(ReviewError, match="There is no webhook 'c'; known: a, b") as caught:
            await client.create(build(), webhook="c")
        assert caught.value.status == 404
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
        with pytest.raises(ReviewError, match=r"Webhook 'b' is for .*, not for pods\.v1"):
            await client.create(pod, webhook="b")


async def test_a_function_that_mutates_and_validates_does_both() -> None:
    @webop.on.validate(*NAMES, id="fn")
    def check(spec: webop.Spec, **_: Any) -> None:
        if "x" not in spec:
            raise webop.AdmissionError("x is missing.")

    @webop.on.mutate(*NAMES, id="fn")
    def fill(patch: webop.Patch, **_: Any) -> None:
        patch.spec["x"] = 1

    async with AdmissionClient() as client:
        for options in ({}, {"webhook": "fn"}):
            result = await client.create(build(), **options)  # type: ignore[arg-type]
            assert result.allowed
            assert result.object is not None
            assert result.object["spec"] == {"x": 1}


async def test_reviews_can_be_sent_as_they_are() -> None:
    @webop.on.mutate(*NAMES, id="fill")
    def fill(patch: webop.Patch, **_: Any) -> None:
        patch.spec.update(x=1, gone=None)

    webop.on.validate(*NAMES, id="check")(lambda **_: None)
    async with AdmissionClient() as client:
        result = await client.send(review(build({"gone": 1})))
        assert result.webhooks == ("fill", "check")
        assert result.object == build({"x": 1})
        assert (await client.send(review(build()), "check")).webhooks == ("check",)
        with pytest.raises(ReviewError, match="kind must be 'AdmissionReview'") as caught:
            await client.send({"kind": "Other"})
        assert caught.value.status == 400


async def test_a_handler_that_takes_too_long_is_told_of() -> None:
    @webop.on.validate(*NAMES, id="check")
    async def check(**_: Any) -> None:
        await asyncio.Event().wait()

    async with AdmissionClient() as client:
        with pytest.raises(ReviewError, match="webhook check did not answer within") as caught:
            await client.create(build(), timeout=0.2)
    assert caught.value.status == 504


async def test_short_names_and_unusual_plurals_are_known_if_they_are_told() -> None:
    names: Json = {"kind": "Mouse", "shortcuts": frozenset({"mo"})}
    mice = webop.Resource("example.com", "v1", "mice", namespaced=True, **names)
    webop.on.validate("mo", id="check")(lambda **_: None)
    body = {"apiVersion": "example.com/v1", "kind": "Mouse", "metadata": {"name": "m"}}
    async with AdmissionClient() as client:
        assert (await client.create(body)).webhooks == ()
    async with AdmissionClient(resources=[mice]) as client:
        for options in ({}, {"resource": "mice"}, {"resource": mice}):
            assert (await client.create(body, **options)).webhooks == ("check",)


async def test_startup_and_cleanup_handlers_are_called_and_no_cluster_is_touched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    seen: list[str] = []

    def note(**_: Any) -> None:
        seen.append("called for nothing")

    @webop.on.startup()
    async def start(
        settings: webop.OperatorSettings, memo: webop.Memo, retry: int, **_: Any
    ) -> None:
        if retry == 0:
            raise webop.TemporaryError("Not yet.", delay=0)
        settings.admission.server = webop.WebhookServer(port=1)
        settings.admission.managed = "auto.webop.dev"
        settings.posting.enabled = False
        memo.started = True
        webop.on.validate(*NAMES, id="late")(lambda **_: None)
        seen.append("start")

    @webop.on.cleanup()
    def stop(memo: webop.Memo, **_: Any) -> None:
        seen.append(f"stop {memo.started}")

    @webop.on.validate(*NAMES, id="check")
    def check(memo: webop.Memo, by_name: webop.Index[Any, Any], **_: Any) -> None:
        seen.append(f"check {memo.started} {len(by_name)}")

    webop.on.login()(note)
    webop.on.create(*NAMES)(note)
    webop.on.event("pods")(note)
    webop.daemon("pods")(note)
    webop.index("pods", id="by_name")(note)
    settings = webop.OperatorSettings()
    async with AdmissionClient(settings=settings) as client:
        result = await client.create(build())
    assert result.webhooks == ("check", "late")
    assert seen == ["start", "check True 0", "stop True"]
    assert settings.posting.enabled is False
    assert settings.admission.server is None


async def test_a_startup_handler_that_fails_is_told_of() -> None:
    @webop.on.startup()
    def start(**_: Any) -> None:
        raise webop.PermanentError("Nothing works.")

    with pytest.raises(webop.WebopError, match=r"Nothing works\."):
        async with AdmissionClient():
            pass


@pytest.mark.parametrize("decorator", [webop.on.startup, webop.on.cleanup])
async def test_handlers_that_take_too_long_are_told_of(decorator: Any) -> None:
    async def wait(**_: Any) -> None:
        await asyncio.Event().wait()

    decorator()(wait)
    with pytest.raises(webop.WebopError, match=r"handlers did not finish in 0\.05 s"):
        async with AdmissionClient(timeout=0.05):
            pass


HANDLERS = """
import webop

@webop.on.mutate("parcels", id="from-file")
def fill(patch, **_):
    patch.spec["filled"] = True
"""


async def test_files_are_loaded_for_one_client_only(
    default_registry: webop.OperatorRegistry, tmp_path: Path
) -> None:
    file = tmp_path / "kit_handlers.py"
    file.write_text(HANDLERS)
    for _ in range(2):
        async with AdmissionClient(modules=[str(file)]) as client:
            assert (await client.create(build())).webhooks == ("from-file",)
    async with AdmissionClient() as client:
        assert (await client.create(build())).webhooks == ()
    assert webop.get_default_registry() is default_registry
    assert len(default_registry) == 0


async def test_modules_are_imported_as_by_the_test_itself(
    default_registry: webop.OperatorRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kit_module.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(2):
        async with AdmissionClient(modules=["kit_module"]) as client:
            assert (await client.create(build())).webhooks == ("from-file",)
    assert len(default_registry) == 1


async def test_a_client_is_used_within_its_block() -> None:
    client = AdmissionClient()
    with pytest.raises(webop.WebopError, match=r"does not run\. Use it within `async with"):
        await client.create(build())
    async with client:
        await client.create(build())
        with pytest.raises(webop.WebopError, match="runs already"):
            await client.__aenter__()
    with pytest.raises(webop.WebopError, match="does not run"):
        await client.send(review(build()))
    async with client:
        await client.create(build())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.create("x"), "An object must be a mapping"),
        (lambda client: client.update(build(), None), "both states"),
        (lambda client: client.create(build(), user=5), "user= must be a name, or a mapping"),
        (lambda client: client.create(build(), groups="dev"), "groups= must be a list of names"),
    ],
)
async def test_wrong_arguments_of_a_request_are_told_of_with_what_is_expected(
    call: Callable[[Any], Any], message: str
) -> None:
    async with AdmissionClient() as client:
        with pytest.raises(TypeError, match=message):
            await call(client)


async def test_a_handler_that_ignores_its_cancellation_is_late() -> None:
    @webop.on.validate(*NAMES)
    async def check(**_: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    async with AdmissionClient() as client:
        with pytest.raises(ReviewError, match=r"did not answer within 0\.15 s") as error:
            await client.create(build(), timeout=0.2)
    assert error.value.status == 504


async def test_handlers_get_the_headers_that_each_client_sends() -> None:
    seen: list[str] = []

    @webop.on.validate(*NAMES)
    def check(headers: webop.Headers, **_: Any) -> None:
        seen.extend(headers[name] for name in ("Host", "Accept", "Content-Type", "X-Test"))

    async with AdmissionClient() as client:
        await client.create(build(), headers={"x-test": "1"})
    assert seen == ["webop", "application/json, */*", "application/json", "1"]
