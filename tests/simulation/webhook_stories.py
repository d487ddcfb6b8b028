"""Stories of webhooks, and what is complained of in each: told by ``test_rules.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.simulation.admission import OTHERS, Server
from tests.simulation.admission_rules import Attempt
from tests.simulation.plans import AdmissionPlan
from tests.simulation.replicas import GROUP, PLURAL
from tests.simulation.scenes import CONFIGURATIONS, Replica, Scene, disturb, tell
from webop.testing.apiserver import Json, Response

WEBHOOKS = {"Mutating": ("stamp",), "Validating": ("check", "twin", "twin-2", "grow")}
FAILED = 'failed calling webhook "check.sim": Post "https://operator": '
DENIED = 'admission webhook "check.sim" denied the request: no'
ROUGH = disturb("slow")
LATER = disturb("slow", at=50.0)
HOOKS: Json = {"admission": AdmissionPlan()}
SHRINKING: Json = {"admission": AdmissionPlan(shrinks=True)}
PERSISTENT: Json = {"admission": AdmissionPlan(is_persistent=True)}


def serve(scene: Scene, version: int = 1, *, is_listed: bool = True) -> Replica:
    """Add a replica that serves webhooks, and is known to do so."""
    assert scene.world.admission is not None
    process = scene.add_replica()
    server = scene.world.admission.servers[process] = Server(process.identity)
    server.fn = process.operator.run
    process.operator.webhooks.manager.is_applied.set()
    scene.world.admission.versions[process] = version
    scene.world.admission.listed += [process] if is_listed else []
    return process


async def request(
    scene: Scene,
    *,
    answer: Response,
    attempt: tuple[str, str, str] = ("POST", PLURAL, ""),
    is_there: bool = True,
    is_listed: bool = True,
    meanwhile: str = "",
    old: str = "",
    since: float = 0.0,
) -> None:
    """Answer a request of a user, while something happens to the replica that serves.

    Args:
        scene: of it.
        answer: of the API server.
        attempt: the request: its method, its resource, and what is wrong with the object.
        is_there: whether there is a replica.
        is_listed: whether it is an endpoint.
        meanwhile: what happens to it.
        old: what has become of a replica of the old version.
        since: how long ago.
    """
    before = serve(scene, 0) if old else None
    if before is not None and old == "ended":
        await before.stop()
    if before is not None and old == "killed":
        scene.world.kill(before)
    process = serve(scene, is_listed=is_listed) if is_there else None
    await asyncio.sleep(since)
    assert scene.world.admission is not None
    judge, made = scene.world.admission.judge, Attempt(*attempt)
    judge.judge_request(made)
    await asyncio.sleep(1.0)
    if process is not None:
        process.is_stopping = meanwhile == "stop"
        if meanwhile == "kill":
            scene.world.kill(serve(scene))
        elif meanwhile == "unlist":
            scene.world.admission.listed.remove(process)
        elif meanwhile == "end":
            await process.stop()
            process.is_stopping = False
        elif meanwhile == "close":
            scene.world.admission.servers[process].fn = None
        elif meanwhile == "forget":
            process.operator.webhooks.manager.is_applied.clear()
    judge.judge_answer(made, answer)


async def lose_readiness(
    scene: Scene,
    *,
    obstacles: Iterable[str] = ("a CA bundle",),
    is_stopping: bool = True,
    is_closed: bool = False,
    other: str = "",
) -> None:
    """Have a replica that is not ready while it stops; maybe something has happened to another.

    Args:
        scene: of it.
        obstacles: why it is not ready.
        is_stopping: whether it was asked to stop.
        is_closed: whether it serves no more.
        other: what has happened to another replica.
    """
    assert scene.world.admission is not None
    if other:
        another = serve(scene)
        if other == "killed":
            scene.world.kill(another)
        elif other.startswith("ended"):
            await another.stop()
        await asyncio.sleep(1.0 if other == "ended just now" else 10.0)
    process = serve(scene)
    process.is_stopping, process.operator.obstacles = is_stopping, [*obstacles]
    if is_closed:
        scene.world.admission.servers[process].fn = None
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
    if ends == "rough":
        scene.world.kill(serving.pop())
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
    tell("", "ended", request, **_say(FAILED), meanwhile="end", plan=HOOKS),
    tell("", "closed", request, **_say(FAILED), meanwhile="close", plan=HOOKS),
    tell("", "not known to others", request, **_say(FAILED), meanwhile="forget", plan=HOOKS),
    tell("", "nobody is there", request, **_say(FAILED), is_there=False, plan=HOOKS),
    tell("", "no endpoint yet", request, **_say(FAILED), is_listed=False, plan=HOOKS),
    tell("", "told to stop", request, **_say(FAILED), meanwhile="stop", plan=HOOKS),
    tell("", "no endpoint any more", request, **_say(FAILED), meanwhile="unlist", plan=HOOKS),
    tell("", "killed", request, **_say(FAILED), meanwhile="kill", plan=HOOKS),
    tell("", "in a bad network", request, **_say(FAILED), plan={**HOOKS, **ROUGH}),
    tell("", "503 in a rollout", request, **_say(f"{FAILED} HTTP 503"), plan=SHRINKING),
    tell("denied", "a good one", request, **_say(DENIED, 400), plan=HOOKS),
    tell("", "a bad one", request, **_say(DENIED, 400), attempt=("POST", PLURAL, "unfit"),
         plan=HOOKS),
    tell("", "by a quota", request, **_say("exceeded quota", 403), plan=HOOKS),
    tell("unchecked", "forbidden", request, **FORBIDDEN, plan=HOOKS),
    tell("unchecked", "forbidden, after a rollout", request, **FORBIDDEN, old="there", plan=HOOKS),
    tell("unchecked", "for the new version", request, **UNFIT, plan=HOOKS),
    tell("unchecked", "another resource", request, **OTHER, plan=HOOKS),
    tell("unchecked", "long after a rollout", request, **OTHER, old="ended", since=60.0,
         plan=HOOKS),
    tell("", "a good one that is admitted", request, **_admit("POST", PLURAL, "", stamp="yes"),
         plan=HOOKS),
    tell("", "nobody judges it", request, **FORBIDDEN, is_there=False, plan=HOOKS),
    tell("", "nobody judges it at last", request, **FORBIDDEN, meanwhile="stop", plan=HOOKS),
    tell("", "the old version was killed", request, **OTHER, old="killed", since=90.0, plan=HOOKS),
    tell("", "the old version is there", request, **UNFIT, old="there", plan=HOOKS),
    tell("", "the old version was there", request, **OTHER, old="ended", plan=HOOKS),
    tell("", "for the new version, after a kill", request, **OTHER, meanwhile="kill", plan=HOOKS),
    tell("unchanged", "a creation", request, **_admit("POST", PLURAL, ""), plan=HOOKS),
    tell("", "a patch", request, **_admit("PATCH", PLURAL, ""), plan=HOOKS),
    tell("", "another resource", request, **_admit("POST", OTHERS, ""), plan=HOOKS),
    tell("", "nobody changes it", request, **_admit("POST", PLURAL, ""), is_there=False,
         plan=HOOKS),
    tell("unready", "the only one", lose_readiness, plan=HOOKS),
    tell("unready", "after another one has ended", lose_readiness, other="ended", plan=HOOKS),
    tell("", "just after another one has ended", lose_readiness, other="ended just now",
         plan=HOOKS),
    tell("", "ready", lose_readiness, obstacles=(), plan=HOOKS),
    tell("", "not told to stop", lose_readiness, is_stopping=False, plan=HOOKS),
    tell("", "serves no more", lose_readiness, is_closed=True, plan=HOOKS),
    tell("", "beside another one", lose_readiness, other="there", plan=HOOKS),
    tell("", "after another one was killed", lose_readiness, other="killed", plan=HOOKS),
    tell("", "in a fault", lose_readiness, plan={**HOOKS, **ROUGH}),
    tell("webhooks", "one is lost", configure, lost=["twin-2"], plan=HOOKS),
    tell("webhooks", "one that mutates", configure, lost=["stamp"], plan=HOOKS),
    tell("webhooks", "a persistent one", configure, lost=["check"], is_there=False,
         plan=PERSISTENT),
    tell("", "none is lost", configure, lost=[], plan=HOOKS),
    tell("", "nobody serves", configure, lost=["check"], is_there=False, plan=HOOKS),
    tell("", "only the persistent one stays", configure, lost=["twin", "grow"], is_there=False,
         plan=PERSISTENT),
    tell("left", "all of them", configure, lost=[], is_there=False, ends="well", plan=HOOKS),
    tell("left", "more than the persistent one", configure, lost=["twin"], is_there=False,
         ends="well", plan=PERSISTENT),
    tell("left", "after two", configure, lost=[], is_there=False, ends="late", others=1,
         plan=HOOKS),
    tell("", "after another one in a fault", configure, lost=[], is_there=False, ends="late",
         others=1, plan={**HOOKS, **ROUGH}),
    tell("", "in a bad network", configure, lost=[], is_there=False, ends="well",
         plan={**HOOKS, **ROUGH}),
    tell("", "another one serves", configure, lost=[], ends="well", others=1, plan=HOOKS),
    tell("", "after a kill", configure, lost=[], is_there=False, ends="rough", others=1,
         plan=HOOKS),
    tell("", "none", configure, lost=["stamp", *WEBHOOKS["Validating"]], is_there=False,
         ends="well", plan=HOOKS),
    tell("", "the persistent one", configure, lost=["stamp", "twin", "twin-2", "grow"],
         is_there=False, ends="well", plan=PERSISTENT),
)  # fmt: skip
