"""Children of several operators: each keeps its own, and notices another one of its name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import webop
from tests.cluster.reconcilers.conftest import Builder, Maps, build_map
from tests.cluster.reconcilers.test_children import has
from tests.kit.operators import Json, Objects, RunOperator, build_settings, is_no_fence, operate
from tests.kit.waiting import eventually


@contextlib.asynccontextmanager
async def run_named(
    info: webop.ConnectionInfo, objects: Objects, name: str, fn: Any, **options: Any
) -> AsyncIterator[None]:
    """Run an operator of a name with a reconciler, which others can have, too."""
    registry = webop.OperatorRegistry()
    options = {"owns": ["configmaps"], "id": "build", "when": is_no_fence, **options}
    webop.reconcile("widgets", registry=registry, **options)(fn)
    settings = build_settings(operator={"name": name})
    scope: Json = {"namespaces": [objects.namespace], "beside": True}
    async with operate(info, registry, settings, **scope):
        yield


@pytest.mark.parametrize("names", [("shop", "stock"), ("team", "team")], ids=["two", "one"])
async def test_two_operators_with_one_function_name_do_not_delete_each_others_children(
    info: webop.ConnectionInfo,
    objects: Objects,
    maps: Maps,
    caplog: pytest.LogCaptureFixture,
    names: tuple[str, str],
) -> None:
    """If they have one name, too, they notice each other and stop pruning."""

    def own(number: int) -> Any:
        async def build(name: str, spec: webop.Spec, children: webop.Children, **_: Any) -> None:
            await children.apply(build_map(f"{name}-{number}", {"text": spec["text"]}))
            await children.prune()

        return build

    is_one = names[0] == names[1]
    async with (
        run_named(info, objects, names[0], own(0)),
        run_named(info, objects, names[1], own(1)),
    ):
        await objects.create("site", {"text": "1"})
        if is_one:
            text = "Another operator has the name 'team', too"
            await eventually(lambda: caplog.text.count(text) == 2)
        made = [await maps.wait(f"site-{number}", has("1")) or {} for number in range(2)]
        for text in "234":
            await objects.patch("site", {"spec": {"text": text}})
            for one in made:
                now = await maps.wait(one["metadata"]["name"], has(text)) or {}
                assert now["metadata"]["uid"] == one["metadata"]["uid"]
    assert made[0]["metadata"]["labels"]["webop.dev/operator"] == names[0]
    assert caplog.text.count("Another operator") == 2 * is_one
    assert caplog.text.count("(field managers: team.build.") == 2 * is_one


async def test_a_child_of_another_operator_is_refused_with_its_name_until_one_continues_as_it(
    builder: Builder,
    info: webop.ConnectionInfo,
    objects: Objects,
    maps: Maps,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await objects.create("site", {"pages": {"home": "1"}})
    async with run_named(info, objects, "shop", builder.build):
        await maps.wait("site-home", bool)
    async with run_named(info, objects, "stock", builder.build):
        await builder.until_called("site", "failed")
    assert "it is the child of another operator, 'shop'" in caplog.text
    assert "set settings.operator.name = 'shop'" in caplog.text
    await objects.patch("site", {"spec": {"pages": {"home": None, "news": "2"}}})
    async with run_named(info, objects, "shop", builder.build):
        await maps.wait("site-home", lambda found: found is None)


async def test_a_child_that_another_reconciler_of_the_operator_applies_is_refused_with_its_id(
    objects: Objects, maps: Maps, info: webop.ConnectionInfo, caplog: pytest.LogCaptureFixture
) -> None:
    registry = webop.OperatorRegistry()
    for name in ("make", "build"):
        builder = Builder()
        options: Json = {"registry": registry, "id": name, "when": is_no_fence}
        webop.reconcile("widgets", owns=["configmaps"], **options)(builder.build)
    async with operate(info, registry, namespaces=[objects.namespace]):
        await objects.create("site", {"pages": {"home": "1"}})
        await builder.until_called("site", "failed")
    assert "it is the child of another reconciler of this object, 'make'" in caplog.text


@pytest.mark.parametrize("way", ["prune", "delete_all"])
async def test_children_of_a_kind_that_owns_no_longer_has_go_with_those_of_the_others(
    info: webop.ConnectionInfo,
    objects: Objects,
    maps: Maps,
    caplog: pytest.LogCaptureFixture,
    way: str,
) -> None:
    caplog.set_level("INFO")
    builder = Builder()
    await objects.create("site", {"pages": {"home": "1"}})
    async with run_named(info, objects, "shop", builder.build):
        await maps.wait("site-home", bool)

    async def build(children: webop.Children, **_: Any) -> None:
        await children.list("configmaps")
        if way == "prune":
            await children.prune()

    registry = webop.OperatorRegistry()
    options: Json = {"registry": registry, "when": is_no_fence}
    kinds: Json = {"owns": ["services"], "formerly_owns": ["configmaps"]}
    webop.reconcile("widgets", id="build", **kinds, **options)(build)
    if way == "delete_all":

        @webop.on.delete("widgets", **options)
        async def clean(children: webop.Children, **_: Any) -> None:
            await children.delete_all(wait=20)

    settings = build_settings(operator={"name": "shop"})
    async with operate(info, registry, settings, namespaces=[objects.namespace]):
        await objects.pass_fence()
        if way == "delete_all":
            assert await maps.find("site-home")
            await objects.remove("site")
        await maps.wait("site-home", lambda found: found is None)
    where = f"configmaps.v1 in {objects.namespace}"
    assert f"1 children of the former kind {where} are left (reconciler: build)" in caplog.text


_FINALIZER = "example.com/cleanup"  # as of controllerutil.AddFinalizer


async def test_children_and_the_finalizer_of_another_controller_are_taken_over(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    deleted = []

    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, spec: webop.Spec, **_: Any) -> None:
        await children.apply(build_map(name, {"text": spec["text"]}))
        await children.prune()

    @webop.on.delete("widgets", when=is_no_fence)
    async def clean(name: str, **_: Any) -> None:
        deleted.append(name)

    made = await objects.create("site", {"text": "new"}, finalizers=[_FINALIZER])
    reference = {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": "site",
        "uid": made["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for name in ("site", "unwanted"):
        await maps.create(name, {"text": "old"}, ownerReferences=[reference])
    await objects.create("gone", {"text": "new"}, finalizers=[_FINALIZER])
    await objects.delete("gone")  # while no operator runs
    async with run_operator(build_settings(persistence={"finalizer": _FINALIZER})):
        await objects.wait_gone("gone")
        await maps.wait("site", lambda found: found and found["data"] == {"text": "new"})
        await objects.pass_fence()
        assert await maps.find("unwanted")  # it lacks the labels of children
        found = await objects.get("site")
        assert found["metadata"]["finalizers"] == [_FINALIZER]
        await objects.remove("site")
    await eventually(lambda: sorted(deleted) == ["gone", "site"], "the deletion handler")
