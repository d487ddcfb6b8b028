"""The log of reviews: which request a message is of; who was refused what, and why."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.reviews import UID, build_object, send_review, serve
from webop import LogFormat

BOT = {"username": "system:serviceaccount:ci:bot", "groups": ["system:authenticated"]}
REFERENCE = {
    "uid": UID,
    "operation": "CREATE",
    "resource": "kopfexamples.kopf.dev",
    "namespace": "ns",
    "name": "kex",
    "user": "admin",
}
Read = Callable[[], list[str]]
PREFIX = "[KopfExample ns/kex] [1ca13837]"


@pytest.fixture
def read(read: Callable[[], str]) -> Read:
    """Returns the lines that were logged since the last call, but for that of the start."""
    return lambda: [line for line in read().splitlines() if "The operator is running" not in line]


def configure(log_format: LogFormat, *, verbose: bool = False) -> None:
    webop.configure(verbose=verbose, log_format=log_format, log_prefix=log_format is not JSON)


JSON, PLAIN = LogFormat.JSON, LogFormat.PLAIN


@pytest.fixture
def talkers() -> None:
    """Handlers that log by all the ways there are."""

    @webop.on.validate("kopfexamples", id="talk")
    async def talk(logger: Any, **_: Any) -> None:
        logger.info("by the logger of the handler")
        await asyncio.create_task(say_elsewhere())

    @webop.on.validate("kopfexamples", id="talk-in-a-thread")
    def talk_in_a_thread(**_: Any) -> None:
        logging.getLogger("own").info("by a logger of one's own, in a thread")


async def say_elsewhere() -> None:
    logging.getLogger("own").info("by a logger of one's own, in a task")


def refuse(error: BaseException, **options: Any) -> None:
    @webop.on.validate("kopfexamples", id="check", **options)
    async def check(**_: Any) -> None:
        raise error


@pytest.mark.feature("LOG-03")
@pytest.mark.usefixtures("talkers")
async def test_all_messages_of_a_review_carry_its_request_in_json(read: Read) -> None:
    configure(JSON)
    async with serve() as site:
        await site.review()
        logging.getLogger("own").info("afterwards")
    lines = [json.loads(line) for line in read()]
    said = [line for line in lines if "by" in line["message"]]
    assert [line["request"] for line in said] == [REFERENCE] * 3
    assert [line["handler"] for line in said] == ["talk", "talk", "talk-in-a-thread"]
    assert [line["object"]["name"] for line in said if "object" in line] == ["kex"]
    last = next(line for line in lines if line["message"] == "afterwards")
    assert not {"request", "handler", "kind", "object"} & last.keys()


@pytest.mark.feature("LOG-02", "LOG-10")
@pytest.mark.usefixtures("talkers")
async def test_texts_begin_with_the_object_and_the_request(read: Read) -> None:
    configure(PLAIN)
    await send_review()
    assert read() == [
        "[KopfExample ns/kex] [1ca13837] by the logger of the handler",
        "[1ca13837] by a logger of one's own, in a task",
        "[1ca13837] by a logger of one's own, in a thread",
    ]


@pytest.mark.parametrize(
    ("request_", "changes"),
    [
        ({"dryRun": True}, {"dry_run": True}),
        ({"subResource": "status"}, {"resource": "kopfexamples.kopf.dev/status"}),
        ({"userInfo": {}}, {"user": "an unknown user"}),
    ],
)
async def test_the_request_says_what_there_is_to_know(
    request_: dict[str, Any], changes: dict[str, Any], read: Read
) -> None:
    configure(JSON)
    webop.on.validate("kopfexamples", subresource="*", id="talk")(
        lambda logger, **_: logger.info("said")
    )
    await send_review(**request_)
    assert [json.loads(line)["request"] for line in read()] == [REFERENCE | changes]


async def test_a_refusal_is_one_line_that_says_who_what_and_why(read: Read) -> None:
    configure(PLAIN)
    refuse(webop.AdmissionError("Too large.\n\x1b[31mNo way.", code=413))
    await send_review(build_object({"password": "hidden"}), userInfo=BOT, dryRun=True)
    (line,) = read()
    assert line == (
        "[KopfExample ns/kex] [1ca13837] Denied (413, dry run): CREATE of kopfexamples.kopf.dev "
        "ns/kex by system:serviceaccount:ci:bot: Too large. [31mNo way. [check]"
    )


async def test_what_is_allowed_is_told_only_when_debugging(read: Read) -> None:
    @webop.on.mutate("kopfexamples", id="fill")
    def fill(patch: webop.Patch, warnings: list[str], **_: Any) -> None:
        patch.spec["size"] = 5
        warnings.append("It is filled.")

    async with serve() as site:
        configure(PLAIN)
        await site.review()
        assert read() == []
        configure(PLAIN, verbose=True)
        await site.review()
    lines = read()
    assert [line for line in lines if "Allowed" in line or "Patching" in line] == [
        (
            f"{PREFIX} Allowed: CREATE of kopfexamples.kopf.dev ns/kex by admin "
            "(1 warning, patched)."
        ),
        PREFIX + ' Patching with: [{"op":"add","path":"/spec/size","value":5}]',
    ]


async def test_patches_of_secrets_are_not_logged(read: Read) -> None:
    @webop.on.mutate("secrets", id="fill")
    def fill(patch: webop.Patch, **_: Any) -> None:
        patch["data"] = {"password": "aGlkZGVu"}

    async with serve() as site:
        configure(PLAIN, verbose=True)
        await site.review(resource=("", "v1", "secrets"), kind="Secret")
    lines = read()
    assert any("patched" in line for line in lines)
    assert not any("aGlkZGVu" in line for line in lines)
