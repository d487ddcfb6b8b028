"""What a plan must not do, show or hide: real writes, values of Secrets, writes of other tasks."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.operators import Kind, define_kinds
from tests.kit.plans import MAPS, SECRETS, Desk
from webop.objects.resources import Resource

UNKNOWN = "unknown after this step"
PAGE = "{'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'page'}}"


def write(desk: Desk, code: str, **more: str) -> None:
    desk.write(code.replace("PAGE", PAGE).replace("NAMESPACE", repr(desk.namespace)))


async def test_a_client_of_connect_does_not_write(desk: Desk) -> None:
    write(
        desk,
        """
        @webop.on.startup()
        async def start(**_):
            async with webop.client.connect() as client:
                await client.create(PAGE, namespace=NAMESPACE)

        @webop.reconcile('shops')
        async def build(namespace, **_):
            async with webop.client.connect() as client:
                await client.delete('configmaps', 'old', namespace=namespace)
    """,
    )
    await desk.objects.create("one")
    await desk.client.create(MAPS, desk.namespace, {"metadata": {"name": "old"}})
    planned = await desk.plan("--call")
    assert (await desk.list(MAPS)).keys() == {"old"}
    (item,) = planned.section("Startup handlers")["notes"]
    assert (item["action"], "'page'" in item["target"]) == ("create", True)
    assert planned.find("one", "delete", "'old'")["certainty"] == "will"


async def test_errors_about_secrets_do_not_show_their_values(desk: Desk) -> None:
    write(
        desk,
        """
        import base64

        def parse(body, **_):
            return int(base64.b64decode(body['data']['password']))

        @webop.on.update('secrets', when=parse)
        def updated(**_): ...
    """,
    )
    body = {"metadata": {"name": "login"}, "stringData": {"password": "hunter2"}}
    await desk.client.create(SECRETS, desk.namespace, body)
    planned = await desk.plan()
    (item,) = planned.section("secrets")["objects"][f"{desk.namespace}/login"]
    assert item["reason"] == "a filter failed: ValueError"
    write(
        desk,
        """
        import base64

        @webop.reconcile('secrets')
        def build(body, **_):
            int(base64.b64decode(body['data']['password']))

        @webop.reconcile('secrets')
        def wait(body, **_):
            raise webop.TemporaryError(base64.b64decode(body['data']['password']))
    """,
    )
    planned = await desk.plan("--call")
    items = planned.section("secrets")["objects"][f"{desk.namespace}/login"]
    reasons = [one["reason"] for one in items if one["action"] == "continue"]
    assert sorted(reasons) == ["it has failed: (masked)", "it has failed: ValueError"]
    assert "hunter2" not in planned.output + planned.errors


async def test_no_token_of_a_service_account_is_asked_for(desk: Desk) -> None:
    write(
        desk,
        """
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            request = {'apiVersion': 'authentication.k8s.io/v1', 'kind': 'TokenRequest', 'spec': {}}
            await client.create(request, kind='serviceaccounts', name='robot', subresource='token',
                                namespace=namespace)
    """,
    )
    accounts = Resource("", "v1", "serviceaccounts", kind="ServiceAccount", namespaced=True)
    await desk.client.create(accounts, desk.namespace, {"metadata": {"name": "robot"}})
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    item = planned.find("one", "create", "serviceaccounts/token")
    assert item["certainty"] == UNKNOWN
    assert item["reason"] == "a dry run of it would give a real token"


WORKERS = {
    "an executor": """
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            def work():
                client.sync.create(PAGE, namespace=namespace)
            await asyncio.get_running_loop().run_in_executor(None, work)
    """,
    "a worker task": """
        @webop.on.startup()
        async def start(**_):
            global queue, worker
            queue = asyncio.Queue()
            worker = asyncio.create_task(work())

        async def work():
            while True:
                future, job = await queue.get()
                future.set_result(await job)

        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            future = asyncio.get_running_loop().create_future()
            queue.put_nowait((future, client.create(PAGE, namespace=namespace)))
            await future
    """,
    "a task that outlives the call": """
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            global task
            task = asyncio.create_task(client.create(PAGE, namespace=namespace))
    """,
}


@pytest.mark.parametrize("worker", WORKERS)
async def test_writes_outside_of_the_calls_are_noted(desk: Desk, worker: str) -> None:
    write(desk, "        import asyncio\n" + WORKERS[worker])
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    (item,) = planned.section("Other writes")["notes"]
    assert (item["action"], item["certainty"], planned.code) == ("create", "may", 2)
    assert "'page'" in item["target"]


async def test_nothing_is_planned_for_an_ambiguous_kind(desk: Desk) -> None:
    kinds = [Kind(f"{group}.webop.dev", "tills", "Till") for group in ("left", "right")]
    await asyncio.to_thread(define_kinds, desk.cluster, kinds)
    write(desk, "@webop.on.create('tills')\ndef made(**_): ...")
    planned = await desk.plan()
    (item,) = planned.section("Absent kinds")["notes"]
    assert "ambiguous: tills.v1.left.webop.dev, tills.v1.right.webop.dev" in item["reason"]
    assert [one["title"] for one in planned.document["sections"]] == ["Absent kinds"]


CLIENT = "@webop.reconcile('shops')\nasync def build(namespace, client, **_):\n    "


async def test_data_that_look_like_a_planned_version_stay(desk: Desk) -> None:
    write(
        desk,
        CLIENT
        + """await client.patch(
        'configmaps', 'old', {'data': {'a': '5.planned'}}, namespace=namespace)
    found = await client.get('configmaps', 'old', namespace=namespace)
    meta = {'resourceVersion': found['metadata']['resourceVersion']}
    await client.patch('configmaps', 'old', {'metadata': meta, 'data': {'b': '6.planned'}},
                       namespace=namespace)
""",
    )
    await desk.client.create(MAPS, desk.namespace, {"metadata": {"name": "old"}})
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    fields = {one["field"]: one["new"] for one in planned.find("one", "change")["fields"]}
    assert fields == {"data.a": "5.planned", "data.b": "6.planned"}


async def test_a_deleted_object_that_a_finalizer_holds_is_still_read(desk: Desk) -> None:
    write(
        desk,
        CLIENT
        + """await client.delete('configmaps', 'old', namespace=namespace)
    found = await client.get('configmaps', 'old', namespace=namespace)
    listed = await client.list('configmaps', namespace=namespace)
    note(bool(found['metadata']['deletionTimestamp']), len(listed))
""",
    )
    meta = {"name": "old", "finalizers": ["example.com/held"]}
    await desk.client.create(MAPS, desk.namespace, {"metadata": meta})
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert [True, 1] in desk.take_calls()
    assert planned.find("one", "delete", "'old'")["certainty"] == "will"
    assert planned.code == 2


async def test_lists_by_labels_have_the_objects_that_match_now(desk: Desk) -> None:
    write(
        desk,
        CLIENT
        + """for name, state in (('old', 'new'), ('new', 'old')):
        await client.patch('configmaps', name, {'metadata': {'labels': {'state': state}}},
                           namespace=namespace)
    for state in ('old', 'new'):
        found = await client.list('configmaps', namespace=namespace, labels={'state': state})
        note(state, [one['metadata']['name'] for one in found])
    note('all', len(await client.list('configmaps', namespace=namespace)))
""",
    )
    for name in ("old", "new"):
        body = {"metadata": {"name": name, "labels": {"state": name}}}
        await desk.client.create(MAPS, desk.namespace, body)
    await desk.objects.create("one")
    await desk.plan("--call")
    calls = desk.take_calls()
    for line in (["old", ["new"]], ["new", ["old"]], ["all", 2]):
        assert line in calls


async def test_json_is_for_programs_whatever_handlers_print_and_raise(desk: Desk) -> None:
    write(
        desk,
        """
        @webop.reconcile('shops')
        async def build(**_):
            print('for debugging')
            raise RuntimeError('a lone \\udc80 surrogate')
    """,
    )
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert "a lone ? surrogate" in planned.find("one", "continue")["reason"]
    assert "for debugging" in planned.errors
    assert (await desk.plan("--call", form="text")).code == 2
