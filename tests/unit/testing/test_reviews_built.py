"""Reviews that are built for tests: they are as API servers send them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

import webop
from tests.kit.rows import rows
from webop.errors import ConfigurationError
from webop.testing import review

Json = dict[str, Any]

OBJECT: Json = {
    "apiVersion": "example.com/v1",
    "kind": "Parcel",
    "metadata": {"name": "one", "namespace": "here"},
    "spec": {"size": 1},
}
EXEC: Json = {"apiVersion": "v1", "kind": "PodExecOptions", "command": ["ls"]}


def test_a_creation_is_as_api_servers_send_it() -> None:
    kind = {"group": "example.com", "version": "v1", "kind": "Parcel"}
    resource = {"group": "example.com", "version": "v1", "resource": "parcels"}
    assert review(OBJECT, uid="u1") == {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "u1",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": "one",
            "namespace": "here",
            "operation": "CREATE",
            "userInfo": {**ADMIN, "groups": ["system:masters", ALL]},
            "object": OBJECT,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


@rows(
    ("new", "old", "options", "operation", "expected"),
    [
        (OBJECT, None, {}, "CREATE", (OBJECT, None)),
        (OBJECT, OBJECT, {}, "UPDATE", (OBJECT, OBJECT)),
        (None, OBJECT, {}, "DELETE", (None, OBJECT)),
        (OBJECT, None, {"operation": "DELETE"}, "DELETE", (None, OBJECT)),
        (EXEC, None, {"operation": "CONNECT", "resource": "pods"}, "CONNECT", (EXEC, None)),
    ],
)
def test_the_operation_is_deduced_from_the_objects(
    new: Json | None, old: Json | None, options: Json, operation: str, expected: Any
) -> None:
    request = review(new, old, **options)["request"]
    assert request["operation"] == operation
    assert (request["object"], request["oldObject"]) == expected
    kind = None if operation == "CONNECT" else f"{operation.capitalize()}Options"
    assert (request["options"] or {}).get("kind") == kind


def test_the_review_of_a_dry_run_says_so_twice() -> None:
    request = review(OBJECT, dry_run=True, options={"fieldManager": "x"})["request"]
    assert request["dryRun"] is True
    assert request["options"]["dryRun"] == ["All"]
    assert request["options"]["fieldManager"] == "x"


ALL, ME = "system:authenticated", {"username": "me", "uid": "me"}
ADMIN = {"username": "admin", "uid": "admin"}


@rows(
    ("options", "expected"),
    [
        ({"user": "me"}, {**ME, "groups": [ALL]}),
        ({"user": "me", "groups": ["devs"]}, {**ME, "groups": ["devs", ALL]}),
        ({"groups": ["devs"]}, {**ADMIN, "groups": ["devs", ALL]}),
        ({"user": {"username": "x", "extra": {"a": ["b"]}}}, None),
    ],
)
def test_the_user_is_told_by_name_or_as_a_whole(options: Json, expected: Json | None) -> None:
    info = review(OBJECT, **options)["request"]["userInfo"]
    assert info == (options["user"] if expected is None else expected)


def test_a_subresource_can_be_of_another_kind_than_its_resource() -> None:
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}}
    deployments = webop.Resource("apps", "v1", "deployments", kind="Deployment")
    request = review(scale, scale, resource=deployments, subresource="scale")["request"]
    assert request["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert request["resource"] == {"group": "apps", "version": "v1", "resource": "deployments"}
    assert request["subResource"] == request["requestSubResource"] == "scale"


def test_objects_may_be_views_and_are_copied() -> None:
    body = {**OBJECT, "spec": {"list": (1, 2)}}
    built = review(webop.Body(body), {"a": webop.Body(body).spec} | body)
    request = built["request"]
    assert request["object"]["spec"] == {"list": [1, 2]}
    assert request["oldObject"]["a"] == {"list": [1, 2]}
    request["object"]["metadata"]["name"] = "other"
    assert body["metadata"]["name"] == "one"
    orjson.dumps(built)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((), {}, "A review with operation='CREATE' needs an object."),
        (({"apiVersion": "v1"},), {}, r"no kind: add it.*resource=webop\.Resource"),
        ((), {"operation": "CONNECT", "resource": "pods"}, "no apiVersion, or no kind"),
    ],
)
def test_what_is_not_clear_is_asked_for(args: Any, options: Json, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        review(*args, **options)


def test_a_misspelt_option_is_told_of() -> None:
    with pytest.raises(TypeError, match=r"'dryrun' of review\(\): did you mean 'dry_run'"):
        review(OBJECT, dryrun=True)  # type: ignore[call-arg]


@rows(
    ("kind", "plural"),
    [
        *(("Pod", "pods"), ("Ingress", "ingresses"), ("StorageClass", "storageclasses")),
        *(("NetworkPolicy", "networkpolicies"), ("Gateway", "gateways"), ("Box", "boxes")),
        *(("EphemeralVolumeClaim", "ephemeralvolumeclaims"), ("Patch", "patches")),
        ("Endpoints", "endpoints"),
    ],
)
def test_plurals_are_those_that_generators_of_kinds_make(kind: str, plural: str) -> None:
    assert review({"apiVersion": "v1", "kind": kind})["request"]["resource"]["resource"] == plural
