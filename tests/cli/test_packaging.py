"""What the package declares to pip and to package indexes, and that the tests are in its sdist."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.feature("DEP-01")
def test_the_extras_of_the_manual_are_there() -> None:
    metadata = importlib.metadata.metadata("webop")
    assert {"full-auth", "uvloop", "dev"} <= set(metadata.get_all("Provides-Extra") or ())
    required = importlib.metadata.requires("webop") or []
    extras = {
        extra: {re.split(r"[ \[<>=;]", text)[0] for text in required if _is_of(text, extra)}
        for extra in ("full-auth", "uvloop", "dev", "ngrok")
    }
    assert extras["full-auth"] == {"kubernetes", "pykube-ng"}
    assert extras["uvloop"] == {"uvloop"}
    assert extras["ngrok"] == {"pyngrok"}
    assert "pyngrok" in extras["dev"]


def _is_of(text: str, extra: str) -> bool:
    return re.search(rf"""extra == ['"]{extra}['"]""", text) is not None


def _run_hatchling(*args: str, url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hatchling", *args],
        cwd=_ROOT,
        env={**os.environ, "WEBOP_REPO_URL": url},
        capture_output=True,
        text=True,
        check=True,
    )


def _read_metadata(url: str) -> tuple[Any, str]:
    done = _run_hatchling("metadata", url=url)
    return json.loads(done.stdout), done.stderr


def test_links_of_the_readme_work_in_a_package_index() -> None:
    metadata, printed = _read_metadata("https://github.com/me/webop/")
    text = metadata["readme"]["text"]
    places = re.findall(r"""\]\(([^)]+)\)|src="([^"]+)\"""", text)
    assert len(places) > 10
    assert all(re.match("https://|#", link or image) for link, image in places)
    tag = f"v{metadata['version']}"
    assert f'<img src="https://github.com/me/webop/raw/{tag}/docs/images/logo.svg"' in text
    assert f"(https://github.com/me/webop/blob/{tag}/CHANGELOG.md)" in text
    assert metadata["urls"]["Source"] == "https://github.com/me/webop"
    assert "[!" not in text  # only GitHub draws these boxes
    assert not printed


def test_a_build_that_does_not_know_the_address_of_the_repository_says_so() -> None:
    metadata, printed = _read_metadata("")
    assert "WEBOP_REPO_URL is not set: the package gets no URLs" in printed
    assert metadata["readme"]["text"] == (_ROOT / "README.md").read_text(encoding="utf-8")
    assert "urls" not in metadata or not metadata["urls"]


@pytest.mark.journey
def test_the_sdist_has_all_that_its_tests_need(tmp_path: Path) -> None:
    """Once, a line for a folder of ``make docs`` in .gitignore left out ``tools/site``."""
    _run_hatchling("build", "-t", "sdist", "-d", str(tmp_path), url="")
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    root = tmp_path / archive.name.removesuffix(".tar.gz")
    parts = ("tests/docs", "tests/cli/test_packaging.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only"]
    done = subprocess.run(
        [*command, *parts],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("Makefile", "uv.lock", ".ci/run", "bench/go/go.mod", "manifests/operator.yaml"):
        assert (root / name).is_file(), name
