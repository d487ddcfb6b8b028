"""A fuzz run: hostile requests to the app, and a judge who takes note of every wrong answer.

What must never be: a 5xx; an error in the log; an admission that no handler has given; a refusal
that no handler has given; a 4xx that does not say why; an answer that is not a review. The
handlers here look at all that handlers are given, and do with it what the manual shows; they never
fail. So whatever fails is not theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from asgi_lifespan import LifespanManager

import webop
from tools.fuzzing.hostile_requests import HASTY, Request, generate, generate_spoilt_streams
from tools.fuzzing.recorded_handlers import RecordedHandlers
from webop.objects.json_text import cut
from webop.servers.http.listener import Listener
from webop.testing.apiserver.messages import Refusal
from webop.testing.apiserver.patches import apply_json_patch

Json = dict[str, Any]

_ROUND = 2000  # requests between two lines of progress
_PAUSE = 0.03  # seconds, for the first answer at a socket
_PATIENCE = 5.0  # seconds for one answer
_SLOW = 2.0  # seconds that no answer should take, on whatever machine
_REPETITION = re.compile(r"(.{1,6}?)\1{9,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass
class Report:
    """What has come of a run.

    Attributes:
        findings: what was wrong, with the smallest request that has led to it: rules to the number
            of times, a detail, and that request.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    slowest: float = 0.0

    @property
    def count(self) -> int:
        """How many requests there were."""
        return self.statuses.total()

    def note(self, rule: str, detail: str, request: object) -> None:
        """Take note of a wrong answer."""
        count, *known = self.findings.get(rule, (0, detail, repr(request)))
        best = min((detail, repr(request)), (known[0], known[1]), key=lambda pair: len(pair[1]))
        self.findings[rule] = (count + 1, *best)

    def summarize(self) -> str:
        """Return the figures, and all of the findings."""
        counts = ", ".join(f"{status}: {n}" for status, n in sorted(self.statuses.items()))
        lines = [f"{self.count} requests, the slowest took {self.slowest:.3f} s; {counts}"]
        for rule, (count, detail, request) in self.findings.items():
            lines += [f"{count} times: {rule}", _shorten(detail[-1000:])]
            lines += [_shorten(request)[:5000], ""]
        return "\n".join([*lines, f"{len(self.findings)} findings"])


def _shorten(text: str) -> str:
    """Fold what is repeated: ``[[[[…`` is ``<[ 1000 times>`` then."""
    return _REPETITION.sub(lambda m: f"<{m[1]} {len(m[0]) // len(m[1])} times>", text)


class _Errors(logging.Handler):
    """Collects what is logged as an error, with its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep errors; other messages are only to be formattable."""
        text = self.format(record)
        if record.levelno >= logging.ERROR or record.exc_info:
            self.texts.append(text)


class Fuzzer:
    """Sends requests to one app, and judges the answers."""

    def __init__(self, app: Any, recorded: RecordedHandlers, errors: _Errors) -> None:
        self.report = Report()
        self.app = app
        self.recorded = recorded
        self.errors = errors

    async def send(self, request: Request) -> None:
        """Send one request as an ASGI server does, and judge the answer."""
        self.recorded.clear()
        began = time.perf_counter()
        try:
            async with asyncio.timeout(_PATIENCE):
                status, body = await _call(self.app, request)
        except Exception as exc:  # noqa: BLE001 - which is what is looked for
            self.report.note(f"the app has raised {type(exc).__name__}", repr(exc), request)
            status, body = 0, b""
        self._note_time(began, request)
        self.report.statuses[str(status or "no answer")] += 1
        self._judge_log(request)
        if request.is_cut or not status:
            return
        for rule, detail in self._judge(status, body, request):
            self.report.note(rule, detail, request)

    async def send_stream(self, host: str, port: int, stream: bytes) -> None:
        """Write bytes to a socket, and judge what comes back until the other side closes."""
        self.recorded.clear()
        began = time.perf_counter()
        answer = b""
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(stream)
                # Servers drop a request whose client leaves; what is incomplete waits for that.
                if len(stream) % 8:
                    with contextlib.suppress(TimeoutError):
                        answer = await asyncio.wait_for(reader.read(65536), _PAUSE)
                writer.write_eof()
                async with asyncio.timeout(_PATIENCE):
                    while chunk := await reader.read(65536):
                        answer += chunk
            except TimeoutError:
                self.report.note("the connection stays open", "after the end of the input", stream)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        self._note_time(began, stream)
        statuses = re.findall(rb"(?:^|\})HTTP/1\.\d (\d{3})", answer)
        self.report.statuses["socket " + (statuses[0].decode() if statuses else "no answer")] += 1
        self._judge_log(stream)
        # A spoilt version, and a timeout of 1 ms.
        excused = {b"505", *([b"504"] if any(query in stream for query in HASTY) else [])}
        if any(status >= b"500" and status not in excused for status in statuses):
            self.report.note("a 5xx at a socket", repr(answer[:500]), stream)
        if b'"allowed":true' in answer and not (self.recorded.called or self.recorded.declined):
            self.report.note("allowed, but unjudged, at a socket", repr(answer[:500]), stream)

    def _note_time(self, began: float, request: object) -> None:
        took = time.perf_counter() - began
        self.report.slowest = max(self.report.slowest, took)
        if took > _SLOW:
            self.report.note(f"an answer took more than {_SLOW:g} s", f"{took:.1f} s", request)

    def _judge_log(self, request: object) -> None:
        for text in self.errors.texts:
            last = text.strip().splitlines()[-1]
            self.report.note(f"logged: {re.sub(r'[0-9]+', '0', last)[:80]}", text, request)
        self.errors.texts.clear()

    def _judge(self, status: int, body: bytes, request: Request) -> Iterator[tuple[str, str]]:
        text = repr(body[:500])
        if status >= 500:
            is_excused = status in (503, 504) and request.is_hasty
            if not is_excused and not request.path.startswith("/readyz"):
                yield f"status {status}", text
        elif request.method != "POST":
            return  # pages, and what there is none of
        elif status == 200:
            yield from self._judge_review(body, request)
        elif not _is_refusal(body, status):
            yield f"a {status} that is not a Status with a reason", text

    def _judge_review(self, body: bytes, request: Request) -> Iterator[tuple[str, str]]:
        text = repr(body[:500])
        try:
            answer = orjson.loads(body)
            response = answer["response"]
            allowed, uid = response["allowed"], response["uid"]
            code = response.get("status", {}).get("code")
            if allowed is False and code in (400, 413) and not self.recorded.called:
                head = b"".join(request.body[:512].split()).decode("latin-1")
                if f'"uid":"{uid}"' not in head:
                    yield "a denial of a wrong review has another uid", text
                return  # the content is wrong; nobody needs to read it whole
            sent = orjson.loads(cut(request.body, 253))
        except (ValueError, KeyError, TypeError) as exc:
            yield f"a 200 that is not a review: {type(exc).__name__}", text
            return
        if (answer.get("kind"), answer["apiVersion"]) != ("AdmissionReview", sent["apiVersion"]):
            yield "the answer is of another kind", text
        if uid != sent["request"]["uid"] or not uid:
            yield "the answer has another uid", text
        if allowed is True and not (self.recorded.called or self.recorded.declined):
            yield "allowed, but unjudged", text
        if allowed is not True and not self.recorded.refused:
            yield f"refused, but by no handler: {response['status']['message'][:60]}", text
        yield from _judge_parts(response, sent["request"].get("object"))


def _is_refusal(body: bytes, status: int) -> bool:
    """Tell whether this is a Status with a reason (Kubernetes API, meta/v1)."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        return False
    return (
        isinstance(answer, dict)
        and answer.get("kind") == "Status"
        and answer.get("code") == status
        and isinstance(answer.get("message"), str)
        and bool(answer["message"].strip())
    )


def _judge_parts(response: Json, body: Any) -> Iterator[tuple[str, str]]:
    for warning in response.get("warnings", ()):
        if not isinstance(warning, str) or _CONTROL.search(warning):
            yield "a warning that API servers drop", repr(warning)[:500]
    status = response.get("status", {})
    if not response["allowed"] and not (status.get("message") and 400 <= status["code"] <= 599):
        yield "a refusal without a reason", repr(status)
    if "patch" in response and body is not None:
        operations = orjson.loads(base64.b64decode(response["patch"]))
        try:
            with contextlib.suppress(RecursionError):  # that would be the judge's own limit
                apply_json_patch(body, operations)
        except Refusal as exc:
            yield "a patch that cannot be applied", repr(exc)[:500]


async def _call(app: Any, request: Request) -> tuple[int, bytes]:
    """Call an ASGI app, and return the status and the body of its answer; 0 for none."""
    size = request.chunk or max(len(request.body), 1)
    pieces = [request.body[i : i + size] for i in range(0, len(request.body), size)][:5000]
    if sum(map(len, pieces)) < len(request.body):
        pieces = [request.body]
    messages: list[Json] = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ] or [{"type": "http.request", "body": b"", "more_body": False}]
    if request.is_cut:
        messages = [*messages[:-1], {"type": "http.disconnect"}]
    inbox, status, body = iter(messages), 0, b""

    async def receive() -> Json:
        if (message := next(inbox, None)) is not None:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Json) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode("utf-8", "surrogatepass"),
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return status, body


@contextlib.asynccontextmanager
async def open_fuzzer() -> AsyncIterator[Fuzzer]:
    """Run an app with the handlers, and listen to its log."""
    errors, recorded = _Errors(), RecordedHandlers()
    root = logging.getLogger()
    level = root.level
    root.addHandler(errors)
    root.setLevel(logging.INFO)
    try:
        app = webop.create_app(registry=recorded.registry, modules=(), clusterwide=True)
        async with LifespanManager(app):
            yield Fuzzer(app, recorded, errors)
    finally:
        root.removeHandler(errors)
        root.setLevel(level)


async def fuzz(
    count: int, number: int, *, streams: int | None = None, is_verbose: bool = False
) -> Report:
    """Send so many requests, a twentieth of them through sockets unless it is told otherwise."""
    async with open_fuzzer() as fuzzer:
        report = fuzzer.report
        for sent in range(0, count, _ROUND):
            for request in generate(min(_ROUND, count - sent), number + sent):
                await fuzzer.send(request)
            if is_verbose:
                found = len(report.findings)
                print(f"{report.count} of {count} requests, {found} findings", flush=True)
        through_sockets = count // 20 if streams is None else streams
        async with Listener(fuzzer.app, "127.0.0.1", 0) as listener:
            for stream in generate_spoilt_streams(through_sockets, number):
                await fuzzer.send_stream("127.0.0.1", listener.port, stream)
        return report


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report = asyncio.run(fuzz(given.count, given.seed, is_verbose=True))
    print(report.summarize())
    return int(bool(report.findings))


if __name__ == "__main__":
    sys.exit(main())
