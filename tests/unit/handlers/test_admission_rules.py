"""Rules for API servers: what ``webop.rule`` makes of its options, and what it refuses."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

import webop
from tests.kit.rows import rows
from webop.handlers.model import MatchCondition
from webop.handlers.validation import check_registry

GOOD: dict[str, Any] = {"id": "size-is-small", "cel": "object.spec.size < 9", "message": "too big"}
SAME: dict[str, Any] = {**GOOD, "cel": "oldObject.a == object.a"}
CHANGE: dict[str, Any] = {"id": "sized", "apply": "Object{spec: Object.spec{size: 1}}"}


class CrateSpec(webop.Struct):
    size: int


@webop.resource("rules.webop.dev", "v1")
class Crate(webop.Model):
    spec: CrateSpec


class Wheel(webop.Struct):
    inch: int = 16


class CartStatus(webop.Struct):
    ready_wheels: int = 0


class CartSpec(webop.Struct):
    engine: str = "none"
    max_load: int = 1
    namespace: str = "here"
    front: Wheel | None = None
    wheels: list[Wheel] = pydantic.Field(default=[])
    colours: dict[str, Wheel] = pydantic.Field(default={})
    anything: dict[str, Any] = pydantic.Field(default={})
    what: Any = None


@webop.resource("rules.webop.dev", "v1")
class Cart(webop.Model):
    spec: CartSpec
    status: CartStatus = CartStatus()


class Sledge(webop.Model):
    """A class of a kind that somebody else defines, with few of its fields."""

    api_version: str = "snow.example.com/v1"
    kind: str = "Sledge"
    spec: Wheel


def declare(*kind: Any, **options: Any) -> webop.Rule:
    return webop.rule(*(kind or ("crates",)), registry=webop.OperatorRegistry(), **options)


def test_a_rule_is_in_the_registry_and_is_no_handler(
    default_registry: webop.OperatorRegistry,
) -> None:
    for registry in (webop.OperatorRegistry(), default_registry):
        options: Any = {} if registry is default_registry else {"registry": registry}
        rule = webop.rule("crates", **options, **GOOD)
        assert registry.rules == [rule]
        assert len(registry) == 0
        assert registry.copy().rules == [rule]
        webop.rule("crates", **options, **GOOD)  # of a file that is loaded twice
        assert registry.rules == [rule]


def test_options_take_the_forms_of_webhooks() -> None:
    rule = declare(
        labels={"app": "web", "old": webop.ABSENT},
        namespace_selector={"team": webop.PRESENT},
        match_conditions={"by-users": "request.userInfo.username != 'me'"},
        subresource="status",
        action="Warn",
        operations=["UPDATE"],
        **GOOD,
    )
    assert rule.object_selector == {
        "matchExpressions": [
            {"key": "app", "operator": "In", "values": ["web"]},
            {"key": "old", "operator": "DoesNotExist"},
        ]
    }
    assert rule.namespace_selector == {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    assert rule.match_conditions == (
        MatchCondition("by-users", "request.userInfo.username != 'me'"),
    )
    assert (rule.subresource, rule.action, {*rule.operations}) == ("status", "Warn", {"UPDATE"})


@rows(
    ("cel", "operations"),
    [
        ("object.spec.size < 9", {"CREATE", "UPDATE"}),
        ("object.spec.engine == oldObject.spec.engine", {"UPDATE"}),
        ("oldObject == null || object.spec == oldObject.spec", {"CREATE", "UPDATE"}),
        ("object.spec.text != 'oldObject'", {"CREATE", "UPDATE"}),
    ],
)
def test_rules_that_need_an_old_object_are_for_updates(cel: str, operations: set[str]) -> None:
    assert declare(id="a", cel=cel, message="no").operations == operations


@rows(
    ("options", "error", "message"),
    [
        ({"cel": "true", "message": "no"}, TypeError, "requires id="),
        ({**GOOD, "message": None}, TypeError, "with cel= requires message="),
        ({**GOOD, "id": "Size_Is"}, TypeError, "id= must be a DNS name"),
        ({**GOOD, "operations": ["DELETE"]}, ValueError, "object, which is null in each DELETE"),
        ({**SAME, "operations": ["CREATE", "UPDATE"]}, ValueError, "with 'oldObject == null || '"),
        ({**GOOD, "cel": "self.a == oldSelf.a"}, ValueError, "oldObject in place of oldSelf and"),
        ({**GOOD, "cell": "true"}, TypeError, "no option 'cell' of webop.rule(): did you mean"),
        ({**GOOD, "labels": {"a": lambda **_: True}}, TypeError, "cannot call functions"),
        ({**GOOD, **CHANGE}, TypeError, "cel= and apply= exclude each other"),
        ({**CHANGE, "operations": ["DELETE"]}, ValueError, "must be CREATE and UPDATE, got DELETE"),
    ],
)
def test_mistakes_are_refused_at_import(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        declare(**options)
    assert message in str(caught.value)


@rows("kind", [(webop.EVERYTHING,), (lambda _: True,)])
def test_a_rule_needs_one_kind(kind: Any) -> None:
    with pytest.raises(TypeError, match="requires one kind"):
        declare(*kind, **GOOD)


@rows(
    ("cel", "hint"),
    [
        (
            "object.spec.engin == 'a'",
            "'a' reads object.spec.engin, but Cart has no such field",
        ),
        ("object\n  .spec\n  .engin.startsWith('a')", "did you mean object.spec.engine?"),
        ("object.spec.wheel.all(x, x.inch > 1)", "did you mean object.spec.wheels?"),
        ("object.spec.engine.name == 'a'", "object.spec.engine is of the type string."),
        ("object.spec.x > 0", "use engine, maxLoad, namespace, front, wheels and 3 more."),
    ],
)
def test_a_misspelt_field_of_a_model_is_refused_before_it_denies_every_update(
    cel: str, hint: str
) -> None:
    with pytest.raises(ValueError, match="has no such field") as caught:
        declare(Cart, id="a", cel=cel, message="no")
    assert hint in str(caught.value)


@rows(
    "cel",
    [
        "!has(object.spec.a__dash__b) || object.spec.a__dash__b < 3",
        "object.spec.?a__dot__b.orValue('') == ''",
    ],
)
@rows("kind", [Cart, "carts"])
def test_names_that_policies_do_not_resolve_are_refused_before_everything_passes(
    kind: Any, cel: str
) -> None:
    for options in ({"cel": cel}, {"cel": "true", "match_conditions": {"a": cel}}):
        with pytest.raises(ValueError, match=r"Policies take names as they are.*\[\?'a-b'\]"):
            declare(kind, id="a", message="no", **options)


def test_a_rule_that_reads_the_old_object_and_the_operation_does_not_deny_every_creation() -> None:
    cel = "request.operation == 'DELETE' || oldObject.spec.engine == object.spec.engine"
    with pytest.raises(ValueError, match=r"such as operations=\['UPDATE'\]"):
        declare(Cart, id="a", cel=cel, message="no")
    assert declare(Cart, id="a", cel=cel, message="no", operations=["UPDATE"]).operations
    changed = {"changed": "oldObject.spec.engine != object.spec.engine"}
    conditional = declare(Cart, id="b", cel="true", message="no", match_conditions=changed)
    assert conditional.operations == {"UPDATE"}


@webop.resource("rules.webop.dev", "v1", scale=webop.Scale(replicas=".spec.size"))
class Shelf(webop.Model):
    spec: CrateSpec


@rows(
    ("options", "is_warned"),
    [
        ({"cel": "object.spec.size < 9"}, True),
        ({"cel": "object.metadata.name != 'object.spec.size'"}, False),
    ],
)
def test_a_rule_on_a_field_that_can_be_scaled_is_warned_of(
    options: dict[str, Any], is_warned: bool
) -> None:
    registry = webop.OperatorRegistry()
    webop.rule(Shelf, id="a", message="no", registry=registry, **options)
    warnings = check_registry(registry)
    assert len(warnings) == is_warned
    assert all("'kubectl scale' and autoscalers change without a check" in one for one in warnings)
    scale: dict[str, Any] = {"cel": "object.spec.replicas < 9", "subresource": "scale"}
    webop.rule(Shelf, id="b", message="no", registry=registry, **scale)
    assert check_registry(registry) == []


@rows(
    "cel",
    [
        "object.spec.engine.size() < 9 && object.spec.wheels.exists(x, x.inch > 1)",
        "object.spec.wheels[0].inch > 1 && object.spec.colours.red.inch > 1",
        "object.spec.anything.at.all == 1 && object.spec.what.ever == 1",
        "object.metadata.labels.app == 'a' && object.metadata.annotations.b == 'object.spec.x'",
        "object.metadata.namespace == namespaceObject.metadata.name  // object.spec.x",
    ],
)
def test_fields_that_a_model_has_or_cannot_know_are_accepted(cel: str) -> None:
    assert declare(Cart, id="a", cel=cel, message="no", operations=["UPDATE"]).cel == cel


def test_fields_are_not_checked_where_the_class_does_not_say_them() -> None:
    declare(Crate, id="a", cel="object.status.phase == 'a'", message="no")  # it has no status
    declare(Cart, id="a", cel="object.spec.replicas > 1", message="no", subresource="scale")
    declare(Sledge, id="a", cel="object.spec.length > 1", message="no")
    declare("carts", id="a", cel="object.spec.engin == ''", message="no")
