"""Decorators: what they leave in the registry, and which mistakes they tell of at import."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, cast

import pytest

import webop
from tests.kit.rows import rows
from webop import ABSENT, ErrorsMode
from webop.handlers.model import Activity

Decorator = Callable[..., Any]

COMMON = {"id": "fn", "param": {"a": 1}}
RETRIES = {"errors": ErrorsMode.PERMANENT, "timeout": 10.5, "retries": 3, "backoff": 0}
META = {"labels": {"a": "b"}, "annotations": {"c": ABSENT}, "when": callable}
FIELD = {"field": "spec.a", "value": "v"}
TRANSITION = {"field": "spec.a", "old": "o", "new": "n"}

ACTIVITIES = [webop.on.startup, webop.on.cleanup, webop.on.login, webop.on.probe]
CHANGES = [webop.on.create, webop.on.update, webop.on.delete, webop.on.resume, webop.on.field]
BACKGROUND = [webop.on.daemon, webop.on.timer, webop.on.index]
WEBHOOKS = [webop.on.validate, webop.on.mutate]
RESOURCES = [*CHANGES, *BACKGROUND, *WEBHOOKS, webop.on.event]


def fn(**_: Any) -> None: ...


def declare(decorator: Decorator, *args: Any, **options: Any) -> Any:
    """Decorate the function; return the handler that is in the registry then."""
    registry = webop.OperatorRegistry()
    assert decorator(*args, registry=registry, **options)(fn) is fn
    activities = [one for each in Activity for one in registry.select_activities(each)]
    everything = (registry.select_resource_handlers(), registry.select_webhooks(), activities)
    (handler,) = itertools.chain(*everything)
    return handler


STAGES = {"cancellation_backoff": 1.5, "cancellation_timeout": 2.5, "cancellation_polling": 3.5}
EFFECTS = {"persistent": True, "side_effects": True, "ignore_failures": True}


def get_delay(**_: Any) -> int:
    return 5


@pytest.mark.feature("HND-01", "REF-01", "REF-02", "REF-03", "REF-04", "REF-05", "REF-06", "REF-07")
@pytest.mark.feature("REF-08", "REF-09", "REF-10", "REF-11", "STA-08", "PRB-10", "AUT-05", "IDX-27")
@pytest.mark.feature("ADM-01", "FLT-12", "DMN-34", "TMR-23", "TMR-11")
@rows(
    ("decorators", "options"),
    [
        (ACTIVITIES, {**COMMON, **RETRIES}),
        ([*CHANGES, *BACKGROUND], {**COMMON, **RETRIES, **META, **FIELD}),
        ([*WEBHOOKS, webop.on.event], {**COMMON, **META, **FIELD}),
        ([webop.on.update, webop.on.field], TRANSITION),
        ([webop.on.resume], {"deleted": True}),
        ([webop.on.delete], {"optional": True}),
        ([webop.daemon], {"initial_delay": 5, **STAGES}),
        (BACKGROUND[:2], {"initial_delay": get_delay}),
        ([webop.timer], {"interval": 1.5, "initial_delay": 5, "sharp": True, "idle": 7}),
        (WEBHOOKS, {"subresource": "status", **EFFECTS}),
    ],
)
def test_decorators_take_their_options(decorators: list[Decorator], options: Any) -> None:
    for decorator in decorators:
        args = () if decorator in ACTIVITIES else ("kex",)
        handler = declare(decorator, *args, **options)
        expected = {**options, "fn": fn}
        if "field" in options:
            expected |= {"field": ("spec", "a"), "id": "fn/spec.a"}
        assert {name: getattr(handler, name) for name in expected} == expected


@pytest.mark.feature("D-49")
@rows("decorator", RESOURCES)
def test_options_that_are_none_are_not_given(decorator: Decorator) -> None:
    names = ("id", "param", "labels", "annotations", "when", "value", "kind", "category")
    field = {"field": "spec.a"} if decorator is webop.on.field else {}
    handler = declare(decorator, "kex", **field, **dict.fromkeys(names))
    assert handler.id == ("fn/spec.a" if field else "fn")
    assert handler.param is handler.labels is handler.annotations is handler.when is None


@pytest.mark.feature("RES-23")
@rows("decorator", RESOURCES)
@rows(
    ("args", "names"),
    [((), {}), (("",), {}), (("a", "b", "c", "d"), {}), (("kex",), {"kind": "Kex"}), ((5,), {})],
)
def test_a_resource_must_be_named_once(decorator: Decorator, args: Any, names: Any) -> None:
    options = {"field": "spec.a"} if decorator is webop.on.field else {}
    with pytest.raises(TypeError):
        declare(decorator, *args, **names, **options)


@pytest.mark.feature("REF-01", "REF-09", "ADM-03", "ADM-18", "D-16", "ERR-22", "FLT-12")
@rows(
    ("decorator", "option", "advice"),
    [
        (webop.on.create, "retires", "option 'retires' of create handlers: did you mean 'retries'"),
        (webop.on.event, "retries", "There is no option 'retries'"),
        (webop.on.validate, "timeout", "no option 'timeout' .* did you mean 'timeout_seconds'"),
        (webop.on.mutate, "errors", "There is no option 'errors'"),
        (webop.on.validate, "metadata_only", "There is no option 'metadata_only'"),
    ],
)
def test_an_unknown_option_is_told_with_a_suggestion(
    decorator: Decorator, option: str, advice: str
) -> None:
    args = () if decorator in ACTIVITIES else ("kex",)
    with pytest.raises(TypeError, match=advice):
        decorator(*args, **{option: 1})


@pytest.mark.feature("FLT-16", "FLT-17", "HND-24", "REF-07", "D-49")
@rows(
    ("decorator", "options", "message"),
    [
        (webop.on.update, {"field": "spec", "value": 1, "old": 2}, "value= and old= exclude"),
        (webop.on.update, {"old": 1}, "old= requires field="),
        (webop.on.create, {"value": 1}, "value= requires field="),
        (webop.on.field, {}, "requires field="),
        (webop.on.create, {"timeout": "5"}, "timeout= must be a number"),
        (webop.on.create, {"retries": True}, "retries= must be a whole number, got True"),
        (webop.on.validate, {"operation": "CREATE", "operations": ["UPDATE"]}, "exclude each"),
        (webop.on.create, {"when": "always"}, "when= must be"),
        (webop.on.create, {"labels": "app=x"}, "labels= must be"),
        (webop.on.create, {"labels": {"a": 5}}, r"labels\['a'\] must be a string, .*, got 5"),
        (webop.on.mutate, {"subresource": "pods/status"}, "subresource= must be a name"),
        (webop.timer, {"initial_delay": -1}, "initial_delay= must be a number from 0 on"),
    ],
)
def test_options_that_do_not_fit_are_told_of(
    decorator: Decorator, options: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        decorator("kex", **options)


@pytest.mark.feature("D-49", "ADM-13", "FLT-03")
@rows(
    ("decorator", "options", "message"),
    [
        (webop.on.create, {"labels": {"a": None}}, "labels.*'a'.*ABSENT, got None"),
        (webop.on.mutate, {"operations": ["CREATE", "PATCH"]}, "'CREATE'.*, got 'PATCH'"),
        (webop.on.create, {"field": "spec..a"}, "strings that are not empty"),
        (webop.on.create, {"retries": -1}, "retries= must be .* 0, got -1"),
        (webop.on.create, {"annotations": {"a/b/c": webop.PRESENT}}, r"\['a/b/c'\] must"),
    ],
)
def test_values_that_do_not_fit_are_told_of(
    decorator: Decorator, options: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decorator("kex", **options)


@pytest.mark.feature("REF-12", "REF-13", "SUB-11", "SUB-12")
def test_register_takes_fewer_options_than_subhandler_which_takes_no_registry() -> None:
    for option in ("field", "value", "old", "new", "registry"):
        with pytest.raises(TypeError, match=f"There is no option '{option}'"):
            webop.register(fn, **cast("Any", {option: "x"}))
    with pytest.raises(TypeError, match="There is no option 'registry'"):
        webop.subhandler(registry=webop.OperatorRegistry())  # type: ignore[call-arg]


@pytest.mark.feature("HND-03", "HND-01")
def test_a_static_method_can_be_decorated_where_it_is_declared(
    registry: webop.OperatorRegistry,
) -> None:
    class Reconciler:
        @staticmethod
        @webop.on.create("kex")
        def inside(**_: Any) -> str:
            return "called"

        @webop.on.update("kex", id="outside")
        @staticmethod
        def outside(**_: Any) -> str:
            return "called"

    inside, outside = registry.select_resource_handlers()
    assert inside.id.endswith("Reconciler.inside")
    assert [handler.fn() for handler in (inside, outside)] == ["called", "called"]
    assert [Reconciler.inside(), Reconciler().outside()] == ["called", "called"]


def test_a_decorator_without_parentheses_is_told(registry: webop.OperatorRegistry) -> None:
    def create_fn(spec: Any, **_: Any) -> None: ...

    with pytest.raises(TypeError, match=r"@webop.on.create needs a kind in parentheses"):
        webop.on.create(create_fn)  # type: ignore[arg-type]

    webop.on.event(lambda resource, **_: resource.kind == "Pod")(create_fn)
    assert len(registry) == 1
    for decorator in ACTIVITIES:
        with pytest.raises(TypeError, match=r"needs parentheses"):
            decorator(cast("Any", create_fn))


@pytest.mark.feature("FLT-28")
@rows(
    ("options", "message"),
    [
        ({"field": "spec.size"}, "metadata_only=True and field='spec.size' exclude each other"),
        ({"when": lambda spec, **_: spec}, "takes 'spec', which is always empty"),
        ({"labels": {"a": lambda value, status, **_: value}}, "takes 'status'"),
    ],
)
@rows("decorator", [webop.on.event, webop.on.create, webop.on.update, webop.index, webop.timer])
def test_a_handler_of_the_metadata_asks_for_nothing_else(
    decorator: Decorator, options: dict[str, Any], message: str
) -> None:
    decorate = decorator("pods", metadata_only=True, **options)
    with pytest.raises(TypeError, match=re.escape(message)):
        decorate(lambda name, **_: None)


@pytest.mark.feature("FLT-28")
def test_a_handler_of_the_metadata_has_no_argument_for_the_rest() -> None:
    with pytest.raises(TypeError, match="takes 'status', which is always empty"):
        webop.on.create("pods", metadata_only=True)(lambda status, **_: status)
    options = {"metadata_only": True, "field": "metadata.labels"}
    assert declare(webop.on.update, "pods", **options).metadata_only
