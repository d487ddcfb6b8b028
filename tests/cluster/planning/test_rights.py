"""``webop manifests --rights-for plan``: an account that can plan, and store nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import webop
from tests.kit.cli_runner import invoke
from tests.kit.plans import MAPS, PLANNERS, Desk, list_stored_writes, read_audit
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.kubeconfig import read_kubeconfig
from webop.settings.groups import NetworkingSettings

HANDLERS = """
@webop.on.create('kiosks')
def made(**_): ...

@webop.reconcile('kiosks', owns=['configmaps'])
async def build(name, spec, children, patch, **_):
    for page in spec['pages']:
        await children.apply({
            'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{name}-{page}'},
        })
    await children.prune()
    patch.status['pages'] = spec['pages']
"""


async def test_the_account_can_plan_everything_and_write_nothing(
    desk: Desk, audit_log: Path
) -> None:
    desk.write(HANDLERS)
    await desk.objects.create("one", {"pages": ["a", "b"]})
    async with desk.run():
        await desk.objects.wait("one", lambda body: body.get("status", {}).get("pages"))
    await desk.objects.patch("one", {"spec": {"pages": ["b", "c"]}})
    options = "--rights-for", "plan", "--cluster", "-n", desk.namespace, "--name", "shopper"
    printed = await desk.command("manifests", *options)
    assert printed.code == 0, printed.errors
    for body in yaml.safe_load_all(printed.output):
        desk.cluster.apply(body)
    user = f"system:serviceaccount:{desk.namespace}:shopper-plan"
    config = desk.cluster.kubeconfig_for(user, [PLANNERS], namespace=desk.namespace)
    async with Client(
        webop.Vault({"x": read_kubeconfig([config])}), NetworkingSettings()
    ) as client:
        change = {"data": {"changed": "by the account"}}

        async def is_denied() -> str:
            try:
                await client.patch(MAPS, desk.namespace, "one-b", change)
            except webop.APIStatusError as exc:
                return str(exc)
            return ""

        # A new policy is in force a moment later.
        said = await eventually(is_denied, "a denial", check=lambda text: "can only do" in text)
        assert "dry-runs-only.shopper-plan" in said
        with pytest.raises(webop.APIStatusError, match="can only do dry runs"):
            await client.delete(MAPS, desk.namespace, "one-b")
    before, seen = await desk.list(MAPS), len(read_audit(audit_log, user))
    planned = await desk.plan("--call", KUBECONFIG=str(config))
    assert planned.code == 2, planned.errors
    assert planned.words("one") == [
        "store the state of the object as handled",
        "call Reconciler 'build'",
        f"create 'one-c' of configmaps in {desk.namespace}",
        f"delete 'one-a' of configmaps in {desk.namespace}",
        f"change 'one' of kiosks.plan.webop.dev in {desk.namespace}",
    ]
    assert {item["certainty"] for item in planned.items("one")} == {"will"}
    assert await desk.list(MAPS) == before
    events = read_audit(audit_log, user)[seen:]
    assert events
    assert not list_stored_writes(events)


@pytest.mark.parametrize("options", [["--helm", "chart"], ["--sharded", "--canary", "shop:2"]])
def test_an_account_is_no_chart_and_no_canary(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handlers.py").write_text(f"import webop\n{HANDLERS}")
    done = invoke("manifests", "--rights-for", "plan", *options, "handlers.py")
    assert done.exit_code == 2
    assert f"--rights-for plan and {options[-2]} exclude each other" in done.output
    assert not (tmp_path / "chart").exists()
