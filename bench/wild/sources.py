"""The sources of an operator, and a Python that can run it under kopf and under webop."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import tomllib
import venv
from pathlib import Path

import httpx

from bench.model import BenchError
from bench.sides import CACHE, PEER
from bench.turns import say
from bench.wild.model import Wild

ROOT = Path(__file__).parents[2]


def provide_python(wild: Wild) -> Path:
    """Return a Python with the requirements of the operator, kopf and webop; installed once."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wanted = [f"kopf=={PEER}", *own, *wild.requirements]
    folder = CACHE / f"wild-{wild.name}-{hashlib.sha256(repr(wanted).encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        say(f"{wild.name}: installing from PyPI into {folder}")
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", *wanted]
        if subprocess.run(pip, check=False, timeout=1200).returncode:
            raise BenchError(f"{wild.name}: pip failed.")
        (folder / "complete").touch()
    return python


def provide_sources(wild: Wild, given: Path | None, python: Path) -> Path:
    """Return the folder with the sources: a given one, GitHub's archive, or the packages."""
    if wild.commit is None:
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return Path(subprocess.check_output([python, "-c", code], text=True).strip())
    if given is not None and (given / wild.name).is_dir():
        return given / wild.name
    folder = CACHE / f"wild-{wild.name}-{wild.commit[:12]}"
    if not folder.exists():
        url = f"{wild.homepage}/archive/{wild.commit}.tar.gz"
        say(f"{wild.name}: downloading {url}")
        try:
            response = httpx.get(url, follow_redirects=True, timeout=120).raise_for_status()
        except httpx.HTTPError as exc:
            raise BenchError(f"Cannot download {url}: {exc!r}. Use --sources instead.") from exc
        part = folder.with_suffix(".part")
        with tarfile.open(fileobj=io.BytesIO(response.content)) as archive:
            archive.extractall(part, filter="data")
        next(part.iterdir()).rename(folder)  # the archive has one folder, named after the commit
        part.rmdir()
    return folder
