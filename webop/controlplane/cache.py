"""The folders of binaries, running clusters and logs; all below one folder.

::

    $WEBOP_CACHE, or the platform's cache folder (~/.cache/webop, ~/Library/Caches/webop)
    ├── bin/1.36.3-linux-amd64/     etcd, kube-apiserver, kube-controller-manager, kubectl
    ├── clusters/<name>/            state.json, kubeconfig.yaml, keys, data; removed by a stop
    ├── logs/<name>/                logs of the processes; kept after a stop
    ├── logs/build-….log            output of the last build
    └── scratch/                    a toolchain and its caches, during a build
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .versions import Wanted, choose_newest, detect_platform

if TYPE_CHECKING:
    from collections.abc import Collection

_KEPT_LOGS = 10  # of finished test runs


def get_root() -> Path:
    """Return the folder of everything; it may not exist yet."""
    configured = os.environ.get("WEBOP_CACHE")
    if configured:
        return Path(configured).expanduser().absolute()
    from platformdirs import user_cache_path  # noqa: PLC0415 - not at the load of the pytest plugin

    return user_cache_path("webop", appauthor=False)


def get_binaries_folder(version: str) -> Path:
    """Return the folder of the binaries of a complete version ("1.36.3") for this platform."""
    return get_root() / "bin" / "-".join((version, *detect_platform()))


def find_cached_version(wanted: Wanted, names: Collection[str]) -> str | None:
    """Find the newest fitting version that has all of the named binaries in the cache."""
    suffix = "-" + "-".join(detect_platform())
    versions = [
        folder.name.removesuffix(suffix)
        for folder in (get_root() / "bin").glob(f"*{suffix}")
        if has_binaries(folder, names)
    ]
    return choose_newest(wanted, versions)


def has_binaries(folder: Path, names: Collection[str]) -> bool:
    """Return whether a folder has all of the named executables."""
    return all(os.access(folder / name, os.X_OK) for name in names)


def prune_logs() -> None:
    """Remove the logs of finished test runs, except for the newest ones."""
    finished: dict[Path, float] = {}
    for folder in (get_root() / "logs").glob("run-*"):
        if not (get_root() / "clusters" / folder.name).exists():
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                finished[folder] = folder.stat().st_mtime
    for folder in sorted(finished, key=finished.__getitem__, reverse=True)[_KEPT_LOGS:]:
        shutil.rmtree(folder, ignore_errors=True)
