"""The processes, the state file and the credentials of one started cluster.

Users see :class:`~webop.controlplane.cluster.LocalCluster`. For the command lines
see kube-apiserver, kube-controller-manager ("Command line tools reference" in the documentation
of Kubernetes); etcd ("Configuration options" in its documentation).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from webop.errors import ClusterError

from .binaries import APISERVER, CONTROLLER_MANAGER, ETCD, Binaries, provide_controller_manager
from .cache import describe_log, read_last_lines
from .credentials import (
    CredentialFiles,
    ServerNames,
    build_kubeconfig,
    create_credentials,
    write_private,
)
from .requests import AdminClient, find_free_port
from .state import (
    POLL_INTERVAL,
    ClusterState,
    end_process,
    is_running,
    save_state,
    start_process,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .progress_bar import Progress

# A start takes 3 seconds on an idle machine; in CI, several clusters start on two busy cores.
_START_TIMEOUT = 120.0
_PORT_ATTEMPTS = 4
_PORT_TAKEN = "address already in use"
_SERVICE_ACCOUNT_PATH = "/api/v1/namespaces/default/serviceaccounts/default"

# These make deletions, namespaces and the roles "view", "edit" and "admin" behave as in other
# clusters; none of them runs pods.
_CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
)

# Relative to the folder of the cluster, because paths of sockets have at most 104 bytes.
_ETCD_SOCKET = "unix://etcd.sock"
_ETCD_PEER_SOCKET = "unix://etcd-peer.sock"


class Runtime:
    """Starts and restarts the processes of one cluster, and keeps its state file up to date."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.files = CredentialFiles(state.folder)
        self._client: AdminClient | None = None

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.state.folder / "kubeconfig.yaml"

    @property
    def client(self) -> AdminClient:
        """Sends requests to the API server."""
        if self._client is None or self._client.server != self.state.server:
            files = self.files
            self._client = AdminClient(self.state.server, files.read_ca_data(), files.read_token())
        return self._client

    def is_ready(self) -> bool:
        """Return whether the API server is ready."""
        return self.client.has("/readyz") and self.client.has("/api/v1/namespaces/default")

    def start(self, apiserver_flags: Sequence[str], names: ServerNames) -> None:
        """Create the credentials, start etcd and the API server, wait until it is ready."""
        binaries = self.state.binaries
        create_credentials(self.state.folder, names)
        self._launch(ETCD, _build_etcd_command(binaries / ETCD))
        self._start_apiserver(binaries / APISERVER, apiserver_flags)
        version = self.client.request("GET", "/version")["gitVersion"]
        self._put(replace(self.state, version=version))

    def restart(self, name: str) -> None:
        """Restart a process with the same command; wait until the API server is ready."""
        self.kill(name)
        process = self.state.get_process(name)
        if process is not None:
            self._launch(name, list(process.argv))
            self._wait(self.is_ready, "the API server to be ready")

    def start_controller_manager(self, progress: Progress) -> None:
        """Start kube-controller-manager, if it is not running, and wait until it works."""
        process = self.state.get_process(CONTROLLER_MANAGER)
        if process is not None and is_running(process):
            return
        version = self.state.version.removeprefix("v")
        binaries = Binaries(self.state.binaries, version, self.state.source)
        executable = provide_controller_manager(binaries, progress)
        argv = _build_controller_manager_command(executable, self.files, self.kubeconfig)
        self._launch(CONTROLLER_MANAGER, argv)
        self._wait(lambda: self.client.has(_SERVICE_ACCOUNT_PATH), "the controllers to work")

    def kill(self, name: str) -> None:
        """Kill one of the processes, if it is running; its record stays."""
        process = self.state.get_process(name)
        if process is not None:
            end_process(process)

    def write_kubeconfig(
        self, path: Path, user: str, fields: dict[str, str], namespace: str = "default"
    ) -> None:
        """Write a kubeconfig of a user of this cluster, readable for this user only."""
        content = build_kubeconfig(
            server=self.state.server,
            ca_data=self.files.read_ca_data(),
            context=f"webop-{self.state.name}",
            user=user,
            fields=fields,
            namespace=namespace,
        )
        write_private(path, content)

    def _start_apiserver(self, executable: Path, flags: Sequence[str]) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = find_free_port()
            self._put(replace(self.state, server=f"https://127.0.0.1:{port}"))
            self.write_kubeconfig(self.kubeconfig, "admin", {"token": self.files.read_token()})
            self._launch(APISERVER, _build_apiserver_command(executable, self.files, port, flags))
            try:
                self._wait(self.is_ready, "the API server to be ready")
            except ClusterError:
                # Another process may have taken the port since it was found free.
                lines = read_last_lines(self._get_log(APISERVER), count=5)
                if attempt == _PORT_ATTEMPTS or _PORT_TAKEN not in "".join(lines):
                    raise
            else:
                return

    def _wait(self, is_met: Callable[[], bool], what: str) -> None:
        """Wait for a condition while all processes run.

        Raises:
            ClusterError: a process exited, or the time is over.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        while not is_met():
            for process in self.state.processes:
                if not is_running(process):
                    raise ClusterError(
                        f"{process.name} exited while waiting for {what}. "
                        + describe_log(self._get_log(process.name))
                    )
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"Gave up waiting for {what} after {_START_TIMEOUT:.0f} s. "
                    + describe_log(self._get_log(APISERVER))
                )
            time.sleep(POLL_INTERVAL)

    def _launch(self, name: str, argv: list[str]) -> None:
        process = start_process(name, argv, folder=self.state.folder, log=self._get_log(name))
        self._put(self.state.put_process(process))

    def _put(self, state: ClusterState) -> None:
        self.state = state
        save_state(state)

    def _get_log(self, name: str) -> Path:
        return self.state.logs / f"{name}.log"


def _build_etcd_command(executable: Path) -> list[str]:
    """Build the command line of etcd: sockets in its working folder, no port, no fsync.

    The data need not survive a crash of the machine. Without a port, no process can take it, and
    nothing bypasses the authorization of the API server.
    """
    return [
        str(executable),
        "--name=webop",
        "--data-dir=etcd",
        f"--listen-client-urls={_ETCD_SOCKET}",
        f"--listen-peer-urls={_ETCD_PEER_SOCKET}",
        # These two are unused but must be valid addresses.
        "--advertise-client-urls=http://127.0.0.1:1",
        "--initial-advertise-peer-urls=http://127.0.0.1:2",
        "--initial-cluster=webop=http://127.0.0.1:2",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _build_apiserver_command(
    executable: Path, files: CredentialFiles, port: int, extra: Sequence[str] = ()
) -> list[str]:
    """Build the command line of kube-apiserver."""
    return [
        str(executable),
        f"--etcd-servers={_ETCD_SOCKET}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--advertise-address=127.0.0.1",
        # The endpoint of the service "kubernetes" must not be a loopback address: write none.
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--tls-cert-file={files.server_cert}",
        f"--tls-private-key-file={files.server_key}",
        f"--client-ca-file={files.ca_cert}",
        f"--token-auth-file={files.tokens}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={files.service_account_cert}",
        f"--service-account-signing-key-file={files.service_account_key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        # As in OpenShift, so that tests find rights that are missing there.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        # Without the controller there are no service accounts, and pods could not be created.
        "--disable-admission-plugins=ServiceAccount",
        "--allow-privileged=true",
        *extra,
    ]


def _build_controller_manager_command(
    executable: Path, files: CredentialFiles, kubeconfig: Path
) -> list[str]:
    """Build the command line of kube-controller-manager: the controllers above, no port."""
    return [
        str(executable),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(_CONTROLLERS)}",
        f"--service-account-private-key-file={files.service_account_key}",
        f"--root-ca-file={files.ca_cert}",
        "--leader-elect=false",
        "--secure-port=0",
    ]
