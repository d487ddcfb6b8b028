"""What is said about objects: loggers, and the Kubernetes Events made of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import webop
from tests.kit.event_posting import BODY, REFERENCE, Recorder

pytestmark = pytest.mark.usefixtures("in_context")


@pytest.mark.feature("KEV-01", "KEV-08", "CFG-05", "REF-74")
async def test_an_event_has_all_that_kubernetes_wants(posted: Recorder) -> None:
    webop.event(BODY, type="Own", reason="Because", message="hello")
    (event,) = await posted.wait()
    moments = {key: event.pop(key) for key in ("eventTime", "firstTimestamp", "lastTimestamp")}
    assert event.pop("action")
    assert event["metadata"].pop("name").startswith("webop-event-")
    assert event == {
        "metadata": {"namespace": "ns"},
        "count": 1,
        "type": "Own",
        "reason": "Because",
        "message": "hello",
        "reportingComponent": "webop",
        "reportingInstance": "dev",
        "source": {"component": "webop"},
        "involvedObject": REFERENCE,
    }
    assert all(moment.endswith("Z") for moment in moments.values())


@pytest.mark.feature("KEV-02", "KEV-03", "REF-74")
async def test_the_types_of_events_are_the_documented_ones(posted: Recorder) -> None:
    webop.info(BODY, reason="R1", message="m1")
    webop.warn(BODY, reason="R2", message="m2")
    try:
        int("boo")
    except ValueError:
        webop.exception(BODY)
        webop.exception(BODY, reason="R3", message="m3")
    webop.exception(BODY, exc=KeyError("key"))
    await posted.wait(5)
    assert posted.texts == [
        ("Normal", "R1", "m1"),
        ("Warning", "R2", "m2"),
        ("Error", "ValueError", "invalid literal for int() with base 10: 'boo'"),
        ("Error", "R3", "m3 invalid literal for int() with base 10: 'boo'"),
        ("Error", "KeyError", "'key'"),
    ]


@pytest.mark.feature("CFG-02", "CFG-03", "KEV-05", "KEV-06")
@pytest.mark.parametrize(
    ("enabled", "level", "expected"),
    [
        (True, logging.INFO, ["event", "info", "warn", "exception"]),
        (True, logging.WARNING, ["event", "warn", "exception"]),
        (False, logging.INFO, []),
    ],
)
async def test_settings_silence_events(
    posted: Recorder,
    settings: webop.OperatorSettings,
    enabled: bool,
    level: int,
    expected: list[str],
) -> None:
    settings.posting.enabled, settings.posting.level = enabled, level
    webop.event(BODY, type="Own", reason="event")
    webop.info(BODY, reason="info")
    webop.warn(BODY, reason="warn")
    webop.exception(BODY, reason="exception", exc=ValueError())
    await posted.wait(len(expected))
    assert [event["reason"] for event in posted.events] == expected


@pytest.mark.feature("KEV-07")
@pytest.mark.parametrize(
    ("api_version", "kind", "count"),
    [("v1", "Event", 0), ("events.k8s.io/v1", "Event", 0), ("own.dev/v1", "Event", 1)],
)
async def test_there_are_no_events_about_events(
    posted: Recorder, settings: webop.OperatorSettings, api_version: str, kind: str, count: int
) -> None:
    body = {**BODY, "apiVersion": api_version, "kind": kind}
    webop.info(body, reason="explicit")
    webop.ObjectLogger(body=body, settings=settings).info("logged")
    await posted.wait(2 * count)


@pytest.mark.feature("KEV-08")
async def test_long_messages_are_cut_in_the_middle(posted: Recorder) -> None:
    webop.info(BODY, reason="long", message="a" * 5000 + "b" * 5000)
    (event,) = await posted.wait()
    assert event["message"] == "a" * 511 + "..." + "b" * 510


async def test_messages_control_no_terminal(posted: Recorder) -> None:
    webop.info(BODY, reason="R", message="a\x1b[2J\u202e\ud800\tb\nc")
    await posted.wait()
    assert posted.texts == [("Normal", "R", "a\\u001b[2J\\u202e\\ud800\tb\nc")]


@pytest.mark.feature("KEV-11")
async def test_events_about_objects_of_the_cluster_are_in_the_default_namespace(
    posted: Recorder,
) -> None:
    webop.info({**BODY, "metadata": {"name": "kex", "uid": "u1"}}, reason="x")
    (event,) = await posted.wait()
    assert event["metadata"]["namespace"] == "default"
    assert event["involvedObject"]["namespace"] == "default"


@pytest.mark.feature("KEV-05", "CFG-03", "LOG-10", "REF-64")
async def test_messages_of_object_loggers_become_events(
    posted: Recorder, settings: webop.OperatorSettings, logger: webop.ObjectLogger
) -> None:
    logger.debug("debug")
    logger.info("info %s", 1)
    logger.warning("warning %(x)s", {"x": 2})
    logger.error("100%")
    settings.posting.level = logging.ERROR
    logger.warning("not important")
    logger.critical("critical")
    await posted.wait(4)
    assert posted.texts == [
        ("Normal", "Logging", "info 1"),
        ("Warning", "Logging", "warning 2"),
        ("Warning", "Logging", "100%"),
        ("Warning", "Logging", "critical"),
    ]


@pytest.mark.feature("CFG-02", "CFG-04", "KEV-06", "D-24", "D-60")
@pytest.mark.parametrize("name", ["enabled", "loggers"])
async def test_messages_of_object_loggers_can_be_kept_out(
    posted: Recorder, settings: webop.OperatorSettings, logger: webop.ObjectLogger, name: str
) -> None:
    setattr(settings.posting, name, False)
    logger.error("error")
    await posted.wait(0)


@pytest.mark.feature("LOG-10", "KEV-10", "REF-65", "D-38")
async def test_messages_of_local_loggers_are_not_posted(
    posted: Recorder, settings: webop.OperatorSettings, caplog: pytest.LogCaptureFixture
) -> None:
    webop.LocalObjectLogger(body=BODY, settings=settings).error("error")
    await posted.wait(0)
    assert caplog.messages == ["error"]


@pytest.mark.feature("REF-64", "LOG-10")
def test_object_loggers_carry_the_object_and_extras(
    settings: webop.OperatorSettings, caplog: pytest.LogCaptureFixture
) -> None:
    logger = webop.ObjectLogger(body=BODY, settings=settings)
    logger.error("hello", extra={"own": 1})
    (record,) = caplog.records
    assert vars(record)["k8s_ref"] == REFERENCE
    assert vars(record)["own"] == 1
    assert record.name == "webop.objects"
    assert record.filename == "test_posting.py"


@pytest.mark.feature("KEV-09", "ERR-01")
@pytest.mark.parametrize("args", [("%d", "text"), ("%s %s", 1), ("%(x)s", 1), ("%", 1)])
def test_a_message_that_cannot_be_formatted_breaks_no_handler(
    logger: webop.ObjectLogger, args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(logging.getLogger("webop.objects"), "disabled", True)
    logger.info(*args)
