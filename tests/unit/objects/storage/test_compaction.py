"""The last handled state of objects whose plain text does not fit into an annotation."""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import json
import logging
import random
import zlib
from typing import Any

import pytest

from tests.kit.merge_patches import merge
from tests.kit.rows import rows
from webop import (
    AnnotationsDiffBaseStorage,
    Body,
    BodyEssence,
    DiffBaseStorage,
    MultiDiffBaseStorage,
    Patch,
    StatusDiffBaseStorage,
)
from webop.objects.storage.codec import ANNOTATIONS_LIMIT, RESERVE
from webop.objects.storage.diffbase import EssenceDigest

KEY = "kopf.zalando.org/last-handled-configuration"
KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
ROOM = ANNOTATIONS_LIMIT - RESERVE
KIB = 1024


def build_raw(spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    metadata = {"name": "ex", "namespace": "ns", "annotations": annotations}
    return {"apiVersion": "kopf.dev/v1", "kind": "Sample", "metadata": metadata, "spec": spec}


@functools.cache
def build_noise(size: int) -> str:
    """Build a text that hardly gets smaller when it is compressed."""
    return base64.b85encode(random.Random(size).randbytes(size)).decode()[:size]


def store(storage: DiffBaseStorage, raw: dict[str, Any], patch: Patch | None = None) -> Any:
    patch = Patch() if patch is None else patch
    storage.store(body=Body(raw), patch=patch, essence=storage.build(body=Body(raw)))
    return merge(raw, patch)


def count_bytes(raw: dict[str, Any]) -> int:
    """Count as kube-apiserver does (ValidateAnnotationsSize)."""
    return sum(
        len(key.encode()) + len(value.encode())
        for key, value in raw["metadata"]["annotations"].items()
    )


def detect_form(raw: dict[str, Any]) -> str:
    content: dict[str, Any] = json.loads(raw["metadata"]["annotations"][KEY])
    return next(iter(content)).removeprefix("essence.webop.dev/")


@pytest.mark.feature("CON-02", "CFG-38", "CFG-65")
@rows(
    ("spec", "others", "form"),
    [
        ({"x": "y" * 200 * KIB}, {}, "spec"),
        ({"x": "y" * 300 * KIB}, {}, "zlib"),
        ({"x": build_noise(300 * KIB)}, {}, "sha256"),
        ({"x": "y" * 200 * KIB}, {KUBECTL: "y" * 200 * KIB}, "zlib"),
        ({"x": "ж" * 100 * KIB}, {}, "spec"),
        ({"x": "ж" * 130 * KIB}, {}, "zlib"),
        ({"x": '""' * 65 * KIB}, {}, "zlib"),
        ({"x": 1}, {"note": "n" * ROOM}, "sha256"),
    ],
)
def test_a_state_that_does_not_fit_is_compressed_or_a_digest(
    spec: dict[str, Any], others: dict[str, str], form: str
) -> None:
    storage = AnnotationsDiffBaseStorage()
    raw = build_raw(spec, **others)

    stored = store(storage, raw)

    essence = storage.build(body=Body(stored))
    found = storage.fetch(body=Body(stored))
    assert detect_form(stored) == form
    assert essence == storage.build(body=Body(raw))
    if form == "sha256":
        assert isinstance(found, EssenceDigest)
        assert found.matches(essence)
        assert not found.matches({**essence, "spec": {}})
    else:
        assert found == essence
        assert count_bytes(stored) <= ROOM


@pytest.mark.feature("CON-02", "CFG-38")
@rows("char", ["a", "ж", "語", "🙂"])
@rows(("excess", "form"), [(-1, "spec"), (0, "spec"), (1, "zlib")])
def test_the_border_is_exact_and_counts_bytes(char: str, excess: int, form: str) -> None:
    empty = store(AnnotationsDiffBaseStorage(), build_raw({"x": "", "y": ""}, nöte="ü"))
    room = ROOM - count_bytes(empty) + excess
    width = len(char.encode())
    spec = {"x": char * (room // width), "y": "a" * (room % width)}

    stored = store(AnnotationsDiffBaseStorage(), build_raw(spec, nöte="ü"))

    assert detect_form(stored) == form
    if form == "spec":
        assert count_bytes(stored) == ROOM + excess


@pytest.mark.feature("CFG-38")
@rows(
    ("present", "patched", "form"),
    [
        ({"note": "n" * ROOM}, {"note": None}, "spec"),
        ({"note": "n" * ROOM}, {"note": "short"}, "spec"),
        ({}, {"note": "n" * (ROOM - 1000)}, "zlib"),
        ({KEY: "{}" + " " * ROOM}, {}, "spec"),
        ({}, {"mistake": 5, "another": ["n" * ROOM]}, "spec"),
    ],
)
def test_annotations_count_as_they_are_after_the_patch(
    present: dict[str, str], patched: dict[str, Any], form: str
) -> None:
    storage = AnnotationsDiffBaseStorage()
    patch = Patch({"metadata": {"annotations": patched}})
    raw = build_raw({"x": "y" * 2000}, **present)

    storage.store(body=Body(raw), patch=patch, essence={"spec": raw["spec"]})

    assert detect_form(dict(patch)) == form


@pytest.mark.feature("CFG-67")
@rows("is_there", [False, True])
def test_the_older_name_is_left_out_where_only_one_fits(is_there: bool) -> None:
    storage = AnnotationsDiffBaseStorage(prefix="op.example.com", key="k" * 60)
    name, older = storage.make_keys(storage.key)
    before = {older: '{"spec": {}}'} if is_there else {}

    stored = store(storage, build_raw({"x": "y" * 130 * KIB}, **before))

    assert older not in stored["metadata"]["annotations"]
    assert json.loads(stored["metadata"]["annotations"][name])["spec"]
    assert storage.fetch(body=Body(stored)) == storage.build(body=Body(stored))

    small = store(storage, {**stored, "spec": {"x": 1}})
    annotations = small["metadata"]["annotations"]
    assert annotations[name] == annotations[older] == '{"spec":{"x":1}}\n'


@pytest.mark.feature("CFG-38")
def test_both_forms_can_be_read_with_common_tools() -> None:
    spec = {"ж": build_noise(20 * KIB) * 15}
    canonical = json.dumps({"spec": spec}, ensure_ascii=False, separators=(",", ":")).encode()

    compressed = store(AnnotationsDiffBaseStorage(), build_raw(spec))
    text = json.loads(compressed["metadata"]["annotations"][KEY])["essence.webop.dev/zlib"]
    assert zlib.decompress(base64.b64decode(text)) == canonical

    digest = store(AnnotationsDiffBaseStorage(), build_raw(spec, note="n" * 239 * KIB))
    kept = {**build_raw(spec)["metadata"]["annotations"], "note": "n" * 239 * KIB}
    essence = {"metadata": {"annotations": kept}, "spec": spec}
    canonical = json.dumps(essence, ensure_ascii=False, separators=(",", ":")).encode()
    text = json.loads(digest["metadata"]["annotations"][KEY])["essence.webop.dev/sha256"]
    assert text == hashlib.sha256(canonical).hexdigest()


@pytest.mark.feature("CFG-38")
@pytest.mark.parametrize(
    "packed",
    [
        "not base64!",
        base64.b64encode(b"not zlib").decode(),
        base64.b64encode(zlib.compress(b"{}")[:-3]).decode(),
        base64.b64encode(zlib.compress(b"not json")).decode(),
        base64.b64encode(zlib.compress(b"[]")).decode(),
        base64.b64encode(zlib.compress(b" " * 20 * 1024 * KIB + b"{}")).decode(),
        5,
    ],
)
def test_a_compressed_state_that_is_broken_counts_as_absent(
    packed: object, caplog: pytest.LogCaptureFixture
) -> None:
    raw = build_raw({}, **{KEY: json.dumps({"essence.webop.dev/zlib": packed})})

    assert AnnotationsDiffBaseStorage().fetch(body=Body(raw)) is None
    assert f"Ignored the damaged state in the annotation {KEY} of Sample ns/ex: " in caplog.text


@pytest.mark.feature("CFG-38")
def test_the_first_digest_of_a_kind_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    storage = AnnotationsDiffBaseStorage()
    large = build_raw({"x": build_noise(300 * KIB)})
    with caplog.at_level(logging.WARNING):
        store(storage, build_raw({"x": "y" * 300 * KIB}))
        assert not caplog.messages

        store(storage, large)
        store(storage, large)
        assert len(caplog.messages) == 1
        for part in ("Sample ns/ex", "3072", "262144", "'old'", "StatusDiffBase", "ignored_fields"):
            assert part in caplog.messages[0]

        store(storage, {**large, "kind": "Another", "metadata": {"name": "cluster-wide"}})
        assert "Another cluster-wide" in caplog.messages[1]


@pytest.mark.feature("CFG-64", "REF-54")
def test_of_several_storages_one_with_the_whole_state_helps_one_with_its_digest() -> None:
    annotations, status = AnnotationsDiffBaseStorage(), StatusDiffBaseStorage()
    multi = MultiDiffBaseStorage([annotations, status])
    raw = build_raw({"x": build_noise(300 * KIB)})

    stored = store(multi, raw)
    assert isinstance(annotations.fetch(body=Body(stored)), EssenceDigest)
    assert multi.fetch(body=Body(stored)) == multi.build(body=Body(raw))

    newer = store(annotations, {**stored, "spec": {"x": build_noise(301 * KIB)}})
    assert multi.fetch(body=Body(newer)) == annotations.fetch(body=Body(newer))
    assert isinstance(multi.fetch(body=Body(newer)), EssenceDigest)


class Stripping(AnnotationsDiffBaseStorage):
    """A storage as users write them: what it gets from its parent, it changes in place."""

    def build(self, *, body: Body, extra_fields: Any = None) -> BodyEssence:
        essence = super().build(body=body, extra_fields=extra_fields)
        essence["spec"].pop("z")
        essence["metadata"]["annotations"].clear()
        return essence


@pytest.mark.feature("REF-51")
def test_storages_of_users_can_change_the_essence_in_place() -> None:
    raw = build_raw({"z": 1, "a": [1, {"b": None}]}, note="n")
    original = copy.deepcopy(raw)
    essence = Stripping().build(body=Body(raw))
    assert essence == {"spec": {"a": [1, {"b": None}]}, "metadata": {"annotations": {}}}
    assert raw == original
