"""How loud the log is about what handlers do, and what it leaves out."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import webop
from tests.kit.obstacles import denying
from tests.kit.operators import Calls, Objects, RunOperator, do_nothing
from tests.kit.waiting import eventually


def find(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if text in record.getMessage()]


@pytest.mark.feature("ERR-03", "ERR-09")
async def test_a_temporary_error_is_a_warning_until_it_is_the_last_one(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.on.create("widgets", id="fn", retries=2)
    async def fn(**_: Any) -> None:
        raise webop.TemporaryError("not yet", delay=0)

    async with run_operator():
        await objects.make("one")
    levels = [record.levelname for record in find(caplog, "not yet")]
    assert levels == ["WARNING", "ERROR"]


@pytest.mark.feature("ERR-21", "ASY-03")
@pytest.mark.parametrize("is_sync", [False, True])
async def test_the_traceback_of_a_handler_begins_with_the_handler(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture, *, is_sync: bool
) -> None:
    def break_down() -> None:
        raise ValueError("broken")

    def handle_sync(**_: Any) -> None:
        break_down()

    async def handle_async(**_: Any) -> None:
        break_down()

    fn: Any = handle_sync if is_sync else handle_async
    webop.on.create("widgets", id="fn", retries=1)(fn)
    async with run_operator():
        await objects.make("one")
    (record,) = find(caplog, "broken")
    text = logging.Formatter().format(record)
    frames = [line.split()[-1] for line in text.splitlines() if line.startswith('  File "')]
    assert frames == [fn.__name__, "break_down"]


@pytest.mark.feature("LOG-11", "SUB-06")
async def test_sub_handlers_count_among_those_that_have_succeeded_or_failed(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def succeed(retry: int, **_: Any) -> None:
        if not retry:
            raise webop.TemporaryError("later", delay=0.3)

    async def fail(**_: Any) -> None:
        raise webop.PermanentError("no")

    @webop.on.create("widgets", id="parent")
    async def parent(**_: Any) -> None:
        fns: Any = {"a": succeed, "b": succeed, "c": fail}
        await webop.execute(fns=fns)

    webop.on.create("widgets", id="other")(do_nothing)

    async with run_operator():
        await objects.make("one")
    assert find(caplog, "Creation handled: 4 succeeded, 1 failed for good (parent/c).")


@pytest.mark.feature("TMR-20", "PAT-10")
async def test_a_timer_whose_patch_is_denied_is_told_of_once(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @webop.timer("widgets", id="tick", interval=0.05)
    async def tick(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("tick", kwargs)
        patch.metadata.labels["forbidden"] = "yes"

    expression = "!has(object.metadata.labels) || !('forbidden' in object.metadata.labels)"
    probe = {"metadata": {"labels": {"forbidden": "x"}}}
    async with denying(objects, expression, probe), run_operator():
        await objects.create("one")
        await eventually(lambda: len(find(caplog, "They are lost, without a retry")) >= 5)
    levels = [record.levelname for record in find(caplog, "They are lost, without a retry")]
    assert levels == ["ERROR"] + ["DEBUG"] * (len(levels) - 1)


@pytest.mark.feature("CFG-22", "PAT-10")
async def test_a_finalizer_that_may_not_be_added_is_told_of_once_and_names_the_object_once(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    webop.on.delete("widgets", id="fn")(do_nothing)
    probe = {"metadata": {"finalizers": ["example.com/x"]}}
    async with denying(objects, "!has(object.metadata.finalizers)", probe), run_operator():
        await objects.create("one")
        await eventually(lambda: len(find(caplog, "Retrying in")) >= 3)
    records = find(caplog, "Retrying in")
    assert [r.levelname for r in records] == ["ERROR"] + ["DEBUG"] * (len(records) - 1)
    assert records[0].getMessage().startswith("Cannot patch widgets.tests.webop.dev 'one' in ")
    assert getattr(records[0], "k8s_ref")["name"] == "one"  # noqa: B009  for the prefix
