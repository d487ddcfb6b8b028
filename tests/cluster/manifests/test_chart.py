"""``webop manifests --helm``: Helm accepts the chart, and renders the plain manifests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.manifests.test_command import _CONVERTERS, _PODS, _SERVER, _WEBHOOK, Maker
from webop.controlplane.cache import get_root, hold_lock

pytestmark = pytest.mark.journey

Json = dict[str, Any]

_VERSION = "v4.3.1"
_RULES = f"""{_PODS}
webop.rule("pods", id="named", cel="object.metadata.name != 'x'", message="not x")

@webop.on.startup()
def start(settings, **_):
    settings.admission.exempt_account = True
"""
_BOTH = _PODS + _WEBHOOK + _SERVER
_CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "without webhooks": (_PODS, ()),
    "with webhooks": (_BOTH, ()),
    "with most options": (
        _BOTH,
        (
            *("--operator-namespace", "ops", "--create-namespace", "--metrics", "monitoring"),
            *("--pod-network", "10.4.0.0/14", "--peering", "teams", "--rbac", "secrets:get"),
            *("--image", "registry.example.com:5000/a/b:1.2.3", "--managed", "hooks.example.com"),
            *("--env", "A={{ .Values.name }}", "--env", "B=}} {{", "--env", "C=1e3"),
        ),
    ),
    "without a Lease": (_PODS, ("--no-lease",)),
    "in some namespaces": (_BOTH, ("-n", "team-a", "-n", "team-b", "--operator-namespace", "ops")),
    "with kinds of its own, in several versions": (_CONVERTERS + _SERVER, ()),
    "with rules, but not for its own account": (_RULES, ()),
}


@pytest.fixture(scope="session")
def helm() -> str:
    """Helm; it is built once, where Go is."""
    if (found := shutil.which("helm")) is not None:
        return found
    folder = get_root() / "tools" / f"helm-{_VERSION}"
    if not (folder / "helm").exists():
        if shutil.which("go") is None:
            pytest.skip("There is neither helm nor go.")
        with hold_lock(f"tools/{folder.name}", "lock"):
            subprocess.run(
                ["go", "install", "-trimpath", f"helm.sh/helm/v4/cmd/helm@{_VERSION}"],
                env={**os.environ, "GOBIN": str(folder)},
                check=True,
            )
    return str(folder / "helm")


def render(helm: str, chart: Path, *options: str) -> list[Json]:
    """Return the objects of a chart, as Helm would install them."""
    subprocess.run([helm, "lint", "--strict", "--quiet", str(chart)], check=True)
    command = [helm, "template", "release", str(chart), *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def sort(documents: list[Json]) -> list[Json]:
    return sorted(documents, key=lambda one: (one["kind"], str(one["metadata"])))


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES)
def test_a_chart_has_the_objects_of_the_plain_manifests(
    make: Maker, helm: str, tmp_path: Path, case: tuple[str, tuple[str, ...]]
) -> None:
    handlers, options = case
    plain = make(handlers, *options).documents
    chart = tmp_path / "chart"
    made = make(handlers, *options, "--helm", str(chart))
    assert (made.text, "conversion" in made.warnings) == ("", False)
    rendered = render(helm, chart, "--namespace", "default")
    for one in rendered:
        if one["kind"] == "CustomResourceDefinition":  # an uninstall must not delete the objects
            assert one["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert sort(rendered) == sort(plain)


@pytest.mark.timeout(1500)
def test_the_values_of_a_chart_are_options_of_the_command(
    make: Maker, helm: str, tmp_path: Path
) -> None:
    options = ("--name=guard", "--operator-namespace=here", "--image=other:2", "--replicas=5")
    plain = sort(make(_BOTH, *options).documents)
    chart = tmp_path / "chart"
    make(_BOTH, "--helm", str(chart))
    values = "name=guard,image=other:2,replicas=5"
    assert sort(render(helm, chart, "--namespace", "here", "--set", values)) == plain
    values += ",namespace=here"
    assert sort(render(helm, chart, "--namespace", "there", "--set", values)) == plain
    resources = "resources.limits.memory=1Gi,resources.requests.cpu=null"
    rendered = render(helm, chart, "--set", resources)
    (deployment,) = [one for one in rendered if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"memory": "96Mi", "ephemeral-storage": "64Mi"},
        "limits": {"memory": "1Gi", "ephemeral-storage": "256Mi"},
    }


@pytest.mark.timeout(1500)
def test_a_chart_with_shards_has_a_canary_if_a_value_names_its_image(
    make: Maker, helm: str, tmp_path: Path
) -> None:
    chart = tmp_path / "chart"
    make(_BOTH, "--sharded", "--helm", str(chart))
    options = ("--sharded", "--replicas", "31", "--name", "y")  # so many need all Leases
    stable = make(_BOTH, *options).documents
    both = make(_BOTH, *options, "--canary", "y:2").documents
    values = "replicas=31,name=y,image=y:0.1.0"
    place = ("--namespace", "default", "--set")
    assert sort(render(helm, chart, *place, values)) == sort(stable)
    assert sort(render(helm, chart, *place, f"{values},canary=y:2")) == sort(both)
    assert len(both) == len(stable) + 1


def test_a_chart_is_made_again_in_place(make: Maker, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    webhooks, values = chart / "templates" / "webhooks.yaml", chart / "values.yaml"
    (tmp_path / "ca.crt").write_text("CA")
    make(_WEBHOOK + _SERVER, "--helm", str(chart), "--ca", str(tmp_path / "ca.crt"))
    assert webhooks.read_text()
    make(_PODS, "--helm", str(chart), "--image", "registry:5000/pages:2.0.0")
    assert "Webhook" not in webhooks.read_text()
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    found = [about[key] for key in ("name", "version", "appVersion")]
    assert found == ["my-operator", "2.0.0", "2.0.0"]
    assert "Set others with helm: --set NAME=VALUE" in values.read_text()
    values.write_text("name: mine\n")
    assert "this command did not make it" in make.fail(_PODS, "--helm", str(chart))
    assert values.read_text() == "name: mine\n"
    both = make.fail(_PODS, "--helm", str(chart), "--kustomize", str(chart))
    assert both == "--kustomize and --helm exclude each other."
