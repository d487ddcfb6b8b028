"""The story of the demo, step by step: the life of one EphemeralVolumeClaim."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stage import Answer, ApiServer, Operator, wait_for
from telling import Verdicts, say_answer, say_command

EVCS = "/apis/kopf.dev/v1/namespaces/default/ephemeralvolumeclaims"
PVCS = "/api/v1/namespaces/default/persistentvolumeclaims"
EVC, PVC = f"{EVCS}/my-claim", f"{PVCS}/my-claim"
_PATIENCE = 10.0  # seconds for the operator to react
_COLLECTION = 30.0  # seconds for the garbage collection
_PROPAGATION = 5.0  # seconds for the API server to notice the webhook configurations


class Story:
    """A story under way: asks, looks, and judges.

    Args:
        api: the API server to ask.
        operator: the operator, without which it cannot go on.
        verdicts: where the verdicts go.
    """

    def __init__(self, api: ApiServer, operator: Operator, verdicts: Verdicts) -> None:
        self._api = api
        self._operator = operator
        self.verdicts = verdicts

    def ask(
        self, command: str, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Answer:
        """Send a request, and print it and the answer."""
        say_command(command)
        answer = self._api.request(method, path, body)
        say_answer(answer.status, answer.body, answer.warnings)
        return answer

    def create(self, name: str, spec: dict[str, Any], *, dry_run: bool = False) -> Answer:
        """Create an EVC."""
        body = {"apiVersion": "kopf.dev/v1", "kind": "EphemeralVolumeClaim"}
        option, query = (" --dry-run=server", "?dryRun=All") if dry_run else ("", "")
        content = f"spec: {{size: {spec['size']}}}" if spec else "no spec in it"
        command = f"kubectl create{option} -f {name}.yaml   # {content}"
        return self.ask(
            command, "POST", EVCS + query, {**body, "metadata": {"name": name}, "spec": spec}
        )

    def change(self, patch: str, body: dict[str, Any]) -> Answer:
        """Change the EVC."""
        return self.ask(f"kubectl patch evc my-claim --type merge -p '{patch}'", "PATCH", EVC, body)

    def expect(self, what: str, actual: object, wanted: object) -> None:
        """Judge something that is known."""
        self.verdicts.judge(what, actual, wanted)

    def expect_refusal(self, answer: Answer, reason: str) -> None:
        """Judge whether a request is refused by a webhook, with the words of its author."""
        message = answer.body.get("message", "")
        actual = reason if answer.status >= 400 and reason in message else message or answer.status
        self.verdicts.judge("refused", actual, reason)

    def await_field(self, path: str, field: str, wanted: object) -> None:
        """Wait until a field of an object is as wanted; judge what it is at last."""
        self._await(field, lambda: dig(self._api.request("GET", path).body, field), wanted)

    def await_absence(self, path: str, what: str) -> None:
        """Wait until there is no such object; judge the status of the last look."""
        self._await(what, lambda: self._api.request("GET", path).status, 404, _COLLECTION)

    def _await(
        self, what: str, look: Callable[[], object], wanted: object, seconds: float = _PATIENCE
    ) -> None:
        started = time.monotonic()
        wait_for(lambda: self._look(look) == wanted, seconds)
        took = time.monotonic() - started
        self.verdicts.judge(f"after {took:.1f} s, {what}", look(), wanted)

    def _look(self, look: Callable[[], object]) -> object:
        self._operator.check()
        return look()


def dig(body: Any, path: str) -> Any:
    """Return what is at a dotted path of an object; None if there is nothing."""
    for key in path.split("."):
        try:
            body = body[int(key)] if isinstance(body, list) else body[key]
        except (KeyError, IndexError, TypeError):
            return None
    return body


def await_webhooks(api: ApiServer, operator: Operator) -> None:
    """Wait until the API server asks the webhooks: it notices them a moment after they come.

    If it does not in time, the steps will show it.
    """
    claim = {"apiVersion": "kopf.dev/v1", "kind": "EphemeralVolumeClaim"}

    def are_asked() -> bool:
        """Try a claim that must be mutated, and one that must be refused."""
        operator.check()
        path = f"{EVCS}?dryRun=All"
        sizeless = api.request("POST", path, {**claim, "metadata": {"name": "sizeless"}})
        bad = {**claim, "metadata": {"name": "bad"}, "spec": {"size": "plenty"}}
        return dig(sizeless.body, "spec.size") is not None and (
            api.request("POST", path, bad).status >= 400
        )

    wait_for(are_asked, _PROPAGATION)


# ---- the steps


def get_default(story: Story) -> None:
    """Mutation."""
    story.verdicts.begin("A claim without a size is given the default size")
    answer = story.create("my-claim", {})
    story.expect("status", answer.status, 201)
    story.expect("spec.size", dig(answer.body, "spec.size"), "1G")


def get_volume(story: Story) -> None:
    """Creation and adoption."""
    story.verdicts.begin("The operator creates a PVC for it, and says so in the status")
    say_command("kubectl get evc,pvc my-claim -o yaml --watch")
    story.await_field(EVC, "status.create_fn.pvc-name", "my-claim")
    story.await_field(PVC, "spec.resources.requests.storage", "1G")
    story.await_field(PVC, "metadata.ownerReferences.0.kind", "EphemeralVolumeClaim")
    story.await_field(PVC, "status.phase", "Bound")


def be_refused(story: Story) -> None:
    """Validation."""
    story.verdicts.begin("Impossible sizes are refused, with the words of the author")
    answer = story.create("bad-claim", {"size": "plenty"})
    story.expect_refusal(answer, "spec.size: 'plenty' is not a quantity")
    answer = story.create("bad-claim", {"size": "-5G"})
    story.expect_refusal(answer, "spec.size: '-5G' is impossible")


def be_warned(story: Story) -> None:
    """Warnings, and dry runs."""
    story.verdicts.begin("A doubtful size is admitted with a warning")
    answer = story.create("odd-claim", {"size": "500m"}, dry_run=True)
    wanted = (
        "spec.size: '500m' is only 0.5 bytes ('m' stands for thousandths; use 'M' for megabytes)."
    )
    story.expect("status", answer.status, 201)
    story.expect("warning", "; ".join(answer.warnings) or "none", wanted)


def grow(story: Story) -> None:
    """Update."""
    story.verdicts.begin("A larger size is handed on to the PVC")
    answer = story.change('{"spec": {"size": "2G"}}', {"spec": {"size": "2G"}})
    story.expect("status", answer.status, 200)
    story.await_field(PVC, "spec.resources.requests.storage", "2G")


def be_kept_from_shrinking(story: Story) -> None:
    """Validation with the old and the new state."""
    story.verdicts.begin("A smaller size is refused: volumes only grow")
    answer = story.change('{"spec": {"size": "500M"}}', {"spec": {"size": "500M"}})
    story.expect_refusal(answer, "spec.size: volumes can only grow, not shrink from 2G to 500M.")


def be_relabelled(story: Story) -> None:
    """Field handlers and diffs."""
    story.verdicts.begin("Labels are handed on, and taken back")
    command = "kubectl label evc my-claim application=some-app owner=me"
    labels: dict[str, Any] = {"application": "some-app", "owner": "me"}
    story.ask(command, "PATCH", EVC, {"metadata": {"labels": labels}})
    story.await_field(PVC, "metadata.labels", labels)
    command = "kubectl label evc my-claim owner-"
    story.ask(command, "PATCH", EVC, {"metadata": {"labels": {"owner": None}}})
    story.await_field(PVC, "metadata.labels", {"application": "some-app"})


def be_deleted(story: Story) -> None:
    """Cascaded deletion."""
    story.verdicts.begin("With the claim, its PVC is garbage-collected")
    answer = story.ask("kubectl delete evc my-claim", "DELETE", EVC)
    story.expect("status", answer.status, 200)
    story.await_absence(EVC, "kubectl get evc my-claim")
    story.await_absence(PVC, "kubectl get pvc my-claim")


STEPS: tuple[Callable[[Story], None], ...] = (
    get_default,
    get_volume,
    be_refused,
    be_warned,
    grow,
    be_kept_from_shrinking,
    be_relabelled,
    be_deleted,
)
