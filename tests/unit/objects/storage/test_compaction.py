"""The last handled state of objects whose plain text does not fit into an annotation."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import random
import zlib
from typing import Any

import pytest

from webop.objects.body import Body
from webop.objects.patch import Patch, apply_merge_patch
from webop.objects.storage.codec import ANNOTATIONS_LIMIT, RESERVE
from webop.objects.storage.diffbase import (
    AnnotationsDiffBaseStorage,
    DiffBaseStorage,
    EssenceDigest,
    MultiDiffBaseStorage,
    StatusDiffBaseStorage,
)

KEY = "kopf.zalando.org/last-handled-configuration"
KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
ROOM = ANNOTATIONS_LIMIT - RESERVE
KIB = 1024


def build_raw(spec: dict[str, Any], **annotations: str) -> dict[str, Any]:
    metadata = {"name": "ex", "namespace": "ns", "annotations": annotations}
    return {"apiVersion": "kopf.dev/v1", "kind": "Sample", "metadata": metadata, "spec": spec}


def build_noise(size: int) -> str:
    """Build a text that hardly gets smaller when it is compressed."""
    return base64.b85encode(random.Random(size).randbytes(size)).decode()[:size]


def store(storage: DiffBaseStorage, raw: dict[str, Any], patch: Patch | None = None) -> Any:
    patch = Patch() if patch is None else patch
    storage.store(body=Body(raw), patch=patch, essence=storage.build(body=Body(raw)))
    return apply_merge_patch(raw, patch)


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
@pytest.mark.parametrize(
    ("spec", "others", "form"),
    [
        pytest.param({"x": "y" * 200 * KIB}, {}, "spec", id="200 KiB"),
        pytest.param({"x": "y" * 300 * KIB}, {}, "zlib", id="300 KiB"),
        pytest.param({"x": build_noise(300 * KIB)}, {}, "sha256", id="300 KiB of noise"),
        pytest.param({"x": build_noise(200 * KIB)}, {}, "spec", id="200 KiB of noise"),
        pytest.param(
            {"x": "y" * 110 * KIB}, {KUBECTL: "y" * 110 * KIB}, "spec", id="110 KiB by kubectl"
        ),
        pytest.param(
            {"x": "y" * 200 * KIB}, {KUBECTL: "y" * 200 * KIB}, "zlib", id="200 KiB by kubectl"
        ),
        pytest.param(
            {"x": build_noise(200 * KIB)},
            {KUBECTL: build_noise(200 * KIB)},
            "sha256",
            id="200 KiB of noise by kubectl",
        ),
        pytest.param({"x": "ж" * 50 * KIB}, {}, "spec", id="100 KiB beyond ASCII"),
        pytest.param({"x": "ж" * 100 * KIB}, {}, "spec", id="200 KiB beyond ASCII"),
        pytest.param({"x": "ж" * 130 * KIB}, {}, "zlib", id="260 KiB in 130 Ki characters"),
        pytest.param({"x": "🙂" * 65 * KIB}, {}, "zlib", id="260 KiB in 65 Ki characters"),
        pytest.param({"x": 'q"' * 70 * KIB}, {}, "spec", id="140 KiB that take 210 with escapes"),
        pytest.param({"x": '""' * 65 * KIB}, {}, "zlib", id="130 KiB that take 260 with escapes"),
        pytest.param({"x": 1}, {"note": "n" * ROOM}, "sha256", id="no room at all"),
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
@pytest.mark.parametrize("char", ["a", "ж", "語", "🙂"])
@pytest.mark.parametrize(("excess", "form"), [(-1, "spec"), (0, "spec"), (1, "zlib")])
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
@pytest.mark.parametrize(
    ("present", "patched", "form"),
    [
        pytest.param({"note": "n" * ROOM}, {"note": None}, "spec", id="made room"),
        pytest.param({"note": "n" * ROOM}, {"note": "short"}, "spec", id="shortened"),
        pytest.param({}, {"note": "n" * (ROOM - 1000)}, "zlib", id="filled"),
        pytest.param({KEY: "{}" + " " * ROOM}, {}, "spec", id="to be overwritten"),
        pytest.param({}, {"mistake": 5, "another": ["n" * ROOM]}, "spec", id="not strings"),
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
@pytest.mark.parametrize("is_there", [False, True])
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
def test_the_order_of_keys_is_of_no_matter_for_the_compressed_form_and_the_digest() -> None:
    noise = build_noise(400 * KIB)
    for value in ("y" * 300 * KIB, noise):
        one = store(AnnotationsDiffBaseStorage(), build_raw({"a": value, "b": {"c": 1, "d": 2}}))
        two = store(AnnotationsDiffBaseStorage(), build_raw({"b": {"d": 2, "c": 1}, "a": value}))
        assert one["metadata"] == two["metadata"]


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
    "essence",
    [
        {"spec": {"x": 2**64 - 1}},
        {"spec": {"x": "\ud800"}},
        {"spec": {"x": [1.5, None, True, {"b": 1, "a": 2}]}},
        Body({"spec": {"x": 1}}),
    ],
)
def test_whatever_may_be_in_a_state_has_a_digest_and_a_compressed_form(essence: Any) -> None:
    storage = AnnotationsDiffBaseStorage()
    assert EssenceDigest.of(essence).matches(dict(reversed(essence.items())))

    padded: Any = {**essence, "data": {"x": "y" * 300 * KIB}}
    patch = Patch()
    storage.store(body=Body({}), patch=patch, essence=padded)
    assert storage.fetch(body=Body(apply_merge_patch({}, patch))) == padded


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
@pytest.mark.parametrize("digits", ["", "00", 5, ["x"]])
def test_a_broken_digest_is_that_of_no_state(digits: object) -> None:
    raw = build_raw({}, **{KEY: json.dumps({"essence.webop.dev/sha256": digits})})

    stored = AnnotationsDiffBaseStorage().fetch(body=Body(raw))

    assert isinstance(stored, EssenceDigest)
    assert not stored.matches({"spec": {}})


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
