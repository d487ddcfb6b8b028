"""Find, download or build the binaries of Kubernetes.

The sources, in order:

1. ``KUBEBUILDER_ASSETS``: a folder, as other tools of Kubernetes use it. Any owner is fine, since
   the user has named it.
2. The cache.
3. The official archive of envtest, or a release of Kubernetes, if they are reachable.
4. A build from Go modules.

Guarantees: binaries appear in the cache complete or not at all (by a rename). If two processes
need them at the same time, one gets them and the other waits. Binaries that another user could
have replaced are refused.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from webop.errors import ClusterError, ConfigurationError, SourceError

from . import build, cache, download
from .progress_bar import Progress
from .versions import choose_for_build, detect_platform, is_met_by, parse_wanted

ETCD = "etcd"
APISERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
VERSION_VARIABLE = "WEBOP_KUBERNETES"  # used where no version is given
_REQUIRED = (ETCD, APISERVER)
_TEMPORARY = "unfinished-"
_WAITING = "Waiting for another process that downloads or builds the binaries."


@dataclass(frozen=True)
class Binaries:
    """A folder with etcd and kube-apiserver.

    Attributes:
        folder: the folder.
        version: the complete version of Kubernetes, without the "v"; empty if not known yet.
        source: where the binaries come from, for messages.
    """

    folder: Path
    version: str
    source: str


def get_wanted(version: str | None = None) -> str:
    """Return the wanted version: the given one, or that of WEBOP_KUBERNETES, or the default."""
    return parse_wanted(find_asked(version))


def find_asked(version: str | None = None) -> str | None:
    """Return the version that is asked for: the given one, or that of WEBOP_KUBERNETES, or None."""
    return version or os.environ.get(VERSION_VARIABLE) or None


def find_binaries(version: str | None = None) -> Binaries | None:
    """Find etcd and kube-apiserver on this machine; None if they are missing.

    Raises:
        ConfigurationError: KUBEBUILDER_ASSETS names an unusable folder, or others could have
            replaced the binaries.
    """
    wanted = get_wanted(version)
    assets = os.environ.get(ASSETS_VARIABLE)
    if not assets:
        return _find_in_cache(wanted, _REQUIRED)
    folder, found = Path(assets).absolute(), ""
    if not cache.has_binaries(folder, _REQUIRED):
        raise ConfigurationError(
            f"{ASSETS_VARIABLE} is {folder}, but this folder lacks the executables "
            f"{' and '.join(_REQUIRED)}. Correct the variable, or unset it to download or build "
            "them."
        )
    for path in (folder, *(folder / name for name in _REQUIRED)):
        if path.stat().st_mode & stat.S_IWOTH:
            raise ConfigurationError(
                f"{ASSETS_VARIABLE} is {folder}, but every user can write to {path}, and so "
                f"replace the programs that webop runs. If you trust it: chmod o-w {path}"
            )
    if find_asked(version):
        found = detect_version(folder)
        if not is_met_by(wanted, found):
            raise ConfigurationError(
                f"Kubernetes {wanted} is required, but {ASSETS_VARIABLE} ({folder}) contains "
                f"{found}. Unset the variable, or do not choose a version."
            )
    return Binaries(folder, found, f"{ASSETS_VARIABLE}={folder}")


def provide_binaries(progress: Progress, version: str | None = None) -> Binaries:
    """Find etcd and kube-apiserver, or download or build them, which can take minutes.

    Raises:
        ConfigurationError: KUBEBUILDER_ASSETS or the version is unusable.
        ClusterError: no source has them; the message has the reason for each.
    """
    return find_binaries(version) or _provide(_REQUIRED, get_wanted(version), progress)


def provide_controller_manager(binaries: Binaries, progress: Progress) -> Path:
    """Find kube-controller-manager of the same version as the API server, or get it.

    Raises:
        ClusterError: no source has it; the message has the reason for each.
    """
    if cache.has_binaries(binaries.folder, [CONTROLLER_MANAGER]):
        return binaries.folder / CONTROLLER_MANAGER
    version = parse_wanted(binaries.version or detect_version(binaries.folder))
    return _provide([CONTROLLER_MANAGER], version, progress).folder / CONTROLLER_MANAGER


def detect_version(folder: Path) -> str:
    """Return the version that the API server in a folder prints; takes about 0.1 s."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own binary
            [folder / APISERVER, "--version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"Cannot run {folder / APISERVER}: {error}. Is it for this platform? "
            f"Unset {ASSETS_VARIABLE} to download or build the binaries."
        ) from None
    found = re.search(r"v(\d+\.\d+\.\d+)", done.stdout)
    return found[1] if found else ""


def _find_in_cache(wanted: str, names: Collection[str]) -> Binaries | None:
    version = cache.find_cached_version(wanted, names)
    if version is None:
        return None
    folder = cache.get_binaries_folder(version)
    for name in names:
        cache.check_safe(folder / name)
    return Binaries(folder, version, f"cache {folder}")


def _provide(names: Collection[str], wanted: str, progress: Progress) -> Binaries:
    """Get binaries from the first source that has them, unless another process just did."""
    cache.check_safe(cache.make_folder("bin"))
    with cache.hold_lock("bin", "lock", on_wait=lambda: progress.note(_WAITING)):
        found = _find_in_cache(wanted, names)
        if found is None:
            cached = cache.get_root() / "bin"
            for folder in cached.glob(f"{_TEMPORARY}*"):  # left by a killed process
                shutil.rmtree(folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=_TEMPORARY, dir=cached, ignore_cleanup_errors=True
            ) as unfinished:
                folder = Path(unfinished)
                version = _try_sources(names, wanted, folder, progress)
                target = cache.make_folder("bin", cache.get_binaries_folder(version).name)
                for path in folder.iterdir():
                    if path.is_file() and os.access(path, os.X_OK):
                        path.chmod(0o755)
                        path.replace(target / path.name)
            found = _find_in_cache(wanted, names)
    if found is None:
        raise ClusterError(
            f"The binaries of Kubernetes {wanted} lack {' or '.join(names)}. "
            f"Set {ASSETS_VARIABLE} to a folder that has them."
        )
    return found


def _try_sources(names: Collection[str], wanted: str, folder: Path, progress: Progress) -> str:
    try:
        if APISERVER in names:
            return download.download_archive(download.find_archive(wanted), folder, progress)
        return download.download_release(CONTROLLER_MANAGER, wanted, folder, progress)
    except SourceError as error:
        reason = str(error)
        progress.note(f"Cannot download: {reason}. Building from Go modules instead.")
    # The third binary shares most packages with the others: it takes half a minute more.
    complete = (*_REQUIRED, CONTROLLER_MANAGER) if APISERVER in names else names
    try:
        version = build.build_binaries(
            complete, choose_for_build(wanted), target=folder, progress=progress
        )
    except SourceError as error:
        raise ClusterError(
            f"Cannot get {', '.join(names)} of Kubernetes {wanted} "
            f"for {'/'.join(detect_platform())}:\n"
            f"  - {ASSETS_VARIABLE} does not name a folder that has them;\n"
            f"  - the cache {cache.get_root()} does not have them;\n"
            f"  - download: {reason};\n"
            f"  - build: {error}.\n"
            "Allow connections to one of these hosts, or install Go, or set "
            f"{ASSETS_VARIABLE} to a folder with the binaries (setup-envtest makes one)."
        ) from None
    shutil.rmtree(cache.get_root() / "scratch", ignore_errors=True)
    return version
