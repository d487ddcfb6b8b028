"""Stand-ins for slow executables: a ``go`` that builds in no time, an API server that obeys.

Most are scripts written to a folder, so that the code under test starts real processes.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from webop.controlplane.progress_bar import Progress

# The parts of the go.mod of Kubernetes that matter, in its layout.
KUBERNETES_GO_MOD = """\
module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
	go.etcd.io/etcd/api/v3 v3.6.8
	go.etcd.io/etcd/client/v3 v3.6.8
	k8s.io/api v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/apiserver => ./staging/src/k8s.io/apiserver
)
"""

_GO = """
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
(here / "pid").write_text(str(os.getpid()))
what = sys.argv[1:3]
if what == ["env", "GOSUMDB"]:
    print((here / "sumdb").read_text())
elif what[0] == "env":
    print(json.dumps({"GOVERSION": (here / "version").read_text(), "GOTOOLCHAIN": "local"}))
elif what == ["list", "-m"]:
    version = sys.argv[-1].partition("@v")[2]
    version += ".9" if version.count(".") == 1 else ""
    print(json.dumps(
        {"Version": f"v{version}", "GoVersion": "1.26.0", "GoMod": str(here / "kubernetes.mod")}
    ))
elif what == ["list", "-deps"]:
    print("go: downloading example.org/module v1.0.0", file=sys.stderr)
    if (here / "no-network").exists():
        sys.exit("go: example.org/module: dial tcp: lookup proxy.golang.org: no such host")
    print("stale example.org/one\\nstale example.org/two\\nstale example.org/three")
elif what[0] == "build":
    print("example.org/one", file=sys.stderr, flush=True)
    outputs = {
        package: "server" if "etcd" in package else package.rsplit("/", 1)[1]
        for package in sys.argv
        if package.startswith(("go.etcd.io/", "k8s.io/"))
    }
    for name in outputs.values():
        pathlib.Path(name).write_text("half of a binary")
        pathlib.Path(name).chmod(0o755)
    (here / "building").touch()
    while (here / "wait").exists():
        time.sleep(0.01)
    if (here / "fail").exists():
        sys.exit("example.org/two/file.go:7:1: undefined: gravity")
    print("example.org/two", file=sys.stderr)
    for name in outputs.values():
        pathlib.Path(name).write_text("#!/bin/sh\\necho Kubernetes v1.36.3\\n")
"""

_APISERVER = """
import http.server, json, pathlib, ssl, sys
here = pathlib.Path(__file__).parent
options = dict(word[2:].partition("=")[::2] for word in sys.argv[1:])
if "version" in options:
    sys.exit(print("Kubernetes v1.36.3"))
with (here / "ports").open("a") as ports:
    ports.write(options["secure-port"] + "\\n")
taken = here / "ports-taken"
if taken.exists():
    left = int(taken.read_text()) - 1
    taken.write_text(str(left)) if left else taken.unlink()
    sys.exit("failed to listen on 127.0.0.1: bind: address already in use")
if (here / "refuse").exists():
    sys.exit("Error: unknown flag: --gravity")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"gitVersion": "v1.36.3"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer(("127.0.0.1", int(options["secure-port"])), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(options["tls-cert-file"], options["tls-private-key-file"])
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""

_ETCD = """
import signal
signal.pause()
"""


class Recorder(Progress):
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[str, int, int, str]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, what: str, done: int, total: int, unit: str) -> None:
        self.steps.append((what, done, total, unit))

    def finish(self) -> None:
        pass


def write_go(folder: Path) -> Path:
    """Write a ``go`` into a folder, and return it; files beside it steer what it does."""
    (folder / "version").write_text("go1.26.8", encoding="utf-8")
    (folder / "sumdb").write_text("sum.golang.org", encoding="utf-8")
    (folder / "kubernetes.mod").write_text(KUBERNETES_GO_MOD, encoding="utf-8")
    return _write_script(folder / "go", _GO)


def write_assets(folder: Path) -> Path:
    """Write an etcd and a kube-apiserver into a folder, and return the folder."""
    _write_script(folder / "etcd", _ETCD)
    _write_script(folder / "kube-apiserver", _APISERVER)
    return folder


def _write_script(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable} -IS\n{textwrap.dedent(text)}", encoding="utf-8")
    path.chmod(0o755)
    return path
