"""``webop image``: its steps as far as they go without an engine, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import Result

from tests.kit.cli_runner import forgetting_modules, invoke
from tests.kit.wheels import make_wheel
from webop.controlplane.cluster_client import find_free_port
from webop.version import __version__

_ROOT = Path(__file__).parents[2]
_USER = 65532
# Root may have its Python where nobody else may look: reading is allowed, writing is not.
_UNPRIVILEGED = (
    *("setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"),
    *(f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")),
)
_HANDLERS = """\
import greeting
import webop
from parts import words

@webop.on.probe()
def greet(**_):
    return f"{greeting.HELLO} {words.WORLD}"
"""


_PROBE = "import webop\n@webop.on.probe()\ndef fn(**_): ...\n"


def make(folder: Path, *args: str) -> Result:
    with forgetting_modules(folder):
        return invoke("image", *args)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An operator with a package and a library of its own, which no index has."""
    folder = tmp_path / "my_operator"
    (folder / "parts").mkdir(parents=True)
    (folder / "handlers.py").write_text(_HANDLERS)
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "words.py").write_text('WORLD = "world"\n')
    (folder / "notes.txt").write_text("Not for the image.\n")
    (folder / "requirements.txt").write_text("greeting==1.0\nwebop\n")
    (folder / "wheels").mkdir()
    make_wheel(folder / "wheels", "greeting", "1.0", {"greeting.py": 'HELLO = "hello"\n'})
    make_wheel(folder / "wheels", "webop", __version__)
    return folder


@pytest.mark.feature("DEP-03")
def test_the_steps_of_an_image_lead_to_an_operator_that_runs(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project / "wheels" / "greeting-1.0-py3-none-any.whl"))
    result = make(project, str(project / "handlers.py"))
    assert result.exit_code == 0, result.output
    assert "docker build -t my-operator:0.1.0 ." in result.stdout

    root = tmp_path / "root"
    command, variables = build(result.stdout, project, root)
    assert sorted(file.name for file in (root / "src").rglob("*") if file.is_file()) == [
        "__init__.py",
        "handlers.py",
        "words.py",
    ]
    (library,) = root.glob("usr/local/lib/python*/site-packages")
    port = find_free_port()
    command = [part.replace("8080", str(port)) for part in command]
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*")}
    for folder in [tmp_path, *root.rglob("*")]:
        folder.chmod(folder.stat().st_mode & ~0o222 | 0o555)
    process = subprocess.Popen(
        [*(_UNPRIVILEGED if os.getuid() == 0 else ()), sys.executable, "-m", *command],
        cwd=root / "src",
        env={
            **variables,
            "PYTHONPATH": f"{library}:{_ROOT}",
            "PATH": os.environ["PATH"],
            "HOME": "/",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    health = wait_for_health(process, port)
    process.terminate()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output.decode()
    assert health == {"greet": "hello world"}
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*")} == before


def test_an_image_without_requirements_has_webop_and_what_is_imported(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "requirements.txt").unlink()
    (project / "handlers.py").unlink()
    package = project / "parts"
    (package / "handlers.py").write_text(f"from parts import words\n{_PROBE}")
    monkeypatch.chdir(project)
    text = make(project, "-m", "parts.handlers", "--name", "other").stdout
    assert "docker build -t other:0.1.0 ." in text
    assert " --prefix=/operator wheels/*.whl\n" in text
    files = ["parts/__init__.py", "parts/handlers.py", "parts/words.py", "parts/"]
    assert f"COPY {json.dumps(files)}\n" in text
    assert text.rstrip().endswith('"--module=parts.handlers"]')


def test_an_image_without_requirements_relies_on_no_packages_that_only_others_require(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "requirements.txt").unlink()
    (project / "wheels" / "greeting-1.0-py3-none-any.whl").unlink()
    (project / "handlers.py").write_text(
        "import json\nimport httpx\nimport parts\nimport webop\n"
        "@webop.on.probe()\ndef fn(**_):\n    import yaml, pytest, nowhere.here\n"
    )
    result = make(project, str(project / "handlers.py"))
    assert result.exit_code == 1
    assert not result.stdout
    text = " ".join(result.stderr.split())
    names = [f"{name} (handlers.py)" for name in ("httpx", "nowhere", "pytest", "yaml")]
    assert f"the image may not have: {', '.join(names)}. Write a requirements.txt" in text
    lines = [f"{name}=={metadata.version(name)}" for name in ("httpx", "pytest", "PyYAML")]
    assert f"with these lines: {', '.join(lines)}; nowhere cannot be found here" in text


def test_no_image_installs_webop_from_an_index_that_does_not_have_it(project: Path) -> None:
    """Anybody could publish a package with this name."""
    (project / "handlers.py").write_text(_PROBE)
    (project / "wheels" / f"webop-{__version__}-py3-none-any.whl").unlink()
    for requirements in ("webop", None):
        if requirements is None:
            (project / "requirements.txt").unlink()
        for options in ((), ("--wheels", "wheels")):
            result = make(project, *options, str(project / "handlers.py"))
            assert result.exit_code == 1
            assert not result.stdout
            assert "There is no wheel of webop in" in result.stderr
            assert "pip wheel --no-deps --wheel-dir" in result.stderr


def test_wheels_outside_of_the_folder_of_the_image_are_refused(project: Path) -> None:
    (project / "handlers.py").write_text(_PROBE)
    for wheels in ("../elsewhere", "/elsewhere"):
        result = make(project, "--wheels", wheels, str(project / "handlers.py"))
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"--wheels={wheels} is outside of '{project}'" in result.stderr


def test_an_image_made_in_a_clone_has_no_part_of_the_package_webop(tmp_path: Path) -> None:
    """The image installs webop; parts of it beside the handlers would hide the rest."""
    shutil.copytree(_ROOT / "webop", tmp_path / "webop")
    (tmp_path / "handlers.py").write_text(_PROBE)
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels", "webop", __version__)
    command = [sys.executable, "-m", "webop", "image", "handlers.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert 'COPY ["handlers.py", "./"]' in done.stdout
    assert "webop/" not in done.stdout


def test_an_image_does_not_get_the_standard_library_of_the_machine(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter can be below the folder of the operator, such as the home directory."""
    library = Path(sysconfig.get_path("stdlib"))
    monkeypatch.delitem(sys.modules, "handlers", raising=False)
    monkeypatch.syspath_prepend(str(project / "wheels" / "greeting-1.0-py3-none-any.whl"))
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(library.parents[1])
    result = make(project, "--wheels", "wheels", "--module", "handlers")
    assert result.exit_code == 0, result.output
    assert f"{library.name}/" not in result.stdout


def build(text: str, context: Path, root: Path) -> tuple[list[str], dict[str, str]]:
    """Go through the steps of a Dockerfile; return the command and the environment.

    The packages of this environment are those that the base has already.
    """
    place, command, variables = root, list[str](), dict[str, str]()
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        match word:
            case "WORKDIR":
                place = root / rest.lstrip("/")
                place.mkdir(parents=True, exist_ok=True)
            case "COPY" if rest.startswith("--from=build "):
                source, target = rest.split()[1:]
                shutil.copytree(root / source[1:], root / target[1:], dirs_exist_ok=True)
            case "COPY":
                *sources, target = json.loads(rest) if rest[0] == "[" else rest.split()
                for source in sources:
                    copy(context / source, place / target)
            case "RUN":
                steps = [
                    str(part)
                    for word in rest.replace("=/", f"={root}/").split()
                    for part in (place.glob(word) if "*" in word else [word])
                ]
                environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_ROOT_USER_ACTION": "ignore"}
                steps.insert(2, "--ignore-installed")  # else pip uninstalls this webop
                subprocess.run(
                    [sys.executable, "-m", *steps], cwd=place, env=environment, check=True
                )
            case "ENV":
                variables |= dict(pair.split("=") for pair in rest.split())
            case "ENTRYPOINT" | "CMD":
                command += json.loads(rest)
    return command, variables


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
        return
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def wait_for_health(process: subprocess.Popen[bytes], port: int) -> object:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{port}/healthz"
            with urllib.request.urlopen(url) as answer:
                return json.load(answer)
        time.sleep(0.05)
    return None
