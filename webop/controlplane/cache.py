"""The folders of binaries, running clusters and logs; all below one folder.

::

    $WEBOP_CACHE, or $XDG_CACHE_HOME/webop, or ~/.cache/webop (macOS: ~/Library/Caches/webop)
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
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from webop.errors import ConfigurationError

from .versions import choose_newest, detect_platform

_KEPT_LOGS = 10  # of finished test runs


def get_root() -> Path:
    """Return the folder of everything; it may not exist yet."""
    configured = os.environ.get("WEBOP_CACHE")
    if configured:
        return Path(configured).expanduser().absolute()
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or usual).expanduser() / "webop"


def make_folder(*names: str) -> Path:
    """Create a folder below the root, whatever the umask: only this user can write to it."""
    folder = get_root()
    for name in ("", *names):
        folder /= name
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def hold_lock(
    folder: str, name: str, *, on_wait: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Hold the lock of a file below the root; the system releases it if this process dies."""
    import fcntl  # noqa: PLC0415 - not on Windows, where this module is imported too

    with (make_folder(folder) / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_safe(path: Path) -> None:
    """Check that only this user and root can replace a file of the cache, before it is executed.

    This includes the folders above it, up to the root of the cache.

    Raises:
        ConfigurationError: the owner is another user, or the group or others can write.
    """
    root = get_root()
    for one in (path, *path.parents):
        if one.is_relative_to(root):
            found = one.stat()
            mode = stat.S_IMODE(found.st_mode)
            if found.st_uid not in (os.geteuid(), 0) or mode & 0o022:
                raise ConfigurationError(
                    f"{one} is not safe to use: its owner is user {found.st_uid}, its mode is "
                    f"{mode:04o}. Other users could have replaced the programs that webop runs. "
                    f"Remove {root / 'bin'}, or set WEBOP_CACHE to a new folder. If you trust "
                    f"this one: chown -R {os.geteuid()} {root}; chmod -R go-w {root}"
                )


def get_binaries_folder(version: str) -> Path:
    """Return the folder of the binaries of a complete version ("1.36.3") for this platform."""
    return get_root() / "bin" / "-".join((version, *detect_platform()))


def find_cached_version(wanted: str, names: Collection[str]) -> str | None:
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
        (get_root() / "clusters" / f".{folder.name}.lock").unlink(missing_ok=True)


def read_last_lines(log: Path, count: int = 15) -> list[str]:
    """Return the last lines of a log; none if the file does not exist."""
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def describe_log(log: Path) -> str:
    """Return the end of an error message: the path and the last lines of a log."""
    lines = "".join(f"\n    {line}" for line in read_last_lines(log))
    return f"The log {log} " + (f"ends with:{lines}" if lines else "is empty.")
