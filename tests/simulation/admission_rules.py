"""What must hold in histories with admission webhooks.

As in :mod:`tests.simulation.invariants`, a complaint begins with the name of its rule.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tests.simulation.replicas import GROUP, PLURAL, ReplicaProcess

if TYPE_CHECKING:
    from tests.simulation.admission import Admission
    from tests.simulation.cluster import Change, Response
    from tests.simulation.world import World

_CONFIGURATIONS = {
    f"{kind}webhookconfigurations.admissionregistration.k8s.io": names
    for kind, names in (
        ("mutating", {"stamp"}),
        ("validating", {"check", "twin", "twin-2", "grow"}),
    )
}
_ROUGH = {"fault", "kill", "pause"}
_AFTERMATH = 30.0  # seconds after them in which calls may fail
_AGREEMENT = 20.0  # seconds after the end of the last replica of another version, and a look


@dataclasses.dataclass(eq=False)
class Attempt:
    """A request of a user.

    Attributes:
        mark: what is wrong with the object; nothing if it is good.
        begin: when it was made.
        present: the replicas that were there, and known to all, and meant to stay.
        steady: those of them that are endpoints of the Service.
    """

    method: str
    plural: str
    mark: str
    begin: float = 0.0
    present: set[ReplicaProcess] = dataclasses.field(default_factory=set)
    steady: set[ReplicaProcess] = dataclasses.field(default_factory=set)

    def __str__(self) -> str:
        mark = f", which is {self.mark}" if self.mark else ""
        return f"{self.method} of {self.plural}{mark}, since {self.begin:.3f}"


class AdmissionJudge:
    """Watches the webhooks of a world."""

    def __init__(self, world: World, admission: Admission) -> None:
        self._world = world
        self._admission = admission
        self._losses: list[float] = []

    def note_loss(self) -> None:
        """Note that a process has ended without notice."""
        self._losses.append(self._world.loop.time())

    def judge_request(self, attempt: Attempt) -> None:
        """Take note of how things are at the begin of a request."""
        attempt.begin = self._world.loop.time()
        attempt.present = self._list_present()
        attempt.steady = attempt.present & {*self._admission.listed}

    def judge_answer(self, attempt: Attempt, answer: Response) -> None:
        """Requests do not fail, what is refused is not admitted, mutations are applied."""
        world = self._world
        is_admitted, message = answer.status < 300, answer.body.get("message", "")
        world.tell(f"{attempt}: {answer.status} {message}")
        present = self._list_present()
        if "failed calling webhook" in message:
            steady = attempt.steady & present & {*self._admission.listed}
            if steady and not self._was_rough(attempt.begin - _AFTERMATH):
                world.judge.complain(f"failed: {attempt}: {message}")
        elif "denied the request" in message:
            if not attempt.mark:
                world.judge.complain(f"denied: {attempt}: {message}")
        elif is_admitted and attempt.present & present:
            if attempt.mark and self._is_refused(attempt):
                world.judge.complain(f"unchecked: {attempt}")
            is_created = attempt.method == "POST" and attempt.plural == PLURAL
            if is_created and "stamp" not in answer.body["spec"]:
                world.judge.complain(f"unchanged: {attempt}")

    def judge_change(self, change: Change) -> None:
        """The webhooks of all versions stay as long as any replica serves them."""
        wanted = _CONFIGURATIONS.get(change.resource)
        if wanted is None or not (present := self._list_present()):
            return
        missed = wanted - _list_served(change.new, PLURAL)
        if missed:
            names = sorted(map(str, present))
            self._world.judge.complain(f"webhooks: {sorted(missed)} are gone, while {names} serve")

    def judge_exit(self, process: ReplicaProcess) -> None:
        """The webhooks go with the last replica."""
        now, lifetime = self._world.loop.time(), self._admission.plan.lifetime
        others = [other for other in self._world.processes if other is not process]
        if any(p.is_running or (p.ended_at or now) > now - lifetime for p in others if p.is_dead):
            return  # the marks of those that were killed are there for some time more
        if any(p.is_running for p in others) or self._was_rough(now - _AFTERMATH):
            return
        for resource in _CONFIGURATIONS:
            for body in self._world.cluster.get_objects(resource).values():
                if body.get("webhooks"):
                    self._world.judge.complain(f"left: {process} has left webhooks in {resource}")

    def _list_present(self) -> set[ReplicaProcess]:
        """Return the replicas that serve, are known to the others, and were not told to stop."""
        return {
            process
            for process, server in self._admission.servers.items()
            if process.is_running
            and not process.is_stopping
            and server.fn is not None
            and (manager := process.operator.webhooks.manager) is not None
            and manager.is_applied.is_set()
        }

    def _is_refused(self, attempt: Attempt) -> bool:
        """Tell whether all versions that are around refuse it."""
        is_new = attempt.plural != PLURAL or (attempt.mark, attempt.method) == ("unfit", "PATCH")
        if not is_new:
            return True
        lifetime = self._admission.plan.lifetime
        for process, version in self._admission.versions.items():
            if not version:
                if process.ended_at is None:
                    return False
                until = process.ended_at + _AGREEMENT + (2 * lifetime if process.is_dead else 0)
                if attempt.begin < until:
                    return False
        return not self._was_rough(attempt.begin - 2 * _AFTERMATH)

    def _was_rough(self, since: float) -> bool:
        """Tell whether there was any trouble since a moment."""
        now = self._world.loop.time()
        return any(loss >= since for loss in self._losses) or any(
            step.kind in _ROUGH and step.at <= now and step.at + step.seconds >= since
            for step in self._world.plan.steps
        )


def _list_served(configuration: dict[str, Any] | None, plural: str) -> set[str]:
    """Return the webhooks for a resource, by the first parts of their names."""
    return {
        webhook["name"].partition(".")[0]
        for webhook in (configuration or {}).get("webhooks") or ()
        for rule in webhook["rules"]
        if rule["apiGroups"] == [GROUP] and plural in rule["resources"]
    }
