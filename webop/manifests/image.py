"""Build a Dockerfile with two stages: one installs the dependencies, the other runs webop."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Collection, Sequence
from pathlib import Path

from webop.manifests.objects import PROBES_PORT
from webop.version import __version__

#: With its digest, so that each build uses the same base.
BASE = (
    "python:3.13.15-slim-trixie"
    "@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b"
)
_PIP = "RUN pip install --no-cache-dir --only-binary=:all: --prefix=/operator"


def build_dockerfile(
    root: Path,
    files: Collection[Path],
    sources: Sequence[str],
    *,
    command: str,
    name: str,
    wheels: str | None,
) -> str:
    """Return the text of a Dockerfile.

    It installs ``requirements.txt``, or else the project of ``pyproject.toml``, or else webop.

    Args:
        root: the folder that the image is built in.
        files: the files of the operator, relative to the root.
        sources: the arguments of ``webop run`` that name files and modules.
        command: the arguments of ``webop image``, for the first comment.
        name: the name of the image.
        wheels: a folder in the root with wheels that are not in the package index.
    """
    project = root / "pyproject.toml"
    if (root / "requirements.txt").exists():
        copied, installed = {Path("requirements.txt")}, "--requirement=requirements.txt"
    elif project.exists():
        named = {Path(one) for one in ("README.md", "LICENSE") if one in project.read_text()}
        copied, installed = {*named, Path(project.name), *files}, "."
    else:
        copied, installed = set[Path](), f"webop=={__version__}"
    copies = f"{_copy(copied)}\n" if copied else ""
    if wheels:
        copies += f"COPY {json.dumps([wheels, 'wheels'])}\n"
        installed += " --find-links=wheels"
    arguments = ["run", "--all-namespaces", f"--liveness=http://0.0.0.0:{PROBES_PORT}/healthz"]
    return f"""\
# Made by: webop image {command}
#   docker build -t {name} .
# The digest makes each build use the same base. To find the digest of a newer base:
#   docker buildx imagetools inspect {BASE.partition(":")[0]}:3.13-slim
FROM {BASE} AS base

# If a dependency needs a compiler, install it in this stage (RUN apt-get install ...).
FROM base AS build
WORKDIR /build
{copies}\
{_PIP} {installed}

FROM base
COPY --from=build /operator /usr/local
WORKDIR /src
{_copy(files)}
# Python writes no .pyc files, so the root file system can be read-only.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, because Kubernetes cannot check runAsNonRoot for a name.
USER 65532:65532
EXPOSE {PROBES_PORT} 9443
# No shell, so that the operator itself receives signals. No HEALTHCHECK, since Kubernetes has
# probes.
ENTRYPOINT ["webop"]
CMD {json.dumps([*arguments, *sources])}
"""


def _copy(files: Collection[Path]) -> str:
    """Return one COPY instruction for each folder; the files keep their relative paths."""
    folders: dict[Path, list[str]] = {}
    for file in sorted(files):
        folders.setdefault(file.parent, []).append(str(file))
    return "\n".join(
        f"COPY {json.dumps([*own, './' if folder == Path() else f'{folder}/'])}"
        for folder, own in folders.items()
    )


def list_own_files(root: Path) -> set[Path]:
    """Return the imported Python files below a folder, relative to it, without libraries."""
    found = set()
    libraries = sysconfig.get_path("stdlib")
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or libraries)
        is_own = file.is_relative_to(root) and not file.is_relative_to(libraries)
        if is_own and file.suffix == ".py" and file.is_file():
            path = file.relative_to(root)
            if not {"site-packages", "dist-packages"} & set(path.parts):
                found.add(path)
    return found
