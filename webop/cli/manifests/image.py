"""Build a Dockerfile with two stages: one installs the dependencies, the other runs webop."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Sequence
from importlib import metadata, resources
from pathlib import Path

import webop
from webop.cli.manifests.objects import PROBES_PORT
from webop.errors import ConfigurationError
from webop.version import __version__

#: With its digest, so that each build uses the same base. A workflow renews it.
BASE = (resources.files(__package__) / "base_image.txt").read_text(encoding="utf-8").strip()
_PIP = "RUN pip install --no-cache-dir --only-binary=:all: --prefix=/operator"
_WEBOP = Path(webop.__file__).parent
_NO_WHEEL = (
    "{what}, and webop is not installed from a package index here. So the image must not install "
    "it from one: anybody could publish a package with this name. Build a wheel, which the image "
    "then installs: pip wheel --no-deps --wheel-dir {folder} PATH/TO/CLONE"
)


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

    It installs all wheels of a folder, and ``requirements.txt``, or else the project of
    ``pyproject.toml``, or else webop.

    Args:
        root: the folder that the image is built in.
        files: the files of the operator, relative to the root.
        sources: the arguments of ``webop run`` that name files and modules.
        command: the arguments of ``webop image``, for the first comment.
        name: the name of the image.
        wheels: the folder with wheels in the root; None for ``wheels``, if it exists.

    Raises:
        ConfigurationError: there is no wheel of webop, but this webop is of no package index; or
            the files import other packages, and there is no list of them.
    """
    project = root / "pyproject.toml"
    folder = root / (wheels or "wheels")
    if not folder.resolve().is_relative_to(root.resolve()):
        raise ConfigurationError(
            f"--wheels={wheels} is outside of '{root}', where the image is built, so COPY cannot "
            "reach it. Put the wheels into a folder there."
        )
    found = list(folder.glob("*.whl"))
    has_wheel = any(wheel.name.startswith("webop-") for wheel in found)
    if not (is_indexed() or has_wheel or (wheels and not folder.exists())):
        what = f"There is no wheel of webop in '{folder}'"
        raise ConfigurationError(_NO_WHEEL.format(what=what, folder=folder))
    installed = ["wheels/*.whl"] if found or wheels else []
    copied = set[Path]()
    if (root / "requirements.txt").exists():
        copied = {Path("requirements.txt")}
        installed.append("--requirement=requirements.txt")
    elif project.exists():
        named = {Path(one) for one in ("README.md", "LICENSE") if one in project.read_text()}
        copied = {*named, Path(project.name), *files}
        installed.append(".")
    else:
        _check_imports(root, files, [wheel.name.partition("-")[0] for wheel in found])
        installed += [] if has_wheel else [f"webop=={__version__}"]
    copies = f"{_copy(copied)}\n" if copied else ""
    if found or wheels:
        copies += f"COPY {json.dumps([os.path.relpath(folder, root), 'wheels'])}\n"
    arguments = ["run", "--all-namespaces", f"--liveness=http://0.0.0.0:{PROBES_PORT}/healthz"]
    return f"""\
# Made by: webop image {command}
#   docker build -t {name} .
# The digest makes each build use the same base. To find the digest of a newer base:
#   docker buildx imagetools inspect {BASE.partition("@")[0]}
FROM {BASE} AS base

# If a dependency needs a compiler, install it in this stage (RUN apt-get install ...).
FROM base AS build
WORKDIR /build
{copies}\
{_PIP} {" ".join(installed)}

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


def is_indexed() -> bool:
    """Return whether webop was installed from a package index (PEP 610)."""
    try:
        return metadata.distribution("webop").read_text("direct_url.json") is None
    except metadata.PackageNotFoundError:
        return False


def _check_imports(root: Path, files: Iterable[Path], provided: Iterable[str]) -> None:
    """Check that the files import, also in functions, only webop and what some wheels provide."""
    imported = {name: file for file in sorted(files) for name in _list_imports(root / file)}
    own = {part.removesuffix(".py") for file in files for part in file.parts}
    known = metadata.packages_distributions()
    present = set(map(_normalize, provided))
    missing = {
        name: sorted(set(known.get(name, ())))
        for name in sorted(imported.keys() - own - sys.stdlib_module_names - {"webop", "kopf"})
        if present.isdisjoint(map(_normalize, known.get(name, ())))
    }
    if missing:
        text = ", ".join(f"{name} ({imported[name]})" for name in missing)
        lines = [f"{one}=={metadata.version(one)}" for found in missing.values() for one in found]
        unknown = [name for name, found in missing.items() if not found]
        advice = f"with these lines: {', '.join(lines)}" if lines else "with their packages"
        if unknown:
            advice += f"; {', '.join(unknown)} cannot be found here, so its package is unknown"
        raise ConfigurationError(
            f"The files import packages that the image may not have: {text}. Write a "
            f"requirements.txt in '{root}' {advice}."
        )


def _list_imports(file: Path) -> set[str]:
    """Return the names of the top-level modules that a file imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def list_own_files(root: Path) -> set[Path]:
    """Return the imported Python files below a folder, relative to it, without libraries.

    webop can be a folder there, too.
    """
    found = set()
    libraries = sysconfig.get_path("stdlib")
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or libraries)
        is_own = file.is_relative_to(root) and not file.is_relative_to(libraries)
        is_own = is_own and not file.is_relative_to(_WEBOP)
        if is_own and file.suffix == ".py" and file.is_file():
            path = file.relative_to(root)
            if not {"site-packages", "dist-packages"} & set(path.parts):
                found.add(path)
    return found
