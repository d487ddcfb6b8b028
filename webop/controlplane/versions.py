"""Versions of Kubernetes and platforms: parse, match and choose them (pure)."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from webop.errors import ConfigurationError

# The newest and the oldest version that the tests run on; the first one is the default. The package
# contains the checksums of all their modules. Any 1.36.x in the cache or as an archive is as good.
PINNED_VERSIONS = ("1.36.3", "1.33.13")
PINNED_VERSION = PINNED_VERSIONS[0]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")
_SYSTEMS = {"Linux": "linux", "Darwin": "darwin"}
_MACHINES = {
    "x86_64": "amd64",
    "amd64": "amd64",
    "aarch64": "arm64",
    "arm64": "arm64",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
}


@dataclass(frozen=True)
class Wanted:
    """A requested version: a release line ("1.36"), or one exact version of it ("1.36.3")."""

    major: int
    minor: int
    patch: int | None = None

    def is_met_by(self, version: str) -> bool:
        """Return whether a complete version ("1.36.3") matches."""
        found = _VERSION.fullmatch(version)
        if not found or found[3] is None:
            return False
        patch = int(found[3]) if self.patch is None else self.patch
        return tuple(map(int, found.groups())) == (self.major, self.minor, patch)

    def __str__(self) -> str:
        line = f"{self.major}.{self.minor}"
        return line if self.patch is None else f"{line}.{self.patch}"


def parse_wanted(text: str | None) -> Wanted:
    """Parse a requested version, with or without the "v"; None is the default release line.

    Raises:
        ConfigurationError: the text is not a version.
    """
    if text is None:
        return Wanted(*map(int, PINNED_VERSION.split(".")[:2]))
    found = _VERSION.fullmatch(text.strip())
    if not found:
        raise ConfigurationError(
            f"{text!r} is not a version of Kubernetes: write 1.36 for a release line, or 1.36.3."
        )
    patch = found[3]
    return Wanted(int(found[1]), int(found[2]), None if patch is None else int(patch))


def choose_newest(wanted: Wanted, versions: list[str]) -> str | None:
    """Return the newest of the complete versions that match, or None."""
    fitting = [version for version in versions if wanted.is_met_by(version)]
    return max(fitting, key=lambda version: int(version.rsplit(".", 1)[1]), default=None)


def choose_for_build(wanted: Wanted) -> str:
    """Return the version to build: a pinned one if it matches, else the requested one."""
    return next(filter(wanted.is_met_by, PINNED_VERSIONS), str(wanted))


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
