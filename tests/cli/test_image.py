"""``webop image``: its steps as far as they go without an engine, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import re
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
def test_the_files_and_the_command_of_an_image_are_those_of_an_operator_that_runs(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeting = str(project / "wheels" / "greeting-1.0-py3-none-any.whl")
    monkeypatch.syspath_prepend(greeting)
    result = make(project, str(project / "handlers.py"))
    assert result.exit_code == 0, result.output
    assert "docker build -t my-operator:0.1.0 ." in result.stdout
    copies = re.findall(r"^COPY (\[.*\])$", result.stdout, re.MULTILINE)
    for *sources, target in map(json.loads, copies):
        (tmp_path / "src" / target).mkdir(parents=True, exist_ok=True)
        for source in (one for one in sources if (project / one).is_file()):  # no wheels
            shutil.copy(project / source, tmp_path / "src" / target)
    assert not (tmp_path / "src" / "notes.txt").exists()
    words = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", result.stdout, re.MULTILINE)
    command = [part for line in words for part in json.loads(line)]
    port = find_free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", *(part.replace("8080", str(port)) for part in command)],
        cwd=tmp_path / "src",
        env={"PYTHONPATH": f"{greeting}:{_ROOT}", "PATH": os.environ["PATH"], "HOME": "/"},
    )
    try:
        assert wait_for_health(process, port) == {"greet": "hello world"}
    finally:
        process.terminate()
    assert process.wait(timeout=30) == 0


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


def wait_for_health(process: subprocess.Popen[bytes], port: int) -> object:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{port}/healthz"
            with urllib.request.urlopen(url) as answer:
                return json.load(answer)
        time.sleep(0.05)
    return None
