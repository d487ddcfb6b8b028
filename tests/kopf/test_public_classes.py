"""Public names do what those of Kopf do when operators use them by themselves.

``expressions.txt`` has expressions that are evaluated twice: with ``kopf`` as Kopf, and as webop.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import inspect
import json
import pickle
import re
import typing
from collections.abc import Iterable
from pathlib import Path
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


def evaluate(expression: str, module: ModuleType, maker: str = "None") -> Any:
    names = {**globals(), **MODULES, "kopf": module}
    try:
        return eval(expression, {**names, "s": eval(maker, names)})
    except NameError:
        raise  # a mistake in the expression
    except Exception as exc:  # noqa: BLE001  whatever it is
        return f"raises {type(exc).__name__}"


def find_differences(sections: Iterable[str], maker: str = "None") -> list[str]:
    """Evaluate the expressions of some sections; return those with different values or types."""
    found = []
    for expression in (line for section in sections for line in EXPRESSIONS[section]):
        values = [evaluate(expression, module, maker) for module in (kopf, webop)]
        if values[0] != values[1] or len({type(value).__name__ for value in values}) > 1:
            found.append(f"{expression}: {values[0]!r} in Kopf, {values[1]!r} in webop")
    return found


def read_expressions() -> dict[str, list[str]]:
    text = Path(__file__).with_name("expressions.txt").read_text()
    parts = re.split(r"^\[(.*)\]$", text, flags=re.MULTILINE)[1:]
    return {
        name: body.strip().splitlines() for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


EXPRESSIONS = read_expressions()
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
NAMED = {*PROGRESS_STORAGES[2:4], *DIFFBASE_STORAGES[1:4]}
"""Storages that can be asked for the names of annotations."""


@pytest.mark.feature("REF-66", "REF-67", "REF-69", "REF-71", "REF-76", "REF-80", "EVT-13")
@pytest.mark.feature("AUT-12", "EVT-05", "HIE-17", "HIE-18", "PAT-06", "PAT-08", "PAT-14", "RES-20")
@pytest.mark.feature("HIE-01", "HIE-02", "HIE-04", "HIE-05", "HIE-07", "HIE-10", "HIE-11", "HIE-12")
@pytest.mark.feature("HIE-13", "HIE-14", "HIE-15", "HIE-16", "REF-16", "REF-35", "REF-68", "REF-70")
@pytest.mark.feature("AUT-11", "MEM-02", "REF-20", "REF-25", "REF-61", "RES-21")
@pytest.mark.parametrize("section", ["diffs", "bodies", "patches", "adoption", "others"])
def test_public_classes_are_used_as_those_of_kopf(section: str) -> None:
    assert find_differences([section]) == []


@pytest.mark.feature("REF-51", "REF-52", "REF-53", "REF-54", "REF-56", "REF-57", "REF-58", "CFG-67")
@pytest.mark.feature("CFG-58", "CFG-59", "CFG-62", "CFG-63", "CFG-64", "CFG-69", "CFG-70", "CFG-71")
@pytest.mark.feature(
    "CFG-60", "CFG-61", "CFG-65", "CFG-66", "CFG-72", "D-01", "D-40", "D-45", "D-61"
)
@pytest.mark.feature("D-61", "REF-55", "HND-29", "HND-30", "HND-31", "HND-33")
@pytest.mark.parametrize("storage", PROGRESS_STORAGES + DIFFBASE_STORAGES)
def test_storages_are_used_as_those_of_kopf(storage: str) -> None:
    sections = ["progress" if storage in PROGRESS_STORAGES else "last states"]
    sections += ["cleaning by storages"]
    sections += ["names of storages"] if storage in NAMED else []
    sections += ["fields of progress"] if storage in PROGRESS_STORAGES[4:] else []
    assert find_differences(sections, storage) == []


NOT_THERE = {
    "WebhookAutoServer": {"guess_host"},
    "WebhookAutoTunnel": {"guess_host"},
}
"""Members of classes that are not in the manual, and not in webop's classes."""


@pytest.mark.feature("REF-72", "REF-73", "REF-75", "REF-76", "ARC-01", "D-35")
@pytest.mark.parametrize("name", kopf.__all__)
def test_all_names_of_kopf_are_there_with_the_members_of_their_classes(name: str) -> None:
    expected = getattr(kopf, name)
    if inspect.isclass(expected):
        members = {member for member in dir(expected) if not member.startswith("_")}
        assert members - set(dir(getattr(webop, name))) == NOT_THERE.get(name, set())
    assert name in webop.__all__


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
