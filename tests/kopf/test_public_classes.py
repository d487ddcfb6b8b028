"""Public names do what those of Kopf do when operators use them by themselves.

Each line below is an expression that is evaluated twice: with ``kopf`` as Kopf, and as webop.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import inspect
import itertools
import json
import pickle
import typing
from types import ModuleType
from typing import Any

import kubernetes
import pytest

import webop

kopf = pytest.importorskip("kopf", reason="Kopf comes with the extra 'dev'.")

META: dict[str, Any] = {
    "name": "n",
    "namespace": "ns",
    "uid": "u",
    "labels": {"l": "1"},
    "creationTimestamp": "t",
    "annotations": {
        "a": "2",
        "kopf.zalando.org/h": '{"retries":1,"started":"t"}',
        "kopf.zalando.org/touch-dummy": "d",
        "op.dev/h": '{"retries":2}',
        "kubectl.kubernetes.io/last-applied-configuration": "x",
    },
}
STATUS = {"y": 2, "kopf": {"progress": {"h": {"retries": 1}}, "dummy": "d"}}
BODY = {
    "apiVersion": "g/v1",
    "kind": "K",
    "metadata": META,
    "spec": {"x": 1, "list": [1]},
    "status": STATUS,
}
ESSENCES = {
    "kopf.zalando.org/last-handled-configuration": '{"spec":{"x":1}}\n',
    "op.dev/last": "{}",
}
HANDLED = {
    **BODY,
    "metadata": {**META, "annotations": {**META["annotations"], **ESSENCES}},
    "status": {**STATUS, "kopf": {"last-handled-configuration": '{"spec":{"x":3}}'}},
}
OWNED = {
    **BODY,
    "kind": "ReplicaSet",
    "metadata": {**META, "ownerReferences": [{"kind": "Deployment"}]},
}
ITEM = ("add", ("x",), None, 1)


MODULES = {
    module.__name__: module for module in (collections, copy, dataclasses, json, kubernetes, typing)
}
"""Those that the expressions name."""


def fill(patch: Any, fn: Any) -> dict[str, Any]:
    fn(patch)
    return dict(patch)


def change(essence: Any, fn: Any, *args: Any) -> Any:
    fn(essence, *args)
    return essence


def revive(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def split(expressions: str) -> list[str]:
    return [line.strip() for line in expressions.strip().splitlines()]


def evaluate(expression: str, module: ModuleType, maker: str = "None") -> Any:
    names = {**globals(), **MODULES, "kopf": module}
    try:
        return eval(expression, {**names, "s": eval(maker, names)})
    except NameError:
        raise  # a mistake in the expression
    except Exception as exc:  # noqa: BLE001  whatever it is
        return f"raises {type(exc).__name__}"


def compare(expression: str, maker: str = "None") -> None:
    expected = evaluate(expression, kopf, maker)
    found = evaluate(expression, webop, maker)
    assert found == expected
    assert type(found).__name__ == type(expected).__name__


DIFFS = """
    kopf.Diff([ITEM]) == [ITEM]
    kopf.Diff([ITEM]) == (ITEM,)
    kopf.Diff([ITEM]) == [list(ITEM)]
    kopf.Diff([ITEM]) != [list(ITEM)]
    kopf.Diff([ITEM]) == [('add', ['x'], None, 1)]
    [ITEM] == kopf.Diff([ITEM])
    (ITEM,) == kopf.Diff([ITEM])
    kopf.Diff([]) == ()
    kopf.Diff([]) == {}
    kopf.Diff([]) == None
    bool(kopf.Diff([]))
    kopf.Diff([('add', 'x')])
    kopf.Diff(None)
    repr(kopf.Diff([ITEM, kopf.DiffItem('remove', ('y', 'z'), 1, None)]))
    len(kopf.Diff(iter([ITEM])))
    kopf.Diff([ITEM])[0].op
    kopf.Diff([ITEM])[0:1]
    kopf.Diff([ITEM])[0]
    ITEM in kopf.Diff([ITEM])
    list(ITEM) in kopf.Diff([ITEM])
    kopf.Diff([ITEM]).index(ITEM)
    kopf.Diff([ITEM]).count(list(ITEM))
    hash(kopf.Diff([ITEM])) == hash(kopf.Diff([kopf.DiffItem(*ITEM)]))
    hash(kopf.Diff([('add', ('x',), None, [1])]))
    copy.copy(kopf.Diff([ITEM])) == [ITEM]
    copy.deepcopy(kopf.Diff([ITEM])) == [ITEM]
    type(revive(kopf.Diff([ITEM]))).__name__
    type(revive(kopf.Diff([ITEM]))[0]).__name__
    revive(kopf.Diff([ITEM])) == [ITEM]
    [op for op, field, old, new in kopf.Diff([ITEM])]
    isinstance(kopf.Diff([]), collections.abc.Sequence)
    dataclasses.make_dataclass('D', [('d', kopf.Diff, kopf.Diff([]))])().d == ()
    kopf.DiffItem(*ITEM) == ITEM
    kopf.DiffItem(*ITEM) == list(ITEM)
    list(ITEM) == kopf.DiffItem(*ITEM)
    kopf.DiffItem(*ITEM) != list(ITEM)
    kopf.DiffItem(*ITEM) == 'add'
    kopf.DiffItem(*ITEM) == None
    repr(kopf.DiffItem(kopf.DiffOperation.ADD, ('x',), None, 1))
    kopf.DiffItem(operation='add', field=('x',), old=None, new=1)._asdict()
    kopf.DiffItem(*ITEM)._replace(new=2).new
    kopf.DiffItem._fields
    kopf.DiffItem('add', ('x',))
    hash(kopf.DiffItem(*ITEM)) == hash(ITEM)
    revive(kopf.DiffItem(*ITEM)) == ITEM
    [(op.name, op.value, str(op), repr(op), f'{op}') for op in kopf.DiffOperation]
    json.dumps(kopf.DiffOperation('add'))
"""
BODIES = """
    dict(kopf.Body(BODY)) == BODY
    BODY == kopf.Body(BODY)
    kopf.Body(BODY) == kopf.Body(BODY)
    kopf.Body()
    kopf.Body({})['spec']
    kopf.Body({}).spec == {}
    kopf.Body({}).spec['x']
    kopf.Body({}).meta.name
    kopf.Body({}).metadata.labels == {}
    bool(kopf.Body({}).spec)
    repr(kopf.Body(BODY)) == repr(BODY)
    str(kopf.Body(BODY).spec)
    hash(kopf.Body(BODY))
    kopf.Body(BODY)['spec'] is BODY['spec']
    {**kopf.Body(BODY).spec}
    kopf.Body(kopf.Body(BODY)).spec['x']
    kopf.Body(BODY).spec.update(x=1)
    setattr(kopf.Body(BODY), 'spec', {})
    copy.copy(kopf.Body(BODY)) == BODY
    copy.copy(kopf.Body(BODY).spec) == BODY['spec']
    copy.deepcopy(kopf.Body(BODY)) == BODY
    copy.deepcopy(kopf.Body(BODY))['spec'] is BODY['spec']
    copy.deepcopy(kopf.Body(BODY).spec) == BODY['spec']
    revive(kopf.Body(BODY)) == BODY
    revive(kopf.Body(BODY)).spec['x']
    revive(kopf.Body(BODY).meta).labels['l']
    json.dumps(kopf.Body(BODY))
    (list(kopf.Body(BODY).spec), list(kopf.Body(BODY).spec.values()), len(kopf.Body(BODY).meta))
    kopf.Body(BODY).spec != kopf.Body(BODY).status
    kopf.Meta(BODY)['name']
    kopf.Meta(kopf.Body(BODY)).name
    kopf.Meta(BODY).labels == {'l': '1'}
    kopf.Meta(BODY).annotations['a']
    kopf.Meta(BODY).creation_timestamp
    kopf.Meta(BODY).deletion_timestamp
    (kopf.Meta(BODY).uid, kopf.Meta(BODY).namespace, kopf.Meta({}).uid, kopf.Meta({}).namespace)
    kopf.Meta({}) == {}
    kopf.Meta({}).name
    kopf.Meta({'name': 'x'}).name
    kopf.Meta()
    repr(kopf.Meta({'metadata': {'name': 'x'}}))
    kopf.Meta({'metadata': {'name': 'x'}}) == {'name': 'x'}
    kopf.Spec(BODY) == BODY['spec']
    kopf.Spec(kopf.Body(BODY)) == BODY['spec']
    kopf.Spec({'spec': {'x': 1}})['x']
    kopf.Spec({'x': 1}) == {}
    kopf.Spec({})['x']
    kopf.Spec({}).get('x', 5)
    list(kopf.Spec({'spec': {'x': 1}}).items())
    kopf.Status({'status': {'x': 1}}) == kopf.Spec({'spec': {'x': 1}})
    repr(kopf.Status({'status': {'x': 1}}))
    revive(kopf.Status({'status': {'x': 1}})) == {'x': 1}
    kopf.Labels({})
    kopf.Annotations({})
    kopf.HandlerId('x')
    kopf.FieldPath(['a', 'b'])
    kopf.BodyEssence(spec={'x': 1})
    kopf.RawBody(apiVersion='v1')
    kopf.RawEvent(type='ADDED', object={})
    kopf.ObjectReference(name='x')
    kopf.OwnerReference(name='x')
    kopf.ProgressRecord(retries=1)
    kopf.UserInfo(username='x')
    kopf.WebhookClientConfig(url='x')
    kopf.WebhookClientConfigService(name='x')
    sorted(kopf.WebhookClientConfigService.__annotations__)
    sorted(typing.get_args(kopf.Operation))
    kopf.build_object_reference(kopf.Body(BODY))
    kopf.build_owner_reference(kopf.Body(BODY))
    kopf.build_owner_reference({}, controller=None)
    kopf.build_owner_reference(kopf.Body(BODY), controller=False, block_owner_deletion=False)
    kopf.build_object_reference({})
    kopf.build_object_reference({'kind': 'Node', 'metadata': {'name': 'n', 'uid': 'u'}})
"""
PATCHES = """
    kopf.Patch() == {}
    bool(kopf.Patch())
    bool(kopf.Patch(fns=[len]))
    bool(kopf.Patch({'spec': {}}))
    kopf.Patch({'a': 1}) == {'a': 1}
    kopf.Patch(src={})
    repr(kopf.Patch())
    repr(kopf.Patch({'a': 1}))
    repr(kopf.Patch({}, fns=[len]))
    kopf.Patch(kopf.Patch({'a': 1}, fns=[len])).fns == [len]
    kopf.Patch(kopf.Patch({'a': 1}, fns=[len]), fns=[id]).fns == [len, id]
    copy.copy(kopf.Patch({'a': 1}, fns=[len])).fns == [len]
    copy.deepcopy(kopf.Patch({'a': 1})) == {'a': 1}
    dict(revive(kopf.Patch({'spec': {'a': 1}})).spec)
    fill(kopf.Patch(), lambda p: p.spec.update(x=1, y=2))
    fill(kopf.Patch(), lambda p: p.meta.labels.update(x='y'))
    fill(kopf.Patch(), lambda p: p.metadata.annotations.update(x=None))
    fill(kopf.Patch(), lambda p: p.status.setdefault('c', []).append(1))
    fill(kopf.Patch({'spec': {'x': 1, 'y': 2}}), lambda p: p.spec.pop('x'))
    fill(kopf.Patch({'spec': {'x': 1}}, fns=[len]), lambda p: p.clear())
    bool(change(kopf.Patch({'spec': {'x': 1}}, fns=[len]), lambda p: p.clear()))
    kopf.Patch().spec.pop('x')
    fill(kopf.Patch(), lambda p: (p.spec.get('x'), 'x' in p.metadata.labels, [*p.status]))
    kopf.Patch().spec == {}
    kopf.Patch().spec['x']
    kopf.Patch().spec.get('x')
    len(kopf.Patch().meta.labels)
    repr(kopf.Patch({'spec': {'x': 1}}).spec)
    kopf.Patch({'spec': {'x': 2}}).as_json_patch(BODY)
    kopf.Patch({'spec': {'x': 2}}, kopf.Body(BODY)).as_json_patch()
    kopf.Patch({'spec': {'x': 2}}).as_json_patch()
    kopf.Patch().as_json_patch()
    kopf.Patch({'spec': {'x': 1}}).as_json_patch(BODY)
    kopf.Patch({'spec': {'x': None}}).as_json_patch(BODY)
    kopf.Patch({'metadata': {'labels': {'a/b~c': 'x'}}}).as_json_patch(BODY)
    kopf.Patch(fns=[lambda b: b['spec'].update(x=3)]).as_json_patch(BODY)
"""
OTHERS = """
    kopf.Memo(a=1).a
    kopf.Memo({'a': 1})['a']
    repr(kopf.Memo(a=1))
    kopf.Memo().x
    hasattr(kopf.Memo(), 'x')
    fill(kopf.Memo(), lambda m: setattr(m, 'x', 1))
    fill(kopf.Memo(x=1), lambda m: delattr(m, 'x'))
    fill(kopf.Memo(), lambda m: delattr(m, 'x'))
    type(copy.copy(kopf.Memo(a=1))).__name__
    type(kopf.Memo(a=1).copy()).__name__
    copy.deepcopy(kopf.Memo(a=[1])).a
    revive(kopf.Memo(a=1)).a
    json.dumps(kopf.Memo(a=1))
    kopf.Index()
    kopf.Store()
    issubclass(kopf.Index[str, int].__origin__, collections.abc.Mapping)
    issubclass(kopf.Store[str].__origin__, collections.abc.Collection)
    sorted(kopf.Index.__abstractmethods__)
    sorted(kopf.Store.__abstractmethods__)
    list(kopf.ErrorsMode.__members__)
    list(kopf.DiffOperation.__members__)
    list(kopf.Reason.__members__)
    [(reason.name, reason.value, str(reason)) for reason in kopf.Reason]
    list(kopf.DaemonStoppingReason.__members__)
    list(kopf.LogFormat.__members__)
    kopf.TemporaryError().delay
    kopf.TemporaryError('x', 5).delay
    str(kopf.TemporaryError('x', delay=5))
    kopf.TemporaryError('x').args
    repr(kopf.TemporaryError('x'))
    revive(kopf.TemporaryError('x', 5)).delay
    copy.copy(kopf.TemporaryError('x', 5)).delay
    kopf.PermanentError('x', 1).args
    revive(kopf.PermanentError('x')).args
    kopf.AdmissionError('x').code
    revive(kopf.AdmissionError('x', 400)).code
    str(kopf.AdmissionError('x', 400))
    issubclass(kopf.AdmissionError, kopf.PermanentError)
    issubclass(kopf.HandlerTimeoutError, kopf.PermanentError)
    issubclass(kopf.HandlerRetriesError, kopf.PermanentError)
    str(kopf.LoginError('x'))
    kopf.Resource('g', 'v1', 'ks') == kopf.Resource('g', 'v1', 'ks', kind='K')
    kopf.Resource('g', 'v1', 'ks') == ('g', 'v1', 'ks')
    hash(kopf.Resource('g', 'v1', 'ks')) == hash(('g', 'v1', 'ks'))
    tuple(kopf.Resource('g', 'v1', 'ks'))
    repr(kopf.Resource('g', 'v1', 'ks'))
    str(kopf.Resource('', 'v1', 'pods'))
    kopf.Resource('g', 'v1')
    setattr(kopf.Resource('g', 'v1', 'ks'), 'kind', 'X')
    dataclasses.replace(kopf.Resource('g', 'v1', 'ks'), kind='X').kind
    sorted(field.name for field in dataclasses.fields(kopf.Resource))
    revive(kopf.Resource('g', 'v1', 'ks', namespaced=True)).namespaced
    kopf.Resource('g', 'v1', 'ks', namespaced=True).get_url(namespace='ns', name='n')
    kopf.Resource('g', 'v1', 'ks', namespaced=True).get_url(name='n')
    kopf.Resource('g', 'v1', 'ks', namespaced=True).get_url(subresource='status')
    kopf.Resource('g', 'v1', 'ks').get_url(server='https://h/', params={'a': 'b c'})
    kopf.Resource('g', 'v1', 'ks', namespaced=False).get_url(name='n')
    kopf.Resource('', 'v1', 'pods').get_url()
    kopf.EVERYTHING.name
    [member.name for member in type(kopf.PRESENT)]
    copy.deepcopy(kopf.PRESENT) is kopf.PRESENT
    revive(kopf.ABSENT) is kopf.ABSENT
    revive(kopf.EVERYTHING) is kopf.EVERYTHING
    kopf.ConnectionInfo()
    kopf.ConnectionInfo(server='s') == kopf.ConnectionInfo(server='s')
    len({kopf.ConnectionInfo(server='s'), kopf.ConnectionInfo(server='s')})
    dataclasses.replace(kopf.ConnectionInfo(server='s'), token='t').token
    sorted(field.name for field in dataclasses.fields(kopf.ConnectionInfo))
    kopf.ConnectionInfo(server='s', ca_path='x', ca_data='y')
    kopf.ConnectionInfo(server='s').as_http_headers()
    kopf.ConnectionInfo(server='s', token='t').as_http_headers()
    kopf.ConnectionInfo(server='s', scheme='S', token='t').as_http_headers()
    kopf.ConnectionInfo(server='s', scheme='S').as_http_headers()
    kopf.ConnectionInfo(server='s', username='u', password='p').as_http_headers()
    kopf.ConnectionInfo(server='s', username='u').as_http_headers()
    kopf.ConnectionInfo(server='s', username='\xfc', password='p').as_http_headers()
    kopf.ConnectionInfo(server='s', username='u', password='p', token='t').as_http_headers()
    kopf.AiohttpSession(server='s', aiohttp_session='x').aiohttp_session
    kopf.AiohttpSession(server='s')
    kopf.AiohttpSession('s', 'x')
    len({kopf.AiohttpSession(server='s', aiohttp_session='x', priority=5) for _ in 'ab'})
    kopf.ConnectionInfo(server='s').as_ssl_context().check_hostname
    kopf.ConnectionInfo(server='s', insecure=True).as_ssl_context().verify_mode.name
    revive(kopf.ConnectionInfo(server='s', token='t')).token
    len(kopf.SmartProgressStorage().storages)
    kopf.MultiProgressStorage()
    sorted(kopf.ProgressStorage.__abstractmethods__)
    sorted(kopf.DiffBaseStorage.__abstractmethods__)
"""
ADOPTION = """
    [change({'kind': 'Job'}, kopf.label, {'a': '1'}), change([{}, {'spec': {'t': {}}}], kopf.label, {'a': '1'})]
    change({'metadata': {'labels': {'x': 'old', 'y': '1'}}}, kopf.label, {'x': 'new', 'z': '2'})
    change({'metadata': {'labels': {'x': 'old'}}}, lambda o: kopf.label(o, {'x': 'new'}, forced=True))
    change([{}, {'spec': {'t': {}}}], lambda o: kopf.label(o, {'x': 'y'}, nested='spec.t'))
    change([{}, {'spec': {'t': {}}}], lambda o: kopf.label(o, {'x': 'y'}, nested=['spec.t']))
    change([{}, {'spec': {'t': {}}}], lambda o: kopf.label(o, {'x': 'y'}, nested=[('spec', 't')]))
    change({}, kopf.append_owner_reference, BODY)
    change([{}, {'metadata': {'ownerReferences': [{'uid': 'o'}]}}], kopf.append_owner_reference, kopf.Body(BODY))
    change({'metadata': {'ownerReferences': [{'uid': 'u'}]}}, kopf.append_owner_reference, BODY)
    change({}, lambda o: kopf.append_owner_reference(o, BODY, controller=False, block_owner_deletion=False))
    change({}, kopf.harmonize_naming, 'n')
    change({}, lambda o: kopf.harmonize_naming(o, 'n', strict=True))
    change({'metadata': {'name': 'o'}}, kopf.harmonize_naming, 'n')
    change({'metadata': {'name': 'o'}}, lambda o: kopf.harmonize_naming(o, 'n', strict=True))
    change({'metadata': {'name': 'o'}}, lambda o: kopf.harmonize_naming(o, 'n', forced=True))
    change({'metadata': {'name': 'o'}}, lambda o: kopf.harmonize_naming(o, 'n', forced=True, strict=True))
    change({'metadata': {'generateName': 'o-'}}, lambda o: kopf.harmonize_naming(o, 'n', strict=True))
    change({'metadata': {'generateName': 'o-'}}, lambda o: kopf.harmonize_naming(o, 'n', forced=True, strict=True))
    change({}, kopf.adjust_namespace, 'n')
    change({'metadata': {'namespace': 'o'}}, kopf.adjust_namespace, 'n')
    change({'metadata': {'namespace': 'o'}}, lambda o: kopf.adjust_namespace(o, 'n', forced=True))
    change([{}, {'spec': {'t': {}}}], lambda o: kopf.adopt(o, BODY, strict=True, forced=True, nested='spec.t'))
    change(kubernetes.client.V1Pod(), kopf.adopt, BODY).metadata.to_dict()
    kopf.label({})
    kopf.remove_owner_reference({})
    kopf.adopt({})
    kopf.append_owner_reference({})
    kopf.harmonize_naming({})
    kopf.adjust_namespace({})
    kopf.label(123, {'a': 'b'})
    kopf.label(object(), {'a': 'b'})
    kopf.adopt([{}, object()], BODY)
"""  # noqa: E501
NAMES = """
    (s.prefix, s.v1)
    [*s.make_keys('create_fn')]
    [*s.make_keys('a/b.c')]
    [*s.make_keys('h' * 50)]
    [s.make_keys('h' * size) for size in (46, 47, 63, 64, 80)]
    [*s.make_keys('outer.<locals>.inner')]
    [*s.make_keys('a/b<c>' * 20)]
    s.make_keys('h') + []
    [*s.make_keys('x', body=kopf.Body(OWNED))]
    s.mark_key('x', body=kopf.Body(OWNED))
    s.mark_key('x', body=kopf.Body(BODY))
    s.mark_key('x', body=kopf.Body({'kind': 'ReplicaSet'}))
    s.mark_key('x', body=kopf.Body({**OWNED, 'kind': 'Other'}))
    s.make_safe_key('a/b<c>.d')
    s.make_v1_key('a/b')
    s.make_v1_key('h' * 50)
    s.make_v1_key('h' * 50, max_length=40)
    s.make_v2_key('a/b')
    s.make_v2_key('h' * 80)
    s.make_v2_key('h' * 80, 40)
    s.make_suffix('x')
"""
CLEANING = """
    change({'metadata': {'annotations': {'a': '1', 'b': '2'}}}, s.remove_annotations, {'a', 'q'})
    change({'metadata': {'annotations': {'a': '1'}}}, s.remove_annotations, ['a'])
    change({}, s.remove_annotations, ['a'])
    change({'metadata': {'annotations': {}, 'labels': {}}, 'spec': {}}, s.remove_empty_stanzas)
    change({'metadata': {'annotations': {}, 'labels': {'a': 'b'}}}, s.remove_empty_stanzas)
    change({'status': {}}, s.remove_empty_stanzas)
    change({}, s.remove_empty_stanzas)
"""
PROGRESS = """
    s.fetch(key='h', body=kopf.Body(BODY))
    s.fetch(key='nope', body=kopf.Body(BODY))
    copy.deepcopy(s).fetch(key='h', body=kopf.Body(BODY))
    revive(s).fetch(key='h', body=kopf.Body(BODY))
    fill(kopf.Patch(), lambda p: s.store(key='h', record={}, body=kopf.Body({}), patch=p))
    fill(kopf.Patch(), lambda p: s.store(key='h', record={'retries': 1, 'success': None}, body=kopf.Body(BODY), patch=p))
    fill(kopf.Patch(), lambda p: s.store(key='h/sub', record={'retries': 1}, body=kopf.Body(OWNED), patch=p))
    fill(kopf.Patch(), lambda p: s.purge(key='h', body=kopf.Body(BODY), patch=p))
    fill(kopf.Patch(), lambda p: s.purge(key='nope', body=kopf.Body(BODY), patch=p))
    fill(kopf.Patch(), lambda p: (s.store(key='n', record={}, body=kopf.Body(BODY), patch=p), s.purge(key='n', body=kopf.Body(BODY), patch=p)))
    fill(kopf.Patch(), lambda p: s.touch(body=kopf.Body(BODY), patch=p, value='v'))
    fill(kopf.Patch(), lambda p: s.touch(body=kopf.Body(BODY), patch=p, value='d'))
    fill(kopf.Patch(), lambda p: s.touch(body=kopf.Body(BODY), patch=p, value=None))
    fill(kopf.Patch(), lambda p: s.purge(key='h', body=kopf.Body({'status': STATUS}), patch=p))
    s.fetch(key='h', body=kopf.Body({'status': STATUS}))
    s.clear(essence={'spec': {'x': 1}, 'metadata': {'annotations': {'a/b': 'c'}}})
    s.clear(essence=copy.deepcopy(BODY))
    s.clear(essence={})
    s.flush()
"""  # noqa: E501
PROGRESS_FIELDS = """
    (s.field, s.touch_field)
    change(s, lambda s: setattr(s, 'field', 'status.{name}.here')).field
    change(s, lambda s: setattr(s, 'touch_field', ['status', 'x'])).touch_field
"""
DIFFBASE = """
    s.build(body=kopf.Body(BODY))
    s.build(body=kopf.Body({}))
    s.build(body=kopf.Body(BODY), extra_fields=['status.y', 'metadata.name', ('nope',)])
    [s.build(body=kopf.Body(BODY), extra_fields=[field]) for field in ('status', 'status.kopf.dummy', 'status.nope', 'nope.x', 'spec.x')]
    s.build(body=kopf.Body(BODY), extra_fields=['status.kopf.dummy', 'status.kopf'])
    s.build(body=kopf.Body(BODY), extra_fields=['status.kopf', 'status.kopf.dummy'])
    s.build(body=kopf.Body(BODY), extra_fields=['status.y', 'status.kopf.dummy'])
    s.build(body=kopf.Body(BODY), extra_fields=['metadata'])
    s.build(body=kopf.Body({'metadata': {'labels': {}, 'annotations': {}}, 'status': {}}))
    s.build(body=kopf.Body({'metadata': {'labels': {'a': 'b'}, 'name': 'n'}}))
    s.build(body=kopf.Body({'metadata': {'annotations': {'sub.kopf.zalando.org/x': 'y', 'z': '1'}}}))
    s.build(body=kopf.Body({'metadata': {'annotations': {'op2.dev/kopf-managed': 'yes', 'op2.dev/x': 'y', 'z': '1'}}}))
    change(s, lambda s: s.ignored_fields.append('spec')).build(body=kopf.Body(BODY))
    change(s, lambda s: s.ignored_fields.extend(['metadata.labels', 'metadata.annotations.a'])).build(body=kopf.Body(BODY))
    change(s, lambda s: s.ignored_fields.extend(['spec.nope', 'spec.x.y', ('a', 'b')])).build(body=kopf.Body(BODY))
    fill(kopf.Patch(), lambda p: s.store(body=kopf.Body({'metadata': {'annotations': {'op.dev/kopf-managed': 'yes'}}}), patch=p, essence={}))
    s.fetch(body=kopf.Body(BODY))
    s.fetch(body=kopf.Body(HANDLED))
    revive(s).fetch(body=kopf.Body(HANDLED))
    copy.deepcopy(s).fetch(body=kopf.Body(HANDLED))
    fill(kopf.Patch(), lambda p: s.store(body=kopf.Body(BODY), patch=p, essence={'spec': {'x': 1}}))
    fill(kopf.Patch(), lambda p: s.store(body=kopf.Body(OWNED), patch=p, essence={}))
    s.ignored_fields
    change(s, lambda s: s.ignored_fields.append('spec.x')).build(body=kopf.Body(BODY))
"""  # noqa: E501
DIFFBASE_FIELD = "change(s, lambda s: setattr(s, 'field', 'status.{name}.here')).field"
PROGRESS_STORAGES = (
    "kopf.SmartProgressStorage()",
    "kopf.MultiProgressStorage([kopf.AnnotationsProgressStorage(), kopf.StatusProgressStorage()])",
    "kopf.AnnotationsProgressStorage()",
    "kopf.AnnotationsProgressStorage(prefix='op.dev', v1=False, verbose=True, touch_key='t')",
    "kopf.StatusProgressStorage()",
    "kopf.StatusProgressStorage(name='op', field='status.{name}.p', touch_field='status.t')",
)
DIFFBASE_STORAGES = (
    "kopf.MultiDiffBaseStorage([kopf.StatusDiffBaseStorage(), kopf.AnnotationsDiffBaseStorage()])",
    "kopf.AnnotationsDiffBaseStorage(prefix='kopf.dev', key='k' * 60)",
    "kopf.AnnotationsDiffBaseStorage()",
    "kopf.AnnotationsDiffBaseStorage(prefix='op.dev', key='last', ignored_fields=['spec.x'])",
    "kopf.StatusDiffBaseStorage()",
    "kopf.StatusDiffBaseStorage(name='op', ignored_fields=[('spec', 'list')])",
)
USES = (
    *itertools.product(PROGRESS_STORAGES, split(PROGRESS + CLEANING)),
    *itertools.product(PROGRESS_STORAGES[4:], split(PROGRESS_FIELDS)),
    *itertools.product(DIFFBASE_STORAGES, split(DIFFBASE + CLEANING)),
    *itertools.product(DIFFBASE_STORAGES[4:], split(DIFFBASE_FIELD)),
    *itertools.product(PROGRESS_STORAGES[2:4] + DIFFBASE_STORAGES[1:4], split(NAMES)),
)
"""A storage, and what is done with it."""


@pytest.mark.feature("REF-66", "REF-67", "REF-69", "REF-71", "REF-76", "REF-80", "EVT-13")
@pytest.mark.feature("AUT-12", "EVT-05", "HIE-17", "HIE-18", "PAT-06", "PAT-08", "PAT-14", "RES-20")
@pytest.mark.feature("HIE-01", "HIE-02", "HIE-04", "HIE-05", "HIE-07", "HIE-10", "HIE-11", "HIE-12")
@pytest.mark.feature("HIE-13", "HIE-14", "HIE-15", "HIE-16", "REF-16", "REF-35", "REF-68", "REF-70")
@pytest.mark.parametrize("expression", split(DIFFS + BODIES + PATCHES + ADOPTION + OTHERS))
def test_public_classes_are_used_as_those_of_kopf(expression: str) -> None:
    compare(expression)


@pytest.mark.feature("REF-51", "REF-52", "REF-53", "REF-54", "REF-56", "REF-57", "REF-58", "CFG-67")
@pytest.mark.feature("CFG-58", "CFG-59", "CFG-62", "CFG-63", "CFG-64", "CFG-69", "CFG-70", "CFG-71")
@pytest.mark.feature(
    "CFG-60", "CFG-61", "CFG-65", "CFG-66", "CFG-72", "D-01", "D-40", "D-45", "D-61"
)
@pytest.mark.feature("D-61", "HND-29", "HND-30", "HND-31", "HND-33")
@pytest.mark.parametrize(("storage", "expression"), USES)
def test_storages_are_used_as_those_of_kopf(storage: str, expression: str) -> None:
    compare(expression, storage)


NOT_THERE = {
    "OperatorSettings": {"batching"},  # of each instance
    "WebhookAutoServer": {"guess_host"},
    "WebhookAutoTunnel": {"guess_host"},
}
"""Members of classes that are not in the manual, and not in webop's classes."""
FUNCTIONS = [
    (place, name)
    for place in ("", "on", "lifecycles")
    for name, value in vars(getattr(kopf, place) if place else kopf).items()
    if not name.startswith("_")
    and (inspect.isfunction(value) or inspect.isclass(value))
    and (name in kopf.__all__ or value.__module__ == f"kopf.{place}")
]


@pytest.mark.feature("REF-72", "REF-73", "REF-75", "REF-76", "ARC-01", "D-35")
@pytest.mark.parametrize("name", kopf.__all__)
def test_all_names_of_kopf_are_there_with_the_members_of_their_classes(name: str) -> None:
    expected = getattr(kopf, name)
    if inspect.isclass(expected):
        members = {member for member in dir(expected) if not member.startswith("_")}
        assert members - set(dir(getattr(webop, name))) == NOT_THERE.get(name, set())
    assert name in webop.__all__


@pytest.mark.feature("REF-76", "D-30")
@pytest.mark.parametrize(("place", "name"), FUNCTIONS)
def test_functions_and_constructors_take_the_options_of_kopf(place: str, name: str) -> None:
    def get_options(module: Any) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(getattr(module, name)).parameters)

    try:
        expected = get_options(getattr(kopf, place) if place else kopf)
    except ValueError:
        return  # of a class that has no signature, such as an error
    found = get_options(getattr(webop, place) if place else webop)
    takes_any = any(option.kind is option.VAR_KEYWORD for option in found.values())
    missing = {
        option
        for option, parameter in expected.items()
        if parameter.kind in {parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        and not option.startswith("_")
        and option not in found
    }
    assert takes_any or missing <= {"queueing"}  # as settings; the manual says batching


DIFFERENT = {
    *("posting.loggers", "posting.event_name_prefix", "posting.reporting_component"),
    *("execution.executor", "persistence.progress_storage", "persistence.diffbase_storage"),
}
"""Settings whose defaults are others than in Kopf."""
UNKNOWN = {
    *("posting.default_backoffs", "posting.logging_backoffs", "posting.worker_limit"),
    *("posting.idle_timeout", "watching.chunk_size", "watching.initial_streaming"),
}
"""Settings that are not in the manual, and not in webop's."""


@pytest.mark.feature(
    *(
        f"CFG-{number:02}"
        for number in (*range(1, 6), *range(12, 19), *range(21, 26), *range(28, 37), 39)
    ),
    "REF-50",
)
def test_settings_have_the_defaults_of_kopf() -> None:
    ours, theirs = webop.OperatorSettings(), kopf.OperatorSettings()
    differing = {
        f"{group}.{field.name}"
        for group, section in vars(theirs).items()
        for field in dataclasses.fields(section)
        if not field.name.startswith("_")
        and getattr(getattr(ours, group), field.name, ...) != getattr(section, field.name)
    }
    assert differing == DIFFERENT | UNKNOWN
    assert ours.batching.batch_window == theirs.queueing._batch_window
    assert ours.posting.loggers
    assert ours.posting.reporting_component == "webop"
    assert ours.posting.event_name_prefix == "webop-event-"
