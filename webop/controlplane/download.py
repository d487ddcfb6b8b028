"""Download official binaries: the archives of envtest, and releases of Kubernetes itself.

The archives contain etcd, kube-apiserver and kubectl; the project controller-tools of Kubernetes
publishes them with an index of SHA-512 sums, which ``setup-envtest`` also reads.
Each release of Kubernetes has kube-controller-manager for Linux.

Guarantees: archives whose SHA-512 sums come with this package are preferred, and verified with
these. Other files are verified with the sums that are published beside them; a note says so.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPResponse
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from webop.aio.dedicated_threads import DedicatedThreads
from webop.errors import ClusterError, SourceError

from .progress_bar import Progress
from .versions import choose_newest, detect_platform

T = TypeVar("T")

INDEX_VARIABLE = "WEBOP_ENVTEST_INDEX"
RELEASES_VARIABLE = "WEBOP_KUBERNETES_RELEASES"
_INDEX_URL = (
    "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"
)
_RELEASES_URL = "https://dl.k8s.io/release"
_OFF = {"off", "none", "false", "0"}

# Behind a firewall, servers and name servers often do not respond at all: do not wait long.
_FIRST_RESPONSE_TIMEOUT = 5.0
_READ_TIMEOUT = 30.0

_FAILURES = (OSError, http.client.HTTPException, ValueError)  # the last one for impossible URLs

_ARCHIVED = frozenset({"etcd", "kube-apiserver", "kubectl"})


@dataclass(frozen=True)
class Archive:
    """An archive as the index lists it; ``is_pinned``: the checksum comes with this package."""

    version: str
    url: str
    sha512: str
    is_pinned: bool = False


def find_archive(wanted: str) -> Archive:
    """Return the newest matching archive for this platform.

    Raises:
        SourceError: the index is not reachable within seconds, or has no such version.
    """
    url = _get_url(INDEX_VARIABLE, _INDEX_URL)
    return choose_archive(_fetch_text(url), wanted, source=url)


def choose_archive(index: str, wanted: str, *, source: str = "index") -> Archive:
    """Return the newest matching archive of an index for this platform; prefer known checksums.

    Raises:
        SourceError: there is no such version, or this is not an index.
    """
    import yaml  # noqa: PLC0415 - not needed if the binaries are in the cache

    suffix = "-".join(detect_platform())
    try:
        releases: dict[str, Any] = yaml.safe_load(index)["releases"]
        archives = {
            name.removeprefix("v"): files.get(f"envtest-{name}-{suffix}.tar.gz")
            for name, files in releases.items()
        }
        pins = {name: read_pin(f"envtest-v{name}-{suffix}.tar.gz") for name in archives}
        listed = [name for name, file in archives.items() if file]
        version = choose_newest(wanted, list(filter(pins.get, listed)))
        version = version or choose_newest(wanted, listed)
        if version is None:
            raise SourceError(f"{source} has no archive of Kubernetes {wanted} for {suffix}")
        chosen, pin = archives[version], pins[version]
        return Archive(version, chosen["selfLink"], pin or chosen["hash"], is_pinned=bool(pin))
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{source} is not an index of archives: {error!r}") from None


def read_pin(name: str) -> str | None:
    """Return the SHA-512 sum of an archive that comes with this package, or None."""
    text = (resources.files(__package__) / "checksums" / "envtest.sha512").read_text("utf-8")
    found = (line.split() for line in text.splitlines())
    return next((digest for digest, known in found if known == name), None)


def download_archive(archive: Archive, target: Path, progress: Progress) -> str:
    """Download an archive, verify it, and unpack its binaries into a folder; return its version.

    Raises:
        SourceError: the download failed.
        ClusterError: the checksum is wrong.
    """
    if not archive.is_pinned:
        _note_beside(archive.url, progress)
    packed = target / "envtest.tar.gz"
    _download(archive.url, packed, "sha512", archive.sha512, progress)
    with tarfile.open(packed) as files:
        for member in files:
            name = PurePosixPath(member.name).name
            stream = files.extractfile(member) if name in _ARCHIVED else None
            if stream is not None:
                with stream, (target / name).open("wb") as output:
                    shutil.copyfileobj(stream, output)
                (target / name).chmod(0o755)
    packed.unlink()
    return archive.version


def download_release(name: str, version: str, target: Path, progress: Progress) -> str:
    """Download one binary of a release of Kubernetes, and verify it; return the version.

    Raises:
        SourceError: the binary is not published, or not reachable within seconds.
        ClusterError: the checksum is wrong.
    """
    system, machine = detect_platform()
    if system != "linux":
        raise SourceError(f"{name} is published for Linux only")
    base = _get_url(RELEASES_VARIABLE, _RELEASES_URL).rstrip("/")
    url = f"{base}/v{version}/bin/{system}/{machine}/{name}"
    expected = _fetch_text(f"{url}.sha256").split()
    if not expected:
        raise SourceError(f"{url}.sha256 is empty")
    _note_beside(url, progress)
    _download(url, target / name, "sha256", expected[0], progress)
    (target / name).chmod(0o755)
    return version


def _get_url(variable: str, default: str) -> str:
    url = os.environ.get(variable) or default
    if url.lower() in _OFF:
        raise SourceError(f"disabled by {variable}")
    return url


def _note_beside(url: str, progress: Progress) -> None:
    progress.note(f"{url} is verified only with the checksum that is published beside it.")


def _fetch_text(url: str) -> str:
    """Fetch a small text within some seconds."""

    def fetch() -> str:
        with _open(url) as response:
            return response.read().decode()

    return _limit(fetch, url)


def _limit(fetch: Callable[[], T], url: str) -> T:
    """Call in a thread, since nothing else limits how long the resolution of a name takes."""
    try:
        return DedicatedThreads("webop-download").submit(fetch).result(_FIRST_RESPONSE_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            raise SourceError(f"{url} responds with {error.code}") from None
    except TimeoutError:
        why = f"no response within {_FIRST_RESPONSE_TIMEOUT:.0f} seconds"
        raise SourceError(f"cannot reach {url}: {why}") from None
    except _FAILURES as error:
        raise SourceError(f"cannot reach {url}: {_explain(error)}") from None


def _open(url: str) -> HTTPResponse:
    """Request a URL; follow redirects, and use the proxies of the environment."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an http or https URL")
    response: HTTPResponse = urllib.request.urlopen(url, timeout=_READ_TIMEOUT)  # noqa: S310
    return response


def _explain(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(reason) or type(reason).__name__


def _download(url: str, path: Path, algorithm: str, expected: str, progress: Progress) -> None:
    """Download a URL to a file."""
    what = f"Downloading {url.rsplit('/', 1)[-1]}"
    try:
        with _limit(lambda: _open(url), url) as response, path.open("wb") as output:
            digest = hashlib.new(algorithm)
            total, done = int(response.headers.get("Content-Length", 0)), 0
            while chunk := response.read(1 << 20):
                output.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress.step(what, done, total, "bytes")
            if done < total:
                raise http.client.IncompleteRead(b"", total - done)
    except _FAILURES as error:
        raise SourceError(f"cannot download {url}: {_explain(error)}") from None
    finally:
        progress.finish()
    if (found := digest.hexdigest()) != expected.lower():
        raise ClusterError(
            f"{url} does not match its checksum "
            f"(expected {expected[:16]}…, got {found[:16]}…). Try again. If it fails again, "
            "a proxy probably changes the file: set KUBEBUILDER_ASSETS to binaries that you trust."
        )
