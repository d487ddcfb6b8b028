"""What a plan must not do, show or hide: real writes, values of Secrets, writes of other tasks."""

from __future__ import annotations

from tests.kit.plans import MAPS, SECRETS, Desk

HEAD = """
import asyncio, base64

HERE = os.environ['HERE']

def page(name):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}}
"""


async def test_writes_of_startup_handlers_and_of_a_client_of_connect_are_planned(
    desk: Desk,
) -> None:
    desk.write(
        HEAD
        + """
@webop.on.startup()
async def start(client, **_):
    await client.create(page('start'), namespace=HERE)
    note('created', (await client.get('configmaps', 'start', namespace=HERE))['metadata']['name'])
    async with webop.client.connect() as client:
        await client.create(page('connected'), namespace=HERE)

@webop.reconcile('kiosks')
async def build(**_):
    async with webop.client.connect() as client:
        await client.delete('configmaps', 'old', namespace=HERE)
"""
    )
    await desk.objects.create("one")
    await desk.client.create(MAPS, desk.namespace, {"metadata": {"name": "old"}})
    planned = await desk.plan("--call", HERE=desk.namespace)
    assert planned.code == 2, planned.errors
    assert (await desk.list(MAPS)).keys() == {"old"}
    notes = planned.section("Startup handlers")["notes"]
    assert {(one["action"], one["certainty"]) for one in notes} == {("create", "will")}
    assert sorted(one["target"].split("'")[1] for one in notes) == ["connected", "start"]
    assert ["created", "start"] in desk.take_calls()
    assert planned.find("one", "delete", "'old'")["certainty"] == "will"


async def test_errors_about_secrets_do_not_show_their_values(desk: Desk) -> None:
    desk.write(
        HEAD
        + """
def parse(body, **_):
    return int(base64.b64decode(body['data']['password']))

@webop.on.update('secrets', when=parse)
def updated(**_): ...
"""
    )
    body = {"metadata": {"name": "login"}, "stringData": {"password": "hunter2"}}
    await desk.client.create(SECRETS, desk.namespace, body)
    planned = await desk.plan(HERE="")
    (item,) = planned.section("secrets")["objects"][f"{desk.namespace}/login"]
    assert item["reason"] == "a filter failed: ValueError"
    desk.write(
        HEAD
        + """
@webop.reconcile('secrets')
def build(body, **_):
    int(base64.b64decode(body['data']['password']))

@webop.reconcile('secrets')
def wait(body, **_):
    raise webop.TemporaryError(base64.b64decode(body['data']['password']))
"""
    )
    planned = await desk.plan("--call", HERE="")
    items = planned.section("secrets")["objects"][f"{desk.namespace}/login"]
    reasons = [one["reason"] for one in items if one["action"] == "continue"]
    assert sorted(reasons) == ["it has failed: (masked)", "it has failed: ValueError"]
    assert "hunter2" not in planned.output + planned.errors


async def test_writes_outside_of_the_calls_are_noted(desk: Desk) -> None:
    desk.write(
        HEAD
        + """
@webop.reconcile('kiosks')
async def execute(client, **_):
    def work():
        client.sync.create(page('executor'), namespace=HERE)
    await asyncio.get_running_loop().run_in_executor(None, work)

@webop.on.startup()
async def start(**_):
    global queue, worker
    queue = asyncio.Queue()
    worker = asyncio.create_task(work())

async def work():
    while True:
        future, job = await queue.get()
        future.set_result(await job)

@webop.reconcile('kiosks')
async def enqueue(client, **_):
    future = asyncio.get_running_loop().create_future()
    queue.put_nowait((future, client.create(page('worker-task'), namespace=HERE)))
    await future

@webop.reconcile('kiosks')
async def forget(client, **_):
    global task
    task = asyncio.create_task(client.create(page('later-task'), namespace=HERE))
"""
    )
    await desk.objects.create("one")
    planned = await desk.plan("--call", HERE=desk.namespace)
    notes = planned.section("Other writes")["notes"]
    assert planned.code == 2
    assert {(one["action"], one["certainty"]) for one in notes} == {("create", "may")}
    names = sorted(one["target"].split("'")[1] for one in notes)
    assert names == ["executor", "later-task", "worker-task"]
