"""Mistakes of users: each is told with the thing and the remedy, and never by a bare traceback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.cli_runner import fail, invoke
from tests.kit.exec_plugins import write_kubeconfig
from tests.kit.processes import HANDLERS, Workshop
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


def write(folder: Path, code: str) -> Path:
    path = folder / "my_handlers.py"
    path.write_text(code)
    return path


@pytest.mark.feature("LOD-01", "CLI-18")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import nonexistent_module", ["nonexistent_module", "line 1"]),
        ("def fn(:", ["SyntaxError", "line 1"]),
        (
            "import webop\n@webop.on.create('x', retires=5)\ndef fn(**_): ...",
            ["'retires'", "did you mean 'retries'?", "line 2"],
        ),
        (
            "import webop\n@webop.on.create('v1', 'widgets', 'example.com')\ndef fn(**_): ...",
            ["The order is group, version, name, as in ('example.com', 'v1', 'widgets')", "line 2"],
        ),
    ],
)
def test_a_file_with_a_mistake_is_told_with_the_line(
    tmp_path: Path, code: str, expected: list[str]
) -> None:
    path = write(tmp_path, code)
    output = fail("-A", path, folder=tmp_path)
    for part in (str(path), *expected):
        assert part in output


@pytest.mark.parametrize(
    "code", ["def fn(:", "1/0", "import webop\n@webop.on.create('x')\ndef fn(nam, **_): ..."]
)
def test_a_file_whose_name_has_a_line_break_cannot_forge_a_line(tmp_path: Path, code: str) -> None:
    path = tmp_path / "a\n[ERROR] forged.py"
    path.write_text(code)
    output = fail("-A", str(path), folder=tmp_path)
    assert "a\\n[ERROR] forged.py" in output
    assert "\n[ERROR]" not in output


def test_a_traceback_of_a_file_whose_name_has_a_line_break_forges_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a\n[ERROR] forged.py"
    path.write_text(
        "import webop\n@webop.on.startup(errors=webop.ErrorsMode.PERMANENT)\ndef fn(**_): 1/0"
    )
    output = invoke("run", "-A", str(path), env={"HOME": str(tmp_path)}).output
    assert 'a\\n[ERROR] forged.py", line 3, in fn\n    def fn(**_): 1/0\n' in output
    assert "\n[ERROR]" not in output


@pytest.mark.feature("LOD-01", "LOD-02", "CLI-04", "CLI-18", "SCP-15", "CLI-08", "CLI-06", "CLI-20")
@pytest.mark.feature("PRB-01", "PRB-02", "CLI-09")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-A", "nowhere.py"], ["nowhere.py"]),
        (["-A", "-m", "nonexistent_module"], ["nonexistent_module"]),
        (["-A", "-n", "ns"], ["--namespace", "--all-namespaces"]),
        (["--log-format=xml"], ["xml", "plain", "full", "json"]),
        (["-A", "--liveness=https://0.0.0.0:8080/healthz"], ["https://0.0.0.0:8080", "http://"]),
        (
            ["-A", "--status=https://localhost:8081/ui"],
            ["The status endpoint 'https://localhost:8081/ui' must be an http:// URL"],
        ),
        (
            ["-A", "--liveness=http://localhost:8080/ui"],
            ["The status endpoint http://localhost:8080/ui is also the liveness endpoint."],
        ),
        (
            ["-A", "--liveness=http://0.0.0.0:80809/healthz"],
            ["http://0.0.0.0:80809/healthz", "Port out of range"],
        ),
    ],
)
def test_a_wrong_option_is_told_with_its_value(
    tmp_path: Path, options: list[str], expected: list[str]
) -> None:
    files = () if options[-1].endswith(("nowhere.py", "module")) else (write(tmp_path, HANDLERS),)
    output = fail(*options, *files, folder=tmp_path)
    for part in expected:
        assert part in output


FAILING_LOGIN = """
@webop.on.login()
def my_login(**_):
    raise webop.PermanentError('no luck today')
"""
FAILING_STARTUP = """
@webop.on.startup()
def my_startup(**_):
    raise webop.PermanentError('no database')
"""


@pytest.mark.feature("D-54", "AUT-05", "CLI-18", "STA-02", "D-64", "ADM-48", "CFG-51")
@pytest.mark.parametrize(
    ("code", "env", "expected"),
    [
        (f"{HANDLERS}{FAILING_LOGIN}", {}, ["my_login", "no luck today"]),
        (f"{HANDLERS}{FAILING_STARTUP}", {}, ["my_startup", "no database"]),
        (
            "import webop\n@webop.on.validate('widgets')\ndef check(**_): ...",
            {},
            ["check", "settings.admission.server"],
        ),
        (HANDLERS, {"WEBOP_POSTING__LEVEL": "loud"}, ["WEBOP_POSTING__LEVEL", "loud"]),
    ],
    ids=["login", "startup", "no webhook server", "a variable"],
)
def test_what_an_operator_cannot_start_with_is_named(
    tmp_path: Path, code: str, env: dict[str, str], expected: list[str]
) -> None:
    output = fail("-A", write(tmp_path, code), folder=tmp_path, env=env)
    for part in expected:
        assert part in output
    assert "cleaned up" not in output or "my_login" in code


@pytest.mark.feature("CLI-18")
@pytest.mark.parametrize("options", [(), ("-A",), ("-A", "--reload")])
def test_a_run_without_files_ends_with_code_2_and_says_what_to_write(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    output = fail(*options, folder=tmp_path, code=2)
    assert "Error: No files are given. Write: webop run -A handlers.py" in output


async def test_an_operator_with_handlers_of_its_own_life_only_runs(workshop: Workshop) -> None:
    code = "import webop\n@webop.on.cleanup()\ndef fn(**_): ...\n"
    async with workshop.start("-A", workshop.write(code)) as command:
        await command.wait_for("The operator is running: no webhooks, no watched kinds.")
        assert await command.stop() == 0


@pytest.mark.feature("D-54", "AUT-18", "CLI-18", "AUT-02")
def test_without_credentials_it_says_where_they_can_come_from(tmp_path: Path) -> None:
    path = write(tmp_path, HANDLERS)
    output = fail("-A", path, folder=tmp_path)
    sources = ("KUBECONFIG", "~/.kube/config", "service account", "on.login")
    for part in ("credentials", *sources, "webop cluster start"):
        assert part in output
    nowhere = str(tmp_path / "nowhere.yaml")
    assert nowhere in fail("-A", path, folder=tmp_path, env={"KUBECONFIG": nowhere})


async def test_a_cluster_that_does_not_answer_is_told_with_its_address(workshop: Workshop) -> None:
    port = find_free_port()
    kubeconfig = write_kubeconfig(workshop.folder, f"https://127.0.0.1:{port}")
    variables = {"KUBECONFIG": kubeconfig, "WEBOP_NETWORKING__ERROR_BACKOFFS": "none"}
    async with workshop.start("-A", workshop.write(HANDLERS), **variables) as command:
        await command.wait_for(f"127.0.0.1:{port}")
        assert await command.stop() == 0
    assert "Traceback" not in command.output


async def test_a_server_that_does_not_speak_as_the_kubeconfig_says_is_warned_of_once(
    workshop: Workshop, webop_cluster: LocalCluster
) -> None:
    config = webop_cluster.kubeconfig.read_text().replace("https://", "http://")
    (workshop.folder / "kubeconfig").write_text(config)
    arguments = ("-A", "--standalone", "--verbose", workshop.write(HANDLERS))
    kubeconfig = str(workshop.folder / "kubeconfig")
    async with workshop.start(*arguments, KUBECONFIG=kubeconfig) as command:
        await eventually(lambda: command.output.count("Cannot discover the resources") > 2)
        assert await command.stop() == 0
    lines = [line for line in command.output.splitlines() if "Cannot discover" in line]
    assert ["[WARNING ]" in line for line in lines] == [True] + [False] * (len(lines) - 1)


@pytest.mark.feature("SCP-02", "CLI-18")
async def test_a_pattern_that_matches_no_namespace_is_named_in_a_warning(
    connected: Workshop,
) -> None:
    async with connected.start("-n", "team-nobody-*", connected.write(HANDLERS)) as command:
        await command.wait_for("no namespace matches team-nobody-*.")
        assert await command.stop() == 0
    (line,) = (line for line in command.output.splitlines() if "no namespace matches" in line)
    assert "[WARNING ]" in line


async def test_habits_from_kopf_get_one_line_each_with_the_option_to_use(
    connected: Workshop,
) -> None:
    code = """
import webop
@webop.on.startup()
def configure(settings, **_):
    settings.admission.server = webop.WebhookServer(port=0)
    settings.admission.shutdown_delay = 0
    settings.admission.managed = "habits.example.com"
@webop.on.validate('absentees.habits.example.com')
def check(**_): ...
"""
    async with connected.start(connected.write(code), KOPF_RUN_NAMESPACE="default") as command:
        await command.wait_for("The operator is running: 1 webhook (check), no watched kinds.")
        assert await command.stop() == 0
    assert "Ignoring the environment variable KOPF_RUN_NAMESPACE: those of" in command.output
    assert "Add -A to confirm that, or -n NAME." in command.output
    assert "FutureWarning" not in command.output
    assert "_build_scope" not in command.output


@pytest.mark.parametrize(("options", "level"), [("", "WARNING"), (", cadump='ca.crt'", "INFO")])
async def test_webhooks_that_nobody_calls_as_they_are_not_managed_say_so(
    connected: Workshop, options: str, level: str
) -> None:
    code = """
import webop
@webop.on.startup()
def configure(settings, **_):
    settings.admission.server = webop.WebhookServer(port=0OPTIONS)
@webop.on.validate('widgets')
def check(**_): ...
""".replace("OPTIONS", options)
    async with connected.start("-A", connected.write(code)) as command:
        await command.wait_for("set settings.admission.managed to a name such as")
    (line,) = [line for line in command.output.splitlines() if "Serving webhooks at" in line]
    assert f"[{level:8}]" in line
