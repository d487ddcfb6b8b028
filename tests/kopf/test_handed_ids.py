"""Names of the state: sub-handlers, fields, long ids, and the storages of settings."""

from __future__ import annotations

import pytest

import webop
from tests.kit.operators import DIFFBASE, Json, get_annotations
from tests.kopf.relay import SWAPS, Relay, Swap, get_records


@pytest.mark.feature("SUB-17", "CON-04", "CON-07", "ERR-19", "CFG-68")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
async def test_sub_handlers_go_on_where_they_were(relay: Relay, swap: Swap) -> None:
    relay.write("""
@kopf.on.create(KIND, labels={'relay': kopf.ABSENT})
async def outer(**kwargs):
    @kopf.subhandler()
    async def one(**kwargs):
        note('one', kwargs)

    @kopf.subhandler(id='two/spec.x')
    def two(**kwargs):
        note('two', kwargs)

    @kopf.subhandler(id='inner')
    async def inner(**kwargs):
        async def leaf(**kwargs):
            note('leaf', kwargs)

        async def last(**kwargs):
            note('last', kwargs)
            if TURN == 1:
                raise kopf.TemporaryError('later', delay=0.5)

        await kopf.execute(fns={'leaf': leaf, 'last': last})
""")
    async with relay.run(swap.first) as command:
        await relay.objects.create("one", {"x": 1})
        states = {
            "outer.outer._locals_.one": "success",
            "outer.two.spec.x": "success",
            "outer.inner.leaf": "success",
            "outer.inner.last": "delayed",
            "outer": "subrefs",
            "outer.inner": "subrefs",
        }
        body = await relay.wait_for_records("one", **states)
        await command.stop(swap.stop)
    records = get_records(body)
    assert set(records["outer.inner"]["subrefs"]) == {"outer/inner/leaf", "outer/inner/last"}
    async with relay.run(swap.second):
        body = await relay.objects.wait_handled("one")
        await relay.pass_fence()

    calls = relay.list_handlers("one", turn=1)
    assert [name for name in calls if name != "last"] == ["leaf", "one", "two"]
    assert relay.list_handlers("one", turn=2) == ["last"]
    assert set(get_annotations(body)) == {DIFFBASE}


@pytest.mark.feature("CON-04", "HND-34", "CFG-67")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
async def test_handlers_of_fields_and_those_with_long_names_go_on_where_they_were(
    relay: Relay, swap: Swap
) -> None:
    relay.write("""
LONG = 'x' * 80

@kopf.on.field(KIND, field='spec.a')
def finished(**kwargs):
    note('finished', kwargs)

@kopf.on.field(KIND, field='spec.a')
@kopf.on.update(KIND, id=LONG)
@kopf.on.update(KIND, id=LONG + '/y')
def pending(reason, **kwargs):
    note('pending', {**kwargs, 'reason': reason})
    if TURN == 1 and reason == 'update':
        raise kopf.TemporaryError('later', delay=2)
""")
    long = "x" * 80
    names = webop.AnnotationsProgressStorage(prefix="p", v1=False)
    finished, *pending = (
        names.make_keys(key)[0].removeprefix("p/")
        for key in ("finished/spec.a", "pending/spec.a", long, f"{long}/y")
    )
    async with relay.run(swap.first) as command:
        await relay.objects.make("one", {"a": {"b": 1}, "c": 1})
        await relay.objects.patch("one", {"spec": {"a": {"b": 2}, "c": 2}})
        states = {finished: "success", **dict.fromkeys(pending, "delayed")}
        await relay.wait_for_records("one", **states)
        await command.stop(swap.stop)
    async with relay.run(swap.second):
        body = await relay.objects.wait_handled("one")
        await relay.pass_fence()

    calls = relay.read_calls("one", turn=2)
    assert {call["handler"] for call in calls} == {"pending"}
    assert [call["diff"] for call in calls].count([["change", ["b"], 1, 2]]) == 1
    assert len(calls) == 3
    assert all(call["reason"] == "update" for call in calls)
    assert [call["retry"] for call in calls] == [1, 1, 1]
    assert set(get_annotations(body)) == {DIFFBASE}


STORAGES = {
    "older-names": (
        "kopf.SmartProgressStorage(prefix='relay.kopf.dev', v1=True, verbose=True)",
        "kopf.AnnotationsDiffBaseStorage(prefix='relay.kopf.dev', key='l' * 60, v1=True)",
    ),
    "multi": (
        (
            "kopf.MultiProgressStorage([kopf.StatusProgressStorage(name='relay'), "
            "kopf.AnnotationsProgressStorage(prefix='relay.example.com', v1=False)])"
        ),
        (
            "kopf.MultiDiffBaseStorage([kopf.StatusDiffBaseStorage(name='relay'), "
            "kopf.AnnotationsDiffBaseStorage(prefix='relay.example.com', v1=False)])"
        ),
    ),
}


@pytest.mark.feature("CFG-36", "CFG-37", "CFG-38", "CFG-58", "CFG-59", "CFG-60", "CFG-61")
@pytest.mark.feature("CFG-63", "CFG-64", "CFG-66", "CFG-67", "CFG-69", "D-01", "D-61")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
@pytest.mark.parametrize("storages", STORAGES.values(), ids=STORAGES)
async def test_storages_of_the_settings_are_understood_by_the_other(
    relay: Relay, swap: Swap, storages: tuple[str, str]
) -> None:
    progress: webop.ProgressStorage = eval(storages[0], {"kopf": webop})
    diffbase: webop.DiffBaseStorage = eval(storages[1], {"kopf": webop})
    relay.write(f"""
@kopf.on.startup()
def configure(settings, **_):
    settings.persistence.finalizer = 'relay.example.com/Finalizer'
    settings.persistence.progress_storage = {storages[0]}
    settings.persistence.diffbase_storage = {storages[1]}

@kopf.on.create(KIND, id='{"f" * 60}')
def finished(**kwargs):
    note('finished', kwargs)

@kopf.on.create(KIND, id='{"p" * 60}')
def pending(**kwargs):
    note('pending', kwargs)
    if TURN == 1:
        raise kopf.TemporaryError('later', delay=0.1)

@kopf.on.delete(KIND)
def deleted(**kwargs):
    note('deleted', kwargs)
""")

    def has_waiting(body: Json) -> bool:
        states = {
            key: progress.fetch(key=key * 60, body=webop.Body(body)) or {} for key in ("f", "p")
        }
        return bool(states["f"].get("success") and states["p"].get("delayed"))

    def is_done(body: Json) -> bool:
        stored = diffbase.fetch(body=webop.Body(body))
        found = [progress.fetch(key=key * 60, body=webop.Body(body)) for key in ("f", "p")]
        return isinstance(stored, dict) and stored["spec"] == body["spec"] and not any(found)

    async with relay.run(swap.first) as command:
        await relay.objects.create("one", {"x": 1})
        await relay.objects.wait("one", has_waiting)
        await command.stop(swap.stop)
    async with relay.run(swap.second):
        body = await relay.objects.wait("one", is_done)
        assert body["metadata"]["finalizers"] == ["relay.example.com/Finalizer"]
        # Of the default names there is nothing, and nothing but the state is left.
        assert not any(key.startswith("kopf.zalando.org/") for key in get_annotations(body))
        assert "f" * 30 not in str(body["metadata"].get("annotations"))
        await relay.objects.remove("one")

    # Kopf must not start before the delay is over: with these storages it then waits for ever.
    assert {*relay.list_handlers("one", turn=1)} == {"finished", "pending"}
    assert relay.list_handlers("one", turn=2) == ["deleted", "pending"]
