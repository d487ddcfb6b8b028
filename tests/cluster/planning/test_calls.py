"""``webop plan --call``: reconcilers with dry runs; the plan is what the operator then writes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from tests.kit.plans import MAPS, SECRETS, UNKNOWN, Desk, Planned
from tests.kit.waiting import eventually

Json = dict[str, Any]

BUILDER = """
@webop.reconcile('kiosks', owns=['configmaps', 'secrets'])
async def build(name, spec, children, patch, **_):
    note('build', name)
    for page, text in (spec.get('pages') or {}).items():
        data = {'text': text, 'kept': 'yes'}
        await children.apply({
            'apiVersion': 'v1', 'kind': 'ConfigMap',
            'metadata': {'name': f'{name}-{page}', 'labels': {'part': 'pages'}}, 'data': data,
        })
    if password := spec.get('password'):
        await children.apply({
            'apiVersion': 'v1', 'kind': 'Secret',
            'metadata': {'name': f'{name}-login'}, 'stringData': {'password': password},
        })
    await children.prune()
    patch.status['pages'] = sorted(spec.get('pages') or {})
    patch.status['note'] = spec.get('note')
"""


async def wait_built(desk: Desk, name: str) -> None:
    """Wait until the status is that of the spec, which is written last."""

    def is_built(body: Json) -> bool:
        status = body.get("status") or {}
        spec = body["spec"]
        pages = sorted(spec.get("pages") or {})
        return status.get("pages") == pages and status.get("note") == spec.get("note")

    await desk.objects.wait(name, is_built)


def read(body: Json | None, field: str) -> Any:
    found: Any = body or {}
    for key in field.split("."):
        found = found.get(key) if found is not None else None
    return found


async def compare(desk: Desk, name: str) -> Planned:
    """Plan, run, and check that the children are then as planned; return the plan."""
    before = await desk.list(MAPS)
    planned = await desk.plan("--call")
    assert await desk.list(MAPS) == before
    async with desk.run():
        await wait_built(desk, name)
    after = await desk.list(MAPS)
    items = planned.children(name)
    actions = {key: item["action"] for key, item in items.items()}
    found = dict.fromkeys(after.keys() - before.keys(), "create")
    found |= dict.fromkeys(before.keys() - after.keys(), "delete")
    versions = {
        key: (before[key]["metadata"]["resourceVersion"], raw["metadata"]["resourceVersion"])
        for key, raw in after.items()
        if key in before
    }
    found |= {key: "change" for key, (old, new) in versions.items() if old != new}
    assert {k: v.replace("take back", "change") for k, v in actions.items()} == found
    for key, item in items.items():
        assert item["certainty"] == "will"
        for change in item["fields"]:
            if "[" not in change["field"] and "webop.dev" not in change["field"]:
                assert read(before.get(key), change["field"]) == change["old"], item
                assert read(after.get(key), change["field"]) == change["new"], item
    return planned


async def test_the_plan_is_what_the_reconciler_then_writes(desk: Desk) -> None:
    desk.write(BUILDER)
    await desk.objects.create("one", {"pages": {"a": "x", "b": "y", "c": "z"}})
    planned = await compare(desk, "one")
    assert planned.code == 2
    children = planned.children("one")
    assert {one["action"] for one in children.values()} == {"create"}
    fields = {one["field"]: one["new"] for one in children["one-a"]["fields"]}
    assert (fields["data.text"], fields["metadata.labels.part"]) == ("x", "pages")
    (status,) = planned.find("one", "change", "kiosks.plan.webop.dev")["fields"]
    assert status == {"field": "status.pages", "old": None, "new": ["a", "b", "c"]}

    # Unchanged children are not even sent.
    desk.take_calls()
    again, writes = await desk.plan_relayed("--call")
    assert (again.code, writes) == (0, []), again.output
    assert again.section("kiosks")["objects"] == {}
    assert again.section("kiosks")["at_each_start"] == {"call Reconciler 'build'": 1}
    assert ["build", "one"] in desk.take_calls()

    # A changed template, a pruned child, and an edit of others.
    await desk.objects.patch("one", {"spec": {"pages": {"b": None, "d": "w"}, "note": "2"}})
    await desk.client.patch(MAPS, desk.namespace, "one-c", {"data": {"text": "edited"}})
    desk.write(BUILDER.replace("'kept': 'yes'", "'kept': 'no'"))
    children = (await compare(desk, "one")).children("one")
    assert {key: one["action"] for key, one in children.items()} == {
        "one-a": "change",
        "one-b": "delete",
        "one-c": "take back",
        "one-d": "create",
    }
    found = {one["field"]: (one["old"], one["new"]) for one in children["one-a"]["fields"]}
    assert found == {"data.kept": ("yes", "no")}  # the digest in an annotation says nothing more
    found = {one["field"]: (one["old"], one["new"]) for one in children["one-c"]["fields"]}
    assert found["data.text"] == ("edited", "z")


async def test_values_of_secrets_are_never_printed(desk: Desk) -> None:
    desk.write(BUILDER)
    await desk.objects.create("one", {"password": "hunter2"})
    async with desk.run():
        await wait_built(desk, "one")
        await eventually(partial(desk.find, SECRETS, "one-login"), "the Secret")
    hidden = ["hunter2", "aHVudGVyMg", "correcthorse", "Y29ycmVjdGhvcnNl"]
    await desk.objects.patch("one", {"spec": {"password": "correcthorse"}})
    await desk.objects.create("two", {"password": "correcthorse"})
    for form in ("text", "markdown", "json"):
        planned = await desk.plan("--call", form=form)
        assert planned.code == 2
        assert not [one for one in hidden if one in planned.output + planned.errors]
        assert "data.password" in planned.output
    changed = planned.children("one", "secrets")["one-login"]["fields"]
    assert {"field": "data.password", "old": "(masked)", "new": "(masked)"} in changed
    created = planned.children("two", "secrets")["two-login"]["fields"]
    assert {"field": "data.password", "old": None, "new": "(masked)"} in created


async def test_only_plannable_reconcilers_are_called_without_the_option(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('kiosks', plannable=True)
        def harmless(name, patch, **_):
            note('harmless', name)
            patch.status['text'] = 'set in a thread'

        @webop.reconcile('kiosks')
        def other(name, patch, **_):
            note('other', name)
            patch.status['other'] = 1
    """)
    await desk.objects.create("one")
    planned = await desk.plan()
    assert [call for call in desk.take_calls() if call[0] != "startup"] == [["harmless", "one"]]
    (change,) = planned.find("one", "change")["fields"]
    assert change == {"field": "status.text", "old": None, "new": "set in a thread"}
    planned = await desk.plan("--call")
    names = {change["field"] for item in planned.items("one") for change in item["fields"]}
    assert names == {"status.text", "status.other"}


async def test_calls_are_limited_to_some_objects_with_something_to_show(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('kiosks', labels={'built': 'yes'})
        async def build(name, patch, **_):
            note('build', name)
            patch.status['pages'] = [name]
    """)
    for number in range(4):
        labels = {"built": "yes" if number % 2 else "no"}
        await desk.objects.create(f"shop-{number}", labels=labels)
    planned = await desk.plan("--call", "--limit", "1")
    assert [call[1] for call in desk.take_calls() if call[0] == "build"] == ["shop-1"]
    section = planned.section("kiosks")
    assert [*section["objects"]] == [f"{desk.namespace}/shop-1"]
    (note,) = section["notes"]
    assert note["certainty"] == UNKNOWN
    assert note["reason"] == "they were called for 1 of 2 objects (--limit)"


async def test_many_calls_run_beside_each_other_but_not_all(desk: Desk) -> None:
    desk.write("""
        import asyncio
        running = 0

        @webop.reconcile('kiosks')
        async def build(**_):
            global running
            running += 1
            note('running', running)
            await asyncio.sleep(1.1)
            running -= 1
    """)
    await asyncio.gather(*(desk.objects.create(f"shop-{number}") for number in range(40)))
    planned = await desk.plan("--call")
    assert f"Planning: Reconciler 'build' for {desk.namespace}/shop-" in planned.errors
    assert len(planned.errors.splitlines()) <= 3
    most = max(call[1] for call in desk.take_calls() if call[0] == "running")
    assert 1 < most <= 16
