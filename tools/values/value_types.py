"""The types whose values are drawn, each with values that are near its border."""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import itertools
import random
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
from pydantic import Field, create_model

import webop
from webop.models.crds import build_crds

GROUP = "values.webop.dev"


class Subject(NamedTuple):
    """A type, and values of which those that are drawn are variations."""

    annotation: Any
    examples: list[Any]
    default: Any = ...


class S3(webop.Struct):
    kind: Literal["s3"]
    bucket: str


class Disk(webop.Struct):
    kind: Literal["disk"]
    path: str | None = None


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Limits(webop.Struct):
    cpu: int
    memory: str = "1Gi"
    note: str | None = None


class Choice(webop.OneOf):
    image: str | None = None
    url: str | None = None


_UUID = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
_UUIDS = [
    *(_UUID, _UUID.upper(), _UUID.replace("-", ""), f"urn:uuid:{_UUID}", f"{{{_UUID}}}"),
    *("00000000-0000-0000-0000-000000000000", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"),
    *(f"c232ab00-9414-{version}1ec-b3c8-9f6bdeced846" for version in range(1, 9)),
    "c232ab00-9414-41ec-53c8-9f6bdeced846",
]
_MOMENTS = [
    *("2026-01-31T10:20:30Z", "2026-01-31T10:20:30.123456+02:00", "2024-02-29T23:59:59-00:00"),
    *("2026-01-31T10:20Z", "0000-01-01T00:00:00Z", "2026-01-31T10:20:30"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-31t10:20:30z"),
    *("2026-01-31T10:20:30,5Z", "2026-01-31T10:20:30+24:00", "2026-01-31T24:00:00Z"),
    *("1767225600", "2026-01-31 10:20:30Z"),
]
_DATES = ["2026-01-31", "2024-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "1767225600"]
_IPV4 = ["10.0.0.1", "255.255.255.255", "01.2.3.4", "0.0.0.0", "::ffff:1.2.3.4", "1.2.3"]
_IPV6 = [
    *("::1", "::", "fe80::1%eth0", "2001:db8:0:0:1:0:0:1", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::"),
    *("::ffff:01.2.3.4", "1:2:3:4:5:6:1.2.3.4", "2001:DB8::A", "64:ff9b::192.0.2.33", "1::8"),
]
_URLS = [
    *("https://example.com", "http://a/b?c=d#e", "https://user:pw@example.com:8443/x/y.html"),
    *("http://[::1]:80/", "http://10.0.0.1/", "/path", "*", "http://a:99999/"),
    *("http://256.1.1.1", "https://xn--bcher-kva.example/", "https://bücher.example/"),
    *("HTTPS://A.B/%7Ec", "http://a_b/", "http:/a", "http:a", "ftp://x", "//a/b", "http://a.b./"),
    *("http://1.2.3.0x4/", "http://a.b-c.d--e/", "http://a:65535", "http://a:0", "http://:80/"),
    *("http://a/%zz", "https://a/ b"),
]
_OTHER_URLS = [
    *("mailto:a@b.c", "urn:a:b", "s3://bucket/key", "file:///etc/hosts", "file:/a", "a:"),
    *("ws://x/y", "data:,x", "git+ssh://git@example.com/x.git", "x-y.z+1://h"),
    *("postgres://u:p@h:5432/db",),
]
_WORDS = ["", "a", "abc", "Z9_", "a-b", "é", "٣", "²", "a b", "a\n"]
_WORDS += ["\u00a0", "a\u2028b", "\u017f", "\u212a"]
_MORE_WORDS = ["aab", "a  b", "abc", "123", "Ab", "αβγ", "aks", "b\nb", "a\u200bc", "\u0a66"]
_NUMBERS = [
    *(0, 1, -1, 3, 10, 100, 0.5, 1.5, 1e15, 1e17, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63))
]
_PATTERNS = {
    "digits": r"^\d+$",
    "word": r"^\w+$",
    "space": r"^a\s*b$",
    "no space": r"^\S+$",
    "class without space": r"^[^\s,]+$",
    "ASCII": "^[0-9A-Za-z_-]+$",
    "not a digit": "^[^0-9]+$",
    "dot": "^a.c$",
    "end": "a$",
    "POSIX": "^[[:alpha:][:digit:]]+$",
    "letters": r"^\p{Lu}\p{Ll}*$",
    "Greek": r"^\p{Greek}+$",
    "case": "(?i)^[a-k]+s$",
    "lines": "(?m)^b$",
    "repeated": "^(a{1,3}b?){2}$",
}


def _map(key: Any, *keys: str, value: Any = int) -> Subject:
    return Subject(Annotated[dict[key, value], Field(max_length=20)], [{name: 1} for name in keys])


SUBJECTS: dict[str, Subject] = {
    "bool": Subject(bool, [True, False]),
    "int": Subject(int, _NUMBERS),
    "int with limits": Subject(Annotated[int, Field(ge=0, lt=10)], _NUMBERS),
    "int, a multiple of 3": Subject(Annotated[int, Field(multiple_of=3)], _NUMBERS),
    "Int32": Subject(webop.Int32, _NUMBERS),
    "Int64": Subject(webop.Int64, _NUMBERS),
    "float": Subject(float, _NUMBERS),
    "float with limits": Subject(Annotated[float, Field(gt=0, le=1.5)], _NUMBERS),
    "int | str": Subject(int | str, [*_NUMBERS, "1", "a"]),
    "Quantity": Subject(webop.Quantity, ["1Gi", "500m", "1.5", "-1e3", "1E", ".5", "+1Ki", 2, 1.5]),
    "str": Subject(str, _WORDS),
    "str with limits": Subject(Annotated[str, Field(min_length=1, max_length=3)], _WORDS),
    "Literal of str": Subject(Literal["a", "b"], ["a", "b", "c", "A"]),
    "Literal of int": Subject(Literal[1, 2], [1, 2, 3, 1.0, True, "1"]),
    "Enum": Subject(Color, ["red", "blue", "RED"]),
    "IntEnum": Subject(Level, [1, 10, 2, "1", 1.0]),
    "Enum | None": Subject(Color | None, ["red", None, "green"]),
    "Enum | None, with a default": Subject(Color | None, ["red", None, "green"], Color.RED),
    "Enum | None, Nullable()": Subject(
        Annotated[Color | None, webop.Nullable()], ["red", None, "green"], None
    ),
    "Literal of int | None": Subject(Literal[1, 2] | None, [1, 2, None, 3]),
    "int | None": Subject(int | None, [1, None, "1"]),
    "int | None = None": Subject(int | None, [1, None, "1"], None),
    "datetime": Subject(dt.datetime, _MOMENTS),
    "AwareDatetime": Subject(pydantic.AwareDatetime, _MOMENTS),
    "date": Subject(dt.date, _DATES),
    "UUID": Subject(uuid.UUID, _UUIDS),
    **{
        f"UUID{number}": Subject(getattr(pydantic, f"UUID{number}"), _UUIDS)
        for number in (1, 3, 4, 5, 6, 7, 8)
    },
    "IPv4Address": Subject(ipaddress.IPv4Address, _IPV4),
    "IPv6Address": Subject(ipaddress.IPv6Address, _IPV6),
    "HttpUrl": Subject(pydantic.HttpUrl, _URLS),
    "AnyHttpUrl": Subject(pydantic.AnyHttpUrl, _URLS),
    "AnyUrl": Subject(pydantic.AnyUrl, [*_URLS, *_OTHER_URLS]),
    "FileUrl": Subject(
        pydantic.FileUrl, ["file:///etc/hosts", "file:/a", "file://h/x", "http://a"]
    ),
    "FtpUrl": Subject(pydantic.FtpUrl, ["ftp://a/b", "ftp://u:p@h:21/x", "http://a", "ftp:a"]),
    "WebsocketUrl": Subject(pydantic.WebsocketUrl, ["ws://a/b", "wss://h:443", "http://a"]),
    "list of int": Subject(list[int], [[], [1], [1, 2], [1, None], ["1"]]),
    "list with limits": Subject(Annotated[list[int], Field(max_length=2)], [[], [1, 2], [1, 2, 3]]),
    "set of str": Subject(set[str], [[], ["a"], ["a", "b"], ["a", "a"]]),
    "Unique() list of int": Subject(Annotated[list[int], webop.Unique()], [[1, 2], [1, 1], []]),
    "Unique() list of dict": Subject(
        Annotated[list[dict[str, int]], webop.Unique()],
        [[{"a": 1, "b": 2}, {"b": 2, "a": 1}], [{"a": 1}, {"a": 2}], [{}], []],
    ),
    "Unique() list of a class": Subject(
        Annotated[list[Limits], webop.Unique()],
        [[{"cpu": 1}, {"cpu": 2}], [{"cpu": 1}, {"cpu": 1, "memory": "1Gi"}], [{"cpu": 1}] * 2],
    ),
    "Unique() list of lists": Subject(
        Annotated[list[list[int]], webop.Unique()], [[[1], [2]], [[1], [1]], [[]]]
    ),
    "ListKeys()": Subject(
        Annotated[list[Limits], webop.ListKeys("memory")],
        [[{"cpu": 1, "memory": "1"}, {"cpu": 1, "memory": "2"}], [{"cpu": 1}], [{"cpu": 1}] * 2],
    ),
    "Embedded()": Subject(
        Annotated[dict[str, Any], webop.Embedded()],
        [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"x": 1}},
            {"apiVersion": "a.b/v1", "kind": "Pod"},
            {"metadata": {"labels": {"a": "b"}}, "spec": {}},
            {"apiVersion": "", "kind": ""},
        ],
    ),
    "a class": Subject(Limits, [{"cpu": 1}, {"cpu": 1, "memory": "1", "note": None}, {}]),
    "OneOf": Subject(Choice, [{"image": "a"}, {"url": "b"}, {}, {"image": "a", "url": "b"}]),
    "a tagged union": Subject(
        Annotated[S3 | Disk, Field(discriminator="kind")],
        [{"kind": "s3", "bucket": "b"}, {"kind": "disk"}, {"kind": "disk", "path": "p"}],
    ),
    "Any": Subject(Any, [1, "a", None, [], {"a": [1]}]),
    "dict of Any": Subject(dict[str, Any], [{}, {"a": 1}, {"a": None}, {"a": {"b": []}}]),
    "dict of int": Subject(dict[str, int], [{}, {"a": 1}, {"a": None}, {"a": "1"}]),
    "keys: int": _map(int, "1", "0", "-5", "007", "+5", "1_0", " 1", "1.0", "", "9" * 19, "٣"),
    "keys: int with limits": _map(
        Annotated[int, Field(ge=3, lt=200)], "1", "3", "199", "200", "-5"
    ),
    "keys: Enum": _map(Color, "red", "blue", "green", "RED", ""),
    "keys: IntEnum": _map(Level, "1", "10", "2", "01", ""),
    "keys: Literal of str": _map(Literal["a", "b"], "a", "b", "c", ""),
    "keys: UUID": _map(uuid.UUID, *_UUIDS),
    "keys: IPv4Address": _map(ipaddress.IPv4Address, *_IPV4),
    "keys: pattern": _map(Annotated[str, Field(pattern=r"^[a-c]\d$")], "a1", "c9", "d1", "a٣"),
    "keys: str with limits": _map(Annotated[str, Field(min_length=1, max_length=3)], *_WORDS[:9]),
    **{
        f"pattern: {name}": Subject(
            Annotated[str, Field(pattern=pattern)],
            [*_WORDS, *_MORE_WORDS],
        )
        for name, pattern in _PATTERNS.items()
    },
}


def compose(seed: int) -> Iterator[tuple[str, Subject]]:
    """Yield random types that consist of others, with their names."""
    rng = random.Random(seed)
    for number in itertools.count():
        first, second = rng.sample([*SUBJECTS], 2)
        name, made = _compose(rng, first, SUBJECTS[first], SUBJECTS[second])
        if rng.random() < 0.4:
            name, made = _compose(rng, name, made, SUBJECTS[second])
        if _is_possible(made):
            yield f"{number}: {name}", made


def _compose(rng: random.Random, name: str, one: Subject, two: Subject) -> tuple[str, Subject]:
    some = [rng.choice(one.examples) for _ in range(3)]
    inner: Any = one.annotation
    way = rng.choice(("list", "dict", "None", "class"))
    if way == "list":
        made = Subject(Annotated[list[inner], Field(max_length=2)], [[], some[:1], some[:2]])
        return f"list of {name}", made
    if way == "dict":
        examples = [{}, {"a": some[0]}, {"a": some[1], "b": some[2]}]
        made = Subject(Annotated[dict[str, inner], Field(max_length=2)], examples)
        return f"dict of {name}", made
    if way == "None":
        return f"{name} | None", Subject(inner | None, [None, *some], None)
    more: Any = {"a_b": (inner, ...), "c": (two.annotation | None, None)}
    examples = [{"aB": value, "c": rng.choice(two.examples)} for value in some]
    kind: Any = create_model("Composed", __base__=webop.Struct, **more)
    return f"a class with {name}", Subject(kind, [*examples, {"aB": some[0]}, {}])


def _is_possible(subject: Subject) -> bool:
    """Tell whether there are definitions of a type."""
    spec: Any = create_model("Spec", __base__=webop.Struct, value=(subject.annotation, ...))
    base: Any = create_model("Tried", __base__=webop.Model, spec=(spec, ...))
    try:
        build_crds([webop.resource(GROUP, "v1")(base)])
    except webop.ConfigurationError:
        return False
    return True
