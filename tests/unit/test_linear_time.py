"""Text of any length and content is read in linear time: no peer can stop the event loop by it."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import webop
from tests.kit.rows import rows
from webop.client.auth.expiration import parse_moment, parse_token_lifetime
from webop.client.auth.urls import find_server_problem, quote_url
from webop.client.watch_events import parse_number
from webop.coordination.lease_content import is_newer
from webop.keymaterial import find_certificates
from webop.logs.sanitizing import escape, hide_secrets
from webop.objects.json_text import cut
from webop.servers.decoding import find_request

LIMIT = 0.3  # seconds for 100 000 characters; what is quadratic needs at least ten times that

# What makes patterns go back, and the beginnings of what is looked for.
PIECES = (
    *("a", "A", "1", " ", ".", "-", "/", '"', "a.", "a-", "1.", "a[", "V1", "a=", "\\", "\n"),
    *("kopf-", "KOPF_RUN_", "python:1", "charset=", "+json"),
    *('admission webhook "', 'failed calling webhook "', 'request.userInfo.username != "'),
    *("://", "token=", "basic ", "ERR_NGROK_", "FROM ", "k8s.io/a => ", "go1.", "SERVICE_PORT_"),
)
# Their callers bound the text.
BOUNDED = {"review_head._PART", "escaping._SECRETS"}


def list_uses() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield what is done with the regular expressions of all modules, with the names of these."""
    for info in pkgutil.walk_packages(webop.__path__, "webop."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        source = Path(str(module.__file__)).read_text()
        for name, value in vars(module).items():
            title = f"{info.name.rpartition('.')[2]}.{name}"
            pattern = getattr(value, "__self__", value)
            if not isinstance(pattern, re.Pattern) or title in BOUNDED:
                continue
            if pattern is not value:  # a method, such as fullmatch
                yield title, value
            for method in set(re.findall(rf"\b{name}\.(\w+)\(", source)):
                yield title, partial(_use, getattr(pattern, method), method)


def _use(fn: Any, method: str, text: str) -> None:
    is_text = isinstance(fn.__self__.pattern, str)
    given: Any = text if is_text else text.encode()
    found = fn(given[:0], given) if method == "sub" else fn(given)
    if method == "finditer":
        list(found)


def measure(fn: Callable[[Any], Any], text: Any) -> float:
    begin = time.process_time()
    with contextlib.suppress(ValueError, webop.WebopError):  # it is refused, in time
        fn(text)
    return time.process_time() - begin


def test_no_regular_expression_goes_back_again_and_again() -> None:
    uses = list(list_uses())
    assert len(uses) > 20
    for name, fn in uses:
        for piece in PIECES:
            for beginning in ("", "a"):
                text: Any = beginning + piece * (2_000 // len(piece))
                assert measure(fn, text) < LIMIT / 15, (name, beginning, piece)


def build_token(text: str) -> str:
    claims = urlsafe_b64encode(f'{{"exp": {text}}}'.encode()).decode()
    return f"x.{claims}.x"


TABLE: list[tuple[Callable[[Any], Any], Callable[[int], Any]]] = [
    (find_certificates, lambda n: b"-----BEGIN CERTIFICATE-----" * (n // 27)),
    (hide_secrets, lambda n: "aA=" * (n // 3)),
    (hide_secrets, lambda n: "://" * (n // 3)),
    (escape, lambda n: "\n" * n),
    (quote_url, lambda n: ":" * n),
    (find_server_problem, lambda n: "http://h:" + "1" * n),
    (parse_moment, lambda n: "T" + "1" * n),
    (parse_number, lambda n: "1" * n),
    (lambda text: is_newer(text, {"metadata": {"resourceVersion": text}}), lambda n: "1" * n),
    (parse_token_lifetime, lambda n: build_token("1" * n)),
    (partial(cut, limit=200), lambda n: b"[" * (n // 2) + b"]" * (n // 2)),
    (partial(cut, limit=200), lambda n: b"[" * 300 + b'{"\\"":"' * (n // 8)),
    (partial(cut, limit=200), lambda n: b'["' + b"\\" * n),
    (find_request, lambda n: b" " * n),
]


@rows(("fn", "build"), TABLE)
def test_a_long_text_is_read_in_time(fn: Callable[[Any], Any], build: Callable[[int], Any]) -> None:
    for count in (10_000, 100_000):
        assert measure(fn, build(count)) < LIMIT
