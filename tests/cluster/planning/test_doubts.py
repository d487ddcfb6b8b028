"""What a plan cannot know, it says, with the reason; and it sends nothing that could be stored."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest

from tests.cluster.planning.test_calls import build_config, list_children
from tests.kit.http_relay import relay
from tests.kit.plans import MAPS, Desk, Planned
from tests.kit.waiting import eventually
from webop.objects.resources import Resource

Json = dict[str, Any]

UNKNOWN = "unknown after this step"
QUOTAS = Resource("", "v1", "resourcequotas", kind="ResourceQuota", namespaced=True)


def find_certainty(
    planned: Planned, action: str, target: str = "", name: str = "one"
) -> tuple[str, str]:
    item = planned.find(name, action, target)
    return item["certainty"], item["reason"]


async def test_after_a_failed_apply_the_prune_is_unknown(desk: Desk) -> None:
    code = """
        @webop.reconcile('shops', owns=['configmaps'])
        async def build(name, spec, children, **_):
            for title in spec['pages']:
                page = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': title}}
                try:
                    await children.apply({**page, 'data': {'a': spec['text']}})
                except webop.APIError:
                    note('failed', title)
            await children.prune()
    """
    desk.write(code)
    await desk.objects.create("one", {"pages": ["good", "old"], "text": "x"})
    async with desk.run():
        await eventually(partial(desk.find, MAPS, "old"), "the last child")
    await desk.objects.patch("one", {"spec": {"pages": ["good", "not_a_name"], "text": "y"}})
    planned = await desk.plan("--call")
    assert ["failed", "not_a_name"] in desk.take_calls()
    certainty, reason = find_certainty(planned, "patch", "not_a_name")
    assert certainty == UNKNOWN
    assert "metadata.name: Invalid value" in reason
    assert find_certainty(planned, "change", "good")[0] == "will"
    assert find_certainty(planned, "prune")[0] == UNKNOWN
    assert "old" not in list_children(planned, "one", "configmaps")
    assert planned.code == 2


async def test_what_asks_to_be_called_again_is_unknown(desk: Desk) -> None:
    """Nor are there Events about what has failed: the audit log would have them."""
    desk.write("""
        @webop.on.startup()
        def post(settings, **_):
            settings.posting.enabled = True

        @webop.reconcile('shops')
        async def build(**_):
            return webop.again(after=10, reason='RollingOut')

        @webop.reconcile('shops')
        async def fail(**_):
            raise webop.TemporaryError('the database is away', delay=7)

        @webop.reconcile('shops')
        async def give_up(**_):
            raise webop.PermanentError('no such plan')
    """)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert find_certainty(planned, "continue", "build") == (
        UNKNOWN,
        "it asked to be called again: RollingOut",
    )
    for name, text in (("fail", "the database is away"), ("give_up", "no such plan")):
        certainty, reason = find_certainty(planned, "continue", name)
        assert certainty == UNKNOWN
        assert text in reason


async def test_what_fails_without_a_log_is_unknown(desk: Desk) -> None:
    desk.write("""
        import logging
        logging.disable()

        @webop.reconcile('shops')
        async def fail(**_):
            raise RuntimeError('the database is away')

        @webop.reconcile('shops')
        async def give_up(**_):
            raise webop.PermanentError('no such plan')
    """)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert planned.code == 2
    for name in ("fail", "give_up"):
        assert find_certainty(planned, "continue", name) == (UNKNOWN, "it has failed")


async def test_a_reconciler_that_only_waits_is_no_change(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        async def build(**_):
            return webop.again(after=10)
    """)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert find_certainty(planned, "continue")[0] == UNKNOWN
    assert planned.code == 0


async def test_waiting_for_what_is_not_stored_ends_at_once(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            page = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'page'}}
            await client.create(page, namespace=namespace)
            await client.wait_for('configmaps', 'page', lambda raw: raw and raw.get('data'),
                                  namespace=namespace, timeout=30)
    """)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert find_certainty(planned, "create", "page")[0] == "will"
    certainty, reason = find_certainty(planned, "continue")
    assert certainty == UNKNOWN
    assert "A plan does not wait" in reason


async def test_generated_names_are_not_known(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            meta = {'generateName': 'page-'}
            page = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': meta}
            made = await client.create(page, namespace=namespace)
            note('made', made['metadata']['name'][:5])
    """)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert ["made", "page-"] in desk.take_calls()
    assert find_certainty(planned, "create", "configmaps") == (
        "may",
        "its name is generated: it will be another one",
    )


async def test_quotas_are_checked_one_by_one(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops', owns=['configmaps'])
        async def build(name, children, **_):
            for title in ('a', 'b'):
                await children.apply(
                    {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': title}}
                )
    """)
    await desk.objects.create("one")
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"count/configmaps": "1"}}}
    await desk.client.create(QUOTAS, desk.namespace, quota)
    planned = await desk.plan("--call")
    for title in ("'a'", "'b'"):
        certainty, reason = find_certainty(planned, "create", title)
        assert (certainty, "quota" in reason) == ("may", True)


SPREADER = """
    @webop.reconcile('shops', owns=['configmaps'], across_namespaces=True)
    async def build(spec, children, client, **_):
        target = spec['target']
        if spec.get('creates'):
            space = {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': target}}
            await client.apply(space)
        await children.apply(
            {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'page'}},
            namespace=target,
        )
        await children.prune()
"""


async def test_a_namespace_that_is_gone_or_not_there_yet(desk: Desk) -> None:
    desk.write(SPREADER)
    target = f"{desk.namespace}-other"
    name = f"{desk.namespace}/one"
    await desk.objects.create("one", {"target": target})
    planned = await desk.plan_with("-A", "--call", "-o", "json", form="json")
    certainty, reason = find_certainty(planned, "patch", "page", name)
    assert certainty == UNKNOWN
    assert f'namespaces "{target}" not found' in reason
    assert find_certainty(planned, "prune", "", name)[0] == UNKNOWN
    assert find_certainty(planned, "continue", "", name)[0] == UNKNOWN
    await desk.objects.patch("one", {"spec": {"creates": True}})
    planned = await desk.plan_with("-A", "--call", "-o", "json", form="json")
    assert find_certainty(planned, "create", target, name)[0] == "will"
    certainty, reason = find_certainty(planned, "patch", "page", name)
    assert certainty == UNKNOWN
    assert "this plan creates the namespace before" in reason


async def test_a_parent_that_does_not_exist_yet(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops', owns=['shops'])
        async def build(name, spec, children, **_):
            if spec.get('branch'):
                meta = {'name': spec['branch']}
                head = {'apiVersion': 'plan.webop.dev/v1', 'kind': 'Shop', 'metadata': meta}
                await children.apply({**head, 'spec': {}})
    """)
    await desk.objects.create("one", {"branch": "two"})
    planned = await desk.plan("--call")
    assert find_certainty(planned, "create", "two")[0] == "will"
    assert find_certainty(planned, "continue", "handlers of 'two'") == (
        UNKNOWN,
        "the object does not exist yet",
    )
    assert planned.section("shops")["count"] == 1


async def test_a_kind_of_children_that_is_not_there_yet(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops', owns=['tills.plan.webop.dev'])
        async def build(name, children, **_):
            await children.apply(
                {'apiVersion': 'plan.webop.dev/v1', 'kind': 'Till', 'metadata': {'name': name}}
            )
    """)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    (note,) = planned.section("Absent kinds")["notes"]
    assert note["certainty"] == UNKNOWN
    certainty, reason = find_certainty(planned, "continue")
    assert certainty == UNKNOWN
    assert "does not have the kind Till" in reason


WRITER = """
    @webop.reconcile('shops', owns=['configmaps'])
    async def build(name, namespace, children, client, **_):
        await children.apply(
            {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'child'}}
        )
"""


async def plan_relayed(desk: Desk, meddle: Any) -> tuple[Planned, list[httpx.Request]]:
    """Plan behind a relay; return its requests that are not reads."""
    async with relay(desk.cluster) as relayed:
        relayed.meddle = meddle
        path = desk.workshop.folder / "relayed.yaml"
        path.write_text(build_config(relayed.server.url))
        planned = await desk.plan("--call", KUBECONFIG=str(path))
        requests = [request for request in relayed.requests if request.method != "GET"]
    await desk.plan()  # for the audit log
    return planned, requests


async def test_a_webhook_with_side_effects_is_named(desk: Desk) -> None:
    """No version of the API accepts such webhooks any more; those stored earlier are in force."""
    desk.write(WRITER)
    await desk.objects.create("one")

    async def refuse(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH":
            return None
        text = 'admission webhook "audit.example.com" does not support dry run'
        body = {"kind": "Status", "message": text, "reason": "BadRequest", "code": 400}
        return httpx.Response(400, json=body)

    planned, requests = await plan_relayed(desk, refuse)
    assert [request.url.params["dryRun"] for request in requests] == ["All"]
    certainty, reason = find_certainty(planned, "patch", "child")
    assert certainty == UNKNOWN
    assert '"audit.example.com" does not support dry run' in reason


async def test_an_object_that_cannot_be_read_may_change(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        async def build(namespace, client, **_):
            await client.patch('configmaps', 'page', {'data': {'a': '2'}}, namespace=namespace)
    """)
    await desk.objects.create("one")
    body = {"metadata": {"name": "page"}, "data": {"a": "1"}}
    await desk.client.create(MAPS, desk.namespace, body)

    async def hide(request: httpx.Request) -> httpx.Response | None:
        is_read = request.method == "GET" and request.url.path.endswith("/configmaps/page")
        refusal = {"kind": "Status", "message": "forbidden", "code": 403}
        return httpx.Response(403, json=refusal) if is_read else None

    planned, _ = await plan_relayed(desk, hide)
    certainty, reason = find_certainty(planned, "change", "page")
    assert (certainty, planned.find("one", "change")["fields"]) == ("may", [])
    assert "cannot be read" in reason


async def test_a_server_that_does_not_declare_dry_runs_is_never_asked_to_write(desk: Desk) -> None:
    desk.write(WRITER)
    await desk.objects.create("one")

    async def forget(request: httpx.Request) -> httpx.Response | None:
        is_asked = request.url.path.startswith("/openapi/v3/")
        return httpx.Response(200, json={"paths": {}}) if is_asked else None

    planned, requests = await plan_relayed(desk, forget)
    assert requests == []
    certainty, reason = find_certainty(planned, "patch", "child")
    assert certainty == UNKNOWN
    assert "does not declare dry runs" in reason
    assert planned.code == 2


@pytest.mark.parametrize("path", ["/openapi/v3/api/v1", "/resourcequotas"])
async def test_a_server_that_is_busy_once_is_asked_again(desk: Desk, path: str) -> None:
    desk.write(WRITER)
    await desk.objects.create("one")
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"count/configmaps": "9"}}}
    await desk.client.create(QUOTAS, desk.namespace, quota)
    refused: list[str] = []

    async def be_busy(request: httpx.Request) -> httpx.Response | None:
        if refused or not request.url.path.endswith(path):
            return None
        refused.append(request.url.path)
        status = {"kind": "Status", "message": "busy", "code": 503}
        return httpx.Response(503, json=status, headers={"Retry-After": "1"})

    planned, _ = await plan_relayed(desk, be_busy)
    assert refused
    certainty, reason = find_certainty(planned, "create", "child")
    assert (certainty, "quota" in reason) == ("may", True)
    assert "continue" not in {item["action"] for item in planned.items("one")}


async def test_an_eviction_is_a_dry_run(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('shops')
        async def build(name, namespace, client, **_):
            eviction = {'apiVersion': 'policy/v1', 'kind': 'Eviction',
                        'metadata': {'name': 'web', 'namespace': namespace}}
            await client.create(eviction, kind='pods', name='web', subresource='eviction')
    """)
    pods = Resource("", "v1", "pods", kind="Pod", namespaced=True)
    container = {"name": "main", "image": "nginx"}
    body = {"metadata": {"name": "web"}, "spec": {"containers": [container]}}
    await desk.client.create(pods, desk.namespace, body)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert find_certainty(planned, "evict", "web")[0] == "may"
    assert (await desk.list(pods)).keys() == {"web"}
