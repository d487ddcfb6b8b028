from __future__ import annotations

import hashlib
import http.server
import io
import socket
import tarfile
import threading
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.cluster.controlplane.fake_executables import Recorder
from tests.kit.rows import rows
from webop.controlplane.binaries import provide_binaries, provide_controller_manager
from webop.controlplane.download import Archive, choose_archive, download_archive, find_archive
from webop.controlplane.versions import detect_platform, parse_wanted
from webop.errors import ClusterError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SUFFIX = "-".join(detect_platform())


class Site:
    """A web server with what the official ones publish."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.missing = 0  # bytes that are announced but not sent
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = site.files.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"") + site.missing))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def publish(self, version: str, *, checksum: str | None = None) -> None:
        """Publish an archive of a version, and an index that lists only this one."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for name in ("etcd", "kube-apiserver", "kubectl", "../../escaped"):
                content = f"#!/bin/sh\necho Kubernetes v{version} {name}\n".encode()
                member = tarfile.TarInfo(f"controller-tools/envtest/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        name = f"envtest-v{version}-{_SUFFIX}.tar.gz"
        self.files[f"/{name}"] = stream.getvalue()
        found = hashlib.sha512(stream.getvalue()).hexdigest()
        entry = {"hash": checksum or found, "selfLink": f"{self.url}/{name}"}
        self.files["/index.yaml"] = yaml.safe_dump(
            {"releases": {f"v{version}": {name: entry}}}
        ).encode()


@pytest.fixture
def site(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site()
    monkeypatch.setenv("WEBOP_ENVTEST_INDEX", f"{site.url}/index.yaml")
    monkeypatch.setenv("WEBOP_KUBERNETES_RELEASES", f"{site.url}/release")
    yield site
    site.close()


def test_an_archive_is_verified_unpacked_and_cached(
    site: Site, cache: Path, recorder: Recorder
) -> None:
    site.publish("1.36.1")
    binaries = provide_binaries(recorder)
    assert binaries.version == "1.36.1"
    assert binaries.folder == cache / "bin" / f"1.36.1-{_SUFFIX}"
    names = {path.name for path in binaries.folder.iterdir()}
    assert names == {"etcd", "kube-apiserver", "kubectl"}
    (note,) = recorder.notes
    assert "is verified only with the checksum that is published beside it" in note
    size = len(site.files[f"/envtest-v1.36.1-{_SUFFIX}.tar.gz"])
    assert recorder.steps[-1][1:] == (size, size, "bytes")
    site.files.clear()
    assert provide_binaries(recorder) == binaries
    assert not list(cache.rglob("escaped"))


@pytest.mark.parametrize(
    ("version", "checksum"),
    [
        ("1.36.1", "0" * 128),
        ("1.36.2", None),  # with another content than the official one, and the checksum of that
    ],
    ids=["another checksum", "the archive and the index were both replaced"],
)
def test_an_archive_without_its_true_checksum_is_refused(
    site: Site, cache: Path, recorder: Recorder, version: str, checksum: str | None
) -> None:
    site.publish(version, checksum=checksum)
    with pytest.raises(ClusterError, match="does not match its checksum"):
        provide_binaries(recorder)
    assert not list((cache / "bin").glob("*/*"))


def test_versions_with_a_known_checksum_are_preferred() -> None:
    entries = {
        f"v{version}": {f"envtest-v{version}-{_SUFFIX}.tar.gz": {"hash": "0", "selfLink": "here"}}
        for version in ("1.36.0", "1.36.2", "1.36.9", "1.35.1")
    }
    index = yaml.safe_dump({"releases": entries})
    chosen = choose_archive(index, parse_wanted("1.36"))
    assert (chosen.version, chosen.is_pinned, len(chosen.sha512)) == ("1.36.2", True, 128)
    assert choose_archive(index, parse_wanted("1.36.9")) == Archive("1.36.9", "here", "0")
    assert choose_archive(index, parse_wanted("1.35")) == Archive("1.35.1", "here", "0")


def test_without_a_fitting_archive_the_binaries_are_built(
    site: Site, go: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBOP_ENVTEST_INDEX", f"{site.url}/index.yaml")
    site.publish("1.30.0")
    assert provide_binaries(recorder).version == "1.36.3"
    (note,) = recorder.notes
    assert "has no archive of Kubernetes 1.36" in note
    assert "Building from Go modules" in note


def test_the_controller_manager_is_taken_from_the_release_of_the_same_version(
    site: Site, recorder: Recorder
) -> None:
    if detect_platform()[0] != "linux":
        pytest.skip("released for Linux only")
    site.publish("1.36.1")
    path = f"/release/v1.36.1/bin/{'/'.join(detect_platform())}/kube-controller-manager"
    site.files[path] = b"#!/bin/sh\n"
    site.files[f"{path}.sha256"] = hashlib.sha256(b"#!/bin/sh\n").hexdigest().encode()
    manager = provide_controller_manager(provide_binaries(recorder), recorder)
    assert manager.read_bytes() == b"#!/bin/sh\n"


def test_an_archive_that_ends_early_is_a_missing_source(
    site: Site, recorder: Recorder, tmp_path: Path
) -> None:
    """Such as one of a proxy that was interrupted: the next source is tried."""
    site.files["/archive"], site.missing = b"half", 4
    with pytest.raises(SourceError, match=r"cannot download .* 4 more expected"):
        download_archive(Archive("1.36.1", f"{site.url}/archive", "0" * 128), tmp_path, recorder)


def test_a_site_that_does_not_answer_is_given_up_within_seconds(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("WEBOP_ENVTEST_INDEX", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        begun = time.monotonic()
        with pytest.raises(SourceError, match="cannot reach"):
            find_archive(parse_wanted("1.36"))
        assert time.monotonic() - begun < 8


@rows("index", ["", "releases: 7", "releases: {v1.36.1: 7}", "{"])
def test_what_is_not_an_index_is_told(index: str) -> None:
    with pytest.raises(SourceError, match="is not an index"):
        choose_archive(index, parse_wanted("1.36"))
