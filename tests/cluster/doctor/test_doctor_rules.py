"""``webop doctor`` about the rules of files (``webop.rule``)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
import yaml

from tests.kit.cli_runner import invoke
from tests.kit.doctor_runs import Doctor
from tests.kit.operators import Json, Kind
from webop.testing import ClusterError, LocalCluster

_API = "admissionregistration.k8s.io/v1"
_HANDLERS = """
import webop

KIND = ("{group}", "{version}", "{plural}")

@webop.on.startup()
def configure(settings, **_):
    settings.admission.exempt_account = {is_exempt}

@webop.on.event(*KIND)
def see(**_): ...

webop.rule(
    *KIND,
    id="{stem}-size",
    cel='''
        object.spec.size < 100 || object.spec.text == "a: 'b'"
    ''',
    message="spec.size must be below 100",
    labels={{"app": webop.PRESENT}},
    match_conditions={{"b": "request.userInfo.username != 'me'"}},
)
"""
_CHANGE = """
webop.rule(*KIND, id="{stem}-change", apply="Object{{spec: Object.spec{{size: 1}}}}")
"""


class Rules:
    """An operator with rules: its file, and its policies in the cluster."""

    def __init__(self, doctor: Doctor, cluster: LocalCluster, kind: Kind) -> None:
        self.doctor = doctor
        self.cluster = cluster
        self.stem = f"r{kind.group.removesuffix('.webop.dev').replace('.', '-')}"  # of the worker
        self._names = {"group": kind.group, "version": "v1", "plural": kind.plural}
        self.account = "system:serviceaccount:default:depot"
        self.title = "Rules"

    def write(self, text: str = _HANDLERS, *, is_exempt: bool = False) -> str:
        names = {**self._names, "stem": self.stem, "is_exempt": is_exempt}
        return str(self.doctor.workshop.write(text.format(**names)))

    async def make(self, path: str) -> list[Json]:
        """Return the policies and bindings that ``webop manifests`` prints."""
        variables = {"KUBECONFIG": str(self.cluster.kubeconfig)}
        args = ("manifests", "--cluster", "--name=depot", path)
        result = await asyncio.to_thread(invoke, *args, env=variables)
        assert result.exit_code == 0, result.stderr
        found = [one for one in yaml.safe_load_all(result.stdout) if one]
        return [one for one in found if "AdmissionPolicy" in one["kind"]]

    async def examine(self, *args: str) -> tuple[int, str, str, str]:
        """Return the exit code, and what the doctor says about the first rule."""
        report = await self.doctor.examine(*args)
        line = report.find(f"{self.stem}-size", self.title)
        return report.code, line.level, line.text, line.remedy

    def delete(self) -> None:
        for kind in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"):
            for name in (f"{self.stem}-size", f"{self.stem}-change"):
                for suffix in ("Binding", ""):
                    with suppress(ClusterError):  # old versions have no such kind
                        self.cluster.delete(_API, f"{kind}{suffix}", f"{name}.depot")


@pytest.fixture
def rules(doctor: Doctor, webop_cluster: LocalCluster, kinds: Iterator[Kind]) -> Iterator[Rules]:
    made = Rules(doctor, webop_cluster, next(kinds))
    yield made
    made.delete()


async def test_a_rule_is_in_force_when_its_policy_and_its_binding_are_in_the_cluster(
    rules: Rules,
) -> None:
    path = rules.write(_HANDLERS + _CHANGE)
    code, level, text, remedy = await rules.examine(path)
    assert (code, level) == (1, "failure")
    assert text == "not in force: its policy is not in the cluster"
    assert remedy.endswith("webop manifests FILES | kubectl apply -f -")

    policies = await rules.make(path)
    is_binding = [one["kind"].endswith("Binding") for one in policies]
    rules.cluster.apply(*(one for one, it in zip(policies, is_binding, strict=True) if not it))
    _, level, text, _ = await rules.examine(path)
    assert (level, text) == ("failure", f"not in force: {rules.stem}-size.depot has no binding")

    rules.cluster.apply(*policies)
    matched = re.match(r"v1\.(\d+)", rules.cluster.version)
    has_mutating = matched is not None and int(matched[1]) >= 36
    for options in ((), ("--as", rules.account)):
        report = await rules.doctor.examine(*options, path)
        line = report.find(f"{rules.stem}-size", rules.title)
        assert (line.level, line.text) == ("ok", f"in force as {rules.stem}-size.depot")
        line = report.find(f"{rules.stem}-change", rules.title)
        assert line.level == ("ok" if has_mutating else "warning"), line
    stranger = "system:serviceaccount:default:other"
    assert (await rules.examine("--as", stranger, path))[1] == "failure"


async def test_a_policy_of_an_older_rule_is_a_warning_that_names_the_field(rules: Rules) -> None:
    rules.cluster.apply(*await rules.make(rules.write()))
    for old, new, place in (
        ("< 100 ||", "< 99 ||", "spec.validations[0].expression"),
        ('labels={{"app": webop.PRESENT}},', "", "spec.matchConstraints.objectSelector"),
        ('id="', 'operations=["CREATE"], id="', "operations"),
        ('id="', 'action="Warn", id="', "Binding"),
    ):
        _, level, text, remedy = await rules.examine(rules.write(_HANDLERS.replace(old, new)))
        assert (level, place in text) == ("warning", True), text
        assert remedy

    # The exempt account counts only if it is known.
    path = rules.write(is_exempt=True)
    rules.cluster.apply(*await rules.make(path))
    for options in ((), ("--as", rules.account), ("--as", rules.account, "--no-startup")):
        assert (await rules.examine(*options, path))[1] == "ok", options
    path = rules.write(is_exempt=False)
    _, level, text, _ = await rules.examine("--as", rules.account, path)
    assert (level, "in spec.matchConditions[" in text) == ("warning", True)


async def test_without_the_right_to_read_policies_the_rules_are_unknown(rules: Rules) -> None:
    kubeconfig = str(rules.cluster.kubeconfig_for(f"stranger-{rules.stem}"))
    report = await rules.doctor.examine("--no-probe", rules.write(), KUBECONFIG=kubeconfig)
    line = report.find("unknown", rules.title)
    assert (line.level, "validatingadmissionpolicies" in line.text) == ("note", True)
