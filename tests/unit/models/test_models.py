"""Classes that stand for kinds, their definitions, and what is refused at import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field

import webop
from tests.kit.rows import rows
from webop.models.crd_comparison import compare
from webop.models.crds import build_crds
from webop.models.fitting import fit


class ThingSpec(webop.Struct):
    home_port: str = "Kiel"
    replicas: int = 1


class ThingStatus(webop.Struct):
    ready_replicas: int = 0
    conditions: webop.Conditions = Field(default_factory=webop.Conditions)


@webop.resource(
    "unit.webop.dev",
    "v1",
    short_names=["th"],
    categories=["all"],
    columns={
        "Port": ".spec.homePort",
        "Age": ".metadata.creationTimestamp",
        "Replicas": webop.Column(".spec.replicas", priority=1),
        "Ready": webop.Conditions.column("Ready"),
    },
    scale=webop.Scale(status=".status.readyReplicas"),
    selectable=[".spec.homePort"],
    deprecated="use v2",
)
class Thing(webop.Model):
    spec: ThingSpec = Field(default_factory=ThingSpec)
    status: ThingStatus | None = None


class Pod(pydantic.BaseModel):
    """As packages of generated classes have it."""

    apiVersion: Literal["v1"] = "v1"  # noqa: N815
    kind: Literal["Pod"] = "Pod"


def test_a_model_fills_in_its_kind_and_writes_camel_case() -> None:
    thing = Thing(metadata=webop.Metadata(name="one"), spec=ThingSpec(home_port="Bremen"))
    dumped = thing.model_dump(exclude_none=True, exclude_defaults=True)
    assert (thing.api_version, thing.kind) == ("unit.webop.dev/v1", "Thing")
    assert dumped == {"metadata": {"name": "one"}, "spec": {"homePort": "Bremen"}}


def test_the_definition_says_what_the_decorator_says() -> None:
    (crd,) = build_crds([Thing])
    (version,) = crd["spec"]["versions"]
    assert crd["metadata"]["name"] == "things.unit.webop.dev"
    assert crd["spec"]["names"] == {
        "plural": "things",
        "singular": "thing",
        "kind": "Thing",
        "listKind": "ThingList",
        "shortNames": ["th"],
        "categories": ["all"],
    }
    assert version["additionalPrinterColumns"] == [
        {"name": "Port", "type": "string", "jsonPath": ".spec.homePort"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
        {
            "name": "Ready",
            "type": "string",
            "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
        },
    ]
    assert version["subresources"]["scale"]["statusReplicasPath"] == ".status.readyReplicas"
    assert version["selectableFields"] == [{"jsonPath": ".spec.homePort"}]
    assert version["deprecationWarning"] == "use v2"
    root = version["schema"]["openAPIV3Schema"]
    assert root["properties"]["metadata"] == {"type": "object"}
    assert "required" not in root


@webop.resource(
    *("unit.webop.dev", "v1"),
    columns={"Replicas": webop.Column(".spec.replicas", "integer", format="int32")},
    status_subresource=False,
    annotations={"helm.sh/resource-policy": "keep"},
)
class Plain(webop.Model):
    spec: ThingSpec
    status: ThingStatus | None = None


def test_a_definition_can_have_annotations_and_no_subresource_of_the_status() -> None:
    (crd,) = build_crds([Plain])
    (version,) = crd["spec"]["versions"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "subresources" not in version
    assert version["additionalPrinterColumns"][0]["format"] == "int32"


@rows(
    ("annotation", "good", "bad"),
    [
        (webop.Int32, 2**31 - 1, 2**31),
        (webop.Int64 | None, None, -(2**63) - 1),
        (webop.Quantity, "500m", "1 Gi"),
        (Annotated[list[str], webop.Unique()], ["a", "b"], ["a", "b", "a"]),
    ],
)
def test_what_the_api_server_accepts_fits_and_what_it_refuses_does_not(
    annotation: Any, good: Any, bad: Any
) -> None:
    assert fit(annotation, good) == good
    with pytest.raises(webop.MisfitError):
        fit(annotation, bad)


declare_thing: Any = webop.resource("unit.webop.dev", "v1", kind="Thing")


@rows(
    ("define", "message"),
    [
        (lambda: webop.resource("example", "v1")(Pod), "group= of Pod must be a name such as"),
        (lambda: webop.resource("example.com", "V1")(Pod), "version= of Pod must be such as 'v1'"),
        (lambda: webop.resource("example.com", "v1")(int), "is for pydantic classes"),  # type: ignore[type-var]
        (
            lambda: declare_thing(type("Other", (webop.Model,), {})),
            "Two models of things.v1",
        ),
        (webop.ListKeys, "needs the names of the fields"),
    ],
)
def test_mistakes_in_definitions_are_errors_at_import(
    define: Callable[[], object], message: str
) -> None:
    with pytest.raises(webop.ConfigurationError) as caught:
        define()
    assert message in str(caught.value)


def test_the_path_of_a_column_begins_with_a_dot() -> None:
    declare = webop.resource("paths.webop.dev", "v1", columns={"Size": "spec.size"})
    with pytest.raises(webop.ConfigurationError, match=r"with a dot, such as '\.spec\.size'"):
        declare(type("Undotted", (webop.Model,), {}))


def test_paths_that_no_field_has_are_named() -> None:
    @webop.resource("paths.webop.dev", "v1", selectable=[".spec.nope"])
    class Pathless(webop.Model):
        spec: ThingSpec

    with pytest.raises(webop.ConfigurationError, match=r"Pathless has no field '\.spec\.nope'"):
        build_crds([Pathless])


@rows("group", ["k8s.io", "kubernetes.io", "shop.k8s.io", "a.b.kubernetes.io"])
def test_a_definition_in_a_group_of_kubernetes_needs_its_approval(group: str) -> None:
    def declare(kind: str, **options: Any) -> type[webop.Model]:
        decorate = webop.resource(group, "v1", kind=kind, **options)
        return decorate(type(kind, (webop.Model,), {}))

    with pytest.raises(webop.ConfigurationError, match="without the annotation api-approved"):
        build_crds([declare("Crate")])
    approved = {"api-approved.kubernetes.io": "unapproved, a test"}
    (crd,) = build_crds([declare("Barrel", annotations=approved)])
    assert crd["metadata"]["annotations"] == approved
    assert build_crds([webop.resource("my-k8s.io", "v1")(type("Crate", (webop.Model,), {}))])


def test_exactly_one_version_is_stored() -> None:
    @webop.resource("stored.webop.dev", "v1", kind="Crate")
    class CrateV1(webop.Model):
        spec: ThingSpec

    @webop.resource("stored.webop.dev", "v2", kind="Crate")
    class CrateV2(webop.Model):
        spec: ThingSpec

    with pytest.raises(webop.ConfigurationError, match="in exactly one version, but v1 and v2"):
        build_crds([CrateV1, CrateV2])


def test_fields_of_a_union_must_be_optional() -> None:
    with pytest.raises(webop.ConfigurationError, match="must be optional, with None"):

        class Broken(webop.OneOf):
            git: str


@rows("content", [{}, {"gitUrl": "a", "image": "b"}])
def test_of_a_union_exactly_one_field_is_set(content: dict[str, str]) -> None:
    class Union(webop.OneOf):
        git_url: str | None = None
        image: str | None = None

    with pytest.raises(pydantic.ValidationError, match="exactly one must be set of gitUrl, image"):
        Union.model_validate(content)


def register(fn: Any, *kind: Any, **options: Any) -> webop.OperatorRegistry:
    registry = webop.OperatorRegistry()
    webop.on.update(*kind, registry=registry, **options)(fn)
    return registry


def test_an_annotation_that_cannot_be_evaluated_is_an_error_beside_a_class() -> None:
    async def handle(spec: Nowhere, **_: Any) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    register(handle, "things.unit.webop.dev")
    with pytest.raises(TypeError, match=r"annotation spec: Nowhere of .*handle\(\) cannot be"):
        register(handle, Thing)


def test_other_annotations_need_not_be_importable() -> None:
    async def handle(spec: ThingSpec, logger: Nowhere, **_: Any) -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821

    (handler,) = register(handle, Thing).select_resource_handlers()
    assert [one.name for one in handler.arguments] == ["spec"]


def test_a_class_and_a_kind_exclude_each_other() -> None:
    async def handle(**_: Any) -> None: ...

    with pytest.raises(TypeError, match="Thing says of which kind it is"):
        register(handle, Thing, version="v1")
    with pytest.raises(webop.ConfigurationError, match="does not say of which kind"):
        register(handle, ThingSpec)


def test_conditions_keep_the_time_of_their_last_transition() -> None:
    conditions = webop.Conditions()
    assert conditions.set("Ready", False, "Starting", "soon", generation=1)
    assert not conditions.set("Ready", False, "Starting", "soon", generation=1)
    assert conditions.set("Ready", True, "Started")
    first = conditions.get("Ready")
    conditions.set("Ready", True, "Running", generation=2)
    second = conditions.get("Ready")
    assert first
    assert second
    assert conditions.is_true("Ready")
    assert not conditions.is_true("Other")
    assert first.last_transition_time == second.last_transition_time
    assert (second.reason, second.observed_generation, len(conditions)) == ("Running", 2, 1)
    with pytest.raises(ValueError, match="must be a word"):
        conditions.set("Ready", True, "not a word")


def change(**properties: Any) -> dict[str, Any]:
    (crd,) = build_crds([Thing])
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for name, schema in properties.items():
        spec["properties"].pop(name, None)
        if schema is not None:
            spec["properties"][name] = schema
    return crd


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def map_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}


def list_by(*keys: str) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"type": "object"},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": list(keys),
    }


RULE = {"x-kubernetes-validations": [{"rule": "self != ''"}]}
KEPT = {"x-kubernetes-validations": [{"rule": "self == oldSelf"}]}
EMBEDDED = {"x-kubernetes-embedded-resource": True}


def hold(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@rows(
    ("before", "after", "problems"),
    [
        (INTEGER, {"type": "number"}, []),
        (STRING, {"x-kubernetes-int-or-string": True}, []),
        (None, INTEGER, []),
        (INTEGER, {**INTEGER, "default": 1}, []),
        ({**STRING, "enum": ["a"]}, {**STRING, "enum": ["a", "b"]}, []),
        (list_by("a"), list_by("a", "b"), []),
        (INTEGER, None, [" is removed: stored values are dropped"]),
        (INTEGER, STRING, [" changes from integer to string"]),
        (INTEGER, {**INTEGER, "maximum": 5}, [": maximum becomes 5"]),
        ({**STRING, "enum": ["a", "b"]}, {**STRING, "enum": ["a"]}, [": 'b' is no longer allowed"]),
        (STRING, {**STRING, "enum": ["a"]}, [": only 'a' stay allowed"]),
        ({**STRING, "nullable": True}, STRING, [" can no longer be null"]),
        ({**STRING, "default": "a"}, STRING, [" has no default any more"]),
        (STRING, {**STRING, "pattern": "a"}, [": pattern becomes 'a'"]),
        (STRING, {**STRING, **KEPT}, []),  # it is about changes
        (STRING, {**STRING, **RULE}, [": a new rule, \"self != ''\""]),
        (
            *(list_by("a"), {**list_by(), "x-kubernetes-list-type": "atomic"}),
            [": x-kubernetes-list-type becomes 'atomic'"],
        ),
        (
            *(list_by("a", "b"), list_by("a")),
            [": items that differ only in 'b' are no longer allowed"],
        ),
        (
            *(OPEN, {**OPEN, **EMBEDDED}),
            [" must be an object of Kubernetes, with apiVersion, kind and metadata"],
        ),
        (
            *(hold(a=INTEGER, b=STRING), map_of({**STRING, "maxLength": 5})),
            [".a changes from integer to string", ".b: maxLength becomes 5"],
        ),
    ],
)
def test_what_breaks_stored_objects_is_named(before: Any, after: Any, problems: list[str]) -> None:
    found = compare(change(x=before), change(x=after))
    assert found == [f"v1: spec.x{problem}" for problem in problems]


def test_versions_that_go_and_kinds_that_move_are_named() -> None:
    present, wanted = change(), change()
    present["status"] = {"storedVersions": ["v0", "v1"]}
    present["spec"]["versions"].append({**present["spec"]["versions"][0], "name": "v0"})
    wanted["spec"]["scope"] = "Cluster"
    assert compare(present, wanted) == [
        "the scope changes from Namespaced to Cluster, which is impossible",
        "version v0 goes, but objects are stored in it: run 'webop crd migrate' first",
    ]
