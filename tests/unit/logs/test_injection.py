"""Log lines with text of strangers in them: one line each, whatever the text holds."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.reviews import serve
from tests.kit.rows import rows
from webop import LogFormat
from webop.logs import JSONFormatter, TextFormatter

FORGED = "[2026-01-01 00:00:00,000] webop.objects        [INFO    ] forged"
BREAKS = ("\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
CONTROLS = [
    *map(chr, (*range(0x20), *range(0x7F, 0xA0))),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ud800",
]


def format_text(fmt: LogFormat = LogFormat.FULL, **values: Any) -> str:
    record = logging.makeLogRecord({"name": "webop.objects", "levelname": "INFO", **values})
    return TextFormatter(fmt.value, has_prefix=True).format(record)


def raise_and_format(exc: BaseException, **values: Any) -> str:
    try:
        raise exc
    except BaseException:  # noqa: BLE001
        return format_text(msg="failed", exc_info=sys.exc_info(), **values)


@pytest.mark.feature("LOG-01", "LOG-03")
def test_no_control_character_reaches_a_terminal() -> None:
    for mark in CONTROLS:
        reference = {"name": f"a{mark}b", "namespace": f"c{mark}d"}
        values: Any = {"k8s_ref": reference, "k8s_request": {"uid": f"e{mark}f"}}
        text = format_text(msg=f"g{mark}h", name=f"i{mark}j", **values)
        assert mark not in text
        assert text.count("\\") == 5
        text = raise_and_format(ValueError(f"a{mark}b"))
        assert mark == "\n" or mark not in text
        record = logging.makeLogRecord({"levelno": logging.INFO, "msg": f"a{mark}b"})
        line = JSONFormatter(has_prefix=False, refkey=None).format(record)
        assert mark not in line
        assert json.loads(line)["message"] == f"a{mark}b"


def chain(text: str) -> BaseException:
    inner: BaseException = ValueError(text)
    inner.add_note(text)
    outer = RuntimeError("outer")
    outer.__cause__ = BaseExceptionGroup(text, [inner, KeyError("k")])
    return outer


@pytest.mark.feature("ERR-21")
@rows("build", [ValueError, OSError, SyntaxError, chain])
def test_the_message_of_an_exception_cannot_pass_for_a_log_line(
    build: Callable[[str], BaseException],
) -> None:
    for mark in BREAKS:
        text = raise_and_format(build(f"bad{mark}{FORGED}"))
        first, *others = text.splitlines()
        assert first.endswith("] failed")
        assert any("Traceback (most recent call last):" in line for line in others)
        assert "forged" in text
        assert not [line for line in others if line.startswith(FORGED)], repr(mark)


async def test_reviews_of_strangers_forge_no_line(read: Callable[[], str]) -> None:
    webop.configure(log_format=LogFormat.PLAIN, log_prefix=True)

    @webop.on.validate("kopfexamples")
    def check(spec: webop.Spec, **_: Any) -> None:
        raise ValueError(f"what is {spec['field']}?")

    async with serve() as site:
        await site.http.post(f"/x%0a{FORGED}", content=b"{}")
        await site.http.post(f"/%1b[2J%0d{FORGED}", content=b"\x1b[2J")
        await site.review({"spec": {"field": f"x\n{FORGED}"}})
    text = read()
    assert "forged" in text
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]
