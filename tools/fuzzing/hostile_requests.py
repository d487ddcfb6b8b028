"""Hostile requests for admission: what no API server sends, but anybody may.

Sources, each seeded: reviews with some fields replaced, removed or duplicated, and arbitrary JSON;
bytes of valid bodies spoilt at random; and bytes of whole HTTP requests spoilt in the same way, for
sockets.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.kit.reviews import build_object, build_review

Json = Any

PATHS = (
    *("/", "/validate", "/fill", "/picky", "/field/spec.nested.a"),
    *("/mutate/both", "/validate/both"),
)

HASTY = (b"timeout=0s", b"timeout=1ms", b"timeout=0.001s", b"timeout=-1s")
_DUPLICATE = "@again@"  # the end of a key that is to be there twice
_RAW = "@raw-"  # the beginning of a string that stands for text which json.dumps never makes


@dataclass(frozen=True)
class Request:
    """A request as ASGI apps see it; its repr is what it takes to repeat it."""

    body: bytes
    path: str = "/"
    query: bytes = b""
    method: str = "POST"
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)
    chunk: int = 0
    is_cut: bool = False

    @property
    def is_hasty(self) -> bool:
        """Whether the client says that it has hardly any time."""
        return self.query in HASTY


def _build_bases() -> list[Json]:
    meta = {
        "uid": "00000000-0000-0000-0000-000000000001",
        "resourceVersion": "7",
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "x", "tests.webop.dev/picky": "yes"},
        "annotations": {"kopf.zalando.org/last-handled-configuration": '{"spec":{}}'},
        "finalizers": ["kopf.zalando.org/KopfFinalizerMarker"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
        ],
    }
    spec = {"size": "1G", "numbers": [1, 2.5, None, {"x": [True]}], "nested": {"a": {"b": {}}}}
    new = {**build_object(spec, **meta), "status": {"phase": "Ready", "kopf": {"progress": {}}}}
    old = {**new, "spec": {**spec, "size": "2G", "gone": []}}
    wish = {"apiVersion": "v1", "kind": "PodExecOptions", "command": ["ls"]}
    generated = build_object(spec, generateName="kex-")
    bases = [
        build_review(new),
        build_review(new, old),
        build_review(None, old),
        build_review(new, old, subResource="status", dryRun=True),
        build_review(wish, operation="CONNECT", subResource="exec"),
        build_review(generated, name="", namespace=None),
        build_review(new, resource=("", "v1", "pods"), kind="Pod"),
    ]
    for base in bases:
        request = base["request"]
        request["options"] = {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        request["requestKind"], request["requestResource"] = request["kind"], request["resource"]
        request["userInfo"] = {**request["userInfo"], "extra": {"a/b": ["c"]}}
    return bases


BASES = _build_bases()

_TEXTS = (
    *("", " ", "\x00", "\ud800", "\udfff\ud800", "a\nb", "../..", "\u202e\ufeff", "true"),
    *("kex", "ns", "metadata", "CREATE", "DELETE", "CONNECT", "kopfexamples", "kopf.dev", "v1"),
    *("9" * 400, "x" * 70_000),
)
_NUMBERS = (
    *(0, -1, 1, 2**63, -(2**63) - 1, 2**64, 10**400),
    *(0.0, -0.0, 1e308, 5e-324, float("nan"), float("inf")),
    *(f"{_RAW}{text}" for text in ("1e999", "-", "01", "'x'", "nul", "")),
)
_DEPTHS = (50, 120, 200, 240, 255, 300, 500, 900, 1000, 1023, 1024, 1100, 20_000)
_DEEP = tuple(f"{_RAW}deep-{kind}-{depth}" for kind in ("list", "dict") for depth in _DEPTHS)
_CONTAINERS: list[Json] = [[], {}, [[]], [{}], [None], {"": {}}, {"metadata": []}, {"a": None}]
_VALUES: list[Json] = [None, True, False, *_NUMBERS, *_TEXTS, *_CONTAINERS, *_DEEP]

#: Of URLs; those of API servers have nothing but a timeout.
QUERIES = (
    *(b"", b"timeout=10s", b"timeout=30s", b"timeout=1e9s", b"timeout=9999999h", b"timeout="),
    *(b"timeout=abc", b"timeout=1h2m3s", b"timeout=10", b"timeout=nans", b"timeout=%31%30s"),
    *(b"timeout=\xff\xfe", b"timeout=%00", b"timeout=5s&timeout=6s", b"&&==", b"a" * 5000),
    *(b"timeout=" + b"9" * 20 + b"s", b"timeout=" + b"1" * 30_000, b"timeout=" + b"1h" * 15_000),
    *(b"timeout=" + b".1" * 15_000 + b"s", b"&".join(b"a%d=b" % i for i in range(6_000))),
    *(b"dryRun=true&timeout=1s&timeout=x", *HASTY),
)
_WEIRD_PATHS = (
    *("", "//", "/validate/", "//validate//", "/unknown", "/Validate", "/validate/validate"),
    *("/validate/fill", "/mutate/validate", "/../validate", "/validate\x00", "/validate?", "/*"),
    *("/ ", "/%2e", "/\udcff", "/" + "a/" * 2000, "/livez", "/healthz", "/readyz"),
)
_HEADERS = (
    (b"content-type", b"text/html"),
    (b"content-type", b"application/json; charset=utf-16"),
    (b"content-encoding", b"gzip"),
    *((b"content-length", value) for value in (b"", b"-1", b"1e3", b"9" * 20, "²".encode())),
    (b"transfer-encoding", b"chunked"),
    (b"authorization", b"\xff\x00"),
    (b"x-forwarded-for", b"1.2.3.4, \xe9"),
    (b"host", b""),
    (b"expect", b"100-continue"),
    (b"", b""),
)
_JSON_HEADER = (b"content-type", b"application/json")


def generate(count: int, number: int) -> Iterator[Request]:
    """Yield requests of all sorts; a document goes to several paths, spoilt and unspoilt."""
    dice = random.Random(number)
    bodies = [json.dumps(base).encode() for base in BASES]
    for _ in range(max(count // 4, 1)):
        request = _draw_request(dice)
        yield request
        yield replace(request, path=dice.choice(PATHS), headers=(), method="POST")
        yield replace(request, path=dice.choice(PATHS), query=dice.choice(QUERIES), chunk=0)
        body = _spoil(dice.choice(bodies), bodies, dice)
        yield Request(body, dice.choice(PATHS), chunk=dice.choice((0, 0, 1000, 7)))


def generate_spoilt_streams(count: int, number: int) -> Iterator[bytes]:
    """Yield what to write to a socket: valid HTTP requests, some of whose bytes were changed."""
    dice = random.Random(number)
    streams = [
        _build_stream(json.dumps(base).encode(), path)
        for base in BASES
        for path in ("/", "/validate", "/fill?timeout=10s")
    ]
    streams += [
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n",
        b"POST / HTTP/1.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"POST / HTTP/1.1\r\n" + b"x: y\r\n" * 3000 + b"\r\n",
        b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
        b"GET /livez HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"A" * 100_000,
    ]
    for _ in range(count):
        stream = dice.choice(streams)
        head = len(stream.partition(b"\r\n\r\n")[0])
        limit = head if dice.random() < 0.6 else None  # most of it is the body
        yield _vary(_spoil(stream, streams, dice, limit=limit), dice)


def _vary(stream: bytes, dice: random.Random) -> bytes:
    """Send a request several times in a row, with trailers, with a huge query; or as it is."""
    way = dice.randrange(8)
    head, separator, body = stream.partition(b"\r\n\r\n")
    if way == 0:
        return stream * dice.choice((2, 5, 50, 300))
    if way == 1 and separator:
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-l")]
        lines.append(b"Transfer-Encoding: chunked")
        trailer = b"X-Trailer: " + b"x" * dice.choice((1, 1000, 100_000)) + b"\r\n"
        trailers = trailer * dice.choice((0, 1, 50, 1000 if len(trailer) < 2000 else 1))
        chunks = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)
        return b"\r\n".join(lines) + separator + chunks
    if way == 2:
        return stream.replace(b" HTTP/1.1", b"?" + dice.choice(QUERIES) + b" HTTP/1.1", 1)
    return stream


def _build_stream(body: bytes, path: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: webop\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _spoil(
    data: bytes, others: list[bytes], dice: random.Random, limit: int | None = None
) -> bytes:
    """Change some bytes; the limit is where to stop, for changes in the head of a request only."""
    spoilt = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 1, 2, 4, 16))):
        if not spoilt:
            break
        start = dice.randrange(min(limit or len(spoilt), len(spoilt)))
        end = min(len(spoilt), start + dice.choice((1, 1, 2, 8, 64)))
        if dice.randrange(7) == 0:
            del spoilt[start:]
        else:
            spoilt[start:end] = _replace(bytes(spoilt[start:end]), others, dice)
    return bytes(spoilt)


def _replace(part: bytes, others: list[bytes], dice: random.Random) -> bytes:
    other = dice.choice(others)
    place = dice.randrange(len(other))
    first = bytes([part[0] ^ 1 << dice.randrange(8)])
    sign = bytes([dice.choice(b'\x00\xff"{}[],:\\ \r\n0e-')])
    ways = (
        first + part[1:],
        sign + part[1:],
        b"",
        part * dice.choice((2, 3, 50)),
        other[place : place + dice.choice((4, 64, 4000))],
        dice.randbytes(len(part)),
    )
    return dice.choice(ways)


def _draw_request(dice: random.Random) -> Request:
    body, query = _encode(_draw_document(dice)), dice.choice(QUERIES)
    chunk, is_cut = dice.choice((0, 0, 0, 1, 100)), dice.random() < 0.025
    method = dice.choice(("POST",) * 30 + ("GET", "PUT", "HEAD", "OPTIONS", "", "pOST"))
    if dice.random() < 0.75:
        return Request(body, dice.choice(PATHS), query, method, (_JSON_HEADER,), chunk, is_cut)
    path = dice.choice((*_WEIRD_PATHS, f"/{_draw_text(dice)}"))
    headers = tuple(dice.choice(_HEADERS) for _ in range(dice.randrange(4)))
    return Request(body, path, query, method, headers, chunk, is_cut)


def _draw_document(dice: random.Random) -> Json:
    if dice.random() < 0.1:
        return _draw_value(dice)
    document = copy.deepcopy(dice.choice(BASES))
    for _ in range(dice.randrange(5)):
        if places := list(_iter_places(document)):
            _change(*dice.choice(places), dice.randrange(8), _draw_value(dice))
    return document


def _draw_value(dice: random.Random) -> Json:
    way, count = dice.randrange(8), dice.randrange(5)
    if way == 0:
        return [_draw_value(dice) for _ in range(count)]
    if way == 1:
        return {_draw_text(dice): _draw_value(dice) for _ in range(count)}
    if way == 2:
        return dice.choice((dice.randrange(-(2**40), 2**40), dice.uniform(-1e9, 1e9)))
    return _draw_text(dice) if way == 3 else copy.deepcopy(dice.choice(_VALUES))


def _draw_text(dice: random.Random) -> str:
    if dice.random() < 0.5:
        return dice.choice(_TEXTS)
    limit = dice.choice((0x7F, 0x110000))
    return "".join(chr(dice.randrange(limit)) for _ in range(dice.randrange(20)))


def _change(parent: Any, key: Any, way: int, value: Json) -> None:
    """Change one field; most of the ways put something else in its place."""
    if way == 0:
        del parent[key]
    elif way == 1 and isinstance(parent, dict):
        parent[f"{key}{_DUPLICATE}"] = value
    elif way == 2 and isinstance(parent, dict):
        parent[str(value)[:50]] = parent.pop(key)
    elif way == 3:
        parent[key] = [parent[key]]
    else:
        parent[key] = value


def _iter_places(value: Json) -> Iterator[tuple[Any, Any]]:
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield value, key
        yield from _iter_places(inner)


def _encode(document: Json) -> bytes:
    """Return a text of JSON, or nearly so, with all that was only hinted at."""
    text = json.dumps(document).replace(_DUPLICATE, "")
    parts = text.split(f'"{_RAW}')
    rest = [_expand(*part.split('"', 1)) if '"' in part else part for part in parts[1:]]
    return "".join([parts[0], *rest]).encode("utf-8", "surrogatepass")


def _expand(name: str, tail: str) -> str:
    if not name.startswith("deep-"):
        return name + tail
    _, kind, depth = name.split("-")
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    return opening * int(depth) + "1" + closing * int(depth) + tail
