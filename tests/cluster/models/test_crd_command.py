"""``webop crd`` against the real API server: print, compare, apply."""

from __future__ import annotations

import asyncio
import shutil
import textwrap
from pathlib import Path

import pytest
import yaml

import webop.testing
from tests.kit.exec_plugins import write_kubeconfig
from tests.kit.forking import run_forked
from tests.kit.http_relay import Relay
from tests.kit.waiting import eventually
from webop.testing import LocalCluster

MODEL = """
    from typing import Annotated

    import pydantic
    import webop

    class CrateSpec(webop.Struct):
        size: Annotated[str, pydantic.Field(max_length=20), webop.CEL("isQuantity(self)")] = "1Gi"
        {field}

    @webop.resource("{group}", "v1", columns={{"Size": ".spec.size"}})
    class Crate(webop.Model):
        spec: CrateSpec = pydantic.Field(default_factory=CrateSpec)
"""


class Folder:
    def __init__(self, path: Path, cluster: LocalCluster, group: str) -> None:
        self.path = path
        self.group = group
        self._cluster = cluster

    def write(self, field: str = "count: int = 0", model: str = MODEL) -> None:
        text = textwrap.dedent(model).format(field=field, group=self.group)
        (self.path / "models.py").write_text(text)
        # Python takes a file that has changed within a second, to the same length, for the same.
        shutil.rmtree(self.path / "__pycache__", ignore_errors=True)

    async def run(
        self, command: str, file: str, *options: str, kubeconfig: str = ""
    ) -> tuple[int, str, str]:
        """Run ``webop crd``; return its exit code, stdout and stderr."""
        kubeconfig = kubeconfig or str(self._cluster.kubeconfig)
        env = {"KUBECONFIG": kubeconfig, "HOME": str(self.path), "PATH": ""}
        words = ("webop", "crd", command, file, *options)
        code, out, err = await run_forked(words, self.path, env)  # models are remembered
        assert "Traceback" not in err, err
        return code, out, err


@pytest.fixture
def folder(tmp_path: Path, webop_cluster: LocalCluster, request: pytest.FixtureRequest) -> Folder:
    group = f"{request.node.name[-30:].replace('_', '-').strip('-')}.crd.webop.dev"
    folder = Folder(tmp_path, webop_cluster, group)
    folder.write()
    return folder


async def test_printed_definitions_are_applied_and_then_the_same(folder: Folder) -> None:
    code, printed, _ = await folder.run("print", "models.py")
    assert code == 0
    (definition,) = yaml.safe_load_all(printed)
    assert definition["metadata"]["name"] == f"crates.{folder.group}"
    assert await folder.run("print", "-m", "models") == (0, printed, "")
    code, out, _ = await folder.run("check", "models.py")
    assert (code, out) == (1, f"crates.{folder.group}: is not in the cluster\n")
    code, out, err = await folder.run("apply", "models.py")
    assert (code, out) == (0, f"crates.{folder.group}: applied\n"), err
    code, out, _ = await folder.run("check", "models.py")
    assert (code, out) == (0, f"crates.{folder.group}: is the same\n")
    folder.write("count: int = 0\n    color: str = 'red'")
    code, out, _ = await folder.run("check", "models.py")
    assert (code, out) == (1, f"crates.{folder.group}: differs, compatibly\n")
    code, _, err = await folder.run("apply", "models.py")
    assert code == 0, err


async def test_what_breaks_stored_objects_is_named_and_not_applied(folder: Folder) -> None:
    await folder.run("apply", "models.py")
    folder.write("color: str")
    code, out, _ = await folder.run("check", "models.py")
    assert code == 1
    assert "spec.count is removed: stored values are dropped" in out
    assert "spec.color becomes required, without a default" in out
    code, out, err = await folder.run("apply", "models.py")
    assert code == 1
    assert not out
    assert "Nothing was applied" in err
    assert "spec.count is removed" in err
    code, out, err = await folder.run("apply", "models.py", "--force")
    assert code == 0, err
    assert "spec.count is removed" in err
    code, out, _ = await folder.run("check", "models.py")
    assert (code, out) == (0, f"crates.{folder.group}: is the same\n")


async def test_a_conflict_of_owners_does_not_hide_what_breaks_and_has_its_own_option(
    folder: Folder, webop_cluster: LocalCluster
) -> None:
    _, printed, _ = await folder.run("print", "models.py")
    webop_cluster.apply(yaml.safe_load(printed))  # under another name, as kubectl does
    folder.write("")
    for force in ([], ["--force"]):
        code, out, err = await folder.run("apply", "models.py", *force)
        assert (code, out) == (1, "")
        assert "spec.count is removed" in err
        assert ": .spec.versions. To take over these fields" in err
        assert "--force-conflicts" in err
        assert "force=True" not in err
        assert "patch()" not in err
    code, out, err = await folder.run("apply", "models.py", "--force-conflicts")
    assert (code, out) == (1, "")
    assert "spec.count is removed" in err
    assert "Nothing was applied" in err
    code, _, err = await folder.run("apply", "models.py", "--force", "--force-conflicts")
    assert code == 0, err
    assert "spec.count is removed" in err


async def test_a_rule_that_the_api_server_refuses_is_named_with_its_reason(folder: Folder) -> None:
    wrong = 'count: Annotated[int, webop.CEL("self ><! 1")] = 0'
    dear = "names: list[Annotated[str, webop.CEL(\"self.matches('^a')\")]] = []"
    for field, why in ((wrong, "self ><! 1"), (dear, "exceeds budget")):
        folder.write(field)
        for args in (
            ["apply", "models.py"],
            ["check", "models.py"],
            ["apply", "models.py", "--force"],
        ):
            code, out, err = await folder.run(*args)
            assert (code, out) == (1, "")
            assert "The API server refuses the definition" in err
            assert why in err
            assert "--force" not in err


async def test_files_without_models_and_models_that_cannot_be_said(folder: Folder) -> None:
    (folder.path / "none.py").write_text("import webop\n")
    code, _, err = await folder.run("print", "none.py")
    assert code == 1
    assert "@webop.models.resource(GROUP, VERSION)" in err
    folder.write("pair: tuple[int, str]")
    code, _, err = await folder.run("print", "models.py")
    assert code == 1
    assert "CrateSpec" in err or "Crate.spec.pair" in err
    assert "a tuple has a type for each place" in err


VERSIONS = """
    import webop

    class OldSpec(webop.Struct):
        size: int = 1

    class NewSpec(webop.Struct):
        count: int = 1

    @webop.resource("{group}", "v1", kind="Crate", stored=False)
    class Old(webop.Model):
        spec: OldSpec

    @webop.resource("{group}", "v2", kind="Crate")
    class New(webop.Model):
        spec: NewSpec

    @webop.on.convert(Old, to=New)
    def upgrade(old: Old) -> New:
        return New(metadata=old.metadata, spec=NewSpec(count=old.spec.size))

    @webop.on.convert(New, to=Old)
    def downgrade(new: New) -> Old:
        return Old(metadata=new.metadata, spec=OldSpec(size=new.spec.count))
"""


async def test_no_field_is_dropped_between_the_definition_and_the_start_of_the_operator(
    folder: Folder, webop_cluster: LocalCluster
) -> None:
    folder.write(model=VERSIONS)
    code, _, err = await folder.run("apply", "models.py")
    assert code == 0, err
    body = {"apiVersion": f"{folder.group}/v1", "kind": "Crate", "spec": {"size": 5}}
    with pytest.raises(webop.testing.ClusterError, match="conversion webhook"):
        webop_cluster.apply({**body, "metadata": {"name": "one"}})
    folder.write(model=VERSIONS.replace("count: int = 1\n", "count: int = 1; color: str = ''\n"))
    code, _, err = await folder.run("apply", "models.py")  # it does not remove the address
    assert code == 0, err
    definition = webop_cluster.get(
        "apiextensions.k8s.io/v1", "CustomResourceDefinition", f"crates.{folder.group}"
    )
    assert definition
    assert definition["spec"]["conversion"]["strategy"] == "Webhook"


BARE = """
    import webop

    class OldSpec(webop.Struct):
        size: int = 1
        label: str = ""

    class NewSpec(webop.Struct):
        size: int = 1
        color: str = ""

    @webop.resource("{group}", "v1", kind="Crate", stored=not {field})
    class Old(webop.Model):
        spec: OldSpec

    if {field}:
        @webop.resource("{group}", "v2", kind="Crate")
        class New(webop.Model):
            spec: NewSpec
"""


async def test_a_new_stored_version_without_functions_erases_no_field(
    folder: Folder, webop_cluster: LocalCluster
) -> None:
    folder.write("False", BARE)
    await folder.run("apply", "models.py")
    body = {"apiVersion": f"{folder.group}/v1", "kind": "Crate", "metadata": {"name": "one"}}
    webop_cluster.apply({**body, "spec": {"label": "x"}})
    folder.write("True", BARE)
    lost = "v2 does not have spec.label of v1, and API servers drop it"
    code, out, _ = await folder.run("check", "models.py")
    assert (code, lost in out, "compatibly" in out) == (1, True, False)
    assert "v1 does not have spec.color of v2, and API servers drop it" in out
    code, out, err = await folder.run("apply", "models.py")
    assert (code, out, lost in err) == (1, "", True)
    code, _, err = await folder.run("apply", "models.py", "--force")
    assert code == 0, err
    code, out, err = await folder.run("migrate", "models.py")
    assert (code, out, lost in err) == (1, "", True)
    assert "spec.color" not in err
    found = webop_cluster.get(f"{folder.group}/v1", "Crate", "one", namespace="default")
    assert found
    assert found["spec"]["label"] == "x"
    code, out, err = await folder.run("migrate", "models.py", "--force")
    assert code == 0, err


async def test_the_command_ends_when_a_new_version_is_served(
    folder: Folder, relayed: Relay, tmp_path: Path
) -> None:
    await folder.run("apply", "models.py")
    folder.write(model=VERSIONS)
    kubeconfig = write_kubeconfig(tmp_path, relayed.server.url)
    relayed.hidden.add(folder.group)
    args = ("apply", "models.py", "--force")
    command = asyncio.create_task(folder.run(*args, kubeconfig=kubeconfig))
    await eventually(lambda: relayed.discoveries or command.done(), "a look at what is served")
    assert not command.done()
    relayed.hidden.clear()
    assert (await command)[:2] == (0, f"crates.{folder.group}: applied\n")
