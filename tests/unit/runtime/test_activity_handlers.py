"""The handlers of the operator's own life: retries, results, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import webop
from webop.context.operator_context import OperatorContext
from webop.errors import ActivityError
from webop.handlers.model import Activity
from webop.runtime.activity_handlers import run_activity
from webop.runtime.operator import Operator, OperatorOptions


@pytest.fixture
def context() -> OperatorContext:
    """That of an operator with the handlers of the test."""
    options = OperatorOptions(settings=webop.OperatorSettings(), memo=webop.Memo(kept="here"))
    return Operator(options).context


@pytest.mark.feature("STA-01", "PRB-04", "AUT-04")
async def test_all_handlers_of_an_activity_are_called_and_their_results_gathered(
    context: OperatorContext,
) -> None:
    webop.on.probe(id="sync")(lambda **_: 1)

    @webop.on.probe(id="async")
    async def fn(**_: Any) -> str:
        return "x"

    webop.on.startup(id="other")(lambda **_: pytest.fail("not for this"))
    assert await run_activity(context, Activity.PROBE) == {"sync": 1, "async": "x"}


@pytest.mark.feature("STA-04", "KWA-05", "MEM-05", "HND-11")
async def test_handlers_of_activities_get_the_settings_and_the_operators_memo(
    context: OperatorContext,
) -> None:
    @webop.on.startup(id="fn", param=5)
    def fn(settings: webop.OperatorSettings, memo: webop.Memo, **kwargs: Any) -> Any:
        settings.posting.enabled = False
        memo.started = True
        return kwargs

    kwargs = (await run_activity(context, Activity.STARTUP))["fn"]
    assert not context.settings.posting.enabled
    assert context.memos.operator_memo == {"kept": "here", "started": True}
    assert (kwargs["param"], kwargs["retry"]) == (5, 0)
    assert kwargs["logger"].name == "webop.activities.startup"


@pytest.mark.feature("STA-03", "STA-08", "KWA-01")
async def test_handlers_of_activities_are_retried(context: OperatorContext) -> None:
    calls: list[tuple[str, int]] = []

    @webop.on.startup(id="flaky", backoff=0)
    def flaky(retry: int, **_: Any) -> int:
        calls.append(("flaky", retry))
        if retry < 2:
            raise ValueError("boo")
        return retry

    @webop.on.startup(id="fine")
    def fine(retry: int, **_: Any) -> None:
        calls.append(("fine", retry))

    assert await run_activity(context, Activity.STARTUP) == {"flaky": 2, "fine": None}
    assert calls == [("flaky", 0), ("fine", 0), ("flaky", 1), ("flaky", 2)]


@pytest.mark.feature("STA-02", "STA-08", "D-64")
@pytest.mark.parametrize(
    ("options", "exc"),
    [
        ({}, webop.PermanentError("boo")),
        ({"errors": webop.ErrorsMode.PERMANENT}, ValueError("boo")),
        ({"retries": 1}, ValueError("boo")),
        ({"timeout": 0.9, "backoff": 1}, ValueError("boo")),
    ],
)
async def test_a_final_failure_is_told_with_the_id_after_all_were_called(
    context: OperatorContext, options: Any, exc: Exception
) -> None:
    called: list[str] = []

    @webop.on.startup(id="bad", **options)
    def bad(**_: Any) -> None:
        raise exc

    webop.on.startup(id="good")(lambda **_: called.append("good"))
    with pytest.raises(webop.ActivityError, match=r"Startup handler 'bad' failed for good.*boo"):
        await run_activity(context, Activity.STARTUP)
    assert called == ["good"]


@pytest.mark.feature("STA-08")
async def test_an_ignored_failure_of_an_activity_is_none(context: OperatorContext) -> None:
    @webop.on.login(id="bad", errors=webop.ErrorsMode.IGNORED)
    def bad(**_: Any) -> None:
        raise ValueError("boo")

    assert await run_activity(context, Activity.AUTHENTICATION) == {"bad": None}


@pytest.mark.parametrize(
    ("configure", "message"),
    [
        (
            lambda settings: setattr(settings.posting, "enabled", "soon"),
            r"enabled = 'soon' is invalid: it must be True or False\.",
        ),
        (
            lambda settings: setattr(settings.execution, "max_worker", "soon"),
            r"no setting settings\..*\.max_worker, did you mean 'max_workers'\?",
        ),
        (
            lambda _: webop.WebhookServer(prot=1),  # type: ignore[call-arg]
            r"webop\.WebhookServer\(\) has no argument 'prot', did you mean 'port'\? \(.*line \d+",
        ),
        (
            lambda _: webop.WebhookMinikubeServer("localhost"),  # type: ignore[call-arg]
            r"webop\.WebhookServer\(\): takes 1 positional argument but 2 were given\. \(.*line",
        ),
        (
            lambda _: webop.AnnotationsProgressStorage(x=1),  # type: ignore[call-arg]
            r"webop\.AnnotationsProgressStorage\(\) has no argument 'x'\. \(.*line \d+",
        ),
    ],
)
async def test_a_setting_or_an_argument_that_does_not_fit_ends_the_startup_with_its_name(
    context: OperatorContext, configure: Callable[[webop.OperatorSettings], object], message: str
) -> None:
    @webop.on.startup(id="configure")
    def fn(settings: webop.OperatorSettings, **_: Any) -> None:
        configure(settings)

    async with asyncio.timeout(10):
        with pytest.raises(ActivityError, match=f"'configure' failed for good: .*{message}"):
            await run_activity(context, Activity.STARTUP)
