"""Does the fake client accept too much? The same mistakes to it and to a real API server.

The table counts how the answers of ``webop.testing.FakeClient`` differ.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from webop.testing import FakeClient
from webop.testing.apiserver import Request

from .requests import CRDS
from .sides import Memory, RealSide, build_request, reduce
from .strict_requests import ROCKS, Case, Cases, build_crd

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

CLASSES = ("false green", "false red", "other status", "other content", "other causes")


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
    with contextlib.closing(RealSide(cluster)) as real:
        sides = (real, _FakeSide(namespace))
        body = {"metadata": {"name": namespace}}
        real.send(build_request("POST", "/api/v1/namespaces", body))
        for side in sides:
            side.send(build_request("POST", CRDS, build_crd()))
        while real.send(Request("GET", ROCKS.build_path(namespace)))[0] != 200:
            time.sleep(0.1)
        cases = Cases(random.Random(seed), namespace)
        for _ in range(count):
            case = cases.draw()
            outcome.sent[case.kind] += 1
            if difference := _find_difference(case, *(_play(side, case) for side in sides)):
                outcome.counts[case.kind, difference[0]] += 1
                outcome.stories.append(difference)
        real.send(Request("DELETE", f"/api/v1/namespaces/{namespace}"))
    return outcome


def _find_difference(case: Case, real: Any, fake: Any) -> tuple[str, str] | None:
    """Return the class of a difference, and a description."""
    is_real, is_fake = real[0] < 400, fake[0] < 400
    parts = zip(CLASSES[2:], real, fake, strict=True)
    differing = [name for name, one, other in parts if one != other]
    if is_real == is_fake and not differing:
        return None
    name = differing[0]
    if is_real != is_fake:
        name = "false green" if is_fake else "false red"
    texts = [f"{status} {content} {causes}" for status, content, causes in (real, fake)]
    if name == "other content" and is_real:
        texts = [str(part) for part in reduce(real[1], fake[1])]
    return name, f"{case.request}\n   real: {texts[0][:700]}\n   fake: {texts[1][:700]}"


def _play(side: Any, case: Case) -> tuple[int, Any, Any]:
    """Return the status, the content or the reason, and the fields of the causes."""
    memory = Memory(is_ranking=False)
    for drawn in (*case.before, case.request):
        status, body = side.send(memory.build(drawn))
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


def _replace(value: Any, uid: str | None) -> Any:
    """Put a placeholder for a uid: Jobs have theirs in labels, too."""
    if isinstance(value, dict):
        return {key: _replace(item, uid) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace(item, uid) for item in value]
    return "a uid" if uid and value == uid else value
