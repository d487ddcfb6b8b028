"""What a plan says about writes with the client, and what it cannot know.

Each case is a reconciler for the shop of its name; all of them are planned at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kit.plans import MAPS, UNKNOWN, Desk
from webop import Resource

Json = dict[str, Any]

PODS = Resource("", "v1", "pods", kind="Pod", namespaced=True)
ACCOUNTS = Resource("", "v1", "serviceaccounts", kind="ServiceAccount", namespaced=True)
NO_WRITES = ("call", "store", "continue", "prune")
HEAD = """
def case(shop, **options):
    return webop.reconcile('kiosks', id=shop, when=lambda name, **_: name == shop, **options)

def page(name, labels=None, **data):
    meta = {'name': name, 'labels': labels or {}}
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': meta, 'data': data}
"""


@dataclass(frozen=True)
class Item:
    """What is planned for a target; None stands for any fields."""

    action: str
    target: str
    certainty: str = "may"
    reason: str = ""
    fields: dict[str, tuple[Any, Any]] | None = None


@dataclass(frozen=True)
class Case:
    name: str
    code: str
    items: list[Item]
    notes: list[list[Any]] = field(default_factory=list)
    options: str = ""


CASES = [
    Case(
        "later-reads-see-writes",
        """
def build(name, namespace, client, **_):
    def titles(**options):
        found = client.list('configmaps', namespace=namespace, **options)
        return sorted(one['metadata']['name'] for one in found)

    labels = {'read': 'yes'}
    note('before', titles(labels=labels))
    client.create(page('made', labels, a='1'), namespace=namespace)
    client.patch('configmaps', 'stored', {'data': {'a': '2'}}, namespace=namespace)
    client.patch('configmaps', 'stored', {'data': {'b': '3'}}, namespace=namespace)
    client.apply(page('made', labels, b='2'), namespace=namespace)
    client.delete('configmaps', 'doomed', namespace=namespace, propagation='Background')
    note('after', titles(labels=labels), titles(labels='read=other'))
    note('read', client.get('configmaps', 'stored', namespace=namespace)['data'],
         client.get('configmaps', 'made', namespace=namespace)['data'])
    try:
        client.get('configmaps', 'doomed', namespace=namespace)
    except webop.APINotFoundError:
        note('missing', 'doomed')
""",
        [
            Item("create", "'made'"),
            Item(
                *("change", "'stored'", "may", "has not stored"),
                {"data.a": ("1", "2"), "data.b": (None, "3")},
            ),
            Item("delete", "'doomed'", "will"),
        ],
        [
            ["before", ["doomed", "stored"]],
            ["after", ["made", "stored"], []],
            ["read", {"a": "2", "b": "3"}, {"a": "1", "b": "2"}],
            ["missing", "doomed"],
        ],
    ),
    Case(
        "the-last-of-two-writes-counts",
        """
async def build(namespace, client, **_):
    async def put(name, **data):
        await client.patch('configmaps', name, {'data': data}, namespace=namespace)

    await put('undone', a='2')
    await put('undone', a='1')
    await put('changed', a='2', b='2')
    await put('changed', a='1')
    for name in ('undone', 'changed'):
        note(name, (await client.get('configmaps', name, namespace=namespace))['data'])
""",
        [
            Item("change", "'undone'", fields={}),  # as before in the end
            Item("change", "'changed'", fields={"data.b": (None, "2")}),
        ],
        [["undone", {"a": "1"}], ["changed", {"a": "1", "b": "2"}]],
    ),
    Case(
        "a-deletion-is-not-hidden-by-writes-and-waits-for-finalizers",
        """
async def build(namespace, client, **_):
    for name in ('gone', 'again', 'held'):
        await client.delete('configmaps', name, namespace=namespace)
    try:
        await client.patch('configmaps', 'gone', {'data': {'a': '2'}}, namespace=namespace)
    except webop.APINotFoundError:
        note('missing', 'gone')
    await client.apply(page('again'), namespace=namespace)
    await client.apply(page('again', b='2'), namespace=namespace)
    held = await client.get('configmaps', 'held', namespace=namespace)
    listed = await client.list('configmaps', namespace=namespace, labels={'held': 'yes'})
    note('held', bool(held['metadata']['deletionTimestamp']), len(listed))
""",
        [
            Item("delete", "'gone'", "will"),
            Item("recreate", "'again'"),
            Item("delete", "'held'", "will"),
        ],
        [["missing", "gone"], ["held", True, 1]],
    ),
    Case(
        "generated-names-are-not-known",
        """
async def build(namespace, client, **_):
    body = page('')
    body['metadata'] = {'generateName': 'page-'}
    made = await client.create(body, namespace=namespace)
    note('made', made['metadata']['name'][:5])
""",
        [Item("create", "configmaps", reason="its name is generated: it will be another one")],
        [["made", "page-"]],
    ),
    Case(
        "waiting-for-what-is-not-stored-ends-at-once",
        """
async def build(namespace, client, **_):
    await client.create(page('awaited'), namespace=namespace)
    await client.wait_for('configmaps', 'awaited', lambda raw: raw and 'a' in raw.get('data', {}),
                          namespace=namespace, timeout=30)
""",
        [
            Item("create", "'awaited'", "will"),
            Item("continue", "", UNKNOWN, "A plan does not wait"),
        ],
    ),
    Case(
        "no-real-token-is-asked-for",
        """
async def build(namespace, client, **_):
    request = {'apiVersion': 'authentication.k8s.io/v1', 'kind': 'TokenRequest', 'spec': {}}
    await client.create(request, kind='serviceaccounts', name='robot', subresource='token',
                        namespace=namespace)
""",
        [
            Item(
                *("create", "serviceaccounts/token", UNKNOWN),
                "a dry run of it would give a real token",
            )
        ],
    ),
    Case(
        "an-eviction-is-a-dry-run",
        """
async def build(name, namespace, client, **_):
    eviction = {'apiVersion': 'policy/v1', 'kind': 'Eviction',
                'metadata': {'name': 'web', 'namespace': namespace}}
    await client.create(eviction, kind='pods', name='web', subresource='eviction')
""",
        [Item("evict", "web")],
    ),
    Case(
        "a-refused-secret-is-not-quoted",
        """
async def build(name, children, **_):
    await children.apply({
        'apiVersion': 'v1', 'kind': 'Secret', 'metadata': {'name': 'login'},
        'type': 'kubernetes.io/dockerconfigjson',
        'stringData': {'.dockerconfigjson': 'hunter2 is no JSON'},
    })
""",
        [Item("patch", "'login' of secrets", UNKNOWN, "Invalid (masked)")],
        options=", owns=['secrets']",
    ),
    Case(
        "a-parent-that-does-not-exist-yet-is-not-called",
        """
async def build(children, **_):
    head = {'apiVersion': 'plan.webop.dev/v1', 'kind': 'Kiosk', 'metadata': {'name': 'branch'}}
    await children.apply({**head, 'spec': {}})
""",
        [
            Item("create", "'branch'", "will"),
            Item("continue", "handlers of 'branch'", UNKNOWN, "the object does not exist yet"),
        ],
        options=", owns=['kiosks']",
    ),
    Case(
        "a-kind-of-children-that-is-not-there-yet",
        """
async def build(children, **_):
    await children.apply(
        {'apiVersion': 'plan.webop.dev/v1', 'kind': 'Till', 'metadata': {'name': 'till'}}
    )
""",
        [Item("continue", "", UNKNOWN, "does not have the kind Till")],
        options=", owns=['tills.plan.webop.dev']",
    ),
    Case(
        "what-asks-to-be-called-again",
        "async def build(**_):\n    return webop.again(after=10, reason='RollingOut')\n",
        [Item("continue", "", UNKNOWN, "it asked to be called again: RollingOut")],
    ),
    Case(
        "what-fails-with-text-that-json-cannot-hold",
        """
async def build(**_):
    print('for debugging')
    raise webop.TemporaryError('the database is away: \\udc80', delay=7)
""",
        [Item("continue", "", UNKNOWN, "the database is away: ?")],
    ),
    Case(
        "what-fails-for-good",
        "async def build(**_):\n    raise webop.PermanentError('no such plan')\n",
        [Item("continue", "", UNKNOWN, "no such plan")],
    ),
]


async def store(desk: Desk) -> None:
    """Create what is in the cluster before the plan."""
    for name in ("stored", "doomed", "undone", "changed", "gone", "again"):
        labels = {"read": "yes"} if name in ("stored", "doomed") else {}
        body = {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}
        await desk.client.create(MAPS, desk.namespace, body)
    meta: Json = {"name": "held", "labels": {"held": "yes"}, "finalizers": ["example.com/held"]}
    await desk.client.create(MAPS, desk.namespace, {"metadata": meta})
    await desk.client.create(ACCOUNTS, desk.namespace, {"metadata": {"name": "robot"}})
    main = {"name": "main", "image": "main"}
    body = {"metadata": {"name": "web"}, "spec": {"containers": [main]}}
    await desk.client.create(PODS, desk.namespace, body)
    for case in CASES:
        await desk.objects.create(case.name)


async def test_writes_are_dry_and_their_effects_are_in_the_plan(
    desk: Desk, subtests: pytest.Subtests
) -> None:
    await store(desk)
    codes = [f"\n@case({case.name!r}{case.options})\n{case.code.lstrip()}" for case in CASES]
    desk.write("".join((HEAD, *codes)))
    before = await desk.list(MAPS), await desk.list(PODS)
    planned = await desk.plan("--call")
    assert planned.code == 2, planned.errors
    assert (await desk.list(MAPS), await desk.list(PODS)) == before
    assert "hunter2" not in planned.output + planned.errors
    assert "for debugging" in planned.errors  # what is printed is JSON
    assert planned.section("kiosks")["count"] == len(CASES)
    (absent,) = planned.section("Absent kinds")["notes"]
    assert absent["certainty"] == UNKNOWN
    notes = desk.take_calls()
    for case in CASES:
        with subtests.test(case.name):
            assert not [line for line in case.notes if line not in notes]
            written = [
                i["action"] for i in planned.items(case.name) if i["action"] not in NO_WRITES
            ]
            wanted_writes = [i.action for i in case.items if i.action not in NO_WRITES]
            assert sorted(written) == sorted(wanted_writes)
            for wanted in case.items:
                item = planned.find(case.name, wanted.action, wanted.target)
                assert item["certainty"] == wanted.certainty
                assert wanted.reason in item["reason"]
                found = {one["field"]: (one["old"], one["new"]) for one in item["fields"]}
                assert wanted.fields in (None, found)
