"""Rules of handlers' files: ``webop manifests`` writes them, and the API server goes by them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.cluster.manifests.test_command import Made, Maker
from tests.kit.processes import run_module
from webop.client.objects import AsyncClient
from webop.testing import ClusterError, LocalCluster, eventually

if TYPE_CHECKING:
    from webop.client.api import Client

Json = dict[str, Any]

_GROUP = "admissionregistration.k8s.io"
_HANDLERS = """\
class LedgerSpec(webop.Struct):
    engine: str
    size: int = 1

@webop.resource("policies.webop.dev", "v1")
class Ledger(webop.Model):
    spec: LedgerSpec

@webop.on.create(Ledger)
def fn(**_): ...

webop.rule(
    Ledger,
    id="engine-is-fixed",
    cel="object.spec.engine == oldObject.spec.engine",
    message="spec.engine cannot be changed",
)
"""
_SIZE = """
webop.rule(
    "ledgers.policies.webop.dev",
    id="size-is-small",
    cel='''
        object.spec.size < 100 // "GB"
    ''',
    message="spec.size must be below 100",
    action="{action}",
)
"""
_CHANGES = """
webop.rule(
    Ledger,
    id="sized",
    apply="Object{metadata: Object.metadata{labels: {'size': string(object.spec.size)}}}",
)
webop.rule(
    Ledger,
    id="patched",
    json_patch='''[JSONPatch{op: "add", path: "/spec/size", value: object.spec.size + 1}]''',
    operations=["UPDATE"],
)
"""


def select_policies(made: Made) -> list[Json]:
    return [one for one in made.documents if "AdmissionPolicy" in one["kind"]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            _HANDLERS + _HANDLERS.replace("cannot be", "can't be"),
            "Two rules have the id 'engine-is-fixed'.",
        ),
        ("webop.rule('pods', id='a', cel='true', message='no')\n", "There are only rules in"),
    ],
    ids=["two rules of one id", "rules alone are no operator"],
)
def test_files_with_wrong_rules_are_refused(make: Maker, text: str, reason: str) -> None:
    assert reason in make.fail(text)


class Ledgers:
    """Objects of the kind of the rules, in a namespace."""

    def __init__(self, cluster: LocalCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def enact(self, made: Made) -> None:
        self.cluster.apply(made.find("CustomResourceDefinition"))
        self.cluster.apply(*select_policies(made))

    def apply(self, *, engine: str = "a", size: int = 1, is_dry: bool = False, **meta: Any) -> Json:
        body = {
            "apiVersion": "policies.webop.dev/v1",
            "kind": "Ledger",
            "metadata": {"name": "one", **meta},
            "spec": {"engine": engine, "size": size},
        }
        (stored,) = self.cluster.apply(body, namespace=self.namespace, dry_run=is_dry)
        return stored

    def read_denial(self, **options: Any) -> str:
        try:
            self.apply(is_dry=True, **options)
        except ClusterError as exc:
            return str(exc)
        return ""

    def delete(self) -> None:
        self.cluster.delete("policies.webop.dev/v1", "Ledger", "one", self.namespace)


@pytest.fixture
def ledgers(webop_cluster: LocalCluster, webop_namespace: str) -> Any:
    yield Ledgers(webop_cluster, webop_namespace)
    for kind in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"):
        for name in ("engine-is-fixed", "size-is-small", "sized", "patched"):
            for suffix in ("Binding", ""):
                try:
                    webop_cluster.delete(f"{_GROUP}/v1", f"{kind}{suffix}", f"{name}.db")
                except ClusterError:  # no such kind in this version
                    break


def test_rules_hold_without_an_operator(make: Maker, ledgers: Ledgers) -> None:
    made = make(_HANDLERS + _SIZE.format(action="Deny"), "--name=db")
    ledgers.cluster.apply(made.find("CustomResourceDefinition"))
    ledgers.apply(size=500, finalizers=["webop.dev/test"])  # older than the rule
    ledgers.cluster.apply(*select_policies(made))
    denial = eventually(lambda: ledgers.read_denial(engine="b", size=50), timeout=30)
    assert "HTTP 422" in denial
    assert "denied request: spec.engine cannot be changed" in denial
    assert eventually(lambda: ledgers.read_denial(size=101), timeout=30).endswith(
        "denied request: spec.size must be below 100"
    )
    assert not ledgers.read_denial(size=99)

    ledgers.delete()  # it still violates the rule
    ledgers.apply(size=500, finalizers=[])
    assert not ledgers.cluster.get("policies.webop.dev/v1", "Ledger", "one", ledgers.namespace)


_NAMES = """\
import pydantic
import webop


class ShelfSpec(webop.Struct):
    size: int = 1
    top_name: str = pydantic.Field("", alias="top-name")
    namespace: str = ""

@webop.resource(
    "policies.webop.dev", "v1", scale=webop.Scale(replicas=".spec.size", status=".status.size")
)
class Shelf(webop.Model):
    spec: ShelfSpec
    status: dict[str, int] = {}

@webop.on.create(Shelf)
def fn(**_): ...

webop.rule(
    Shelf, id="dashed", cel="object.spec[?'top-name'].orValue('') != 'bad'", message="dashed"
)
webop.rule(Shelf, id="reserved", cel="object.spec.namespace != 'bad'", message="reserved")
webop.rule(Shelf, id="small", cel="object.spec.size < 9", message="small")
webop.rule(
    Shelf, id="scaled", subresource="scale", cel="object.spec.replicas < 9", message="scaled"
)
"""


async def test_rules_hold_for_odd_names_and_for_scaling(
    tmp_path: Path, webop_cluster: LocalCluster, webop_namespace: str, client: Client
) -> None:
    file = tmp_path / "handlers.py"
    file.write_text(_NAMES)
    made = Made(run_module("webop", "manifests", "--name=db", str(file)).stdout, "")
    own = AsyncClient(client)
    dry = own.share("handlers", is_dry=True)
    webop_cluster.apply(made.find("CustomResourceDefinition"))
    metadata = {"name": "one", "namespace": webop_namespace}
    body = {
        "apiVersion": "policies.webop.dev/v1",
        "kind": "Shelf",
        "metadata": metadata,
        "spec": {},
    }
    await own.create(body)

    async def is_denied(message: str, spec: Json, subresource: str | None = None) -> bool:
        place = {"namespace": webop_namespace, "subresource": subresource}
        try:
            await dry.patch("shelfs.policies.webop.dev", "one", {"spec": spec}, **place)
        except webop.APIUnprocessableError as exc:
            return str(exc).endswith(f"denied request: {message}")
        return False

    try:
        webop_cluster.apply(*select_policies(made))
        for message, *change in (
            ("dashed", {"top-name": "bad"}),
            ("reserved", {"namespace": "bad"}),
            ("small", {"size": 9}),
            ("scaled", {"replicas": 9}, "scale"),
        ):
            await eventually(partial(is_denied, message, *change), timeout=30)
        assert not await is_denied("", {"replicas": 8}, "scale")
    finally:
        for one in select_policies(made):
            webop_cluster.delete(one["apiVersion"], one["kind"], one["metadata"]["name"])


def test_a_rule_can_only_warn(make: Maker, ledgers: Ledgers) -> None:
    ledgers.enact(make(_HANDLERS + _SIZE.format(action="Warn"), "--name=db"))
    ledgers.apply()
    eventually(
        lambda: ledgers.read_denial(engine="b") and not ledgers.read_denial(size=500), timeout=30
    )
    ledgers.apply(size=500)


def test_rules_change_objects_where_the_server_has_such_policies(
    make: Maker, ledgers: Ledgers
) -> None:
    cluster = ledgers.cluster
    options = ("--name=db", "--cluster")
    made = make(_HANDLERS + _CHANGES, *options, KUBECONFIG=str(cluster.kubeconfig))
    matched = re.match(r"v1\.(\d+)", cluster.version)
    assert matched is not None
    if int(matched[1]) < 36:
        assert "Rule 'sized' was left out" in made.warnings
        assert not any(kind.startswith("Mutating") for kind in made.kinds)
        return
    assert made.kinds >= {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    ledgers.enact(made)

    def read_label() -> Any:
        return ledgers.apply(size=7, is_dry=True)["metadata"].get("labels", {}).get("size")

    assert eventually(read_label, timeout=30) == "7"
    ledgers.apply(size=7)
    patched = eventually(lambda: ledgers.apply(size=8, is_dry=True)["spec"]["size"] == 9)
    assert patched
