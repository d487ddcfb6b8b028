"""What a plan cannot know, it says, with the reason; and it sends nothing that could be stored."""

from __future__ import annotations

from functools import partial

import httpx

from tests.kit.plans import MAPS, UNKNOWN, Desk
from tests.kit.waiting import eventually
from webop import Resource

QUOTAS = Resource("", "v1", "resourcequotas", kind="ResourceQuota", namespaced=True)


async def test_after_a_failed_apply_the_prune_is_unknown(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('kiosks', owns=['configmaps'])
        async def build(name, spec, children, **_):
            for title in spec['pages']:
                page = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': title}}
                try:
                    await children.apply({**page, 'data': {'a': spec['text']}})
                except webop.APIError:
                    note('failed', title)
            await children.prune()
    """)
    await desk.objects.create("one", {"pages": ["good", "old"], "text": "x"})
    async with desk.run():
        await eventually(partial(desk.find, MAPS, "old"), "the last child")
    await desk.objects.patch("one", {"spec": {"pages": ["good", "not_a_name"], "text": "y"}})
    planned = await desk.plan("--call")
    assert ["failed", "not_a_name"] in desk.take_calls()
    certainty, reason = planned.certainty("patch", "not_a_name")
    assert certainty == UNKNOWN
    assert "metadata.name: Invalid value" in reason
    assert planned.certainty("change", "good")[0] == "will"
    assert planned.certainty("prune")[0] == UNKNOWN
    assert "old" not in planned.children("one")
    assert planned.code == 2


async def test_what_fails_without_a_log_or_only_waits_is_unknown(desk: Desk) -> None:
    """Nor are there Events about what has failed: the audit log would have them."""
    desk.write("""
        import logging
        logging.disable()

        @webop.on.startup()
        def post(settings, **_):
            settings.posting.enabled = True

        @webop.reconcile('kiosks', labels={'fails': 'yes'})
        async def fail(**_):
            raise RuntimeError('the database is away')

        @webop.reconcile('kiosks')
        async def build(**_):
            return webop.again(after=10)
    """)
    await desk.objects.create("one")
    planned = await desk.plan("--call")
    assert planned.certainty("continue", "build")[0] == UNKNOWN
    assert planned.code == 0
    await desk.objects.create("two", labels={"fails": "yes"})
    planned = await desk.plan("--call")
    assert planned.certainty("continue", "fail", "two") == (UNKNOWN, "it has failed")
    assert planned.code == 2


async def test_a_namespace_that_is_gone_or_not_there_yet(desk: Desk) -> None:
    desk.write("""
        @webop.reconcile('kiosks', owns=['configmaps'], across_namespaces=True)
        async def build(spec, children, client, **_):
            target = spec['target']
            if spec.get('creates'):
                space = {'apiVersion': 'v1', 'kind': 'Namespace', 'metadata': {'name': target}}
                await client.apply(space)
            page = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': 'page'}}
            await children.apply(page, namespace=target)
            await children.prune()
    """)
    target = f"{desk.namespace}-other"
    gone, coming = f"{desk.namespace}/gone", f"{desk.namespace}/coming"
    await desk.objects.create("gone", {"target": target})
    await desk.objects.create("coming", {"target": f"{target}s", "creates": True})
    planned = await desk.plan_with("-A", "--call", "-o", "json", form="json")
    certainty, reason = planned.certainty("patch", "page", gone)
    assert certainty == UNKNOWN
    assert f'namespaces "{target}" not found' in reason
    assert planned.certainty("prune", "", gone)[0] == UNKNOWN
    assert planned.certainty("continue", "", gone)[0] == UNKNOWN
    assert planned.certainty("create", f"{target}s", coming)[0] == "will"
    certainty, reason = planned.certainty("patch", "page", coming)
    assert certainty == UNKNOWN
    assert "this plan creates the namespace before" in reason


WRITER = """
    @webop.reconcile('kiosks', owns=['configmaps'])
    async def build(spec, children, **_):
        for name in spec['children']:
            page = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': name}}
            await children.apply(page)
"""


async def test_a_server_that_does_not_declare_dry_runs_is_never_asked_to_write(desk: Desk) -> None:
    desk.write(WRITER)
    await desk.objects.create("one", {"children": ["child"]})

    async def forget(request: httpx.Request) -> httpx.Response | None:
        is_asked = request.url.path.startswith("/openapi/v3/")
        return httpx.Response(200, json={"paths": {}}) if is_asked else None

    planned, requests = await desk.plan_relayed("--call", meddle=forget)
    assert requests == []
    certainty, reason = planned.certainty("patch", "child")
    assert certainty == UNKNOWN
    assert "does not declare dry runs" in reason
    assert planned.code == 2


async def test_quotas_are_checked_one_by_one_even_if_the_server_is_busy_at_first(
    desk: Desk,
) -> None:
    desk.write(WRITER)
    await desk.objects.create("one", {"children": ["a", "b"]})
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"count/configmaps": "1"}}}
    await desk.client.create(QUOTAS, desk.namespace, quota)
    busy = ["/openapi/v3/api/v1", "/resourcequotas"]

    async def be_busy(request: httpx.Request) -> httpx.Response | None:
        for path in busy:
            if request.url.path.endswith(path):
                busy.remove(path)
                status = {"kind": "Status", "message": "busy", "code": 503}
                return httpx.Response(503, json=status, headers={"Retry-After": "1"})
        return None

    planned, _ = await desk.plan_relayed("--call", meddle=be_busy)
    assert not busy
    for title in ("'a'", "'b'"):
        certainty, reason = planned.certainty("create", title)
        assert (certainty, "quota" in reason) == ("may", True)
    assert "continue" not in {item["action"] for item in planned.items("one")}
