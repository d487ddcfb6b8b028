"""What index handlers return or raise, and what becomes of the values in the indexes."""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import webop
from tests.kit.causes import build_body, build_event
from tests.kit.rows import rows
from webop import Body, Patch
from webop.calls.shared_options import CallOptions
from webop.context.indexes import Indexes, index_object
from webop.handlers.causes import ResourceCause
from webop.handlers.model import IndexHandler

SETTINGS = webop.OperatorSettings()
IGNORED, TEMPORARY, PERMANENT = (
    webop.ErrorsMode.IGNORED,
    webop.ErrorsMode.TEMPORARY,
    webop.ErrorsMode.PERMANENT,
)
OPTIONS = CallOptions(SETTINGS)


class Bench:
    """An operator's indexes, and objects that appear in them with what handlers make of them.

    The handler made by :meth:`add` returns ``result``, or raises it if it is an exception.
    """

    def __init__(self) -> None:
        self.handlers: list[IndexHandler] = []
        self.calls: list[dict[str, Any]] = []
        self.result: Any = None
        self.gone: set[str] = set()
        self._indexes: Indexes | None = None

    @property
    def indexes(self) -> Indexes:
        """The indexes of all handlers that were added."""
        if self._indexes is None:
            self._indexes = Indexes(self.handlers)
        return self._indexes

    def add(self, fn: Callable[..., Any] | None = None, id: str = "idx", **options: Any) -> None:
        """Declare a handler."""
        self.handlers.append(IndexHandler(id=id, fn=fn or self._call, selector=None, **options))

    async def _call(self, **kwargs: Any) -> Any:
        self.calls.append(kwargs)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def index(self, result: Any = None, uid: str = "u1", **stanzas: Any) -> ResourceCause:
        """Have an object indexed with a result of the handler, as at each of its events."""
        self.result = result
        cause = self.build_cause(**stanzas)
        await index_object(
            self.handlers, cause, uid, self.indexes, OPTIONS, is_wanted=lambda: uid not in self.gone
        )
        return cause

    def build_cause(self, **stanzas: Any) -> ResourceCause:
        """Return the cause of an event."""
        body = Body(build_body(**stanzas))
        return ResourceCause(
            logger=logging.getLogger("test"),
            recall=webop.Memo,
            indices=self.indexes,
            resource=build_event(build_body()).resource,
            body=body,
            patch=Patch(body=body),
        )

    def show(self, name: str = "idx") -> dict[Any, list[Any]]:
        """Return the contents of an index."""
        return {key: list(store) for key, store in self.indexes[name].items()}


@pytest.fixture
def bench() -> Bench:
    """Return a bench without handlers."""
    return Bench()


GENERATOR = (number for number in (1, 2))
MEMO = webop.Memo(a=1)
ORDERED = collections.OrderedDict(a=1)
DEFAULT = collections.defaultdict(int, a=1)
BODY = Body(build_body({"a": 1}))


@pytest.mark.feature("IDX-06", "IDX-08", "IDX-09", "IDX-10", "IDX-11", "IDX-13")
@rows(
    ("result", "expected"),
    [
        ({"k": "v"}, {"k": ["v"]}),
        ({"k": None}, {"k": [None]}),
        ({("ns", "n"): 1}, {("ns", "n"): [1]}),
        ({None: 1}, {None: [1]}),
        ({}, {}),
        ("", {None: [""]}),
        (False, {None: [False]}),
        ([], {None: [[]]}),
        ({1}, {None: [{1}]}),
        (GENERATOR, {None: [GENERATOR]}),
        (ORDERED, {None: [ORDERED]}),
        (DEFAULT, {None: [DEFAULT]}),
        (MEMO, {None: [MEMO]}),
        (BODY, {None: [BODY]}),
    ],
)
async def test_a_strict_dict_gives_keys_and_anything_else_goes_under_none(
    result: Any, expected: dict[Any, list[Any]]
) -> None:
    bench = Bench()
    bench.add()
    await bench.index("the former")
    await bench.index(result)
    assert bench.show() == expected
    assert all(type(bench.show()[key][0]) is type(values[0]) for key, values in expected.items())


@pytest.mark.feature("IDX-12")
async def test_no_result_keeps_the_values(bench: Bench) -> None:
    bench.add()
    await bench.index(None)
    assert bench.show() == {}
    await bench.index({"k": 1})
    await bench.index(None)
    assert bench.show() == {"k": [1]}


@pytest.mark.feature("IDX-02", "IDX-15")
@rows(
    ("options", "matching", "other"),
    [
        ({"labels": {"a": "b"}}, {"labels": {"a": "b"}}, {"labels": {"a": "c"}}),
        ({"annotations": {"a": webop.PRESENT}}, {"annotations": {"a": "b"}}, {}),
        ({"field": ("spec", "a"), "value": 1}, {"spec": {"a": 1}}, {"spec": {"a": 2}}),
        ({"when": lambda spec, **_: spec.get("a")}, {"spec": {"a": 1}}, {}),
    ],
)
async def test_an_object_that_stops_matching_leaves_the_index_and_may_return(
    options: Any, matching: Any, other: Any
) -> None:
    bench = Bench()
    bench.add(**options)
    bench.add(id="everything")
    await bench.index({"k": 1}, **matching)
    assert bench.show() == {"k": [1]}
    await bench.index({"k": 2}, **other)
    assert bench.show() == {}
    assert bench.show("everything") == {"k": [2]}
    await bench.index({"k": 3}, **matching)
    assert bench.show() == {"k": [3]}


@pytest.mark.feature("IDX-02")
async def test_a_failing_filter_keeps_the_values_and_the_other_indexes_going(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(spec: Any, **_: Any) -> bool:
        if spec.get("bad"):
            raise ValueError("bad spec")
        return True

    bench.add(when=fail)
    bench.add(id="other")
    await bench.index({"k": 1})
    await bench.index({"k": 2}, spec={"bad": True})
    assert bench.show() == {"k": [1]}
    assert bench.show("other") == {"k": [2]}
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "A filter of Indexer 'idx' failed." in record.getMessage()
    assert "bad spec" in str(record.exc_info)


@pytest.mark.feature("IDX-16")
@pytest.mark.parametrize("options", [{}, {"errors": IGNORED}])
async def test_ignored_errors_keep_the_values_and_are_logged_with_the_trace(
    bench: Bench, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add(**options)
    await bench.index({"k": 1})
    caplog.clear()
    await bench.index(ValueError("boom"))
    assert bench.show() == {"k": [1]}
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "boom" in record.getMessage()
    assert record.exc_info
    await bench.index({"k": 2})
    assert bench.show() == {"k": [2]}
    assert [call["retry"] for call in bench.calls] == [0, 0, 0]


@pytest.mark.feature("IDX-17")
@pytest.mark.parametrize(
    ("error", "options", "is_unexpected"),
    [
        (webop.PermanentError("boom"), {}, False),
        (webop.PermanentError("boom"), {"errors": IGNORED}, False),
        (ValueError("boom"), {"errors": PERMANENT}, True),
    ],
)
async def test_permanent_errors_exclude_the_object_for_ever(
    bench: Bench,
    error: Exception,
    options: Any,
    is_unexpected: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench.add(labels={"a": "1"}, **options)
    await bench.index({"k": 1}, labels={"a": "1"})
    caplog.clear()
    await bench.index(error, labels={"a": "1"})
    assert bench.show() == {}
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert bool(record.exc_info) is is_unexpected
    await bench.index({"k": 2}, labels={})
    await bench.index({"k": 3}, labels={"a": "1"})
    assert bench.show() == {}
    assert len(bench.calls) == 2
    await bench.index({"k": 4}, uid="u2", labels={"a": "1"})
    assert bench.show() == {"k": [4]}


@pytest.mark.feature("IDX-18", "IDX-19")
@rows(
    ("error", "options"),
    [
        (webop.TemporaryError("boom"), {}),
        (webop.TemporaryError("boom", delay=30), {"backoff": 0}),
        (ValueError("boom"), {"errors": TEMPORARY}),
        (ValueError("boom"), {"errors": TEMPORARY, "backoff": 30}),
    ],
)
async def test_temporary_errors_exclude_the_object_for_a_while(
    error: Exception, options: Any
) -> None:
    bench = Bench()
    bench.add(**options)
    bench.add(lambda **_: "fine", id="other")
    await bench.index({"k": 1})
    await bench.index(error)
    assert bench.show() == {}
    await bench.index({"k": 2})
    assert bench.show() == {}
    assert len(bench.calls) == 2
    assert bench.show("other") == {None: ["fine"]}


@pytest.mark.feature("IDX-18", "IDX-19", "IDX-20")
@rows(
    ("error", "options"),
    [
        (webop.TemporaryError("boom", delay=0), {}),
        (webop.TemporaryError("boom", delay=None), {}),
        (ValueError("boom"), {"errors": TEMPORARY, "backoff": 0}),
    ],
)
async def test_with_no_delay_the_next_event_indexes_the_object(
    error: Exception, options: Any
) -> None:
    bench = Bench()
    bench.add(**options)
    await bench.index({"k": 1})
    await bench.index(error)
    await bench.index(error)
    assert bench.show() == {}
    await bench.index({"k": 2})
    assert bench.show() == {"k": [2]}
    await bench.index({"k": 3})
    assert [call["retry"] for call in bench.calls] == [0, 0, 1, 2, 0]


@pytest.mark.feature("IDX-20")
async def test_times_are_counted_from_the_first_failure_and_a_success_resets_them(
    bench: Bench,
) -> None:
    bench.add()
    error = webop.TemporaryError("boom", delay=0)
    for result in ({"k": 1}, error, error, {"k": 2}, {"k": 3}):
        await bench.index(result)
        await asyncio.sleep(0.005)
    started: list[datetime] = [call["started"] for call in bench.calls]
    assert started[0] < started[1] == started[2] == started[3] < started[4]
    runtimes: list[timedelta] = [call["runtime"] for call in bench.calls]
    assert runtimes[1] < runtimes[2] < runtimes[3]
    assert runtimes[4] < timedelta(milliseconds=5)


@pytest.mark.feature("IDX-19")
@rows(("options", "pause", "retries"), [({"retries": 2}, 0, [0, 1]), ({"timeout": 0.1}, 0.15, [0])])
async def test_failures_too_often_or_for_too_long_exclude_the_object_for_ever(
    options: Any, pause: float, retries: list[int]
) -> None:
    bench = Bench()
    bench.add(**options)
    for _ in range(3):
        await bench.index(webop.TemporaryError("boom", delay=0))
        await asyncio.sleep(pause)
    await bench.index({"k": 1})
    assert bench.show() == {}
    assert [call["retry"] for call in bench.calls] == retries


@pytest.mark.feature("IDX-20")
async def test_a_patch_of_an_index_handler_is_refused_with_one_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def fn(patch: Any, **_: Any) -> int:
        patch.status["x"] = 1
        return 1

    bench.add(fn)
    bench.add(id="other")
    for _ in range(2):
        cause = await bench.index()
        assert not cause.patch
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in records] == [
        "Indexer 'idx' has changed its patch. Patches of indexers are ignored."
    ]
    assert bench.show() == {None: [1]}


@pytest.mark.feature("IDX-28")
async def test_indexing_is_terse(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bench.add()
    await bench.index({"k": 1})
    said = ["Indexer 'idx' is invoked.", "Indexer 'idx' succeeded."]
    assert [r.getMessage() for r in caplog.records if r.levelname == "DEBUG"][-2:] == said


@pytest.mark.feature("IDX-02")
async def test_a_function_with_several_decorators_is_called_once_if_any_of_them_matches(
    bench: Bench,
) -> None:
    bench.add(labels={"a": "1"})
    bench.add(labels={"b": "1"})
    for labels, calls, expected in [
        ({"a": "1", "b": "1"}, 1, {"k": [0]}),
        ({"b": "1"}, 2, {"k": [1]}),
        ({"a": "1"}, 3, {"k": [2]}),
        ({}, 3, {}),
    ]:
        await bench.index({"k": len(bench.calls)}, labels=labels)
        assert (len(bench.calls), bench.show()) == (calls, expected)
