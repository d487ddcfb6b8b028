"""Versions of Kubernetes and platforms: parse, match and choose them (pure)."""

from __future__ import annotations

import platform
import re

from webop.errors import ConfigurationError

# The newest and the oldest version that the tests run on; the first one is the default. The package
# contains the checksums of all their modules. Any 1.36.x in the cache or as an archive is as good.
PINNED_VERSIONS = ("1.36.3", "1.33.13")
PINNED_VERSION = PINNED_VERSIONS[0]

_VERSION = re.compile(r"v?(\d+\.\d+(\.\d+)?)")
_SYSTEMS = {"Linux": "linux", "Darwin": "darwin"}
_MACHINES = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "aarch64": "arm64",
    "arm64": "arm64",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
}


def parse_wanted(text: str | None) -> str:
    """Return a requested version without the "v": a release line ("1.36") or an exact version.

    None is the default release line.

    Raises:
        ConfigurationError: the text is not a version.
    """
    if text is None:
        return PINNED_VERSION.rpartition(".")[0]
    found = _VERSION.fullmatch(text.strip())
    if not found:
        raise ConfigurationError(
            f"{text!r} is not a version of Kubernetes: write 1.36 for a release line, or 1.36.3."
        )
    return found[1]


def is_met_by(wanted: str, version: str) -> bool:
    """Return whether a complete version ("1.36.3") is the wanted one, or of this release line."""
    found = _VERSION.fullmatch(version)
    return found is not None and bool(found[2]) and wanted in (found[1], found[1][: -len(found[2])])


def choose_newest(wanted: str, versions: list[str]) -> str | None:
    """Return the newest of the complete versions that match, or None."""
    fitting = [version for version in versions if is_met_by(wanted, version)]
    return max(fitting, key=lambda version: int(version.rsplit(".", 1)[1]), default=None)


def choose_for_build(wanted: str) -> str:
    """Return the version to build: a pinned one if it matches, else the requested one."""
    return choose_newest(wanted, [*PINNED_VERSIONS]) or wanted


def detect_platform() -> tuple[str, str]:
    """Return the operating system and the architecture in Go's terms, e.g. ("linux", "amd64").

    Raises:
        ConfigurationError: there are no binaries for this platform.
    """
    system = _SYSTEMS.get(platform.system())
    machine = _MACHINES.get(platform.machine().lower())
    if system is None or machine is None:
        raise ConfigurationError(
            f"A local cluster runs only on Linux and macOS, not on {platform.system()} "
            f"{platform.machine()}. On Windows, run it inside WSL."
        )
    return system, machine
