"""``webop doctor --as``: which rights an operator needs, and lacks."""

from __future__ import annotations

from tests.kit.doctor_runs import Doctor, Report
from tests.kit.operators import Kind
from tests.kit.peering_objects import define_peerings
from webop.client.api import Client
from webop.testing import LocalCluster

KIND = Kind("rolefuls.webop.dev", "roles", "Roleful", has_status=True)


def list_missing(report: Report) -> set[str]:
    lines = [line for line in report.lines if "Permissions" in line.title and line.level != "ok"]
    texts = (line.text.removeprefix("not granted: ").partition(";")[0] for line in lines)
    return {text.partition(" in ")[0] for text in texts}


async def test_the_scope_and_the_options_of_the_operator_decide_what_is_needed(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str, doctor: Doctor
) -> None:
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
