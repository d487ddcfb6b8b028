"""Do class and API server agree on single values? ``python -m tools.values``.

For each type, variations of values near its border are drawn. A dry run sends many of them in one
object: the API server names those that it refuses, and says how it would store the others.

A value that the API server stores and the class cannot read is wrong, or one that both complete
by different defaults. One that the class accepts and the API server refuses is only counted:
docs/howto/crds.md says which these are.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, create_model

import webop
from tests.kit.operators import CRDS, connect, undefine, wait_served
from tools.long_runs import Say, prove
from tools.values.value_types import GROUP, SUBJECTS, Subject, compose
from webop.client.api import Client
from webop.errors import APIUnprocessableError
from webop.models.crds import build_crds
from webop.models.fitting import fit
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

T = TypeVar("T")

_BATCH = 250
_PARALLEL = 4
_SHOWN = 4
_JUNK: list[Any] = [None, True, False, 0, 1, -1.5, 2**40, "", "a", "1", "true", [], ["a"], [None]]
_JUNK += [{}, {"a": 1}]
_CHARACTERS = "\t\n\r\x0b\x0c\x1c\x7f\x85\xa0 éß٣²①ⓐ\u017f\u212aℵ"
_CHARACTERS += "漢\u0300\u200b\u200d\u2028\u3000\U0001f600\U0001e951"
_CHARACTERS += "abcfxzABFXZ0123456789%:/.,-_+@?#&=!*()[]{}<>|^`~'\"\\$;"
_find_index = re.compile(r"spec\.f\d+\[(\d+)\]").search


def vary(rng: random.Random, value: Any) -> Any:
    """Return a value that differs a little."""
    if isinstance(value, str):
        return _vary_text(rng, value)
    if isinstance(value, dict):
        return _vary_dict(rng, value)
    if isinstance(value, list) and value:
        found = [*value]
        index = rng.randrange(len(found))
        found[index : index + 1] = rng.choice([[], [vary(rng, found[index])], [found[index]] * 2])
        return found
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return rng.choice(_JUNK)
    more = (value + 1, value - 1, -value, value * 10, value / 3, float(value), str(value))
    return rng.choice(more)


def _vary_text(rng: random.Random, text: str) -> str:
    start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    one = rng.choice(_CHARACTERS) if rng.random() < 0.9 else chr(rng.randrange(0xE000, 0x110000))
    return rng.choice(
        [
            text[:start] + one + text[start:],
            text[:start] + one + text[start + 1 :],
            text[:start] + text[start + 1 :],
            text[:end] + text[start:],
            text[:start] + text[start:end].swapcase() + text[end:],
            text[:start] + rng.choice("0159aF") + text[start + 1 :],
        ]
    )


def _vary_dict(rng: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        return {"a": rng.choice(_JUNK)}
    key = rng.choice([*value])
    rest = {name: item for name, item in value.items() if name != key}
    return rng.choice(
        [
            {**rest, key: vary(rng, value[key])},
            {**rest, _vary_text(rng, key): value[key]},
            {**value, _vary_text(rng, key): value[key]},
            rest,
        ]
    )


def draw(rng: random.Random, subject: Subject) -> Any:
    """Return a value that is near the border of a type."""
    if rng.random() < 0.02:
        return rng.choice(_JUNK)
    value = rng.choice(subject.examples)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        value = vary(rng, value)
    return value


@dataclass
class Verdict:
    """What class and API server said of the values of a type.

    Attributes:
        unreadable: stored by the API server, refused by the class.
        differing: accepted by both, with different defaults.
        only_class: refused by the API server, accepted by the class.
    """

    name: str
    accepted: int = 0
    refused: int = 0
    unreadable: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    only_class: list[str] = field(default_factory=list)

    @property
    def is_wrong(self) -> bool:
        return bool(self.unreadable or self.differing)

    def __str__(self) -> str:
        head = f"{self.name:30} both accept {self.accepted:6}, both refuse {self.refused:6}"
        for what in ("unreadable", "differing", "only_class"):
            texts = getattr(self, what)
            shown = sorted({*texts}, key=lambda text: (len(text), text))[:_SHOWN]
            head += f", {what} {len(texts):4} {' '.join(shown)}"
        return head


class Judges:
    """A class with a field for each type, and the kind of it."""

    def __init__(self, client: Client, subjects: Mapping[str, Subject]) -> None:
        self._client = client
        self._holders: dict[str, Any] = {}
        fields: dict[str, Any] = {}
        for number, subject in enumerate(subjects.values()):
            field_name = f"f{number}"
            content: Any = {"value": (subject.annotation, subject.default)}
            holder: Any = create_model(f"Holder{number}", __base__=webop.Struct, **content)
            self._holders[field_name] = holder
            fields[field_name] = (Annotated[list[holder], Field(max_length=_BATCH)] | None, None)
        self._fields = dict(zip(subjects, fields, strict=True))
        spec: Any = create_model("Spec", __base__=webop.Struct, **fields)
        base: Any = create_model("Value", __base__=webop.Model, spec=(spec, ...))
        self._model = webop.resource(GROUP, "v1", scope="Cluster")(base)
        self._resource = Resource(GROUP, "v1", "values", namespaced=False)

    async def define(self) -> None:
        (definition,) = build_crds([self._model])
        await self._client.create(CRDS, None, definition)
        await wait_served(self._client, self._resource)

    async def undefine(self) -> None:
        await undefine(self._client, self._resource)

    async def judge(self, verdict: Verdict, values: list[Any]) -> None:
        name = self._fields[verdict.name]
        stored = await self._store(name, [{"value": value} for value in values])
        for index, value in enumerate(values):
            own = _read(self._holders[name], {"value": value})
            text = json.dumps(value, ensure_ascii=True)
            if index not in stored:
                verdict.refused += own is None
                verdict.only_class += [] if own is None else [text]
                continue
            theirs = _read(self._holders[name], stored[index])
            verdict.accepted += theirs is not None
            verdict.unreadable += [text] if theirs is None else []
            is_whole = _is_in({"value": value}, stored[index])
            if is_whole and own is not None and theirs is not None and own != theirs:
                verdict.differing.append(text)

    async def _store(self, name: str, items: list[Any]) -> dict[int, Any]:
        """Return the items that the API server accepts, as it would store them."""
        left = [*range(len(items))]
        while left:
            body = {
                "apiVersion": f"{GROUP}/v1",
                "kind": "Value",
                "metadata": {"name": "values"},
                "spec": {name: [items[index] for index in left]},
            }
            url, params = self._resource.get_url(), {"dryRun": "All"}
            try:
                answer = await self._client.request("POST", url, params=params, body=body)
            except APIUnprocessableError as exc:
                causes: Any = exc.details.get("causes", ())
                # Of some errors, only the message names the field.
                found = (_find_index(cause["field"] + " " + cause["message"]) for cause in causes)
                refused = {int(match[1]) for match in found if match}
                if not refused:
                    raise
                left = [index for place, index in enumerate(left) if place not in refused]
            else:
                return dict(zip(left, answer["spec"][name], strict=True))
        return {}


def _read(holder: Any, item: Any) -> Any:
    """Return an item as the class has it; None if it does not fit."""
    try:
        return fit(holder, item)
    except webop.MisfitError:
        return None


def _is_in(value: Any, stored: Any) -> bool:
    """Tell whether the API server has dropped no fields of a value."""
    if isinstance(value, dict) and isinstance(stored, dict):
        return all(key in stored and _is_in(value[key], stored[key]) for key in value)
    if isinstance(value, list) and isinstance(stored, list):
        return all(map(_is_in, value, stored))
    return True


def _batch(values: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(values)
    while batch := [*itertools.islice(rest, size)]:
        yield batch


async def compare_values(
    client: Client, subjects: Mapping[str, Subject], count: int, seed: int
) -> list[Verdict]:
    """Draw values of each type, and let both say what they think."""
    judges, slots = Judges(client, subjects), asyncio.Semaphore(_PARALLEL)

    async def compare(verdict: Verdict) -> None:
        rng, subject = random.Random(f"{seed} {verdict.name}"), subjects[verdict.name]
        for batch in _batch((draw(rng, subject) for _ in range(count)), _BATCH):
            async with slots:
                await judges.judge(verdict, batch)

    verdicts = [Verdict(name) for name in subjects]
    await judges.define()
    async with asyncio.TaskGroup() as group:
        for verdict in verdicts:
            group.create_task(compare(verdict))
    await judges.undefine()
    return verdicts


async def _run(chosen: argparse.Namespace, cluster: LocalCluster, folder: Path, say: Say) -> int:
    known = {**SUBJECTS, **dict(itertools.islice(compose(chosen.seed), chosen.composed))}
    subjects = {name: subject for name, subject in known.items() if chosen.only in name}
    async with connect(cluster) as client:
        verdicts = await compare_values(client, subjects, chosen.count, chosen.seed)
    for verdict in verdicts:
        say(str(verdict))
    wrong = sum(verdict.is_wrong for verdict in verdicts)
    say(f"{len(verdicts)} types, {wrong} of them with values that are unreadable or differ")
    return int(wrong > 0)


def main() -> int:
    """Run the command line; return 0 if the classes can read all that is stored."""
    parser = argparse.ArgumentParser(prog="python -m tools.values")
    parser.description = __doc__
    parser.add_argument(
        "--count", type=int, default=10_000, help="values of each type (%(default)d)"
    )
    text = "random types that consist of others (%(default)d)"
    parser.add_argument("--composed", type=int, default=20, help=text)
    parser.add_argument("--seed", type=int, default=0, help="of the draws (%(default)d)")
    parser.add_argument("--only", default="", help="only types with this text in their name")
    chosen = parser.parse_args()
    return prove("values", chosen, partial(_run, chosen))


if __name__ == "__main__":
    sys.exit(main())
