"""``webop doctor`` about operators that are not well: the reason, and what to do."""

from __future__ import annotations

import base64
import signal
from typing import Any

import pytest

import webop
from tests.kit.doctor_runs import Doctor, configure, wait_in_force
from tests.kit.exec_plugins import write_kubeconfig
from tests.kit.managed_webhooks import KINDS, Site
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port
from webop.handlers.model import WebhookType
from webop.servers.certificates.certs import build_ca

SERVICES = webop.Resource("", "v1", "services", kind="Service", namespaced=True)

OPERATOR = """
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.admission.server = webop.WebhookServer(port=0)
    settings.admission.managed = '{name}'

@webop.on.validate({names}, id='check')
def check(**_): ...
"""


def encode(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


async def test_an_operator_that_was_killed_is_found_out_at_once(site: Site, doctor: Doctor) -> None:
    names = ", ".join(map(repr, site.names))
    path = doctor.workshop.write(OPERATOR.format(name=site.name, names=names))
    kubeconfig = str(site.cluster.kubeconfig)
    async with doctor.workshop.start("-A", path, KUBECONFIG=kubeconfig) as command:
        await eventually(lambda: site.has_names("check", ""), "the webhook")
        await command.stop(signal.SIGKILL)
    await wait_in_force(site)
    report = await doctor.examine("--managed", site.name, path)
    text = await doctor.speak("--managed", site.name, path)
    assert report.code == text.code == 1
    assert report.find("replicas").level == "ok"  # nobody can know yet
    assert "connection refused" in report.find("address").text
    line = report.find(f"check.{site.name}")
    assert (line.level, line.text.partition(":")[0]) == ("failure", "no server listens there")
    assert line.remedy.startswith("Start the operator")
    assert text.output.endswith("1 failure, 1 warning, 9 ok.\n"), text.output


async def test_a_bundle_of_another_authority_is_found_from_here_and_from_there(
    site: Site, doctor: Doctor
) -> None:
    def check(**_: Any) -> None: ...

    webop.on.validate(*site.names, id="check")(check)
    async with site.run():
        found = await site.client.get(KINDS[WebhookType.VALIDATING], None, site.name)
        bundle = encode(build_ca("stranger").cert)
        for webhook in found["webhooks"]:
            webhook["clientConfig"]["caBundle"] = bundle
        patch = {"webhooks": found["webhooks"]}
        await site.client.patch(KINDS[WebhookType.VALIDATING], None, site.name, patch)
        said = await wait_in_force(site)
        report = await doctor.examine("--managed", site.name)
    assert "x509" in said
    assert report.code == 1
    assert report.find("caBundle", "Validating").level == "ok"
    assert report.find("certificate", "Validating").level == "failure"
    line = report.find(f"check.{site.name}", "Validating")
    assert (line.level, line.text.partition(":")[0]) == (
        "failure",
        "the caBundle does not trust the certificate",
    )


async def test_what_an_account_lacks_is_listed_with_the_rules_to_add(
    site: Site, doctor: Doctor
) -> None:
    namespace = site.objects.namespace
    service = {"name": "hooks", "namespace": namespace}
    await configure(site, {"service": service})
    names = ", ".join(map(repr, site.names))
    code = f"""
import webop
@webop.on.startup()
def configure(settings, **_):
    settings.networking.rights = ["pods/log:get", "nodes:list", "absent.example.com/things:get"]
@webop.on.create({names})
def created(**_): ...
"""
    path = doctor.workshop.write(code)
    account = f"system:serviceaccount:{namespace}:nobody"
    # Without peering, as other tests on this cluster may define its kinds.
    options = ("--managed", site.name, "--no-probe", "--standalone", "-n", namespace)
    report = await doctor.examine(*options, "--as", account, path)
    assert report.code == 1
    title = f"Permissions of {account}"
    rules = {line.subject: line.remedy for line in report.of("failure", title)}
    group = site.objects.kind.group
    verbs = "watch, patch"
    for kind in ("validating", "mutating"):
        rule = rules.pop(f"{kind}webhookconfigurations")
        assert f"resourceNames: [{site.name}], verbs: [patch]}}" in rule
    assert rules == {
        "patients": f"Add to the Role in {namespace}: {{apiGroups: [{group}], "
        f"resources: [patients], verbs: [{verbs}]}}",
        "pods/log": f'Add to the Role in {namespace}: {{apiGroups: [""], '
        "resources: [pods/log], verbs: [get]}",
        "nodes": 'Add to the ClusterRole: {apiGroups: [""], resources: [nodes], verbs: [list]}',
    }
    unknown = report.find("things.absent.example.com")
    assert unknown.text == "not in the cluster: its permissions were not checked"
    warnings = [line.subject for line in report.of("warning", title)]
    assert warnings == ["patients", "customresourcedefinitions", "events", unknown.subject]


async def test_handlers_and_webhooks_that_do_not_fit_are_named(site: Site, doctor: Doctor) -> None:
    config = {"url": f"https://localhost:{find_free_port()}/hook"}
    await configure(site, config)
    names = ", ".join(map(repr, site.names))
    code = f"""
import webop
@webop.on.validate({names}, id='other')
def other(**_): ...
@webop.on.mutate('absentees.example.com', id='absent')
def absent(**_): ...
"""
    path = doctor.workshop.write(code)
    report = await doctor.examine("--managed", site.name, "--no-probe", path)
    assert report.code == 1
    missing, unknown = (line for line in report.lines if line.subject == "handlers")
    assert (missing.level, f"other.{site.name}" in missing.text) == ("failure", True)
    assert "not in the cluster" in report.find("absentees.example.com").text
    assert (unknown.level, f"check.{site.name}" in unknown.text) == ("warning", True)


@pytest.mark.parametrize("where", ["option", "startup handler"])
async def test_a_name_without_configurations_is_a_failure(doctor: Doctor, where: str) -> None:
    name = "nobody.example.com"
    code = OPERATOR.format(name=name, names="'pods'")
    args = ("--standalone", doctor.workshop.write(code))
    report = await doctor.examine(*(("--managed", name) if where == "option" else args))
    assert report.find("existence").level == "failure"
    assert report.code == 1
    assert name in report.find("existence").text


async def test_an_unknown_webhook_is_found(site: Site, doctor: Doctor) -> None:
    def check(**_: Any) -> None: ...

    webop.on.validate(*site.names, id="check")(check)
    async with site.run():
        found = await site.client.get(KINDS[WebhookType.VALIDATING], None, site.name)
        webhook = next(w for w in found["webhooks"] if w["name"].startswith("check"))
        webhook["name"] = f"unknown.{site.name}"
        webhook["clientConfig"]["url"] += "nown"
        patch = {"webhooks": found["webhooks"]}
        await site.client.patch(KINDS[WebhookType.VALIDATING], None, site.name, patch)
        await wait_in_force(site)
        report = await doctor.examine("--managed", site.name)
    assert report.code == 1
    assert "does not serve" in report.find(f"unknown.{site.name}").text
    assert report.find("orphans").level == "warning"


async def test_without_a_cluster_it_says_so(doctor: Doctor) -> None:
    nobody = Doctor(doctor.workshop, None)
    report = await nobody.examine()
    assert report.code == 1
    assert "KUBECONFIG" in report.find("login").text
    server = f"https://127.0.0.1:{find_free_port()}"
    dead = write_kubeconfig(doctor.workshop.folder, server)
    report = await nobody.examine(KUBECONFIG=dead)
    assert report.code == 1
    assert "get /version" in report.find("server").text


async def test_refused_credentials_are_told(site: Site, doctor: Doctor) -> None:
    content = site.cluster.kubeconfig.read_text().replace(site.cluster.token, "wrong")
    path = doctor.workshop.folder / "wrong.yaml"
    path.write_text(content)
    report = await doctor.examine(KUBECONFIG=str(path))
    assert report.code == 1
    assert "401" in report.find("login").text


@rows(
    ("arguments", "code", "expected"),
    [
        (["nowhere.py"], 1, "nowhere.py"),
        (["-m", "nonexistent_module"], 1, "nonexistent_module"),
        (["--as", "system:serviceaccount:operator"], 2, "system:serviceaccount:NAMESPACE:NAME"),
        (["-n", "ns-*"], 2, "pattern"),
        (["--unknown"], 2, "--unknown"),
    ],
)
async def test_mistakes_in_options_are_told(
    doctor: Doctor, arguments: list[str], code: int, expected: str
) -> None:
    report = await doctor.speak(*arguments)
    assert (report.code, expected in report.errors) == (code, True)


async def test_mistakes_in_files_and_variables_are_told(
    doctor: Doctor, caplog: pytest.LogCaptureFixture
) -> None:
    path = doctor.workshop.write("import webop\nnonsense()\n")
    report = await doctor.speak(path)
    assert report.code == 1
    assert "line 2" in report.errors
    report = await doctor.speak(WEBOP_ADMISSION__SHUTDOWN_DELAY="x")
    assert report.code == 1
    assert "WEBOP_ADMISSION__SHUTDOWN_DELAY" in report.errors
    await doctor.speak(WEBOP_ADMISSION__MANAGE="x")
    assert "Did you mean WEBOP_ADMISSION__MANAGED?" in caplog.text
