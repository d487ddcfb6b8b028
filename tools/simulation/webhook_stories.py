"""Stories of webhooks, and what is complained of in each: told by ``test_rules.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tools.simulation.admission import OTHERS, Server
from tools.simulation.admission_rules import Attempt
from tools.simulation.plans import AdmissionPlan
from tools.simulation.replicas import GROUP, PLURAL
from tools.simulation.scenes import CONFIGURATIONS, Replica, Scene, disturb, tell
from webop.testing.apiserver import Json, Response

WEBHOOKS = {"Mutating": ("stamp",), "Validating": ("check", "twin", "twin-2", "grow")}
FAILED = 'failed calling webhook "check.sim": Post "https://operator": '
DENIED = 'admission webhook "check.sim" denied the request: no'
ROUGH = disturb("slow")
LATER = disturb("slow", at=50.0)
HOOKS: Json = {"admission": AdmissionPlan()}
SHRINKING: Json = {"admission": AdmissionPlan(shrinks=True)}
PERSISTENT: Json = {"admission": AdmissionPlan(is_persistent=True)}


def serve(scene: Scene, version: int = 1) -> Replica:
    """Add a replica that serves webhooks, and is known to do so."""
    assert scene.world.admission is not None
    process = scene.add_replica()
    server = scene.world.admission.servers[process] = Server(process.identity)
    server.fn = process.operator.run
    process.operator.webhooks.manager.is_applied.set()
    scene.world.admission.versions[process] = version
    scene.world.admission.listed.append(process)
    return process


async def request(
    scene: Scene,
    *,
    answer: Response,
    attempt: tuple[str, str, str] = ("POST", PLURAL, ""),
    old: str = "",
    since: float = 0.0,
) -> None:
    """Answer a request of a user.

    Args:
        scene: of it.
        answer: of the API server.
        attempt: the request: its method, its resource, and what is wrong with the object.
        old: what has become of a replica of the old version.
        since: how long ago.
    """
    before = serve(scene, 0) if old else None
    if before is not None and old == "ended":
        await before.stop()
    serve(scene)
    await asyncio.sleep(since)
    assert scene.world.admission is not None
    judge, made = scene.world.admission.judge, Attempt(*attempt)
    judge.judge_request(made)
    await asyncio.sleep(1.0)
    judge.judge_answer(made, answer)


async def lose_readiness(scene: Scene, *, has_other: bool = False) -> None:
    """Have a replica that is not ready while it stops; another one may have ended before."""
    assert scene.world.admission is not None
    if has_other:
        await serve(scene).stop()
        await asyncio.sleep(10.0)
    process = serve(scene)
    process.is_stopping, process.operator.obstacles = True, ["a CA bundle"]
    scene.world.admission.judge.judge_unreadiness(process)


async def configure(
    scene: Scene, *, lost: Iterable[str], is_there: bool = True, ends: str = "", others: int = 0
) -> None:
    """Write webhook configurations, drop webhooks, and then end replicas, if so wanted."""
    writer = scene.add_replica()
    for way, names in WEBHOOKS.items():
        path = CONFIGURATIONS.format(way.lower())
        head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "operator"}}
        body = {**head, "kind": f"{way}WebhookConfiguration", "webhooks": _build_webhooks(names)}
        scene.write(writer, "POST", path, body)
    serving = [serve(scene) for _ in range(others + 1)] if is_there or ends else []
    if ends:
        writer.ended_at = -1000.0  # long ago
        serving[0].is_stopping = True
    for process in serving if not is_there else ():
        process.is_stopping = True
    for way, names in WEBHOOKS.items():
        if set(lost) & set(names):
            rest = _build_webhooks([name for name in names if name not in lost])
            path = CONFIGURATIONS.format(way.lower())
            scene.write(writer, "PATCH", f"{path}/operator", {"webhooks": rest})
    scene.create()  # is no matter of webhooks
    if ends == "late":
        await serving.pop().stop()
        await asyncio.sleep(60.0)
    if ends:
        await serving[0].stop()


def _build_webhooks(names: Iterable[str]) -> list[Json]:
    rule = {"apiGroups": [GROUP], "apiVersions": ["v1"], "resources": [PLURAL]}
    return [
        {
            "name": f"{name}.sim.webop.dev",
            "clientConfig": {"url": "https://operator"},
            "rules": [{**rule, "operations": ["CREATE"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        for name in names
    ]


def _say(message: str, status: int = 500) -> Json:
    return {"answer": Response(status, {"message": message})}


def _admit(*attempt: str, **spec: str) -> Json:
    return {"answer": Response(201, {"spec": spec}), "attempt": attempt}


FORBIDDEN = _admit("POST", PLURAL, "forbidden", stamp="yes")
UNFIT = _admit("PATCH", PLURAL, "unfit")
OTHER = _admit("POST", OTHERS, "unfit")

WEBHOOK_CALLS = (
    tell("failed", "a call", request, **_say(FAILED), plan=HOOKS),
    tell("failed", "404 after a rollout", request, **_say(f"{FAILED} HTTP 404"), plan=SHRINKING),
    tell("failed", "before a fault", request, **_say(FAILED), plan={**HOOKS, **LATER}),
    tell("failed", "long after a fault", request, **_say(FAILED), since=60.0,
         plan={**HOOKS, **ROUGH}),
    tell("denied", "a good one", request, **_say(DENIED, 400), plan=HOOKS),
    tell("unchecked", "forbidden", request, **FORBIDDEN, plan=HOOKS),
    tell("unchecked", "forbidden, after a rollout", request, **FORBIDDEN, old="there", plan=HOOKS),
    tell("unchecked", "for the new version", request, **UNFIT, plan=HOOKS),
    tell("unchecked", "another resource", request, **OTHER, plan=HOOKS),
    tell("unchecked", "long after a rollout", request, **OTHER, old="ended", since=60.0,
         plan=HOOKS),
    tell("unchanged", "a creation", request, **_admit("POST", PLURAL, ""), plan=HOOKS),
    tell("unready", "the only one", lose_readiness, plan=HOOKS),
    tell("unready", "after another one has ended", lose_readiness, has_other=True, plan=HOOKS),
    tell("webhooks", "one is lost", configure, lost=["twin-2"], plan=HOOKS),
    tell("webhooks", "one that mutates", configure, lost=["stamp"], plan=HOOKS),
    tell("webhooks", "a persistent one", configure, lost=["check"], is_there=False,
         plan=PERSISTENT),
    tell("left", "all of them", configure, lost=[], is_there=False, ends="well", plan=HOOKS),
    tell("left", "more than the persistent one", configure, lost=["twin"], is_there=False,
         ends="well", plan=PERSISTENT),
    tell("left", "after two", configure, lost=[], is_there=False, ends="late", others=1,
         plan=HOOKS),
)  # fmt: skip
