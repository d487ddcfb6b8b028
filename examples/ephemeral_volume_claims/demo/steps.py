"""The steps of the demo: one EphemeralVolumeClaim from creation to deletion, with checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from environment import ApiServer, Operator, Response, wait_for
from output import Checks, write_command, write_response

EVCS = "/apis/kopf.dev/v1/namespaces/default/ephemeralvolumeclaims"
PVCS = "/api/v1/namespaces/default/persistentvolumeclaims"
EVC, PVC = f"{EVCS}/my-claim", f"{PVCS}/my-claim"
_REACTION = 10.0  # seconds for the operator to react
_COLLECTION = 30.0  # seconds for the garbage collector
_PROPAGATION = 5.0  # seconds for the API server to load the webhook configurations


class Scenario:
    """Sends requests, prints them, and checks the results.

    Args:
        api: the API server.
        operator: the operator; waiting fails if it has stopped.
        checks: collects the results.
    """

    def __init__(self, api: ApiServer, operator: Operator, checks: Checks) -> None:
        self._api = api
        self._operator = operator
        self.checks = checks

    def send(
        self, command: str, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Response:
        """Send a request; print it and the response."""
        write_command(command)
        response = self._api.request(method, path, body)
        write_response(response.status, response.body, response.warnings)
        return response

    def create(self, name: str, spec: dict[str, Any], *, dry_run: bool = False) -> Response:
        """Create an EVC."""
        body = {"apiVersion": "kopf.dev/v1", "kind": "EphemeralVolumeClaim"}
        option, query = (" --dry-run=server", "?dryRun=All") if dry_run else ("", "")
        content = f"spec: {{size: {spec['size']}}}" if spec else "without a spec"
        command = f"kubectl create{option} -f {name}.yaml   # {content}"
        return self.send(
            command, "POST", EVCS + query, {**body, "metadata": {"name": name}, "spec": spec}
        )

    def change(self, patch: str, body: dict[str, Any]) -> Response:
        """Change the EVC."""
        return self.send(
            f"kubectl patch evc my-claim --type merge -p '{patch}'", "PATCH", EVC, body
        )

    def expect(self, what: str, actual: object, expected: object) -> None:
        """Compare a value with the expected one."""
        self.checks.check(what, actual, expected)

    def expect_denial(self, response: Response, reason: str) -> None:
        """Check that a webhook denied a request, and with which reason."""
        message = response.body.get("message", "")
        actual = (
            reason if response.status >= 400 and reason in message else message or response.status
        )
        self.checks.check("denied", actual, reason)

    def wait_for_field(self, path: str, field: str, expected: object) -> None:
        """Wait until a field of an object has the expected value; check its last value."""
        self._wait(field, lambda: get_field(self._api.request("GET", path).body, field), expected)

    def wait_until_gone(self, path: str, what: str) -> None:
        """Wait until an object is gone; check the status of the last response."""
        self._wait(what, lambda: self._api.request("GET", path).status, 404, _COLLECTION)

    def _wait(
        self, what: str, read: Callable[[], object], expected: object, seconds: float = _REACTION
    ) -> None:
        started = time.monotonic()
        wait_for(lambda: self._read(read) == expected, seconds)
        took = time.monotonic() - started
        self.checks.check(f"after {took:.1f} s, {what}", read(), expected)

    def _read(self, read: Callable[[], object]) -> object:
        self._operator.check()
        return read()


def get_field(body: Any, path: str) -> Any:
    """Return the value at a dotted path of an object; None if there is none."""
    for key in path.split("."):
        try:
            body = body[int(key)] if isinstance(body, list) else body[key]
        except (KeyError, IndexError, TypeError):
            return None
    return body


def wait_for_webhooks(api: ApiServer, operator: Operator) -> None:
    """Wait until the API server calls the webhooks; it loads new configurations with a delay.

    After a timeout, the steps go on and fail.
    """
    claim = {"apiVersion": "kopf.dev/v1", "kind": "EphemeralVolumeClaim"}

    def are_called() -> bool:
        """Try a claim that must be changed, and one that must be denied."""
        operator.check()
        path = f"{EVCS}?dryRun=All"
        sizeless = api.request("POST", path, {**claim, "metadata": {"name": "sizeless"}})
        bad = {**claim, "metadata": {"name": "bad"}, "spec": {"size": "plenty"}}
        return get_field(sizeless.body, "spec.size") is not None and (
            api.request("POST", path, bad).status >= 400
        )

    wait_for(are_called, _PROPAGATION)


# ---- the steps


def default_the_size(scenario: Scenario) -> None:
    """Mutation."""
    scenario.checks.begin("A claim without a size gets the default size")
    response = scenario.create("my-claim", {})
    scenario.expect("status", response.status, 201)
    scenario.expect("spec.size", get_field(response.body, "spec.size"), "1G")


def create_the_pvc(scenario: Scenario) -> None:
    """Creation and adoption."""
    scenario.checks.begin("The operator creates a PVC for it, and sets its status")
    write_command("kubectl get evc,pvc my-claim -o yaml --watch")
    scenario.wait_for_field(EVC, "status.create_fn.pvc-name", "my-claim")
    scenario.wait_for_field(PVC, "spec.resources.requests.storage", "1G")
    scenario.wait_for_field(PVC, "metadata.ownerReferences.0.kind", "EphemeralVolumeClaim")
    scenario.wait_for_field(PVC, "status.phase", "Bound")


def deny_impossible_sizes(scenario: Scenario) -> None:
    """Validation."""
    scenario.checks.begin("The webhook denies impossible sizes, and says why")
    response = scenario.create("bad-claim", {"size": "plenty"})
    scenario.expect_denial(response, "spec.size: 'plenty' is not a quantity")
    response = scenario.create("bad-claim", {"size": "-5G"})
    scenario.expect_denial(response, "spec.size: '-5G' is out of range")


def warn_of_odd_sizes(scenario: Scenario) -> None:
    """Warnings, and dry runs."""
    scenario.checks.begin("The webhook allows an odd size, with a warning")
    response = scenario.create("odd-claim", {"size": "500m"}, dry_run=True)
    expected = (
        "spec.size: '500m' is only 0.5 bytes ('m' stands for thousandths; use 'M' for megabytes)."
    )
    scenario.expect("status", response.status, 201)
    scenario.expect("warning", "; ".join(response.warnings) or "none", expected)


def grow(scenario: Scenario) -> None:
    """Update."""
    scenario.checks.begin("The operator resizes the PVC with the claim")
    response = scenario.change('{"spec": {"size": "2G"}}', {"spec": {"size": "2G"}})
    scenario.expect("status", response.status, 200)
    scenario.wait_for_field(PVC, "spec.resources.requests.storage", "2G")


def deny_shrinking(scenario: Scenario) -> None:
    """Validation with the old and the new state."""
    scenario.checks.begin("The webhook denies a smaller size")
    response = scenario.change('{"spec": {"size": "500M"}}', {"spec": {"size": "500M"}})
    scenario.expect_denial(
        response, "spec.size: volumes can only grow, not shrink from 2G to 500M."
    )


def relabel(scenario: Scenario) -> None:
    """Field handlers and diffs."""
    scenario.checks.begin("The operator copies labels to the PVC, and removes them")
    command = "kubectl label evc my-claim application=some-app owner=me"
    labels: dict[str, Any] = {"application": "some-app", "owner": "me"}
    scenario.send(command, "PATCH", EVC, {"metadata": {"labels": labels}})
    scenario.wait_for_field(PVC, "metadata.labels", labels)
    command = "kubectl label evc my-claim owner-"
    scenario.send(command, "PATCH", EVC, {"metadata": {"labels": {"owner": None}}})
    scenario.wait_for_field(PVC, "metadata.labels", {"application": "some-app"})


def delete(scenario: Scenario) -> None:
    """Deletion with the owner."""
    scenario.checks.begin("Kubernetes deletes the PVC together with the claim")
    response = scenario.send("kubectl delete evc my-claim", "DELETE", EVC)
    scenario.expect("status", response.status, 200)
    scenario.wait_until_gone(EVC, "kubectl get evc my-claim")
    scenario.wait_until_gone(PVC, "kubectl get pvc my-claim")


STEPS: tuple[Callable[[Scenario], None], ...] = (
    default_the_size,
    create_the_pvc,
    deny_impossible_sizes,
    warn_of_odd_sizes,
    grow,
    deny_shrinking,
    relabel,
    delete,
)
