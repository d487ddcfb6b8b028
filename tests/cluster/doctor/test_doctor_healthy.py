"""``webop doctor`` about operators that are well."""

from __future__ import annotations

from typing import Any

import webop
from tests.kit.doctor_runs import Doctor, configure
from tests.kit.managed_webhooks import Site
from tests.kit.rights import grant
from webop.controlplane.cluster_client import find_free_port

SERVICES = webop.Resource("", "v1", "services", kind="Service", namespaced=True)

HANDLERS = """
import webop

print('this is not JSON')

@webop.on.validate({names}, id='check')
def check(**_): ...

@webop.on.mutate({names}, id='default')
def default(**_): ...

@webop.on.startup()
def never(**_):
    raise SystemExit('the doctor calls nothing')
"""


def declare(site: Site) -> None:
    """Declare a handler of each kind; what is bad is denied."""

    def check(spec: Any, **_: Any) -> None:
        if spec.get("bad"):
            raise webop.AdmissionError("Too bad.", code=400)

    webop.on.validate(*site.names, id="check")(check)
    webop.on.mutate(*site.names, id="default")(check)


async def test_an_operator_with_a_url_is_found_in_order(site: Site, doctor: Doctor) -> None:
    declare(site)
    names = ", ".join(map(repr, site.names))
    path = doctor.workshop.write(HANDLERS.format(names=names))
    async with site.run():
        report = await doctor.examine("--managed", site.name, "--no-startup", path)
        text = await doctor.speak("--managed", site.name)
    assert report.code == text.code == 0, report.output
    # The sentinel is a webhook of the test's own: the file has no such handler.
    assert [line.subject for line in report.of("warning")] == ["startup", "handlers", "handlers"]
    assert report.find("replicas").text.endswith(" s ago)")
    for kind, name in (("Validating", "check"), ("Mutating", "default")):
        assert "trusted" in report.find("certificate", kind).text
        assert report.find(f"{name}.{site.name}", kind).text.startswith("called by")
    assert report.find("mutatingwebhookconfigurations", "Permissions of admin").level == "ok"
    assert text.output.startswith("API server\n  ok ")
    assert text.output.endswith(" ok.\n")
    assert "\x1b" not in text.output
    assert "this is not JSON" in report.errors


async def test_a_denial_is_a_proof_and_existing_objects_are_tried(
    site: Site, doctor: Doctor
) -> None:
    await site.objects.create("one", {"bad": True})
    seen = []

    def check(spec: Any, dryrun: bool, **_: Any) -> None:
        seen.append(dryrun)
        if spec.get("bad"):
            raise webop.AdmissionError("Too bad.", code=400)

    webop.on.validate(*site.names, id="check", operation="UPDATE")(check)
    async with site.run():
        seen.clear()
        report = await doctor.examine("--managed", site.name, "-n", site.objects.namespace)
    assert report.code == 0, report.output
    line = report.find(f"check.{site.name}")
    assert "it denied an UPDATE of patients" in line.text
    assert seen == [True]
    assert "annotations" not in (await site.objects.get("one"))["metadata"]


async def test_an_operator_behind_a_service_is_found_in_order(site: Site, doctor: Doctor) -> None:
    declare(site)
    namespace, port = site.objects.namespace, find_free_port()
    # An ExternalName leads API servers to this process, with the TLS name of the Service.
    spec = {"type": "ExternalName", "externalName": "localhost"}
    await site.client.create(SERVICES, namespace, {"metadata": {"name": "hooks"}, "spec": spec})
    server = webop.WebhookServiceServer(
        service="hooks",
        namespace=namespace,
        service_port=port,
        port=port,
        addr="localhost",
        poll_interval=0.1,
        settle_time=0.1,
    )
    async with site.run(server=server):
        report = await doctor.examine()
    assert report.of("failure", site.name) == report.of("warning", site.name) == []
    title = f"ValidatingWebhookConfiguration {site.name}"
    line = report.find("certificate", title)
    assert (line.level, f"hooks.{namespace}.svc, serial number" in line.text) == ("ok", True)
    assert report.find(f"check.{site.name}", title).text.startswith("called by")


async def test_the_operators_own_account_needs_no_more_than_the_operator(
    site: Site, doctor: Doctor
) -> None:
    declare(site)
    user = f"operator-{site.objects.kind.group}"
    for kind in ("validating", "mutating"):
        resource = f"{kind}webhookconfigurations.admissionregistration.k8s.io"
        await grant(site.client, user, resource, "create,patch")
    kubeconfig = str(site.cluster.kubeconfig_for(user))
    async with site.run():
        report = await doctor.examine("--managed", site.name, KUBECONFIG=kubeconfig)
        unnamed = await doctor.examine(KUBECONFIG=kubeconfig)
    assert report.code == unnamed.code == 0, report.output
    assert report.find("replicas").level == "ok"
    line = report.find(f"check.{site.name}")
    assert (line.level, "an account that may do this" in line.remedy) == ("warning", True)
    assert report.find("mutatingwebhookconfigurations", f"Permissions of {user}").level == "ok"
    assert "--managed NAME" in unnamed.find("configurations").remedy
    options = ("--managed", site.name, "--no-probe", "--as", "jane")
    line = (await doctor.examine(*options, KUBECONFIG=kubeconfig)).find(
        "unknown", "Permissions of jane"
    )
    assert (line.level, "subjectaccessreviews" in line.text) == ("note", True)


async def test_an_operator_without_webhooks_is_not_told_to_manage_some(
    site: Site, doctor: Doctor
) -> None:
    await configure(site, {"url": f"https://localhost:{find_free_port()}"})  # of another operator
    rule = "webop.rule('v1', 'pods', id='any', cel='true', message='no')"
    for code in ("@webop.on.create('pods')\ndef fn(**_): ...", rule):
        path = doctor.workshop.write(f"import webop\n{code}\n")
        report = await doctor.examine("--no-probe", path)
        assert "settings.admission.managed" not in " ".join(line.remedy for line in report.lines)
    assert report.find("configurations").text.startswith("none needed")
    assert site.name not in report.output
