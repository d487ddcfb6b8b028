"""``webop init``: what it writes runs, in a virtual environment of its own; what it refuses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kit.cli_runner import invoke
from webop.testing import LocalCluster, eventually

pytestmark = pytest.mark.timeout(600)

_ROOT = Path(__file__).parents[2]
_FOREIGN = ("WEBOP_", "PYTEST", "KUBECONFIG", "PYTHON", "VIRTUAL_ENV", "COVERAGE")
_GROUP = "shop.example.com"
_PRINTED = """\
Created an operator for objects of the kind Order (shop.example.com/v1) in 'shop':
  shop/models.py            the kind Order: its fields and rules
  shop/handlers.py          its handlers and its webhook
  tests/test_models.py      tests that need no cluster
  tests/test_operator.py    tests on a real API server
  example.yaml              an object
  pyproject.toml            the package, its dependencies
  README.md                 the commands: test, run, deploy
  .github/workflows/ci.yml  runs the tests at each push
Next: cd shop && pip install -e '.[test]' && pytest
"""


class Machine:
    """A folder, and a virtual environment in which webop is installed from its wheel."""

    def __init__(self, folder: Path, uv: str) -> None:
        self.folder = folder
        self._uv = uv
        self._environment = {
            key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)
        }
        bin_folder = folder / "venv" / "bin"
        self._environment["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
        self.run(uv, "venv", "--quiet", f"--python={sys.executable}", "venv")
        self.install(f"{_ROOT}[test]")

    def install(self, *words: str, folder: str = ".") -> None:
        """Install a package as pip does; without a network, if all others were installed before."""
        python = self.folder / "venv" / "bin" / "python"
        command = [self._uv, "pip", "install", "--quiet", f"--python={python}", *words]
        try:
            self.run(*command, "--offline", folder=folder)
        except AssertionError:
            self.run(*command, folder=folder)

    def start(
        self, *words: str, folder: str = ".", env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            cwd=self.folder / folder,
            env={**self._environment, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, folder: str = ".", env: Mapping[str, str] | None = None) -> str:
        """Run a command, which must succeed; return its output."""
        process = self.start(*words, folder=folder, env=env)
        output, _ = process.communicate()
        assert process.returncode == 0, f"{' '.join(words)}\n{output}"
        return output


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    if uv is None:
        pytest.skip("uv is not installed.")
    return Machine(tmp_path_factory.mktemp("init"), uv)


@pytest.fixture
def shop(machine: Machine) -> Iterator[str]:
    """The folder of a new operator; its package is installed."""
    machine.run("webop", "init", "shop", "--kind", "Order")
    machine.install("-e", ".[test]", folder="shop")
    yield "shop"
    shutil.rmtree(machine.folder / "shop")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_cluster(webop_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """A cluster without the kinds of other tests, of which the doctor would warn."""
    assert webop_cluster.is_ready()  # so the binaries are there
    with LocalCluster() as cluster:
        yield cluster


@pytest.mark.journey
def test_a_new_operator_passes_its_tests(machine: Machine) -> None:
    """The line of the manual, from an empty folder; uv stands for pip."""
    assert machine.run("webop", "init", "shop", "--kind", "Order") == _PRINTED
    machine.install("-e", ".[test]", folder="shop")
    output = machine.run("pytest", "-W", "error", folder="shop")
    assert "6 passed" in output
    assert "webop: ran against Kubernetes v" in output
    shutil.rmtree(machine.folder / "shop")


@pytest.mark.journey
def test_a_new_operator_is_deployed_by_the_commands_of_its_readme(
    machine: Machine, shop: str, own_cluster: LocalCluster
) -> None:
    admin = {"KUBECONFIG": str(own_cluster.kubeconfig)}
    folder = machine.folder / shop
    manifests = machine.run("webop", "manifests", "-m", "shop.handlers", folder=shop)
    (folder / "operator.yaml").write_text(manifests.partition("---\n")[2])
    own_cluster.apply(folder / "operator.yaml")
    account = own_cluster.kubeconfig_for("system:serviceaccount:default:shop")
    own_cluster.apply(folder / "example.yaml", namespace="default")
    process = machine.start(
        *("webop", "run", "--all-namespaces", "--lease=shop", "-m", "shop.handlers"),
        folder=shop,
        env={"KUBECONFIG": str(account), "WEBOP_ADMISSION__SHUTDOWN_DELAY": "0.1"},
    )
    try:
        config_map = eventually(
            lambda: own_cluster.get("v1", "ConfigMap", "example", "default"), timeout=60
        )
        assert config_map["data"] == {"index.html": "Hello, World!"}
        report = machine.run(
            *("webop", "doctor", "--as", "system:serviceaccount:default:shop"),
            *("--lease", "shop", "-m", "shop.handlers"),
            folder=shop,
            env=admin,
        )
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert re.search(r"^\d+ ok\.$", report, re.MULTILINE), report  # no failures, no warnings
    order = own_cluster.get(f"{_GROUP}/v1", "Order", "example", "default")
    assert order is not None
    written = order["metadata"]["annotations"]
    assert {name.partition("/")[0] for name in written} == {_GROUP}
    assert order["status"]["conditions"][0]["reason"] == "Published"


@pytest.mark.journey
def test_a_new_operator_with_classes_of_built_in_kinds_passes_its_tests(machine: Machine) -> None:
    machine.run("webop", "init", "typed", "--with-builtins")
    machine.install("-e", ".[test]", folder="typed")
    assert "= ConfigMap(" in (machine.folder / "typed" / "typed" / "handlers.py").read_text()
    assert "6 passed" in machine.run("pytest", "-W", "error", folder="typed")


@pytest.mark.journey
@pytest.mark.parametrize("options", [(), ("--with-builtins",)])
@pytest.mark.parametrize(
    ("name", "kind"), [("shop", "Order"), (f"a-{'long-' * 7}nam", f"A{'Long' * 9}Kin")]
)
def test_the_code_of_a_new_operator_passes_the_linters(
    name: str, kind: str, options: tuple[str, ...], here: Path
) -> None:
    result = invoke("init", name, "--kind", kind, *options)
    assert result.exit_code == 0, result.output
    ruff = Path(sys.executable).with_name("ruff")
    commands: list[tuple[str, ...]] = [
        (str(ruff), "check", "--select=B,E4,E7,E9,F,I,N,RUF,SIM,UP,W"),
        (str(ruff), "format", "--check"),
    ]
    if name == "shop":
        commands.append((sys.executable, "-m", "mypy", "--strict"))
    for command in commands:
        done = subprocess.run(
            [*command, "."], cwd=here / name, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_nothing_of_the_templates_is_left_over(here: Path) -> None:
    assert invoke("init", "my-shop-operator").exit_code == 0
    files = [path for path in (here / "my-shop-operator").rglob("*") if path.is_file()]
    assert len(files) == 10
    for path in files:
        assert not re.search(r"\{\{\w", path.read_text()), path
    models = (here / "my-shop-operator" / "my_shop_operator" / "models.py").read_text()
    assert "class MyShop(Model):" in models
    assert '"my-shop-operator.example.com"' in models


def test_the_workflow_has_the_actions_of_this_repository(here: Path) -> None:
    invoke("init", "shop")
    workflow = (here / "shop" / ".github" / "workflows" / "ci.yml").read_text()
    own = "".join(path.read_text() for path in (_ROOT / ".github" / "workflows").glob("*.yml"))
    used = re.findall(r"uses: (.+)", workflow)
    assert len(used) == 4  # one in the commented job
    assert all(action in own for action in used)


@pytest.mark.journey
def test_once_webop_is_in_an_index_nothing_needs_a_wheel_of_it(machine: Machine) -> None:
    (record,) = machine.folder.glob("venv/lib/*/site-packages/webop-*.dist-info/direct_url.json")
    kept = record.rename(record.with_suffix(".kept"))  # as after an installation from an index
    try:
        machine.run("webop", "init", "other")
    finally:
        kept.rename(record)
    folder = machine.folder / "other"
    for path in (folder / "README.md", folder / ".github" / "workflows" / "ci.yml"):
        assert "pip install -e '.[test]'" in path.read_text()
        assert "wheel" not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Shop"], "NAME must be lowercase letters, digits and '-'"),
        (["my_shop"], "Did you mean 'my-shop'?"),
        (["../shop"], "Did you mean 'shop'?"),
        (["1"], "begin with a letter, got '1'."),
        (["a" * 41], "40 at most"),
        (["json"], "There is a Python module or keyword 'json' already"),
        (["pydantic"], "such as 'pydantic-operator'"),
        (["class"], "There is a Python module or keyword 'class' already"),
        (["tests"], "There is a Python module or keyword 'tests' already"),
        (["shop", "--kind", "order"], "--kind must be letters and digits"),
        (["shop", "--kind", "None"], "--kind must be letters and digits"),
        (["shop", "--group", "shop"], "--group must be a lowercase DNS name with a dot"),
        (["shop", "--group", "Shop.example.com"], "--group must be a lowercase DNS name"),
        (["shop", "--group", "shop.k8s.io"], "only from Kubernetes itself"),
        (["shop", "--group", "k8s.io"], "only from Kubernetes itself"),
        (["shop", "--group", "kubernetes.io"], "only from Kubernetes itself"),
        (["shop", "--group", "a.shop.kubernetes.io"], "only from Kubernetes itself"),
    ],
)
def test_names_that_cannot_work_are_refused_before_anything_is_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = invoke("init", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_a_folder_that_is_not_empty_is_refused_with_what_is_in_it(here: Path) -> None:
    for name in ("a.py", "b.py", "c.py", ".git"):
        (here / "shop").mkdir(exist_ok=True)
        (here / "shop" / name).write_text("mine")
    result = invoke("init", "shop")
    assert result.exit_code == 1
    text = "The folder 'shop' is not empty: it has .git, a.py, b.py and 1 more. Nothing was changed"
    assert text in result.stderr
    assert [path.name for path in here.iterdir()] == ["shop"]
    assert {path.read_text() for path in (here / "shop").iterdir()} == {"mine"}
    (here / "file").write_text("mine")
    result = invoke("init", "file")
    assert (result.exit_code, (here / "file").read_text()) == (1, "mine")
    assert "'file' exists, and is not a folder" in result.stderr


@pytest.mark.parametrize("is_linked", [False, True])
def test_an_empty_folder_is_filled(is_linked: bool, here: Path) -> None:
    place = here / ("elsewhere" if is_linked else "shop")
    place.mkdir()
    if is_linked:
        (here / "shop").symlink_to(place)
    assert invoke("init", "shop").exit_code == 0
    assert (place / "shop" / "models.py").exists()
    assert {path.name for path in here.iterdir()} == {"shop", place.name}


def test_a_full_disk_leaves_no_half_of_an_operator(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    # No file has more than 1 KiB. Python would write incomplete .pyc files.
    command = f"ulimit -f 1; {sys.executable} -B -m webop init shop"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "Error: Cannot write 'shop': File too large. Nothing was changed.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_page_shows_what_is_printed() -> None:
    assert _PRINTED in (_ROOT / "docs" / "learn" / "start.md").read_text()


def test_the_page_about_plans_has_the_job_that_is_written(here: Path) -> None:
    assert invoke("init", "shop").exit_code == 0
    written = (here / "shop" / ".github" / "workflows" / "ci.yml").read_text()
    _, _, commented = written.partition("  # plan:\n")
    job = "plan:\n" + re.sub(r"^  # ?", "", commented, flags=re.MULTILINE)
    page = (_ROOT / "docs" / "howto" / "plan.md").read_text()
    assert f"```yaml\n{job.rstrip()}\n```" in page
    assert "contents: read" in job
