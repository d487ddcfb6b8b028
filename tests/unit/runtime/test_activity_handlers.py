"""The handlers of the operator's own life: retries, results, failures."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.reviews import Lifespan, serve


async def fail_to_start() -> str:
    """Start an app whose startup must fail; return what it says."""
    lifespan = Lifespan(webop.create_app())
    message: str = (await lifespan.pass_through("startup"))["message"]
    with pytest.raises(webop.ActivityError):
        await lifespan.task
    return message


@pytest.mark.feature("STA-03", "STA-08", "KWA-01", "HND-11")
async def test_handlers_of_activities_are_retried() -> None:
    calls: list[Any] = []

    @webop.on.startup(id="flaky", backoff=0, param=5)
    def flaky(retry: int, param: int, logger: Any, **_: Any) -> None:
        calls.append((param, retry, logger.name))
        if retry < 2:
            raise ValueError("boo")

    webop.on.startup(id="fine")(lambda **_: calls.append("fine"))

    @webop.on.startup(id="ignored", errors=webop.ErrorsMode.IGNORED)
    def ignored(**_: Any) -> None:
        calls.append("ignored")
        raise ValueError("boo")

    async with serve():
        name = "webop.activities.startup"
    assert calls == [(5, 0, name), "fine", "ignored", (5, 1, name), (5, 2, name)]


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
    options: Any, exc: Exception
) -> None:
    called: list[str] = []

    @webop.on.startup(id="bad", **options)
    def bad(**_: Any) -> None:
        raise exc

    webop.on.startup(id="good")(lambda **_: called.append("good"))
    assert re.search("Startup handler 'bad' failed for good.*boo", await fail_to_start())
    assert called == ["good"]


@pytest.mark.parametrize(
    ("configure", "message"),
    [
        (
            lambda settings: setattr(settings.posting, "enabled", "soon"),
            r"enabled = 'soon' is invalid: it must be True or False\.",
        ),
        (
            lambda _: webop.WebhookServer(prot=1),  # type: ignore[call-arg]
            r"webop\.WebhookServer\(\) has no argument 'prot', did you mean 'port'\? \(.*line \d+",
        ),
    ],
)
async def test_a_setting_or_an_argument_that_does_not_fit_ends_the_startup_with_its_name(
    configure: Callable[[webop.OperatorSettings], object], message: str
) -> None:
    @webop.on.startup(id="configure")
    def fn(settings: webop.OperatorSettings, **_: Any) -> None:
        configure(settings)

    assert re.search(f"'configure' failed for good: .*{message}", await fail_to_start())
