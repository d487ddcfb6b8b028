"""Random models and objects: do pydantic and the API server agree?

Each model becomes a CustomResourceDefinition. For each random object, both say whether it is valid;
a valid one is also compared with what the API server makes of it, so that defaults are the same.
"""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import enum
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

import webop
from tests.kit.operators import CRDS, wait_served
from webop.client.api import Client
from webop.errors import APIStatusError, APIUnprocessableError
from webop.models.crds import build_crds
from webop.models.fitting import fit
from webop.objects.resources import Resource

GROUP = "agreement.webop.dev"
Make = Callable[[], Any]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class S3(webop.Struct):
    kind: Literal["s3"]
    bucket: str


class Disk(webop.Struct):
    kind: Literal["disk"]
    path: str | None = None


class Git(webop.Struct):
    url: str


class Image(webop.Struct):
    name: str = "busybox"


class Source(webop.OneOf):
    git: Git | None = None
    image: Image | None = None


class Port(webop.Struct):
    name: str
    port: int = 80


@dataclass
class Maker:
    """Makes types, and values that mostly fit them."""

    rng: random.Random
    count: int = 0

    def make_type(self, depth: int = 0) -> tuple[Any, Make]:
        rng = self.rng
        simple: list[Callable[[], tuple[Any, Make]]] = [
            self._make_int,
            self._make_float,
            self._make_str,
            lambda: (bool, lambda: rng.random() < 0.5),
            lambda: (Color, lambda: rng.choice(["red", "blue", "green"])),
            lambda: (Literal["a", "b"], lambda: rng.choice(["a", "b", "c"])),
            lambda: (Literal[1, 2], lambda: rng.choice([1, 2, 3])),
            lambda: (int | str, lambda: rng.choice([1, "1", "x", -3])),
            lambda: (dt.datetime, self._make_moment),
            lambda: (dt.date, lambda: rng.choice(["2026-01-31", "2026-02-30", "x", ""])),
            lambda: (
                uuid.UUID,
                lambda: rng.choice([str(uuid.UUID(int=rng.getrandbits(128))), "12"]),
            ),
            lambda: (
                ipaddress.IPv4Address,
                lambda: rng.choice(["10.0.0.1", "256.0.0.1", "::1", "10.0.0"]),
            ),
            lambda: (Any, self.make_junk),
            lambda: (dict[str, Any], lambda: {"k": self.make_junk()}),
            lambda: (Source, self._make_source),
            lambda: (Annotated[S3 | Disk, Field(discriminator="kind")], self._make_tagged),
            lambda: (Annotated[list[Port], webop.ListKeys("name")], self._make_ports),
            lambda: (webop.Int32, lambda: rng.choice([0, 1, 2**31 - 1, -(2**31), 2**31])),
            lambda: (Annotated[webop.Int64, Field(ge=1)], lambda: rng.choice([0, 1, 2**63 - 1])),
            lambda: (webop.Quantity, lambda: rng.choice([1, 0, "1Gi", "500m", "1.5", "x", "1 G"])),
            lambda: (
                Annotated[list[str], webop.Unique(), Field(max_length=2)],
                lambda: [rng.choice("ab") for _ in range(rng.randint(0, 3))],
            ),
            lambda: (list[Source], lambda: [self._make_source() for _ in range(rng.randint(0, 2))]),
        ]
        if depth < 2 and rng.random() < 0.35:
            return rng.choice([self._make_list, self._make_dict, self._make_set, self.make_struct])(
                depth + 1
            )
        return rng.choice(simple)()

    def make_junk(self) -> Any:
        rng = self.rng
        return rng.choice(
            [
                *(0, 1, -1, 5.0, 2.5, "", "x", "5", "true", True, False, None, [], {}, 2**40),
                *([1], ["a", "a"], {"a": 1}, {"kind": "s3"}, "2026-01-01T00:00:00Z", 2**62),
                *(1e10, "ä" * 5, [None], {"a": None}, [[1]], -0.0),
            ]
        )

    def make_struct(self, depth: int = 0) -> tuple[Any, Make]:
        rng, fields, makers = self.rng, dict[str, Any](), dict[str, tuple[Make, bool]]()
        self.count += 1
        for number in range(rng.randint(1, 6 if depth == 0 else 3)):
            kind, make = self.make_type(depth)
            name, optional = f"f{number}_x", rng.random() < 0.5
            default: Any = ...
            if optional:
                how = rng.random()
                if how < 0.5:
                    kind, default = kind | None, None
                elif (fitting := self._find_default(kind, make)) is not ...:
                    default = fitting
                    kind = kind | None if how > 0.8 else kind
            elif rng.random() < 0.1:
                kind = kind | None
            fields[name] = (kind, default)
            makers[f"f{number}X"] = make, default is not ...
        model = create_model(f"M{self.count}", __base__=webop.Struct, **fields)
        return model, lambda: self._make_fields(makers)

    def _find_default(self, kind: Any, make: Make) -> Any:
        for _ in range(10):
            try:
                return fit(kind, make())
            except webop.MisfitError:
                continue
        return ...

    def _make_fields(self, makers: dict[str, tuple[Make, bool]]) -> dict[str, Any]:
        rng, found = self.rng, dict[str, Any]()
        for name, (make, is_optional) in makers.items():
            if rng.random() < (0.4 if is_optional else 0.03):
                continue
            found[name] = self.make_junk() if rng.random() < 0.05 else make()
        if rng.random() < 0.05:
            found["unknown"] = self.make_junk()
        return found

    def _make_int(self) -> tuple[Any, Make]:
        rng = self.rng
        kind = rng.choice(
            [
                int,
                Annotated[int, Field(ge=0, le=10)],
                Annotated[int, Field(gt=0, lt=10)],
                Annotated[int, Field(multiple_of=3)],
            ]
        )
        return kind, lambda: rng.choice([0, 1, 3, 9, 10, 11, -1, 12])

    def _make_float(self) -> tuple[Any, Make]:
        rng = self.rng
        kind = rng.choice([float, Annotated[float, Field(gt=0, le=1)]])
        return kind, lambda: rng.choice([0, 0.5, 1, 1.5, -2, 0.25])

    def _make_str(self) -> tuple[Any, Make]:
        rng = self.rng
        kind = rng.choice(
            [
                str,
                Annotated[str, Field(max_length=3)],
                Annotated[str, Field(min_length=1)],
                Annotated[str, Field(pattern="^[a-z]+$")],
                Annotated[str, Field(pattern="b")],
            ]
        )
        return kind, lambda: rng.choice(["", "a", "abc", "abcd", "ÄÖ", "b\n", "x y"])

    def _make_moment(self) -> Any:
        return self.rng.choice(
            [
                *("2026-01-01T00:00:00Z", "2026-01-01T00:00:00+02:00", "2026-01-01T00:00:00.123Z"),
                *("2026-13-01T00:00:00Z", "now"),
            ]
        )

    def _make_source(self) -> Any:
        return self.rng.choice(
            [
                *({"git": {"url": "u"}}, {"image": {}}, {"image": {"name": "x"}}, {}),
                *({"git": {"url": "u"}, "image": {}}, {"git": {}}, {"git": None, "image": {}}),
            ]
        )

    def _make_tagged(self) -> Any:
        return self.rng.choice(
            [
                *({"kind": "s3", "bucket": "b"}, {"kind": "disk"}, {"kind": "disk", "path": "p"}),
                *({"kind": "s3"}, {"kind": "ftp"}, {"bucket": "b"}),
            ]
        )

    def _make_ports(self) -> Any:
        return self.rng.choice([[], [{"name": "a"}], [{"name": "a", "port": 1}, {"name": "b"}]])

    def _make_list(self, depth: int) -> tuple[Any, Make]:
        inner, make = self.make_type(depth)
        kind = Annotated[list[inner], Field(max_length=2)]  # type: ignore[valid-type]
        return kind, lambda: [make() for _ in range(self.rng.choice([0, 1, 2, 2, 3]))]

    def _make_dict(self, depth: int) -> tuple[Any, Make]:
        inner, make = self.make_type(depth)
        kind = Annotated[dict[str, inner], Field(max_length=2)]  # type: ignore[valid-type]
        return kind, lambda: {key: make() for key in self.rng.sample("abc", self.rng.randint(0, 3))}

    def _make_set(self, depth: int) -> tuple[Any, Make]:
        kind = Annotated[set[str], Field(max_length=3)]
        return kind, lambda: self.rng.sample(["a", "b", "c", "d"], self.rng.randint(0, 4))


@dataclass
class Report:
    models: int = 0
    refused: int = 0
    accepted: int = 0
    differences: list[str] = field(default_factory=list)
    known: collections.Counter[str] = field(default_factory=collections.Counter)


NULL = "null where None is not allowed"
DUPLICATE = "a duplicate in a set"
WHOLE_FLOAT = "5.0 in int | str"
TRUE = "true for 1 in a Literal"
NUMBER_FOR_TIME = "a number in a string with the format of a time"


def classify(spec: Any, exc: webop.MisfitError | None, refusal: str) -> str | None:
    """Return the name of a known difference, which is in docs/howto/crds.md; None for others."""
    if exc is None:
        if re.search(r'must be of type date-time: "-?\d+(\.\d*)?"', refusal):
            return NUMBER_FOR_TIME
        is_true = "Unsupported value: true" in refusal
        return DUPLICATE if "Duplicate value" in refusal else TRUE if is_true else None
    found = {_classify_cause(spec, cause) for cause in exc.causes}
    return found.pop() if len(found) == 1 else None


def _classify_cause(spec: Any, cause: webop.AdmissionCause) -> str | None:
    value = spec
    for step in re.findall(r"[^.\[\]]+", cause.field)[1:]:
        if isinstance(value, list):
            value = value[int(step)]
        elif isinstance(value, dict):
            value = value.get(step)
    if value is None:
        return NULL
    return WHOLE_FLOAT if isinstance(value, float) and value.is_integer() else None


async def compare(client: Client, namespace: str, seed: int, number: int) -> Report:
    rng, report = random.Random(seed), Report(models=1)
    maker = Maker(rng)
    spec, make = maker.make_struct()
    kind = f"Thing{seed}"
    base: Any = create_model(kind, __base__=webop.Model, spec=(spec, ...))
    model = webop.resource(GROUP, "v1", kind=kind)(base)
    try:
        (crd,) = build_crds([model])
    except webop.ConfigurationError as exc:
        report.known[f"no model: {exc}"] += 1
        return report
    resource = Resource(GROUP, "v1", crd["spec"]["names"]["plural"], namespaced=True)
    try:
        await client.create(CRDS, None, crd)
    except APIStatusError as exc:
        report.differences.append(
            f"seed {seed}: the definition is refused: {exc}\n{json.dumps(crd)}"
        )
        return report
    await wait_served(client, resource)
    for index in range(number):
        value = make()
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": kind,
            "metadata": {"name": f"o{index}"},
            "spec": value,
        }
        await _compare_one(client, resource, namespace, body, (spec, seed), report)
    await client.delete(CRDS, None, crd["metadata"]["name"])
    return report


async def _compare_one(
    client: Client,
    resource: Resource,
    namespace: str,
    body: dict[str, Any],
    about: tuple[Any, int],
    report: Report,
) -> None:
    spec, seed = about
    mine: Any = None
    wrong: webop.MisfitError | None = None
    refusal = ""
    try:
        mine = fit(spec, body["spec"], "spec")
    except webop.MisfitError as exc:
        wrong = exc
    stored: dict[str, Any] = {}
    try:
        stored = await client.create(resource, namespace, body)
    except APIUnprocessableError as exc:
        refusal = str(exc)
    text = json.dumps(body["spec"])
    if bool(wrong) != bool(refusal):
        who = "only pydantic refuses" if wrong else "only the API server refuses"
        problem = f"{who} {text}: {wrong or refusal}"
    elif wrong:
        report.refused += 1
        return
    else:
        theirs = fit(spec, stored["spec"], "spec")
        if mine == theirs:
            report.accepted += 1
            return
        problem = f"defaults differ for {text}: {mine!r}, {stored['spec']}"
    if (name := classify(body["spec"], wrong, refusal)) is not None:
        report.known[name] += 1
    else:
        report.differences.append(f"seed {seed}: {problem}")


async def compare_many(
    client: Client, namespace: str, seeds: range, number: int, parallel: int = 4
) -> Report:
    total, slots = Report(), asyncio.Semaphore(parallel)

    async def compare_next(seed: int) -> None:
        async with slots:
            report = await compare(client, namespace, seed, number)
        total.models += 1
        total.accepted += report.accepted
        total.refused += report.refused
        total.differences += report.differences
        total.known += report.known

    async with asyncio.TaskGroup() as group:
        for seed in seeds:
            group.create_task(compare_next(seed))
    return total
