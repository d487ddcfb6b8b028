"""Mistakes that are told before the first call, and handlers that must not be taken for such."""

from __future__ import annotations

import functools
import unittest.mock
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from webop.errors import ConfigurationError
from webop.handlers.validation import check_registry

Decorator = Callable[..., Any]

ACTIVITIES: list[Decorator] = [
    webop.on.startup,
    webop.on.cleanup,
    webop.on.login,
    webop.on.probe,
]
OBJECTS: list[Decorator] = [
    *(webop.on.create, webop.on.update, webop.on.delete, webop.on.resume, webop.on.event),
    *(webop.on.validate, webop.on.mutate),
    *(webop.daemon, webop.timer, webop.index, webop.reconcile),
]


@pytest.mark.feature("HND-28", "KWA-19")
@rows("decorator", [*ACTIVITIES, *OBJECTS])
def test_a_handler_that_does_not_accept_all_arguments_is_told_at_import(
    decorator: Decorator,
) -> None:
    def fn(logger: Any, memo: Any) -> None: ...

    args = () if decorator in ACTIVITIES else ("kex",)
    with pytest.raises(TypeError, match=r"fn\(\) must accept all .* (as \(.*\*\*_\)|Add \*\*_)"):
        decorator(*args)(fn)


def test_a_handler_with_a_yield_which_no_call_would_run_is_told_at_import() -> None:
    def fn(**_: Any) -> Iterator[int]:
        yield 1

    async def async_fn(**_: Any) -> AsyncIterator[int]:
        yield 1

    for one in (fn, async_fn):
        with pytest.raises(TypeError, match=r"fn\(\) is a generator function"):
            webop.on.create("kex")(one)


class Worker:
    """Handlers of other kinds than functions."""

    def __call__(self, spec: Any, **_: Any) -> None: ...

    def handle(self, spec: Any, **_: Any) -> None: ...


def skip(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives the function only what it takes."""

    @functools.wraps(fn)
    def wrapper(**kwargs: Any) -> Any:
        return fn(kwargs["spec"])

    return wrapper


def name_all(
    *, logger: Any, memo: Any, param: Any, retry: Any, started: Any, runtime: Any, resource: Any,
    patch: Any, body: Any, spec: Any, meta: Any, status: Any, uid: Any, name: Any, namespace: Any,
    labels: Any, annotations: Any, old: Any, new: Any, diff: Any, reason: Any, client: Any,
) -> None: ...  # fmt: skip


@pytest.mark.parametrize(
    "fn",
    [
        name_all,
        lambda **_: None,
        lambda spec, *, own=1, **_: (spec, own),
        functools.partial(lambda own, spec, **_: (own, spec), 1),
        Worker(),
        Worker().handle,
        skip(lambda spec: spec),
        unittest.mock.Mock(),
    ],
)
def test_what_can_be_called_can_be_a_handler(registry: webop.OperatorRegistry, fn: Any) -> None:
    webop.on.create("kex", id="fn")(fn)
    assert check_registry(registry) == []


@rows("decorator", [*ACTIVITIES, *OBJECTS])
def test_a_parameter_that_no_call_has_is_told_with_the_nearest_one(decorator: Decorator) -> None:
    def fn(loger: Any, **_: Any) -> None: ...

    registry = webop.OperatorRegistry()
    args = () if decorator in ACTIVITIES else ("kex",)
    decorator(*args, registry=registry)(fn)
    with pytest.raises(ConfigurationError) as caught:
        check_registry(registry)
    text = str(caught.value)
    assert "fn() requires 'loger', but " in text
    assert "did you mean 'logger'?" in text
    assert f"({__file__}, line {fn.__code__.co_firstlineno})" in text


def test_children_of_a_kind_without_a_reconciler_are_told_with_their_condition(
    registry: webop.OperatorRegistry,
) -> None:
    @webop.on.create("kex")
    def fn(children: Any, **_: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"needs a function with @webop\.reconcile"):
        check_registry(registry)
    webop.reconcile("kex", id="build")(lambda **_: None)
    check_registry(registry)


def test_parameters_can_be_indexes_of_any_module(registry: webop.OperatorRegistry) -> None:
    @webop.on.create("kex")
    def fn(by_name: Any, **_: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="'by_name'"):
        check_registry(registry)
    webop.index("pods", id="by_name")(lambda **_: {})
    assert check_registry(registry) == []
    webop.on.create("kex", id="all")(name_all)
    with pytest.raises(ConfigurationError, match=r"name_all\(\) must accept .*\(by_name\)"):
        check_registry(registry)


def test_all_handlers_that_cannot_be_called_are_told_at_once(
    registry: webop.OperatorRegistry,
) -> None:
    @webop.on.create("kex")
    @webop.on.update("kex")
    def one(nam: Any, unheard: Any, **_: Any) -> None: ...

    @webop.on.event("kex")
    def two(old: Any, **_: Any) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        check_registry(registry)
    lines = str(caught.value).splitlines()
    assert [line.count("did you mean 'name'?") for line in lines] == [1, 0, 1, 0, 0]
    assert "'old', but event handlers have no such argument" in lines[-1]


Pair = tuple[Decorator, dict[str, Any]]
CREATE: Pair = (webop.on.create, {})
EVENT: Pair = (webop.on.event, {})
TIMER: Pair = (webop.timer, {"interval": 1})
DAEMON: Pair = (webop.daemon, {})


@rows(
    ("first", "second", "is_suspicious"),
    [
        (CREATE, CREATE, True),
        ((webop.on.resume, {}), CREATE, True),
        ((webop.on.field, {"field": "spec"}), (webop.on.update, {"field": "spec"}), True),
        (DAEMON, TIMER, True),
        (CREATE, (webop.on.delete, {}), False),
        (CREATE, (webop.on.create, {"args": ["pods"]}), False),
        ((webop.on.create, {"field": "spec.a"}), (webop.on.create, {"field": "spec.b"}), False),
        (CREATE, EVENT, False),
        ((webop.on.validate, {}), (webop.on.validate, {}), False),
    ],
)
def test_two_functions_with_one_id_are_suspicious_if_only_one_is_called(
    first: Pair, second: Pair, is_suspicious: bool
) -> None:
    registry = webop.OperatorRegistry()
    for decorator, given in (first, second):
        options = {"args": ["kex"], **given}
        decorator(*options.pop("args"), id="fn", registry=registry, **options)(lambda **_: None)
    texts = check_registry(registry)
    assert len(texts) == is_suspicious
    for text in texts:
        assert text.startswith("Two handlers for kex have the id 'fn")
        assert text.count(__file__) == 2
        assert "webop calls only the first" in text


def test_one_function_with_several_decorators_is_fine(registry: webop.OperatorRegistry) -> None:
    @webop.on.create("kex", labels={"a": "b"})
    @webop.on.create("kex")
    @webop.on.resume("kex")
    def fn(**_: Any) -> None: ...

    worker = Worker()
    for _ in range(2):  # each access makes another object of the method
        webop.on.create("kex")(worker.handle)
    assert check_registry(registry) == []


def test_a_timer_without_a_schedule_is_suspicious(registry: webop.OperatorRegistry) -> None:
    for options in ({}, {"initial_delay": 5}, {"interval": 1}, {"idle": 1}):
        webop.timer("kex", id=f"of{options}", **options)(lambda **_: None)  # type: ignore[arg-type]
    texts = check_registry(registry)
    assert len(texts) == 2
    assert all("is called only once for each object" in text for text in texts)
