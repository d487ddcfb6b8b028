"""What must hold in histories with admission webhooks.

As in :mod:`tools.simulation.invariants`, a complaint begins with the name of its rule.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tools.simulation.replicas import GROUP, PLURAL, ReplicaProcess

if TYPE_CHECKING:
    from tools.simulation.admission import Admission
    from tools.simulation.world import World
    from webop.testing.apiserver import Change, Response

_CONFIGURATIONS = {
    f"{kind}webhookconfigurations.admissionregistration.k8s.io": names
    for kind, names in (
        ("mutating", {"stamp"}),
        ("validating", {"check", "twin", "twin-2", "grow"}),
    )
}
_ROUGH = {"fault", "kill", "pause"}
_AFTERMATH = 15.0  # seconds after them in which calls may fail
_HANDOVER = 3.0  # seconds in which a replica that ends still counts as one that stays
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
        self._changed_at = 0.0  # the webhooks

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
            # Those that do not judge it any more have it repeated, but not for ever.
            is_excused = self._admission.plan.shrinks and "HTTP 404" not in message
            is_rough = self._was_rough(attempt.begin - _AFTERMATH, world.loop.time())
            if steady and not is_rough and not is_excused:
                world.judge.complain(f"failed: {attempt}: {message}")
        elif "denied the request" in message:
            if not attempt.mark:
                world.judge.complain(f"denied: {attempt}: {message}")
        elif is_admitted and attempt.present & present:
            is_known = attempt.begin >= self._changed_at + self._admission.plan.lag
            if attempt.mark and is_known and self._is_refused(attempt):
                world.judge.complain(f"unchecked: {attempt}")
            is_created = attempt.method == "POST" and attempt.plural == PLURAL
            if is_created and is_known and "stamp" not in answer.body["spec"]:
                world.judge.complain(f"unchanged: {attempt}")

    def judge_change(self, change: Change) -> None:
        """The webhooks of all versions stay as long as any replica serves them."""
        wanted, present = _CONFIGURATIONS.get(change.resource), self._list_present()
        if wanted is None:
            return
        old, new = ((body or {}).get("webhooks") for body in (change.old, change.new))
        if old != new:
            self._changed_at = self._world.loop.time()
        if not present:  # what was there and persists must do so
            wanted = self._get_persistent() & _list_served(change.old, PLURAL)
        missed = wanted - _list_served(change.new, PLURAL)
        if missed:
            names = sorted(map(str, present))
            self._world.judge.complain(f"webhooks: {sorted(missed)} are gone, while {names} serve")

    def judge_unreadiness(self, process: ReplicaProcess) -> None:
        """The last replica is ready as long as its webhooks are in force."""
        now = self._world.loop.time()
        others = [other for other in self._world.processes if other is not process]
        if (
            process.is_stopping
            and process.is_running
            and self._admission.servers[process].fn is not None
            and not self._admission.is_ready(process)
            and not any(map(self._has_record, others))
            and not any((other.ended_at or 0.0) > now - _HANDOVER for other in others)
            and not self._was_rough(now - _AFTERMATH, now)
        ):
            self._world.judge.complain(f"unready: {process}, which is the last one")

    def judge_exit(self, process: ReplicaProcess) -> None:
        """The webhooks go with the last replica."""
        if any(map(self._has_record, self._world.processes)):
            return
        for resource in _CONFIGURATIONS:
            for body in self._world.cluster.get_objects(resource).values():
                if _list_served(body, PLURAL) - self._get_persistent():
                    self._world.judge.complain(f"left: {process} has left webhooks in {resource}")

    def _get_persistent(self) -> set[str]:
        return {"check"} if self._admission.plan.is_persistent else set()

    def _list_present(self) -> set[ReplicaProcess]:
        """Return the replicas that serve, are known to the others, and were not asked to stop."""
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
        is_new = attempt.plural != PLURAL or (attempt.mark, attempt.method) == ("unfit", "PATCH")
        if not is_new:
            return True
        olds = [process for process, version in self._admission.versions.items() if not version]
        now = self._world.loop.time()
        return not any(
            self._has_record(old) or attempt.begin < (old.ended_at or now) + _AGREEMENT
            for old in olds
        ) and not self._was_rough(attempt.begin - 2 * _AFTERMATH, now)

    def _has_record(self, process: ReplicaProcess) -> bool:
        """Tell whether others may take note of a replica: it runs, or has ended without notice."""
        if process.ended_at is None:
            return True
        since, lifetime = process.ended_at - _AFTERMATH, self._admission.plan.lifetime
        was_rough = self._was_rough(since, process.ended_at)
        return was_rough and self._world.loop.time() < process.ended_at + 2 * lifetime

    def _was_rough(self, since: float, until: float) -> bool:
        return any(since <= loss <= until for loss in self._losses) or any(
            step.kind in _ROUGH and step.at <= until and step.at + step.seconds >= since
            for step in self._world.plan.steps
        )


def _list_served(configuration: dict[str, Any] | None, plural: str) -> set[str]:
    """Return the webhooks for a resource, by the first parts of their names."""
    return {
        webhook["name"].partition(".")[0]
        for webhook in (configuration or {}).get("webhooks") or ()
        for rule in webhook["rules"]
        if rule["apiGroups"] == [GROUP] and {plural, "*"} & {*rule["resources"]}
    }
