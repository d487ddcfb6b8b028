"""Handlers and rules decide alike, or the difference is found, on a real API server."""

from __future__ import annotations

import re
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import strategies as st

import webop
from webop.testing import ClusterError, LocalCluster, check_agreement

pytestmark = pytest.mark.timeout(300)


class BarrelSpec(webop.Struct):
    engine: Literal["a", "b"] = "a"
    size: int = pydantic.Field(ge=0)


@webop.resource("agreements.webop.dev", "v1")
class Barrel(webop.Model):
    spec: BarrelSpec


@pytest.fixture(autouse=True)
def declared(registry: webop.OperatorRegistry) -> webop.OperatorRegistry:
    webop.set_default_registry(registry)
    webop.on.validate(Barrel)(check_size)
    webop.on.validate(Barrel, operations=["UPDATE"])(keep_engine)
    webop.on.validate(Barrel, operation="DELETE")(keep_large)
    return registry


def check_size(spec: BarrelSpec, operation: str, **_: Any) -> None:
    if operation != "DELETE" and spec.size >= 1000:
        raise webop.AdmissionError("spec.size: too large", code=422)


async def keep_engine(old: Barrel, body: Barrel, **_: Any) -> None:
    if old.spec.engine != body.spec.engine:
        raise webop.AdmissionError("spec.engine: fixed", code=422)


def keep_large(old: Barrel, **_: Any) -> None:
    if old.spec.size > 10:
        raise webop.AdmissionError("too large to go", code=422)


def declare(cel: str, *kind: Any, **options: Any) -> webop.Rule:
    return webop.rule(*(kind or (Barrel,)), id="tried", cel=cel, message="no", **options)


def fail(handler: Any, rule: webop.Rule, cluster: LocalCluster, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        check_agreement(handler, rule=rule, cluster=cluster, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("handler", "cel", "operations"),
    [
        (check_size, "object.spec.size < 1000", None),
        (keep_engine, "object.spec.engine == oldObject.spec.engine", None),
        (keep_large, "oldObject.spec.size <= 10", ["DELETE"]),
    ],
)
def test_a_rule_that_decides_like_the_handler_agrees(
    webop_cluster: LocalCluster, handler: Any, cel: str, operations: Any
) -> None:
    rule = declare(cel, operations=operations)
    check_agreement(handler, rule=rule, cluster=webop_cluster, examples=15, seed=1)


def test_a_planted_difference_is_found_smallest_first_and_seen_again_by_its_seed(
    webop_cluster: LocalCluster,
) -> None:
    rule = declare("object.spec.size <= 1000")
    text = fail(check_size, rule, webop_cluster, examples=1000)
    assert "check_size() and the rule 'tried' disagree on this CREATE:" in text
    assert "the handler denies it: spec.size: too large\n  the rule allows it\n" in text
    assert '{"name": "one"}, "spec": {"engine": "a", "size": 1000}}' in text
    seed = re.search(r"pass seed=(\d+), examples=1000\.", text)
    assert seed is not None
    again = fail(check_size, rule, webop_cluster, examples=1000, seed=int(seed[1]))
    assert again == text


def test_of_an_update_both_objects_are_shown(webop_cluster: LocalCluster) -> None:
    rule = declare("object.spec == oldObject.spec")
    text = fail(keep_engine, rule, webop_cluster, examples=50, seed=1)
    assert "disagree on this UPDATE:\n  the handler allows it\n  the rule denies it: denied" in text
    assert 'The old object: {"apiVersion": "agreements.webop.dev/v1"' in text


def test_objects_can_be_those_of_the_test(
    webop_cluster: LocalCluster, registry: webop.OperatorRegistry
) -> None:
    @webop.on.validate("configmaps", registry=registry)
    def check_map(body: webop.Body, **_: Any) -> None:
        if "bad" in body.get("data", {}):
            raise webop.AdmissionError("no")

    maps = st.fixed_dictionaries(
        {
            "apiVersion": st.just("v1"),
            "kind": st.just("ConfigMap"),
            "metadata": st.just({"name": "one"}),
            "data": st.dictionaries(st.sampled_from(["good", "bad"]), st.just("")),
        }
    )
    rule = declare("!('bad' in object.data)", "v1", "configmaps")
    text = fail(check_map, rule, webop_cluster, objects=maps, examples=50, seed=1)
    # The API server drops empty maps, so the rule would need has(object.data).
    assert "the handler allows it" in text
    assert "no such key: data" in text


def test_a_check_that_shows_nothing_fails(webop_cluster: LocalCluster) -> None:
    text = fail(keep_large, declare("object.spec.size >= 0"), webop_cluster, examples=20, seed=1)
    assert "have both allowed all of the" in text


def test_objects_that_the_schema_refuses_do_not_count(webop_cluster: LocalCluster) -> None:
    bad = st.builds(lambda: {"apiVersion": "v1", "kind": "Other", "metadata": {"name": "one"}})
    rule = declare("object.spec.size < 1000")
    with pytest.raises(ClusterError, match=r"Only 0 of 20 .* The last refusal: .*the API version"):
        check_agreement(check_size, rule=rule, cluster=webop_cluster, objects=bad, examples=20)


def test_a_rule_that_is_no_cel_is_refused_by_the_api_server(webop_cluster: LocalCluster) -> None:
    with pytest.raises(ClusterError, match="Syntax error"):
        check_agreement(check_size, rule=declare("object.spec +"), cluster=webop_cluster)


def test_what_cannot_be_compared_is_refused(webop_cluster: LocalCluster) -> None:
    rule = declare("object.spec.size < 1000")
    with pytest.raises(webop.ConfigurationError, match=r"fail\(\) is no validating handler"):
        check_agreement(fail, rule=rule, cluster=webop_cluster)
    named = declare("true", "barrels.agreements.webop.dev")
    with pytest.raises(webop.ConfigurationError, match="pass objects="):
        check_agreement(check_size, rule=named, cluster=webop_cluster)
    change = webop.rule(Barrel, id="change", apply="Object{}")
    with pytest.raises(webop.ConfigurationError, match="only rules with cel="):
        check_agreement(check_size, rule=change, cluster=webop_cluster)
