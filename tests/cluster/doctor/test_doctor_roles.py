"""``webop doctor --as`` beside an operator that has the same role: what one names, the other lacks.

Each rule is taken away from a complete role, one by one: for each, there are a user, a namespace,
an operator, and a report of the doctor. The operators run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import webop
from tests.kit.doctor_runs import Doctor, Report
from tests.kit.managed_webhooks import KINDS
from tests.kit.operators import Kind, Objects, Running, operate
from tests.kit.peering_objects import PeeringObject, define_peerings
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo
from webop.errors import APINotFoundError

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

KIND = Kind("rolefuls.webop.dev", "roles", "Roleful", has_status=True)
SECRET = "hooks-webhook-certs"
SECRETS = webop.Resource("", "v1", "secrets", namespaced=True)

Rule = tuple[str, str, str]
ADMISSION, LEASES, PEERING = "admissionregistration.k8s.io", "coordination.k8s.io", "kopf.dev"
DEFINITION = "apiextensions.k8s.io"
VALIDATING, MUTATING = "validatingwebhookconfigurations", "mutatingwebhookconfigurations"


def combine(group: str, resource: str, verbs: str) -> list[Rule]:
    return [(group, resource, verb) for verb in verbs.split()]


NEEDED: list[Rule] = [
    *combine(KIND.group, "roles", "list watch get patch"),
    *combine(KIND.group, "roles/status", "patch"),
    *combine("", "events", "create patch"),
    *combine("", "secrets", "get create update"),
    *combine(ADMISSION, VALIDATING, "create patch"),
    *combine(ADMISSION, MUTATING, "create patch"),
    *combine(LEASES, "leases", "get create update"),
    *combine(PEERING, "kopfpeerings", "list watch patch"),
    *combine(DEFINITION, "customresourcedefinitions", "list watch"),
]
# Without these, an operator does the same: replicas take over a bit later; and whoever names
# namespaces need not look for them.
OPTIONAL: list[Rule] = [
    *combine(LEASES, "leases", "list watch"),
    *combine("", "namespaces", "list watch"),
]
COMPLETE = [*NEEDED, *OPTIONAL]


def declare(
    registry: webop.OperatorRegistry | None,
    place: str,
    disturb: Callable[[], Any] = lambda: None,
) -> None:
    """Declare an operator that uses all of its rights; the file for the doctor does it, too."""

    @webop.on.startup(registry=registry)
    def configure(settings: webop.OperatorSettings, **_: Any) -> None:
        sys.stdout.write("this is not JSON either")
        settings.admission.managed = f"{place}.webop.dev"
        settings.admission.server = webop.WebhookServiceServer(
            service="hooks", namespace=place, addr="localhost", port=0,
            poll_interval=0.1, settle_time=0.1,
        )  # fmt: skip
        settings.admission.shutdown_delay = 0
        settings.leadership.lease_name = settings.peering.name = place
        settings.leadership.lease_namespace = place
        settings.leadership.lease_duration, settings.leadership.renew_deadline = 120, 90
        settings.leadership.retry_period = 0.5
        settings.peering.mandatory = True

    @webop.on.validate(*KIND.resource, operation="DELETE", ignore_failures=True, registry=registry)
    @webop.on.mutate(*KIND.resource, operations=["DELETE"], ignore_failures=True, registry=registry)
    def judge(**_: Any) -> None: ...

    @webop.on.create(*KIND.resource, id="created", registry=registry)
    async def created(patch: webop.Patch, **_: Any) -> str:
        def mark(body: Any) -> None:
            disturb()
            body["spec"] = {**(body.get("spec") or {}), "seen": True}

        patch.fns.append(mark)
        return "this goes into the status"

    @webop.timer(*KIND.resource, interval=0.5, registry=registry)
    def repeat(logger: Any, **_: Any) -> None:
        logger.info("the same again")


@dataclass
class Case:
    """An operator that lacks a rule; of a complete role, none."""

    number: int
    lacks: Rule | None
    cluster: LocalCluster
    client: Client
    log: pytest.LogCaptureFixture
    errors: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        """The namespace, the name of the user, of the Lease, and of the peering."""
        return f"roles-{self.number}"

    @property
    def objects(self) -> Objects:
        """Those of the namespace."""
        return Objects(self.client, KIND, self.place)

    def build_manifests(self) -> Iterator[dict[str, Any]]:
        """Return all that is in the cluster before the operator comes."""
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.place}}
        own, secret = ({"resourceNames": [name]} for name in (self.place, SECRET))
        names = {"leases": own, "kopfpeerings": own, "secrets": secret}
        granted = [
            {
                "apiGroups": [group],
                "resources": [resource],
                "verbs": [verb],
                **({} if verb == "create" else names.get(resource, {})),
            }
            for group, resource, verb in COMPLETE
            if (group, resource, verb) != self.lacks
        ]
        api, metadata = "rbac.authorization.k8s.io", {"name": self.place}
        head = {"apiVersion": f"{api}/v1", "metadata": metadata}
        yield {**head, "kind": "ClusterRole", "rules": granted}
        role = {"apiGroup": api, "kind": "ClusterRole", "name": self.place}
        user = {"apiGroup": api, "kind": "User", "name": self.place}
        yield {**head, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [user]}

    async def run(self) -> None:
        """Run the operator until it has handled an object, or failed for what it lacks."""
        await PeeringObject(self.client, self.place, self.place).create()
        await self.objects.create("one")
        config = yaml.safe_load(self.cluster.kubeconfig_for(self.place).read_text())
        user = config["users"][0]["user"]
        info = ConnectionInfo(
            server=self.cluster.server,
            ca_data=self.cluster.ca_data,
            certificate_data=user["client-certificate-data"],
            private_key_data=user["client-key-data"],
        )
        registry, settings = webop.OperatorRegistry(), webop.OperatorSettings()
        if self.lacks == (KIND.group, "roles", "get"):
            declare(registry, self.place, self.disturb)
        else:
            declare(registry, self.place)
        settings.watching.streaming_list = self.lacks != (KIND.group, "roles", "list")
        options = {"namespaces": [self.place], "standalone": False}
        try:
            async with operate(info, registry, settings, beside=True, **options) as running:
                if self.lacks == ("", "secrets", "update"):
                    await self.rotate()
                await eventually(lambda: self.is_over(running), f"the end of {self.lacks}")
        except Exception as exc:  # noqa: BLE001 - whatever the operator ends with
            self.errors.append(str(exc))

    async def is_over(self, running: Running) -> bool:
        """Tell whether it has failed, or else has done all of its work."""
        if any(task.done() for task in running.tasks):
            return True
        if self.lacks in NEEDED:
            return self.has_failed()
        body = await self.objects.get("one")
        return "created" in body.get("status", {}) and await self.has_webhooks()

    def has_failed(self) -> bool:
        """Tell whether the operator complains of the rule that it lacks."""
        assert self.lacks is not None
        _, resource, verb = self.lacks
        text = f'User "{self.place}" cannot {verb} resource "{resource}"'
        return any(text in said for said in self.list_complaints())

    def list_complaints(self) -> list[str]:
        """Return what the operator has said about rights, and what it has ended with."""
        user = f'User "{self.place}" cannot'
        said = (record.getMessage() for record in self.log.records)
        return [*self.errors, *(text for text in said if user in text)]

    async def has_webhooks(self) -> bool:
        """Tell whether there are both configurations."""
        for resource in KINDS.values():
            try:
                found = await self.client.get(resource, None, f"{self.place}.webop.dev")
            except APINotFoundError:
                return False
            if not found.get("webhooks"):
                return False
        return True

    def disturb(self) -> None:
        """Change the object after its patch is made and before it is sent: it conflicts."""
        metadata = {"name": "one", "namespace": self.place, "labels": {"disturbed": "yes"}}
        head = {"apiVersion": KIND.resource.api_version, "kind": KIND.kind}
        self.cluster.apply({**head, "metadata": metadata})

    async def rotate(self) -> None:
        """Ask for another certificate as soon as the operator has one."""
        wish = {"metadata": {"annotations": {"webop.dev/rotate": "now"}}}

        async def is_asked() -> bool:
            try:
                body = await self.client.get(SECRETS, self.place, SECRET)
            except APINotFoundError:
                return False
            if "tls.crt" not in (body.get("data") or {}):
                return False
            return await self.client.patch(SECRETS, self.place, SECRET, wish) is not None

        await eventually(is_asked, "the Secret")

    async def clear(self) -> None:
        """Remove what would disturb others."""
        for resource in KINDS.values():
            with contextlib.suppress(APINotFoundError):
                await self.client.delete(resource, None, f"{self.place}.webop.dev")
        await self.objects.patch("one", {"metadata": {"finalizers": None}})
        await self.objects.delete("one")


def list_missing(report: Report) -> set[str]:
    """Return what is not granted, as in "get pods"."""
    lines = [line for line in report.lines if "Permissions" in line.title and line.level != "ok"]
    texts = (line.text.removeprefix("not granted: ").partition(";")[0] for line in lines)
    return {text.partition(" in ")[0] for text in texts}


@pytest.mark.timeout(300)  # 27 operators at once: ten seconds of CPU, on a busy machine minutes
async def test_each_right_that_the_doctor_finds_missing_is_one_that_the_operator_fails_for(
    webop_cluster: LocalCluster, client: Client, doctor: Doctor, caplog: pytest.LogCaptureFixture
) -> None:
    webop_cluster.apply(KIND.build_crd())
    await define_peerings(client)
    rules = (None, *COMPLETE)
    cases = [Case(n, rule, webop_cluster, client, caplog) for n, rule in enumerate(rules)]
    manifests = itertools.chain.from_iterable(case.build_manifests() for case in cases)
    await asyncio.to_thread(webop_cluster.apply, *manifests)
    path = doctor.workshop.write(
        "import os\nfrom tests.cluster.doctor.test_doctor_roles import declare\n"
        "declare(None, os.environ['PLACE'])\n"
    )
    found: dict[Rule | None, Report] = {}
    for case in cases:
        options = ("--no-probe", "--as", case.place, "-n", case.place)
        found[case.lacks] = await doctor.examine(*options, path, PLACE=case.place)
    try:
        await asyncio.gather(*(case.run() for case in cases))
    finally:
        await asyncio.gather(*(case.clear() for case in cases))
    named = {rule: list_missing(report) for rule, report in found.items()}
    assert named == {
        rule: {f"{rule[2]} {rule[1]}"} if rule else set[str]() for rule in (None, *COMPLETE)
    }
    levels = {report.find("startup").level for report in found.values()}
    assert levels == {"ok"}
    failing = {case.lacks for case in cases if case.lacks and case.has_failed()}
    assert failing >= set(NEEDED), set(NEEDED) - failing
    assert cases[0].list_complaints() == []
    assert not [text for case in cases for text in case.errors if "has not come true" in text]
    for rule in OPTIONAL:
        (line,) = (line for line in found[rule].lines if "not granted" in line.text)
        assert (line.level, "optional" in line.text) == ("note", True)


async def test_the_scope_and_the_options_of_the_operator_decide_what_is_needed(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str, doctor: Doctor
) -> None:
    """A role of one namespace does for an operator of that one, and not for the whole cluster."""
    webop_cluster.apply(KIND.build_crd())
    await define_peerings(client)
    namespace, group = webop_namespace, KIND.group
    account = f"system:serviceaccount:{namespace}:operator"
    kind = f"--resource=roles.{group},roles.{group}/status,events"
    where = f"--namespace={namespace}"
    webop_cluster.kubectl("create", "role", "all", "--verb=*", kind, where)
    subject = f"--serviceaccount={namespace}:operator"
    webop_cluster.kubectl("create", "rolebinding", "all", "--role=all", subject, where)
    path = doctor.workshop.write(
        "import os, webop\n"
        f"@webop.on.create('roles.{group}')\ndef created(**_): ...\n"
        f"@webop.on.validate('roles.{group}')\ndef check(**_): ...\n"
        "@webop.on.create('absentees.example.com')\ndef absent(**_): ...\n"
        "@webop.on.startup()\ndef configure(settings, **_):\n"
        "    settings.scanning.disabled = True\n"
        "    settings.admission.server = webop.WebhookServiceServer(service='hooks')\n"
        "    assert os.environ['KUBERNETES_SERVICE_HOST'], 'not a pod'\n"
    )
    options = ("--no-probe", "--as", account, path)
    narrow = await doctor.examine("-n", namespace, "--standalone", *options)
    wide = await doctor.examine(*options)
    assert narrow.find("startup", "Settings").level == "ok"
    secrets = "get and create and update secrets"
    line = narrow.find("absentees.example.com", "Permissions")
    assert line.text.startswith("not in the cluster")
    # Other operators may have left webhook configurations in the cluster.
    missing = {line for line in list_missing(narrow) if "webhookconfigurations" not in line}
    assert missing == {secrets, "not"}
    assert list_missing(wide) > list_missing(narrow)
    assert {"list and get roles", "watch and patch roles", "patch roles/status"} < list_missing(
        wide
    )
    led = await doctor.examine("-n", namespace, "--standalone", "--lease", "mine", *options)
    assert "get and create and update leases" in list_missing(led)
    met = await doctor.examine("-n", namespace, "--peering", "theirs", *options)
    assert "list and watch kopfpeerings" in list_missing(met)


async def test_startup_handlers_that_fail_or_are_not_called_leave_a_warning(
    doctor: Doctor,
) -> None:
    path = doctor.workshop.write(
        "import webop\n@webop.on.startup()\ndef configure(**_):\n"
        "    raise webop.PermanentError('No database.')\n"
    )
    for option, text in (("--startup", "No database."), ("--no-startup", "not called")):
        line = (await doctor.examine("--no-probe", option, path)).find("startup", "Settings")
        assert (line.level, text in line.text) == ("warning", True)
        assert "--lease" in line.remedy
