"""``--aliased``: ``import kopf`` is webop, in the handlers and in what they import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SERVING = """
import asyncio
from webop.app import app

async def serve():
    async with app.lifespan():
        pass

asyncio.run(serve())
"""  # as an ASGI server does


def run(folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(args if args[0] == "-c" else ("-m", "webop", *args))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_handlers_of_a_dependency_that_imports_kopf_are_registered(tmp_path: Path) -> None:
    (tmp_path / "dependency.py").write_text(
        "from kopf import on\nimport kopf.testing\n"
        "@on.create('pods')\n"
        "def fn(**_): ...\n"
        "runner = kopf.testing.KopfRunner\n"
    )
    (tmp_path / "handlers.py").write_text(
        "import dependency, webop, webop.testing, kopf\n"
        "assert kopf is webop and kopf.on is webop.on\n"
        "assert dependency.runner is webop.testing.OperatorRunner\n"
        "assert webop.__spec__.name == webop.on.__spec__.parent == 'webop'\n"
        "from kopf.lifecycles import asap\n"
    )
    done = run(tmp_path, "handlers", "--aliased", "handlers.py")
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()[1:]] == ["fn"]


@pytest.mark.parametrize(
    ("args", "environ"),
    [
        (["run", "-A", "--aliased", "handlers.py"], {}),
        (["run", "-A", "handlers.py"], {"WEBOP_ALIASED": "1"}),
        (["doctor", "--aliased", "handlers.py"], {}),
        (["-c", _SERVING], {"WEBOP_ALIASED": "1", "WEBOP_MODULES": "handlers.py"}),
    ],
)
def test_the_operator_runs_with_webop_in_the_place_of_kopf(
    tmp_path: Path, args: list[str], environ: dict[str, str]
) -> None:
    (tmp_path / "handlers.py").write_text("import kopf\nraise SystemExit(kopf.__name__)\n")
    done = run(tmp_path, *args, **environ)
    assert done.returncode == 1
    assert "SystemExit: webop" in done.stderr


def test_private_modules_of_kopf_are_named_with_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text("from kopf._cogs.structs import bodies\n")
    done = run(tmp_path, "handlers", "--aliased", "handlers.py")
    assert done.returncode == 1
    assert "webop has no module for 'kopf._cogs'" in done.stderr
    assert "Run 'webop check-kopf' to see what to import instead" in done.stderr
    assert "line 1: from kopf._cogs.structs import bodies" in done.stderr


def test_handlers_registered_with_kopf_are_not_silently_missing(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(
        "import kopf\n@kopf.on.create('pods')\ndef fn(**_): ...\n"
    )
    done = run(tmp_path, "handlers", "handlers.py")
    assert done.stdout == (
        "There are no handlers. The code imports Kopf itself, and webop cannot call handlers "
        "registered with Kopf. Write 'import webop as kopf', or add --aliased (WEBOP_ALIASED=1).\n"
    )
    assert run(tmp_path, "handlers", "--aliased", "handlers.py").stdout.count("fn") == 1
