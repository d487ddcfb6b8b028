"""``webop manifests`` on handlers of all sorts, and what it says where it cannot know enough."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit.cli_runner import forgetting_modules, invoke
from tests.kit.rows import rows
from tests.kit.versioned_shops import NAME
from webop import Resource
from webop.cli.manifests.kinds import list_builtin
from webop.client.discovery import discover
from webop.controlplane.versions import PINNED_VERSION
from webop.testing import LocalCluster

if TYPE_CHECKING:
    from webop.client.api import Client

Json = dict[str, Any]

_HEAD = "import os\nimport webop\n"
_PODS = "@webop.on.create('pods')\ndef fn(**_): ...\n"
_WEBHOOK = "@webop.on.validate('pods')\ndef check(**_): ...\n"
_SERVER = """\
@webop.on.startup()
def configure(settings, **_):
    settings.admission.server = webop.WebhookServiceServer()
"""
_CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: dogs.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {kind: Dog, plural: dogs, singular: dog, shortNames: [woof]}
  versions:
    - {name: v1alpha1, served: true, storage: false, subresources: {status: {}}}
    - {name: v1, served: true, storage: true, subresources: {status: {}}}
"""


class Made:
    def __init__(self, text: str, warnings: str) -> None:
        self.text = text
        self.warnings = warnings
        self.documents = [one for one in yaml.safe_load_all(text) if one]

    def find(self, kind: str) -> Json:
        (found,) = self.find_all(kind)
        return found

    def find_all(self, kind: str) -> list[Json]:
        return [one for one in self.documents if one["kind"] == kind]

    @property
    def kinds(self) -> set[str]:
        return {one["kind"] for one in self.documents}

    def get_verbs(self, resource: str, kind: str = "ClusterRole") -> list[str]:
        rules = [rule for role in self.find_all(kind) for rule in role["rules"]]
        return [verb for rule in rules if resource in rule["resources"] for verb in rule["verbs"]]

    @property
    def container(self) -> Json:
        spec: Json = self.find("Deployment")["spec"]["template"]["spec"]
        return dict(spec["containers"][0])

    @property
    def variables(self) -> Json:
        return {one["name"]: one.get("value") for one in self.container["env"]}


class Maker:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "my_operator"
        self.folder.mkdir()
        self.file = self.folder / "handlers.py"

    def __call__(self, handlers: str, *args: str, **variables: str | None) -> Made:
        code, text, errors = self.run(handlers, *args, **variables)
        assert code == 0, errors
        return Made(text, errors)

    def fail(self, handlers: str, *args: str) -> str:
        code, text, errors = self.run(handlers, *args)
        assert code > 0
        assert "Traceback" not in errors
        assert not text
        return " ".join(errors.partition("Error: ")[2].split())

    def run(self, handlers: str, *args: str, **variables: str | None) -> tuple[int, str, str]:
        self.file.write_text(_HEAD + handlers)
        nowhere = {"HOME": str(self.folder), "KUBECONFIG": None, "KUBERNETES_SERVICE_HOST": None}
        with forgetting_modules(self.folder):
            result = invoke("manifests", *args, str(self.file), env={**nowhere, **variables})
        return result.exit_code, result.stdout, result.stderr


# ---- what is made


def test_models_of_another_file_of_the_same_name_are_not_in_the_manifests(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    model = "@webop.resource('before.webop.dev', 'v1')\nclass Earlier(webop.Model): ...\n"
    assert Maker(tmp_path / "before")(model + _PODS).find_all("CustomResourceDefinition")
    assert not Maker(tmp_path)(_PODS).find_all("CustomResourceDefinition")


def test_an_operator_without_webhooks_gets_no_service_and_lets_nobody_in(make: Maker) -> None:
    made = make(_PODS)
    assert made.warnings == ""
    assert made.kinds == {
        *("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
        *("Deployment", "PodDisruptionBudget", "NetworkPolicy"),
    }
    assert made.find("NetworkPolicy")["spec"].get("ingress") is None
    assert made.find("Deployment")["metadata"]["name"] == "my-operator"
    assert made.container["image"] == "my-operator:0.1.0"
    assert made.container["args"] == [
        *("run", "--all-namespaces", "--standalone", "--lease=my-operator"),
        *("--liveness=http://0.0.0.0:8080/healthz", "--status=http://localhost:8081/ui"),
        "handlers.py",
    ]
    assert made.get_verbs("pods") == ["get", "list", "watch", "patch"]
    assert made.get_verbs("pods/status") == ["patch"]
    assert made.get_verbs("leases", "Role") == ["create", "get", "list", "watch", "update", "get"]


def test_handlers_that_only_look_get_no_right_to_write(make: Maker) -> None:
    for handler, verbs in (
        ("index('pods')\ndef fn(**_): ...\n", ["list", "watch"]),
        ("on.event('pods')\ndef fn(**_): ...\n", ["list", "watch"]),
        ("on.event('pods')\ndef fn(patch, **_): ...\n", ["get", "list", "watch", "patch"]),
    ):
        made = make(f"@webop.{handler}")
        assert made.get_verbs("pods") == verbs
        assert made.get_verbs("pods/status") == verbs[3:]


def test_webhooks_get_a_service_and_rights_to_the_certificate_and_to_their_configurations(
    make: Maker,
) -> None:
    made = make(_WEBHOOK + _SERVER, "--operator-namespace", "1ops", "--name", "guard")
    assert made.find("Service")["spec"]["ports"][0]["targetPort"] == "webhooks"
    assert made.variables["WEBOP_SERVICE"] == "guard"
    assert made.variables["WEBOP_ADMISSION__MANAGED"] == "guard.1ops.svc"
    (role,) = made.find_all("Role")
    assert role["metadata"]["namespace"] == "1ops"  # names can begin with a digit
    assert made.get_verbs("secrets", "Role") == ["create", "get", "update"]
    assert role["rules"][1]["resourceNames"] == ["guard-webhook-certs"]
    rules = made.find("ClusterRole")["rules"]
    assert ["guard.1ops.svc"] in [rule.get("resourceNames") for rule in rules]
    assert made.get_verbs("customresourcedefinitions") == made.get_verbs("events") == []
    # Nobody acts on objects, so nobody needs a Lease; nor is anything watched.
    assert "--lease=guard" not in made.container["args"]
    assert made.get_verbs("leases", "Role") == made.get_verbs("pods") == []
    assert made.find("Deployment")["spec"]["replicas"] == 2


def test_pods_cannot_silently_connect_to_the_webhooks(make: Maker) -> None:
    made = make(_WEBHOOK + _SERVER)
    (rule,) = made.find("NetworkPolicy")["spec"]["ingress"]
    assert rule == {"ports": [{"protocol": "TCP", "port": "webhooks"}]}
    assert "The NetworkPolicy is open: all pods" in made.warnings
    assert "# This policy is open: all pods" in made.text
    made = make(_WEBHOOK + _SERVER, "--pod-network", "10.42.0.0/16")
    assert "is open" not in made.warnings + made.text
    (rule,) = made.find("NetworkPolicy")["spec"]["ingress"]
    assert [one["ipBlock"] for one in rule["from"] if "ipBlock" in one] == [
        {"cidr": "0.0.0.0/0", "except": ["10.42.0.0/16"]},
        {"cidr": "::/0"},
    ]


def test_pods_with_webhooks_have_the_priority_of_the_system(make: Maker) -> None:
    def get_priority(*args: str, handlers: str = _WEBHOOK + _SERVER) -> tuple[str | None, bool]:
        made = make(handlers, *args)
        pod = made.find("Deployment")["spec"]["template"]["spec"]
        return pod.get("priorityClassName"), bool(made.find_all("ResourceQuota"))

    assert get_priority() == ("system-cluster-critical", True)
    assert get_priority("--priority-class", "none") == (None, False)
    assert get_priority("--priority-class", "important") == ("important", False)
    assert get_priority(handlers=_PODS) == (None, False)
    assert get_priority("--priority-class", "low", handlers=_PODS) == ("low", False)


def test_webhooks_of_ones_own_need_neither_configurations_nor_secrets(make: Maker) -> None:
    server = _SERVER.replace("Server()", "Server(certfile='tls.crt', pkeyfile='tls.key')")
    made = make(_WEBHOOK + server, "--managed", "none", "--service", "front")
    assert made.find("Service")["metadata"]["name"] == "front"
    assert made.get_verbs("validatingwebhookconfigurations") == []
    assert "Role" not in made.kinds
    assert make(_WEBHOOK + _SERVER, "--managed", "guard").variables == {
        "POD_ID": None,
        "WEBOP_OPERATOR__NAME": "my-operator",
        "WEBOP_ADMISSION__MANAGED": "guard",
        "WEBOP_SERVICE": "my-operator",
    }


def test_what_startup_handlers_set_decides(make: Maker) -> None:
    made = make(
        _PODS
        + _WEBHOOK
        + """
@webop.on.startup()
def configure(settings, **_):
    settings.admission.server = webop.WebhookServiceServer(
        service="door", port=7443, service_port=8443, secret="key", path="/hooks"
    )
    settings.admission.managed = "door.example.com"
    settings.leadership.lease_name = "throne"
    settings.peering.name, settings.peering.mandatory = "teams", True
    settings.posting.enabled = False
    settings.scanning.disabled = True
"""
    )
    service = made.find("Service")
    assert service["metadata"]["name"] == "door"
    assert service["spec"]["ports"][0]["port"] == 8443
    assert {"name": "webhooks", "containerPort": 7443} in made.container["ports"]
    assert made.variables.keys() == {"POD_ID", "WEBOP_OPERATOR__NAME"}
    names = [rule.get("resourceNames") for rule in made.find("Role")["rules"]]
    assert names == [None, ["key"], None, ["throne"], ["throne-shards"]]
    assert made.get_verbs("events") == made.get_verbs("customresourcedefinitions") == []
    assert "--lease=throne" in made.container["args"]
    assert "--standalone" not in made.container["args"]
    assert made.get_verbs("clusterkopfpeerings") == ["list", "watch", "patch"]
    made = make(_PODS, "--peering", "teams", "-n", "team-a")
    assert "--peering=teams" in made.container["args"]
    assert made.get_verbs("kopfpeerings", "Role") == ["list", "watch", "patch"]


def test_an_operator_of_some_namespaces_has_no_rights_in_others(make: Maker) -> None:
    made = make(_PODS, "-n", "team-a", "-n", "team-b", "--operator-namespace", "ops")
    places = {one["metadata"]["namespace"]: one["rules"] for one in made.find_all("Role")}
    assert places.keys() == {"team-a", "team-b", "ops"}
    assert places["team-a"] == places["team-b"]
    assert made.get_verbs("pods") == made.get_verbs("events") == []
    assert made.container["args"][1:3] == ["--namespace=team-a", "--namespace=team-b"]
    for binding in made.find_all("RoleBinding"):
        assert binding["subjects"][0]["namespace"] == "ops"


def test_an_operator_of_one_namespace_lives_in_it(make: Maker) -> None:
    made = make(_PODS, "-n", "team-a", "--create-namespace")
    assert made.find("Namespace")["metadata"]["name"] == "team-a"
    assert made.find("Deployment")["metadata"]["namespace"] == "team-a"
    (role,) = made.find_all("Role")
    assert {"pods", "leases"} <= {one for rule in role["rules"] for one in rule["resources"]}


def test_without_a_lease_there_is_one_replica_at_a_time(make: Maker) -> None:
    made = make(_PODS, "--no-lease")
    assert made.find("Deployment")["spec"]["replicas"] == 1
    assert made.find("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert not made.kinds & {"PodDisruptionBudget", "Role"}
    assert "need a Lease: remove --no-lease" in make.fail(_PODS, "--no-lease", "--replicas", "2")


def test_replicas_that_divide_the_objects_get_rights_to_a_lease_each(make: Maker) -> None:
    made = make(_PODS, "--sharded", "--replicas", "4")
    assert made.find("Deployment")["spec"]["replicas"] == 4
    assert made.find("Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"
    assert "--shards=my-operator" in made.container["args"]
    assert "--lease and --shards, use Recreate" in made.text
    named, others = [one for one in made.find("Role")["rules"] if one["resources"] == ["leases"]]
    slots = [f"my-operator-member-{number:02}" for number in range(10)]
    assert named["resourceNames"] == ["my-operator", "my-operator-shards", *slots]
    assert named["verbs"] == ["get", "update"]
    assert others["verbs"] == ["list", "watch", "create"]
    assert "resourceNames" not in others
    sharded = "settings.leadership.sharded = True\n"
    made = make(f"@webop.on.startup()\ndef fn(settings, **_):\n    {sharded}{_PODS}")
    assert "--shards=my-operator" in made.container["args"]
    many = make(_PODS, "--sharded", "--replicas", "60").find("Role")["rules"]
    assert max(len(one.get("resourceNames", ())) for one in many) == 2 + 64
    assert "exclude each other" in make.fail(_PODS, "--sharded", "--no-lease")


def test_a_canary_is_another_deployment_behind_the_same_service(make: Maker) -> None:
    plain = make(_PODS + _WEBHOOK + _SERVER, "--sharded").documents
    made = make(_PODS + _WEBHOOK + _SERVER, "--sharded", "--canary", "my-operator:0.2.0")
    deployments = {one["metadata"]["name"]: one for one in made.find_all("Deployment")}
    stable, canary = deployments["my-operator"], deployments["my-operator-canary"]
    assert [one for one in made.documents if one is not canary] == plain
    spec = canary["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert made.find("Service")["spec"]["selector"].items() < labels.items()
    assert labels.items() - stable["spec"]["template"]["metadata"]["labels"].items() == {
        ("app.kubernetes.io/component", "canary")
    }
    for one in (canary, stable):
        (container,) = one["spec"]["template"]["spec"]["containers"]
        del one["metadata"]["name"], one["spec"]["selector"], one["spec"]["template"]["metadata"]
        is_canary = one is canary
        assert container.pop("image") == f"my-operator:0.{'2' if is_canary else '1'}.0"
        assert one["spec"].pop("replicas") == (1 if is_canary else 2)
        variables = {var["name"]: var.get("value") for var in container["env"]}
        assert variables.get("WEBOP_CANARY") == ("2" if is_canary else None)
        container["env"] = [var for var in container["env"] if var["name"] != "WEBOP_CANARY"]
    assert canary == stable
    assert "--canary needs --sharded" in make.fail(_PODS, "--canary", "my-operator:0.2.0")


def test_rules_for_what_handlers_do_are_copied(make: Maker) -> None:
    rules = make.folder / "rules.yaml"
    rules.write_text('# Because.\n- apiGroups: [""]\n  resources: [nodes]\n  verbs: [get]\n')
    made = make(_PODS, "--rbac", str(rules))
    assert made.get_verbs("nodes") == ["get"]
    rules.write_text("rules: []\n")
    assert "must be a YAML list of RBAC rules" in make.fail(_PODS, "--rbac", str(rules))


def test_what_handlers_say_that_they_do_is_granted_where_they_do_it(make: Maker) -> None:
    crd = make.folder / "crd.yaml"
    crd.write_text(_CRD)
    settings = """
@webop.on.startup()
def configure(settings, **_):
    settings.networking.rights = ["core/secrets:get,list", "pods:delete,patch", "woof/status:patch"]
"""
    rules = ["--rbac=apps/deployments/scale:patch", "--rbac=secrets:create", "--rbac=no:get"]
    made = make(_PODS + settings, "--crd", str(crd), "-n", "team-a", *rules)
    assert made.warnings == ""
    role = next(one for one in made.find_all("Role") if one["metadata"]["namespace"] == "team-a")
    assert [rule for rule in role["rules"] if rule["resources"] == ["pods"]] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
    ]
    for rule in (
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create"]},
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]},
    ):
        assert rule in role["rules"]
    # Dogs and nodes have no namespace.
    assert made.get_verbs("dogs/status") == ["patch"]
    assert made.get_verbs("nodes") == ["get"]


def test_handlers_that_take_the_client_with_no_rights_for_it_draw_a_warning(make: Maker) -> None:
    code = "@webop.on.create('pods')\ndef fn(client, **_): ...\n" + _PODS.replace("fn(", "other(")
    warning = "Handler 'fn': what these handlers do with the client is unknown."
    assert make(code).warnings.count(warning) == 1
    assert warning not in make(code, "--rbac", "secrets:get").warnings


def test_rights_to_a_kind_without_a_definition_are_granted_with_a_warning(make: Maker) -> None:
    made = make(_PODS, "--rbac", "example.com/dogs:get")
    assert made.get_verbs("dogs") == ["get"]
    assert "The right 'example.com/dogs:get': the definition of dogs" in made.warnings
    versioned = '@webop.on.create("example.com", "v1", "dogs")\ndef fn(**_): ...\n'
    made = make(versioned, "--rbac", "example.com/dogs:delete")
    assert "delete" in made.get_verbs("dogs")


def test_metrics_are_served_to_the_namespace_that_asks_for_them(make: Maker) -> None:
    for handlers in (_PODS, _WEBHOOK + _SERVER):
        made = make(handlers, "--metrics", "monitoring")
        assert "--metrics=http://0.0.0.0:8080/metrics" in made.container["args"]
        pod = made.find("Deployment")["spec"]["template"]["metadata"]
        assert pod["annotations"]["prometheus.io/port"] == "8080"
        rule = made.find("NetworkPolicy")["spec"]["ingress"][-1]
        assert rule["ports"] == [{"protocol": "TCP", "port": "probes"}]
        labels = {"kubernetes.io/metadata.name": "monitoring"}
        assert rule["from"] == [{"namespaceSelector": {"matchLabels": labels}}]


def test_variables_are_those_of_the_container_and_no_others(make: Maker) -> None:
    handlers = f"""
{_WEBHOOK}
{_SERVER.replace("Server()", "Server(service=os.environ.get('DOOR'))")}
    if 'DOOR' not in os.environ:
        raise webop.PermanentError("There is no DOOR.")
"""
    made = make(handlers, "--env", "DOOR=front", WEBOP_POSTING__ENABLED="no")
    assert made.variables["DOOR"] == made.find("Service")["metadata"]["name"] == "front"
    assert make(_PODS, WEBOP_POSTING__ENABLED="no").get_verbs("events") == ["create", "patch"]
    message = make.fail(handlers)
    assert "the startup handlers failed here" in message
    assert "DOOR" in message
    assert "--env NAME=VALUE" in message
    assert make(handlers, "--no-startup").variables["WEBOP_SERVICE"] == "my-operator"


def test_files_for_kustomize_make_the_same_objects(make: Maker, tmp_path: Path) -> None:
    base = tmp_path / "base"
    handlers = _PODS + _WEBHOOK + _SERVER
    expected = make(handlers).documents
    for _ in range(2):  # what it has made, it replaces
        made = make(handlers, "--kustomize", str(base))
        assert made.text == ""
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
    found = [
        document
        for file in kustomization["resources"]
        for document in yaml.safe_load_all((base / file).read_text())
        if document
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
    if kubectl := shutil.which("kubectl"):
        done = subprocess.run([kubectl, "kustomize", str(base)], capture_output=True, check=True)
        assert len(list(yaml.safe_load_all(done.stdout))) == len(expected)
    (base / "rbac.yaml").write_text("kind: Mine\n")
    assert "this command did not make it" in make.fail(handlers, "--kustomize", str(base))
    assert (base / "rbac.yaml").read_text() == "kind: Mine\n"
    said = make.fail(handlers, "--kustomize", str(base / "rbac.yaml" / "deeper"))
    assert "Not a directory." in said
    # Without an index, a folder can have printed manifests of another operator.
    text = make(_PODS, "--name", "other").text
    (base / "kustomization.yaml").unlink()
    (base / "rbac.yaml").write_text(text)
    assert "this command did not make it" in make.fail(_PODS, "--kustomize", str(base))
    assert (base / "rbac.yaml").read_text() == text


def test_handlers_for_kopf_run_aliased_in_the_cluster_too(make: Maker) -> None:
    make.file.write_text("import kopf\n" + _PODS.replace("webop", "kopf"))

    def run(*command: str, **variables: str) -> str:
        args = [sys.executable, "-m", "webop", *command, "handlers.py"]
        env = {**os.environ, **variables}
        return subprocess.run(
            args, cwd=make.folder, capture_output=True, text=True, check=True, env=env
        ).stdout

    made = Made(run("manifests", "--aliased"), "")
    assert made.container["args"][-2:] == ["--aliased", "handlers.py"]
    assert '"--aliased", "handlers.py"' in run("image", "--wheels=wheels", WEBOP_ALIASED="1")


# ---- which kinds


def test_definitions_tell_what_short_names_mean(make: Maker) -> None:
    crd = make.folder / "crd.yaml"
    crd.write_text(_CRD)
    made = make("@webop.on.create('woof')\ndef fn(**_): ...\n", "--crd", str(crd), "-n", "home")
    assert made.warnings == ""
    assert made.get_verbs("dogs") == ["get", "list", "watch", "patch"]  # they have no namespaces
    for text, reason in (
        ("kind: Other\n", "There is no CustomResourceDefinition in"),
        ("kind: CustomResourceDefinition\nspec: 7\n", "Cannot read definitions from"),
    ):
        crd.write_text(text)
        assert make.fail(_PODS, "--crd", str(crd)).startswith(f"{reason} '{crd}'")


def test_a_decorator_with_the_group_and_the_plural_says_enough(make: Maker) -> None:
    decorators = (
        "@webop.on.create('example.com', 'v1', 'dogs')\n@webop.daemon('dogs.v1.example.com')\n"
    )
    made = make(f"{decorators}def fn(**_): ...\n")
    assert made.get_verbs("dogs") == ["get", "list", "watch", "patch"]
    assert made.get_verbs("dogs/status") == ["patch"]
    assert made.warnings.count("the definition of dogs.v1.example.com is unknown") == 1


_UNKNOWN = "^Handler 'bark': there is no built-in kind .*write its group and plural.*--crd"


@rows(
    ("what", "said"),
    [
        ("'woof'", _UNKNOWN),
        ("'example.com', 'v1', 'dog'", _UNKNOWN),
        ("'dogs'", _UNKNOWN),
        ("kind='Dog'", _UNKNOWN),
        ("'podz'", r"Did you mean pods\.v1\?"),
        ("category='all'", "without a cluster"),
        ("lambda resource: True", "without a cluster"),
    ],
)
def test_kinds_that_only_a_cluster_knows_are_asked_for(make: Maker, what: str, said: str) -> None:
    message = make.fail(f"@webop.on.event({what})\ndef bark(**_): ...\n")
    assert re.search(said, message)
    assert "--cluster" in message


def test_everything_is_granted_with_a_warning(make: Maker) -> None:
    everything = "@webop.on.{}({}webop.EVERYTHING)\ndef fn(**_): ...\n"
    made = make(everything.format("create", ""))
    assert "uses EVERYTHING: the account gets rights to all kinds." in made.warnings
    (rule,) = [rule for rule in made.find("ClusterRole")["rules"] if "*" in rule["resources"]]
    assert (rule["apiGroups"], rule["verbs"]) == (["*"], ["get", "list", "watch", "patch"])
    made = make(everything.format("create", "'apps', ") + _PODS.replace("pods", "deployments"))
    assert "all kinds of the group apps." in made.warnings
    assert made.get_verbs("*") == ["get", "list", "watch", "patch"]
    assert made.get_verbs("deployments") == []  # it is said already


async def test_the_built_in_kinds_are_those_of_a_cluster(
    client: Client, webop_cluster: LocalCluster
) -> None:
    found = [one for one in (await discover(client)).resources if "watch" in one.verbs]
    known = {describe(one) for one in found}
    builtin = {describe(one) for one in list_builtin()}
    assert builtin <= known
    differing = list_with_status(list_builtin()) ^ list_with_status(found) & builtin
    assert differing <= {one for one in builtin if one[1] in _LATER_STATUS}
    others = {group for group, *_ in known - builtin}
    unknown = [group for group in others if "." not in group or group.endswith(".k8s.io")]
    assert not unknown or is_newer_than_default(webop_cluster.version)


def describe(one: Resource) -> tuple[Any, ...]:
    return one.group, one.kind, one.plural, one.singular, one.shortcuts, one.namespaced


def is_newer_than_default(version: str) -> bool:
    """Kinds that came later are found with ``--cluster``."""
    minors = (int(one.removeprefix("v").split(".")[1]) for one in (version, PINNED_VERSION))
    return next(minors) > next(minors)


_LATER_STATUS = {"CSINode"}  # their status is a subresource in newer versions only


def list_with_status(resources: Iterable[Resource]) -> set[tuple[Any, ...]]:
    return {describe(one) for one in resources if "status" in one.subresources}


# ---- with a cluster


async def test_what_is_made_is_accepted_and_the_doctor_misses_nothing(
    webop_cluster: LocalCluster, webop_namespace: str, make: Maker, request: pytest.FixtureRequest
) -> None:
    handlers = (
        _PODS
        + _WEBHOOK
        + _SERVER
        + "    settings.networking.rights = ['pods/log:get', 'core/nodes:list']\n"
        + "@webop.on.event(category='api-extensions')\ndef all(**_): ...\n"
    )
    config = str(webop_cluster.kubeconfig)
    scope = ("-n", webop_namespace)
    for number, networks in enumerate((["10.77.0.0/24", "fd00:77::/64"], ["10.77.1.0/24"])):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"made-{number}"}}
        spec = {"podCIDR": networks[0], "podCIDRs": networks}
        webop_cluster.apply({**node, "spec": spec})
        request.addfinalizer(partial(webop_cluster.delete, "v1", "Node", f"made-{number}"))
    made = await asyncio.to_thread(
        lambda: make(handlers, "--cluster", *scope, "--peering", "default", KUBECONFIG=config)
    )
    (policy,) = made.find_all("NetworkPolicy")
    blocks = [one["ipBlock"] for one in policy["spec"]["ingress"][0]["from"] if "ipBlock" in one]
    assert blocks == [
        {"cidr": "0.0.0.0/0", "except": ["10.77.0.0/23"]},
        {"cidr": "::/0", "except": ["fd00:77::/64"]},
    ]
    assert made.get_verbs("customresourcedefinitions") == ["list", "watch"]
    text = make.folder / "made.yaml"
    text.write_text(made.text)
    await asyncio.to_thread(webop_cluster.apply, text)
    account = f"system:serviceaccount:{webop_namespace}:my-operator"
    with forgetting_modules(make.folder):
        report = await asyncio.to_thread(
            lambda: invoke(
                *("doctor", "--as", account, *scope, "--no-probe", "--lease", "my-operator"),
                *("--managed", f"my-operator.{webop_namespace}.svc", str(make.file)),
                env={"KUBECONFIG": config, "WEBOP_SERVICE": "my-operator"},
            )
        )
    permissions = report.stdout.partition("Permissions of ")[2]
    assert "granted" in permissions
    assert "pods/log" in permissions
    assert "nodes" in permissions
    assert "not granted" not in permissions


def test_configurations_that_are_kept_by_hand_take_no_rights(
    webop_cluster: LocalCluster, make: Maker, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    made = make(_WEBHOOK + _SERVER, "--ca", str(ca), "--managed", "guard.example.com")
    assert made.get_verbs("validatingwebhookconfigurations") == []
    configuration = made.find("ValidatingWebhookConfiguration")
    assert configuration["metadata"]["name"] == "guard.example.com"
    (webhook,) = configuration["webhooks"]
    assert webhook["rules"][0]["resources"] == ["pods"]
    client = webhook["clientConfig"]
    assert client["service"]["name"] == "my-operator"
    client["caBundle"] = webop_cluster.ca_data
    webop_cluster.apply(configuration, dry_run=True)
    handlers = _WEBHOOK + _SERVER + "    settings.admission.managed = 'auto'\n"
    assert "that you maintain" in make.fail(handlers, "--ca", str(ca))
    made = make(_WEBHOOK + _SERVER, "--ca", str(ca), "--managed", "none")
    name = made.find("ValidatingWebhookConfiguration")["metadata"]["name"]
    assert name == "my-operator.default.svc"  # no other operator has it


_CONVERTERS = """\
from tests.kit.versioned_shops import declare
declare(webop.get_default_registry())
"""


def test_an_operator_that_only_converts_gets_a_service_and_may_write_its_definition(
    webop_cluster: LocalCluster, make: Maker, tmp_path: Path
) -> None:
    made = make(_CONVERTERS + _SERVER)
    assert made.find("Service")["metadata"]["name"] == "my-operator"
    assert made.get_verbs("customresourcedefinitions") == ["get", "patch"]
    (rule,) = (
        rule
        for rule in made.find("ClusterRole")["rules"]
        if "customresourcedefinitions" in rule["resources"]
    )
    assert rule["resourceNames"] == [NAME]
    conversion = made.find("CustomResourceDefinition")["spec"]["conversion"]
    assert "caBundle" not in conversion["webhook"]["clientConfig"]  # the operator adds it
    ca = tmp_path / "ca.crt"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    made = make(_CONVERTERS + _SERVER, "--ca", str(ca))
    assert made.get_verbs("customresourcedefinitions") == []
    definition = made.find("CustomResourceDefinition")
    client = definition["spec"]["conversion"]["webhook"]["clientConfig"]
    service = client["service"]
    assert (service["name"], service["path"]) == ("my-operator", "/convert")
    client["caBundle"] = webop_cluster.ca_data
    webop_cluster.apply(definition, dry_run=True)


def test_fields_that_get_lost_between_versions_without_functions_are_named(make: Maker) -> None:
    handlers = "from tests.kit.versioned_shops import *\n" + _PODS.replace("'pods'", "ShopV2")
    text = f"{NAME}: v1 does not have spec.host of v2, and API servers drop it."
    assert text in make(handlers).warnings
    assert "drop" not in make(_CONVERTERS + _SERVER).warnings


def test_texts_that_other_parsers_take_for_something_else_stay_texts(
    webop_cluster: LocalCluster, make: Maker
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("There is no kubectl.")
    numbers = ("1e3", "08", "0o17", "-.5e1", "1:30")
    texts = (*numbers, "y", "on", "", "<<", "{a: b}", "a\nb\n\nc: d", "é")
    variables = {f"V{index}": text for index, text in enumerate(texts)}
    args = [f"--env={name}={text}" for name, text in variables.items()]
    args += ["--name=y", "--operator-namespace=on", "--lease=1e3", "--service=n", "--image=08"]
    text = make(_PODS + _WEBHOOK + _SERVER, *args).text
    command = ("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-")
    made = Made(webop_cluster.kubectl(*command, stdin=text).replace("\n}\n{", "\n}\n---\n{"), "")
    assert {one["metadata"]["name"] for one in made.documents} == {"y", "y-replicas", "n"}
    assert made.variables.items() >= variables.items()
    assert made.find("Deployment")["metadata"]["namespace"] == "on"
    assert made.container["image"] == "08"
    assert "--lease=1e3" in made.container["args"]


def test_the_pods_know_the_name_of_their_operator(make: Maker) -> None:
    variable = "WEBOP_OPERATOR__NAME"
    named = "@webop.on.startup()\ndef name(settings, **_): settings.operator.name = 'stock'\n"
    assert make(_PODS).variables[variable] == "my-operator"
    assert make(_PODS, "--name=shop").variables[variable] == "shop"
    assert make(_PODS, f"--env={variable}=store").variables[variable] == "store"
    assert make(_PODS + named).variables[variable] == "stock"


# ---- mistakes


def test_without_handlers_there_is_nothing_to_deploy(make: Maker) -> None:
    assert f"There are no handlers in {make.file}." in make.fail("")
    message = make.fail("1 / 0\n")
    assert str(make.file) in message
    assert "ZeroDivisionError" in message
    result = invoke("manifests")
    assert result.exit_code == 2
    assert "Name the files with the handlers" in result.output


@rows(
    ("server", "what"),
    [
        ("None", "settings.admission.server is not set. In a startup"),
        ("webop.WebhookServer()", "settings.admission.server is a WebhookServer. In a startup"),
        ("webop.WebhookServiceServer(port=0)", "a Service needs a fixed port"),
        (
            "webop.WebhookServiceServer(namespace='x')",
            "--operator-namespace is 'default', but the startup handlers",
        ),
    ],
)
def test_webhooks_that_no_service_leads_to_are_refused(make: Maker, server: str, what: str) -> None:
    assert what in make.fail(_WEBHOOK + _SERVER.replace("webop.WebhookServiceServer()", server))


@rows(
    ("args", "what"),
    [
        (("--name", "My_Operator"), "must be lowercase letters, digits and '-'"),
        (("--env", "DOOR"), "must be NAME=VALUE"),
        (("--pod-network", "pods"), "must be like 10.244.0.0/16."),
        (("-n", "team-*"), "is a pattern"),
        (("--lease", "one", "--no-lease"), "exclude each other"),
        (("-A", "-n", "one"), "exclude each other"),
        (("--managed", "other"), "--managed is 'other', but the startup handlers set 'mine'."),
        (("--crd", "nowhere.yaml"), "Cannot read definitions from 'nowhere.yaml'"),
        (("--rbac", "nowhere.yaml"), "Cannot read RBAC rules from 'nowhere.yaml'"),
        (("--rbac", "secrets"), "'secrets' must be [GROUP/]KIND[/SUBRESOURCE]:VERB,VERB"),
        (("--rbac", "secrets:read"), "'read' is none of get, list, watch,"),
        (("--rbac", "woof:get"), "The right 'woof:get': there is no built-in kind woof."),
        (("--cluster",), "Cannot log in to the cluster"),
    ],
)
def test_options_that_do_not_fit_are_named(make: Maker, args: tuple[str, ...], what: str) -> None:
    handlers = _PODS + _WEBHOOK + _SERVER + "    settings.admission.managed = 'mine'\n"
    assert what in make.fail(handlers, *args)
