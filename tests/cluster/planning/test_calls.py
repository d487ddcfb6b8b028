"""``webop plan --call``: reconcilers with dry runs; the plan is what the operator then writes."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

from tests.kit.http_relay import relay
from tests.kit.plans import MAPS, SECRETS, Desk, Planned
from tests.kit.waiting import eventually
from webop.objects.fields import resolve
from webop.objects.resources import Resource

Json = dict[str, Any]

DEPLOYMENTS = Resource("apps", "v1", "deployments", kind="Deployment", namespaced=True)

BUILDER = """
@webop.reconcile('shops', owns=['configmaps', 'secrets'])
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


def list_children(planned: Planned, name: str, kind: str) -> dict[str, Json]:
    """Return the planned writes of children of a kind, by their names."""
    items = [i for i in planned.items(name) if f"of {kind} in" in i["target"]]
    return {item["target"].split("'")[1]: item for item in items}


async def wait_built(desk: Desk, name: str) -> None:
    """Wait until the status is that of the spec, which is written last."""

    def is_built(body: Json) -> bool:
        status = body.get("status") or {}
        spec = body["spec"]
        pages = sorted(spec.get("pages") or {})
        return status.get("pages") == pages and status.get("note") == spec.get("note")

    await desk.objects.wait(name, is_built)


async def compare(desk: Desk, name: str) -> Planned:
    """Plan, run, and check that the children are then as planned; return the plan."""
    before = await desk.list(MAPS)
    planned = await desk.plan("--call")
    assert await desk.list(MAPS) == before
    async with desk.run():
        await wait_built(desk, name)
    after = await desk.list(MAPS)
    items = list_children(planned, name, "configmaps")
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
                path = tuple(change["field"].split("."))
                assert resolve(before.get(key) or {}, path) == change["old"], item
                assert resolve(after[key], path) == change["new"], item
    return planned


async def test_the_plan_is_what_the_reconciler_then_writes(desk: Desk) -> None:
    desk.write(BUILDER)
    await desk.objects.create("one", {"pages": {"a": "x", "b": "y"}})
    planned = await compare(desk, "one")
    assert planned.code == 2
    children = list_children(planned, "one", "configmaps")
    assert {key: one["action"] for key, one in children.items()} == {
        "one-a": "create",
        "one-b": "create",
    }
    fields = {one["field"]: one["new"] for one in children["one-a"]["fields"]}
    assert fields["data.text"] == "x"
    assert fields["metadata.labels.part"] == "pages"
    (status,) = planned.find("one", "change", "shops.plan.webop.dev")["fields"]
    assert status == {"field": "status.pages", "old": None, "new": ["a", "b"]}
    again = await desk.plan("--call")
    assert again.code == 0, again.output
    assert again.section("shops")["objects"] == {}
    assert again.section("shops")["at_each_start"] == {"call Reconciler 'build'": 1}


async def test_unchanged_children_are_not_sent(desk: Desk) -> None:
    desk.write(BUILDER)
    await desk.objects.create("one", {"pages": {"a": "x"}})
    async with desk.run():
        await wait_built(desk, "one")
    async with relay(desk.cluster) as relayed:
        path = desk.workshop.folder / "relayed.yaml"
        path.write_text(build_config(relayed.server.url))
        assert (await desk.plan("--call", KUBECONFIG=str(path))).code == 0
        assert ["build", "one"] in desk.take_calls()
        assert {request.method for request in relayed.requests} == {"GET"}
    # The desk's own planner has something for the audit log to follow.
    assert (await desk.plan("--call")).code == 0


async def test_a_changed_template_a_pruned_child_and_an_edit_of_others(desk: Desk) -> None:
    desk.write(BUILDER)
    await desk.objects.create("one", {"pages": {"a": "x", "b": "y", "c": "z"}})
    async with desk.run():
        await wait_built(desk, "one")
    await desk.objects.patch("one", {"spec": {"pages": {"b": None, "d": "w"}, "note": "2"}})
    await desk.client.patch(MAPS, desk.namespace, "one-c", {"data": {"text": "edited"}})
    desk.write(BUILDER.replace("'kept': 'yes'", "'kept': 'no'"))
    planned = await compare(desk, "one")
    children = list_children(planned, "one", "configmaps")
    assert {key: one["action"] for key, one in children.items()} == {
        "one-a": "change",
        "one-b": "delete",
        "one-c": "take back",
        "one-d": "create",
    }
    fields = {one["field"]: (one["old"], one["new"]) for one in children["one-a"]["fields"]}
    assert fields.pop("data.kept") == ("yes", "no")
    assert not fields  # the digest in an annotation says nothing more
    fields = {one["field"]: (one["old"], one["new"]) for one in children["one-c"]["fields"]}
    assert fields["data.text"] == ("edited", "z")


async def test_values_of_secrets_are_never_printed(desk: Desk) -> None:
    desk.write(BUILDER)
    await desk.objects.create("one", {"password": "hunter2"})
    async with desk.run():
        await wait_built(desk, "one")
        await eventually(partial(desk.find, SECRETS, "one-login"), "the Secret")
    hidden = ["hunter2", "aHVudGVyMg", "correcthorse", "Y29ycmVjdGhvcnNl"]
    await desk.objects.patch("one", {"spec": {"password": "correcthorse"}})
    await desk.objects.create("two", {"password": "correcthorse"})
    for form in ("json", "text", "markdown"):
        planned = await desk.plan("--call", form=form)
        assert planned.code == 2
        assert not [one for one in hidden if one in planned.output + planned.errors]
        assert "data.password" in planned.output
    planned = await desk.plan("--call")
    changed = list_children(planned, "one", "secrets")["one-login"]["fields"]
    assert {"field": "data.password", "old": "(masked)", "new": "(masked)"} in changed
    created = list_children(planned, "two", "secrets")["two-login"]["fields"]
    assert {"field": "data.password", "old": None, "new": "(masked)"} in created


async def test_a_refused_secret_is_not_quoted(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops', owns=['secrets'])
        async def build(name, children, **_):
            await children.apply({
                'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': f'{name}-login'},
                'type': 'kubernetes.io/dockerconfigjson',
                'stringData': {'.dockerconfigjson': 'hunter2 is no JSON'},
            })
    """)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert planned.code == 2
    assert "hunter2" not in planned.output + planned.errors
    item = list_children(planned, "one", "secrets")["one-login"]
    assert item["certainty"] == "unknown after this step"
    assert item["reason"] == "Invalid (masked)"


async def test_only_plannable_reconcilers_are_called_without_the_option(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops', plannable=True)
        def harmless(name, patch, **_):
            note('harmless', name)
            patch.status['text'] = 'set in a thread'

        @webop.reconcile('shops')
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


async def test_later_reads_see_what_the_plan_has_written(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        def build(name, namespace, client, **_):
            def page(title, **data):
                meta = {'name': title, 'labels': {'shop': name}}
                return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': meta, 'data': data}

            def titles(**options):
                found = client.list('configmaps', namespace=namespace, **options)
                return sorted(one['metadata']['name'] for one in found)

            note('before', titles(labels={'shop': name}))
            client.create(page('made', a='1'), namespace=namespace)
            client.patch('configmaps', 'stored', {'data': {'a': '2'}}, namespace=namespace)
            client.patch('configmaps', 'stored', {'data': {'b': '3'}}, namespace=namespace)
            client.apply(page('made', b='2'), namespace=namespace)
            client.delete('configmaps', 'doomed', namespace=namespace, propagation='Background')
            note('after', titles(labels={'shop': name}), titles(labels='shop=other'))
            note('read', client.get('configmaps', 'stored', namespace=namespace)['data'],
                 client.get('configmaps', 'made', namespace=namespace)['data'])
            try:
                client.get('configmaps', 'doomed', namespace=namespace)
            except webop.APINotFoundError:
                note('gone')
    """)
    labels = {"shop": "one"}
    for name in ("stored", "doomed"):
        body = {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}
        await desk.client.create(MAPS, desk.namespace, body)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert desk.take_calls() == [
        ["startup", True],
        ["before", ["doomed", "stored"]],
        ["after", ["made", "stored"], []],
        ["read", {"a": "2", "b": "3"}, {"a": "1", "b": "2"}],
        ["gone"],
    ], planned.errors
    children = list_children(planned, "one", "configmaps")
    assert {key: (one["action"], one["certainty"]) for key, one in children.items()} == {
        "made": ("create", "may"),
        "stored": ("change", "may"),
        "doomed": ("delete", "will"),
    }
    assert "has not stored" in children["stored"]["reason"]
    fields = {one["field"]: (one["old"], one["new"]) for one in children["stored"]["fields"]}
    assert fields == {"data.a": ("1", "2"), "data.b": (None, "3")}
    assert (await desk.list(MAPS)).keys() == {"stored", "doomed"}


async def test_calls_are_limited(desk: Desk) -> None:
    desk.write(BUILDER)
    for number in range(4):
        await desk.objects.create(f"shop-{number}", {"pages": {"a": "x"}})
    planned = await desk.plan("--call", "--limit", "2")
    built = [call[1] for call in desk.take_calls() if call[0] == "build"]
    assert sorted(built) == ["shop-0", "shop-1"]
    assert len(planned.section("shops")["objects"]) == 2
    (note,) = planned.section("shops")["notes"]
    assert note["certainty"] == "unknown after this step"
    assert note["reason"] == "they were called for 2 of 4 objects (--limit)"


async def test_a_changed_order_of_init_containers_is_a_change(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            await client.patch('deployments', 'web', {'spec': {'template': {'spec': {
                'initContainers': [{'name': 'b', 'image': 'b'}, {'name': 'a', 'image': 'a'}],
            }}}}, namespace=namespace)
    """)
    labels = {"app": "web"}
    first = [{"name": name, "image": name} for name in "ab"]
    pod = {"initContainers": first, "containers": [{"name": "main", "image": "main"}]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    await desk.client.create(
        DEPLOYMENTS, desk.namespace, {"metadata": {"name": "web"}, "spec": spec}
    )
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert planned.code == 2
    assert planned.find("one", "change", "'web'")["fields"] == [
        {
            "field": "spec.template.spec.initContainers[*].name",
            "old": ["a", "b"],
            "new": ["b", "a"],
        }
    ]


async def test_the_last_of_two_writes_counts(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            async def put(name, **data):
                await client.patch('configmaps', name, {'data': data}, namespace=namespace)

            await put('undone', a='2')
            await put('undone', a='1')
            await put('changed', a='2', b='2')
            await put('changed', a='1')
            for name in ('undone', 'changed'):
                found = await client.get('configmaps', name, namespace=namespace)
                note(name, found['data'])
    """)
    for name in ("undone", "changed"):
        body = {"metadata": {"name": name}, "data": {"a": "1"}}
        await desk.client.create(MAPS, desk.namespace, body)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    calls = desk.take_calls()
    assert ["undone", {"a": "1"}] in calls
    assert ["changed", {"a": "1", "b": "2"}] in calls
    children = list_children(planned, "one", "configmaps")
    assert {name: (one["certainty"], one["fields"]) for name, one in children.items()} == {
        "undone": ("may", []),  # written twice, and as before in the end
        "changed": ("may", [{"field": "data.b", "old": None, "new": "2"}]),
    }


async def test_a_deletion_is_not_hidden_by_a_later_write(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            for name in ('gone', 'again'):
                await client.delete('configmaps', name, namespace=namespace)
            try:
                await client.patch('configmaps', 'gone', {'data': {'a': '2'}}, namespace=namespace)
            except webop.APINotFoundError:
                note('missing')
            page = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'again'}}
            await client.apply(page, namespace=namespace)
            await client.apply({**page, 'data': {'b': '2'}}, namespace=namespace)
    """)
    for name in ("gone", "again"):
        body = {"metadata": {"name": name}, "data": {"a": "1"}}
        await desk.client.create(MAPS, desk.namespace, body)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert ["missing"] in desk.take_calls()
    children = list_children(planned, "one", "configmaps")
    assert {key: (one["action"], one["certainty"]) for key, one in children.items()} == {
        "gone": ("delete", "will"),
        "again": ("recreate", "may"),
    }


async def test_only_objects_with_something_to_show_count_for_the_limit(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops', labels={'built': 'yes'})
        async def build(name, patch, **_):
            note('build', name)
            patch.status['pages'] = [name]
    """)
    for number in range(4):
        labels = {"built": "yes" if number % 2 else "no"}
        await desk.objects.create(f"shop-{number}", labels=labels)
    planned = await desk.plan("--call", "--limit", "1")
    assert [call[1] for call in desk.take_calls() if call[0] == "build"] == ["shop-1"]
    section = planned.section("shops")
    assert [*section["objects"]] == [f"{desk.namespace}/shop-1"]
    (note,) = section["notes"]
    assert note["reason"] == "they were called for 1 of 2 objects (--limit)"


def build_config(server: str) -> str:
    """Return a kubeconfig for a relay, which acts as the administrator."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "relay",
            "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "relay"}}],
            "clusters": [{"name": "relay", "cluster": {"server": server}}],
            "users": [{"name": "relay", "user": {"token": "any"}}],
        }
    )


async def test_many_calls_run_beside_each_other_but_not_all(desk: Desk) -> None:
    desk.write("""
        import asyncio
        running = 0

        @webop.reconcile('shops')
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
