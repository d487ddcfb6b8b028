"""``webop doctor --as`` beside an operator that has the same role: what one names, the other lacks.

Rules are taken out of a complete role.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.admission.managing import Site, open_site
from tests.commands import Command
from tests.doctor.consulting import Doctor, Report
from tests.meeting import Meeting, define_peerings
from tests.operating import Kind
from webop.client.api import Client

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

OPERATOR = """
import webop

@webop.on.startup()
def configure(settings, **_):
    print('this is not JSON either')
    settings.admission.managed = '{name}'
    settings.admission.server = webop.WebhookServiceServer(
        service='hooks', namespace='{namespace}', addr='localhost', port=0,
        poll_interval=0.1, settle_time=0.1,
    )
    settings.admission.shutdown_delay = 0
    settings.leadership.lease_name = settings.peering.name = '{lease}'
    settings.leadership.lease_namespace = '{namespace}'
    settings.leadership.retry_period = 0.5
    settings.peering.mandatory = True

@webop.on.validate('{kind}', operation='DELETE', ignore_failures=True)
def check(**_): ...

@webop.on.mutate('{kind}', operations=['DELETE'], ignore_failures=True)
def change(**_): ...

@webop.on.create('{kind}')
def created(**_):
    return 'this goes into the status'

@webop.timer('{kind}', interval=0.5)
def repeat(logger, **_):
    logger.info('the same again')
"""

Rule = tuple[str, str, str]
ADMISSION, LEASES, PEERING = "admissionregistration.k8s.io", "coordination.k8s.io", "kopf.dev"
DEFINITION = "apiextensions.k8s.io"
VALIDATING, MUTATING = "validatingwebhookconfigurations", "mutatingwebhookconfigurations"
SECRET = "hooks-webhook-certs"
OWN = "the group of the kind"

KINDS = "customresourcedefinitions"
MEETINGS = "clusterkopfpeerings"
# Each group is missing at once, for speed: none of its rules hides that another one is missing.
GROUPS: list[list[Rule]] = [
    [(DEFINITION, KINDS, "list"), (LEASES, "leases", "get"), (PEERING, MEETINGS, "list")],
    [(DEFINITION, KINDS, "watch"), (LEASES, "leases", "create"), (PEERING, MEETINGS, "watch")],
    [(OWN, "roles", "watch"), (LEASES, "leases", "update")],
    [(OWN, "roles", "patch"), ("", "secrets", "update")],
    [(OWN, "roles/status", "patch"), ("", "events", "patch")],
    [("", "events", "create")],
    [(PEERING, MEETINGS, "patch")],
    # These end the operator.
    *([("", "secrets", verb)] for verb in ("get", "create")),
    *([(ADMISSION, VALIDATING, verb)] for verb in ("create", "patch")),
    *([(ADMISSION, MUTATING, verb)] for verb in ("create", "patch")),
]
# Without these, operators do the same if there are few objects, and if the API server is a new one;
# and they hand over less quickly.
SPARE: list[Rule] = [
    *((OWN, "roles", verb) for verb in ("get", "list")),
    *((LEASES, "leases", verb) for verb in ("list", "watch")),
]
COMPLETE = [*itertools.chain(*GROUPS), *SPARE]


@pytest.fixture(scope="module")
def kind() -> Kind:
    return Kind("rolefuls.webop.dev", "roles", "Roleful", has_status=True)


@pytest.fixture
async def place(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str, kind: Kind
) -> AsyncIterator[Site]:
    """What an operator has to itself, with a peering object and an object to handle."""
    webop_cluster.apply(kind.build_crd())
    await define_peerings(client)
    async with open_site(webop_cluster, client, webop_namespace, kind) as site:
        meeting = Meeting(client, None, webop_namespace)
        await meeting.create()
        await site.objects.create("one")
        yield site
        await client.delete(meeting.resource, None, meeting.name)
    await site.objects.patch("one", {"metadata": {"finalizers": None}})
    await site.objects.delete("one")


def grant(site: Site, user: str, rules: list[Rule]) -> None:
    """Grant rules to a user, in the whole cluster; those about one object for that object."""
    own, secret = ({"resourceNames": [name]} for name in (site.objects.namespace, SECRET))
    names = {"leases": own, "clusterkopfpeerings": own, "secrets": secret}
    granted = [
        {
            "apiGroups": [site.objects.kind.group if group == OWN else group],
            "resources": [resource],
            "verbs": [verb],
            **({} if verb == "create" else names.get(resource, {})),
        }
        for group, resource, verb in rules
    ]
    api = "rbac.authorization.k8s.io"
    site.cluster.apply(
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": user},
            "rules": granted,
        },
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
        },
    )


def write(site: Site, doctor: Doctor) -> Any:
    namespace = site.objects.namespace
    group = f"{site.objects.kind.plural}.{site.objects.kind.group}"
    code = OPERATOR.format(name=site.name, namespace=namespace, lease=namespace, kind=group)
    return doctor.workshop.write(code)


async def examine(site: Site, doctor: Doctor, user: str) -> Report:
    return await doctor.examine("--no-probe", "--as", user, "-A", write(site, doctor))


def list_missing(report: Report) -> set[str]:
    """Return what is not granted, as in "get pods"."""
    lines = [*report.of("warning", "Permissions"), *report.of("failure", "Permissions")]
    return {line.text.removeprefix("not granted: ").partition(" in ")[0] for line in lines}


async def rotate(site: Site, command: Command) -> None:
    """Ask for another certificate as soon as the operator has one."""
    await command.wait_for("Webhooks are served")
    arguments = ("annotate", "secret", SECRET, "webop.dev/rotate=now")
    where = f"--namespace={site.objects.namespace}"
    await asyncio.to_thread(site.cluster.kubectl, *arguments, where)


async def test_with_a_complete_role_the_doctor_and_the_operator_have_nothing_to_complain_of(
    place: Site, doctor: Doctor
) -> None:
    user = f"{place.objects.namespace}-complete"
    grant(place, user, COMPLETE)
    report = await examine(place, doctor, user)
    assert list_missing(report) == set()
    assert report.find("startup", "Settings").level == "ok"
    kubeconfig = str(place.cluster.kubeconfig_for(user))
    async with doctor.workshop.start("-A", write(place, doctor), KUBECONFIG=kubeconfig) as command:
        await place.objects.wait("one", lambda body: "created" in body.get("status", {}))
        await rotate(place, command)
        await place.wait_for_names("check", "change")
        assert await command.stop() == 0
    assert " cannot " not in command.output


@pytest.mark.parametrize("rules", GROUPS)
async def test_rules_that_the_doctor_finds_missing_are_those_that_the_operator_fails_for(
    place: Site, doctor: Doctor, rules: list[Rule]
) -> None:
    user = f"{place.objects.namespace}-without"
    grant(place, user, [rule for rule in COMPLETE if rule not in rules])
    kubeconfig = str(place.cluster.kubeconfig_for(user))
    async with doctor.workshop.start("-A", write(place, doctor), KUBECONFIG=kubeconfig) as command:
        report = await examine(place, doctor, user)
        if ("", "secrets", "update") in rules:
            await rotate(place, command)
        for _, resource, verb in rules:
            await command.wait_for(f'cannot {verb} resource "{resource}"')
    assert list_missing(report) == {f"{verb} {resource}" for _, resource, verb in rules}


async def test_a_spare_rule_that_is_missing_is_named_too(place: Site, doctor: Doctor) -> None:
    user = f"{place.objects.namespace}-spare"
    grant(place, user, [rule for rule in COMPLETE if rule not in SPARE])
    missing = list_missing(await examine(place, doctor, user))
    assert missing == {"get roles", "list roles", "list and watch leases"}


async def test_the_scope_and_the_options_of_the_operator_decide_what_is_needed(
    place: Site, doctor: Doctor
) -> None:
    """A role of one namespace does for an operator of that one, and not for the whole cluster."""
    namespace, group = place.objects.namespace, place.objects.kind.group
    account = f"system:serviceaccount:{namespace}:operator"
    kind = f"--resource=roles.{group},roles.{group}/status,events"
    where = f"--namespace={namespace}"
    place.cluster.kubectl("create", "role", "all", "--verb=*", kind, where)
    subject = f"--serviceaccount={namespace}:operator"
    place.cluster.kubectl("create", "rolebinding", "all", "--role=all", subject, where)
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
    line = narrow.find("absentees, group=example.com", "Permissions")
    assert line.text == "not in the cluster: the rights to it are not checked"
    assert list_missing(narrow) == {secrets, "not"}
    assert list_missing(wide) > list_missing(narrow)
    assert {"list and watch and patch roles", "patch roles/status"} < list_missing(wide)
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
