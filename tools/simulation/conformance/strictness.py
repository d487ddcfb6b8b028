"""``python -m tools.simulation.conformance.strictness``: does the fake client accept too much?

Random requests, most of them with a mistake, go to a real kube-apiserver and to the API server of
``webop.testing.FakeClient``. The table counts how their answers differ.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from webop.controlplane.cluster import LocalCluster
from webop.testing import FakeClient
from webop.testing.apiserver import Request

from .drawing import Drawn
from .sides import Memory, RealSide
from .strict_requests import NAMED, ROCKS, Case, Cases, build_crd

CLASSES = ("false green", "false red", "other status", "other content", "other causes")
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass
class Outcome:
    """What was compared.

    Attributes:
        sent: the requests by kind.
        counts: the differences by kind and class.
        stories: a description of each difference.
    """

    sent: Counter[str] = field(default_factory=Counter)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    stories: list[tuple[str, str]] = field(default_factory=list)

    def build_table(self) -> str:
        """Return a table in Markdown."""
        lines = [f"| Kind | requests | {' | '.join(CLASSES)} |", "|---" * 7 + "|"]
        for kind in (*sorted(self.sent), "all"):
            kinds = self.sent if kind == "all" else {kind}
            counts = [sum(self.counts[one, name] for one in kinds) for name in CLASSES]
            sent = sum(self.sent[one] for one in kinds)
            lines.append(f"| {kind} | {sent} | {' | '.join(map(str, counts))} |")
        return "\n".join(lines)


class _FakeSide:
    def __init__(self, namespace: str) -> None:
        self._server = FakeClient(namespace=namespace)._server

    def send(self, request: Request) -> tuple[int, Any]:
        response = self._server.handle(request)
        return response.status, orjson.loads(response.encode()) if not response.text else "text"


def compare(cluster: LocalCluster, seed: int, count: int) -> Outcome:
    """Send so many requests to both servers."""
    outcome = Outcome()
    namespace = f"strict-{time.time_ns() // 1_000_000:x}"
    simulated = _FakeSide(namespace)
    with contextlib.closing(RealSide(cluster)) as real:
        sides = (real, simulated)
        made = orjson.dumps({"metadata": {"name": namespace}})
        form = {"content-type": "application/json"}
        real.send(Request("POST", "/api/v1/namespaces", {}, form, made))
        for side in sides:
            side.send(Request("POST", _CRDS, {}, form, orjson.dumps(build_crd())))
        while real.send(Request("GET", ROCKS.build_path(namespace)))[0] != 200:
            time.sleep(0.1)
        cases = Cases(random.Random(seed), namespace)
        for _ in range(count):
            _compare_one(outcome, cases.draw(), sides)
        real.send(Request("DELETE", f"/api/v1/namespaces/{namespace}"))
    return outcome


def _compare_one(outcome: Outcome, case: Case, sides: tuple[Any, ...]) -> None:
    answers = [_play(side, case) for side in sides]
    kind = case.place.plural if case.place in NAMED else "other kinds"
    outcome.sent[kind] += 1
    (real, real_content, real_causes), (fake, fake_content, fake_causes) = answers
    if real >= 400 and fake < 400:
        name = "false green"
    elif real < 400 <= fake:
        name = "false red"
    elif real != fake:
        name = "other status"
    elif real_content != fake_content:
        name = "other content"
    elif real_causes != fake_causes:
        name = "other causes"
    else:
        return
    outcome.counts[kind, name] += 1
    texts = [f"{status} {content} {causes}" for status, content, causes in answers]
    if name == "other content" and real < 400:
        texts = [str(part) for part in _reduce(real_content, fake_content)]
    story = f"{case.request}\n   real: {texts[0][:700]}\n   fake: {texts[1][:700]}"
    outcome.stories.append((name, story))


def _play(side: Any, case: Case) -> tuple[int, Any, Any]:
    """Return the status, the content or the reason, and the fields of the causes."""
    memory = Memory(is_ranking=False)
    for drawn in (*case.before, case.request):
        status, body = side.send(_fill_in(drawn, memory))
        memory.take(drawn.resource, status, body)
        if status >= 400:
            break
    content = memory.normalise(status, body)
    if status < 400:
        uid = body.get("metadata", {}).get("uid") if isinstance(body, dict) else None
        return status, _replace(content[1:], uid), None
    details = (body.get("details") or {}) if isinstance(body, dict) else {}
    # Without a field is what says that rules were not evaluated.
    causes = {cause.get("field", "") for cause in details.get("causes") or ()} - {"<nil>"}
    return status, content[1:2], sorted(causes)


def _fill_in(drawn: Drawn, memory: Memory) -> Request:
    body = None if drawn.body is None else orjson.dumps(memory.fill_in(drawn.body))
    headers = {"content-type": drawn.content_type, **drawn.headers}
    return Request(drawn.method, drawn.path, dict(drawn.query), headers, body)


def _replace(value: Any, uid: str | None) -> Any:
    """Put a placeholder for a uid: Jobs have theirs in labels, too."""
    if isinstance(value, dict):
        return {key: _replace(item, uid) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace(item, uid) for item in value]
    return "a uid" if uid and value == uid else value


def _reduce(one: Any, other: Any) -> tuple[Any, Any]:
    """Return only the parts that differ."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [_reduce(*pair) for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        pairs = [_reduce(one.get(key, "-"), other.get(key, "-")) for key in keys]
        return (
            dict(zip(keys, (pair[0] for pair in pairs), strict=True)),
            dict(zip(keys, (pair[1] for pair in pairs), strict=True)),
        )
    return one, other


def main() -> int:
    """Run the comparison; 1 if there are false greens."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulation.conformance.strictness", description=__doc__
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", choices=CLASSES, action="append", default=[])
    options = parser.parse_args()
    with LocalCluster() as cluster:
        outcome = compare(cluster, options.seed, options.requests)
    for name, story in outcome.stories:
        if name in options.show:
            sys.stdout.write(f"{name}: {story}\n")
    sys.stdout.write(f"{outcome.build_table()}\n")
    return any(name == "false green" for _, name in outcome.counts)


if __name__ == "__main__":
    sys.exit(main())
