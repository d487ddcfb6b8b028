"""Sub-handlers: their ids, options, filters, and who of them is called when."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import webop
from tests.kit.causes import build_body, build_change
from webop.calls.error_policy import Outcome
from webop.calls.execution import attempt
from webop.calls.progress import HandlerState, Progress, digest_essence, fetch_states
from webop.calls.shared_options import CallOptions
from webop.handlers.causes import ChangeCause
from webop.handlers.model import ChangeHandler, Reason
from webop.objects.body import Body
from webop.objects.patch import Patch, apply_merge_patch, merge_patches

SETTINGS = webop.OperatorSettings()
STORAGE = SETTINGS.persistence.progress_storage


class Cycle:
    """The handling of one object by one parent, attempt after attempt, as the reactor does it."""

    def __init__(self, fn: Callable[..., Any], new: Any = None, old: Any = None) -> None:
        self.new: Any = new or build_body({})
        self.old: Any = old
        reason = Reason.CREATE if old is None else Reason.UPDATE
        self.handler = ChangeHandler(
            id="parent", fn=fn, selector=None, reason=reason, needs_change=old is not None
        )
        self.cause: ChangeCause = build_change(self.new, old)
        self.records = Patch()
        self.options = CallOptions(SETTINGS, journal=self)

    @property
    def body(self) -> Body:
        """The object with what is to be stored on it."""
        return Body(apply_merge_patch(self.new, self.records))

    @property
    def essence(self) -> Any:
        """The state that the handlers see."""
        return self.cause.new

    def note(self, states: Mapping[str, HandlerState], patch: Patch) -> None:
        """Take over what handlers leave."""
        seen = digest_essence(self.essence)
        progress = Progress({key: replace(state, seen=seen) for key, state in states.items()})
        progress.store(body=Body(self.new), patch=self.records, storage=STORAGE)

    async def attempt(self) -> Outcome:
        """Call the parent once, and store what came of it on the object."""
        self.cause = build_change(self.new, self.old)
        states = fetch_states([self.handler], body=Body(self.new), storage=STORAGE)
        progress = Progress.restore([self.handler], states, purpose=self.cause.reason)
        outcome = await attempt(self.handler, self.cause, progress["parent"], self.options)
        progress.record(self.handler, outcome)
        progress.store(body=Body(self.new), patch=self.records, storage=STORAGE)
        self.new = apply_merge_patch(self.new, merge_patches(self.cause.patch, self.records))
        self.records = Patch()
        return outcome


class Fns:
    """Functions a, b, c that note their calls, and fail as often as they are told to."""

    def __init__(self, **failures: int) -> None:
        self.called: list[str] = []
        self.failures = failures

    def __getitem__(self, key: str) -> Callable[..., Any]:
        def fn(retry: int, **_: Any) -> str:
            self.called.append(key)
            if retry < self.failures.get(key, 0):
                raise webop.TemporaryError("not yet", delay=0)
            return f"result of {key}"

        return fn


@pytest.mark.feature("SUB-08")
async def test_what_is_done_stays_done_if_the_parent_fails_afterwards() -> None:
    fns = Fns()

    async def parent(retry: int, **_: Any) -> None:
        await webop.execute(fns={"a": fns["a"]})
        if not retry:
            raise webop.TemporaryError("not yet", delay=0)
        await webop.execute(fns={"b": fns["b"]})

    cycle = Cycle(parent)
    assert not (await cycle.attempt()).final
    assert (await cycle.attempt()).final
    assert fns.called == ["a", "b"]


@pytest.mark.feature("SUB-02", "SUB-03", "SUB-15")
@pytest.mark.parametrize("is_sync", [True, False])
async def test_registered_sub_handlers_are_executed_when_the_parent_returns(is_sync: bool) -> None:
    fns = Fns()

    def parent(**_: Any) -> None:
        for key in ("a", "b"):
            decorated = webop.subhandler(id=key)(fns[key])
            assert callable(decorated)
        assert webop.register(functools.partial(fns["c"], x=1), id="c") is not None
        fns.called.append("parent")

    async def parent_async(**kwargs: Any) -> None:
        parent(**kwargs)

    cycle = Cycle(parent if is_sync else parent_async)
    outcome = await cycle.attempt()
    assert outcome.subrefs == {"parent/a", "parent/b", "parent/c"}
    assert fns.called == ["parent", "a", "b", "c"]


@pytest.mark.feature("SUB-03", "SUB-04")
@pytest.mark.parametrize("is_explicit", [False, True])
async def test_sub_handlers_that_are_registered_beside_others_or_after_them_are_called(
    is_explicit: bool,
) -> None:
    fns = Fns()

    async def parent(**_: Any) -> None:
        webop.subhandler(id="a")(fns["a"])
        await webop.execute(fns={"b": fns["b"]})
        await webop.execute()
        webop.subhandler(id="c")(fns["c"])
        if is_explicit:
            await webop.execute()

    outcome = await Cycle(parent).attempt()
    assert outcome.final
    assert fns.called == ["b", "a", "c"]
    assert outcome.subrefs == {"parent/a", "parent/b", "parent/c"}


@pytest.mark.feature("SUB-05")
async def test_execute_takes_one_source_only() -> None:
    async def parent(**_: Any) -> None:
        await webop.execute(fns=[], handlers=[])

    outcome = await Cycle(parent).attempt()
    assert isinstance(outcome.exception, TypeError)
    assert "only one" in str(outcome.exception)


@pytest.mark.feature("SUB-05", "SUB-18")
async def test_execute_takes_an_iterable_of_functions_by_their_names() -> None:
    def task_abc(**_: Any) -> None: ...

    async def parent(**_: Any) -> None:
        await webop.execute(fns=[task_abc])

    outcome = await Cycle(parent).attempt()
    assert outcome.subrefs == {f"parent/{task_abc.__qualname__}"}


@pytest.mark.feature("SUB-05")
async def test_execute_takes_handlers_and_registries() -> None:
    fns, registry = Fns(), webop.OperatorRegistry()
    webop.on.create("kex", id="a", registry=registry)(fns["a"])
    webop.on.update("kex", id="b", registry=registry)(fns["b"])
    webop.on.event("kex", id="c", registry=registry)(fns["c"])
    handler = ChangeHandler(id="ready", fn=fns["c"], selector=None)

    async def parent(**_: Any) -> None:
        await webop.execute(handlers=[handler])
        await webop.execute(registry=registry)

    assert (await Cycle(parent).attempt()).final
    assert fns.called == ["c", "a"]


@pytest.mark.feature("SUB-13", "SUB-11")
async def test_filters_work_on_sub_handlers() -> None:
    fns = Fns()

    def parent(**_: Any) -> None:
        webop.subhandler(id="yes", labels={"l": "1"})(fns["yes"])
        webop.subhandler(id="no", labels={"l": webop.ABSENT})(fns["no"])
        webop.subhandler(id="when", when=lambda **_: False)(fns["when"])

    cycle = Cycle(parent, build_body({}, labels={"l": "1"}))
    assert (await cycle.attempt()).subrefs == {"parent/yes"}
    assert fns.called == ["yes"]


PRESENT_OPTIONS = {
    "field": {"field": "spec.a"},
    "value": {"field": "spec.a", "value": 1},
    "absent": {"field": "spec.b", "value": webop.ABSENT},
    "old": {"field": "spec.a", "old": 0},
    "new": {"field": "spec.a", "new": 1},
    "unchanged": {"field": "spec.u"},
}


@pytest.mark.feature("SUB-11", "SUB-13", "FLT-09", "FLT-11", "FLT-12")
@pytest.mark.parametrize(
    ("old", "expected"),
    [
        # In a creation handler, the present state counts, but for old= and new=.
        (None, {"field", "value", "absent", "new", "unchanged"}),
        # In an update handler, the change counts.
        ({"a": 0, "u": 1}, {"field", "value", "old", "new"}),
    ],
)
async def test_fields_of_sub_handlers_mean_what_they_mean_for_the_parent(
    old: Any, expected: set[str]
) -> None:
    fns = Fns()

    def parent(**_: Any) -> None:
        for key, options in PRESENT_OPTIONS.items():
            webop.subhandler(id=key, **options)(fns[key])  # type: ignore[arg-type]

    before = None if old is None else build_body(old)
    assert (await Cycle(parent, build_body({"a": 1, "u": 1}), before).attempt()).final
    assert set(fns.called) == expected


@pytest.mark.feature("SUB-11", "SUB-06", "ERR-07", "ERR-11")
async def test_options_of_sub_handlers_are_their_own() -> None:
    calls: list[Any] = []

    def failing(param: Any, retry: int, **_: Any) -> None:
        calls.append((param, retry))
        raise ValueError("boo")

    def parent(**_: Any) -> None:
        permanent = webop.ErrorsMode.PERMANENT
        webop.subhandler(id="a", param="x", errors=permanent)(failing)
        webop.subhandler(id="b", retries=1)(failing)
        webop.register(failing, id="c", retries=2, backoff=0, param="y")

    cycle = Cycle(parent)
    assert not (await cycle.attempt()).final
    outcome = await cycle.attempt()
    assert outcome.final
    assert outcome.exception is None
    assert calls == [("x", 0), (None, 0), ("y", 0), ("y", 1)]


@pytest.mark.feature("SUB-14")
async def test_outside_of_handlers_there_are_no_sub_handlers() -> None:
    with pytest.raises(LookupError, match="works only inside a handler"):
        webop.subhandler(id="x")(lambda **_: None)
    with pytest.raises(LookupError, match="works only inside a handler"):
        webop.register(lambda **_: None, id="x")
    with pytest.raises(LookupError, match="works only inside a handler"):
        await webop.execute(fns={})
