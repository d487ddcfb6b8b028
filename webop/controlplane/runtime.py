"""One started cluster from the inside: its processes, its state file, its credentials.

:class:`~webop.controlplane.cluster.LocalCluster` is what users see of it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from webop.errors import ClusterError

from .binaries import Binaries, provide_controller_manager
from .commands import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    build_apiserver_command,
    build_controller_manager_command,
    build_etcd_command,
)
from .credentials import (
    CredentialFiles,
    ServerNames,
    build_kubeconfig,
    create_credentials,
    write_private,
)
from .probes import Prober, find_free_port
from .processes import (
    describe_log,
    end_process,
    is_running,
    read_last_lines,
    start_process,
    wait_a_moment,
)
from .state import ClusterState, save_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .progress import Progress

# It takes 3 seconds on an idle machine; in CI, several clusters start on two busy cores.
_START_TIMEOUT = 120.0
_PORT_ATTEMPTS = 4
_PORT_TAKEN = "address already in use"
_SERVICE_ACCOUNT_PATH = "/api/v1/namespaces/default/serviceaccounts/default"


class Runtime:
    """Starts and restarts the processes of one cluster, and keeps its state file up to date.

    Args:
        state: what is known about the cluster; its folder exists.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.files = CredentialFiles(Path(state.folder))
        self._prober: Prober | None = None

    @property
    def folder(self) -> Path:
        """The folder of the cluster."""
        return Path(self.state.folder)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.folder / "kubeconfig.yaml"

    @property
    def prober(self) -> Prober:
        """What sends requests to the API server."""
        if self._prober is None or self._prober.server != self.state.server:
            ca_cert = self.files.ca_cert.read_text(encoding="ascii")
            self._prober = Prober(self.state.server, ca_cert, self.files.read_token())
        return self._prober

    def is_ready(self) -> bool:
        """Tell whether the API server answers that it is ready."""
        return self.prober.has("/readyz") and self.prober.has("/api/v1/namespaces/default")

    def start(self, apiserver_flags: Sequence[str], names: ServerNames) -> None:
        """Make the credentials, start etcd and the API server, wait until it is ready.

        Raises:
            ClusterError: a process does not come up; the message names its log.
        """
        binaries = Path(self.state.binaries)
        create_credentials(self.folder, names)
        self._launch(ETCD, build_etcd_command(binaries / ETCD))
        self._start_apiserver(binaries / APISERVER, apiserver_flags)
        version = self.prober.request("GET", "/version").read_json()["gitVersion"]
        self._put(replace(self.state, version=version))

    def restart_apiserver(self) -> None:
        """Start the API server as it was started before; kill it if it is running.

        Raises:
            ClusterError: it does not come up.
        """
        self.kill(APISERVER)
        process = self.state.get_process(APISERVER)
        if process is not None:
            self._launch(APISERVER, list(process.argv))
            self._wait(self.is_ready, "the API server to be ready")

    def start_controller_manager(self, progress: Progress) -> None:
        """Start kube-controller-manager, if it is not running, and wait until it works.

        Raises:
            ClusterError: there is no binary, or it does not come up.
        """
        process = self.state.get_process(CONTROLLER_MANAGER)
        if process is not None and is_running(process):
            return
        version = self.state.version.removeprefix("v")
        binaries = Binaries(Path(self.state.binaries), version, self.state.source)
        executable = provide_controller_manager(binaries, progress)
        argv = build_controller_manager_command(executable, self.files, self.kubeconfig)
        self._launch(CONTROLLER_MANAGER, argv)
        self._wait(lambda: self.prober.has(_SERVICE_ACCOUNT_PATH), "the controllers to work")

    def kill(self, name: str) -> None:
        """Kill one of the processes, if it is running; it stays in the state."""
        process = self.state.get_process(name)
        if process is not None:
            end_process(process)

    def write_kubeconfig(self, path: Path, user: str, fields: dict[str, str]) -> None:
        """Write a kubeconfig of a user of this cluster, readable for this user only."""
        content = build_kubeconfig(
            server=self.state.server,
            ca_data=self.files.read_ca_data(),
            context=f"webop-{self.state.name}",
            user=user,
            fields=fields,
        )
        write_private(path, content)

    def _start_apiserver(self, executable: Path, flags: Sequence[str]) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = find_free_port()
            self._put(replace(self.state, server=f"https://127.0.0.1:{port}"))
            self.write_kubeconfig(self.kubeconfig, "admin", {"token": self.files.read_token()})
            self._launch(APISERVER, build_apiserver_command(executable, self.files, port, flags))
            try:
                self._wait(self.is_ready, "the API server to be ready")
            except ClusterError:
                # Somebody else was faster: the port was free a moment ago.
                lines = read_last_lines(self._get_log(APISERVER), count=5)
                if attempt == _PORT_ATTEMPTS or _PORT_TAKEN not in "".join(lines):
                    raise
            else:
                return

    def _wait(self, is_met: Callable[[], bool], what: str) -> None:
        """Wait for a condition, as long as all processes are alive."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not is_met():
            for process in self.state.processes:
                if not is_running(process):
                    raise ClusterError(
                        f"{process.name} has ended while waiting for {what}. "
                        + describe_log(self._get_log(process.name))
                    )
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"Gave up waiting for {what} after {_START_TIMEOUT:.0f} s. "
                    + describe_log(self._get_log(APISERVER))
                )
            wait_a_moment()

    def _launch(self, name: str, argv: list[str]) -> None:
        process = start_process(name, argv, folder=self.folder, log=self._get_log(name))
        self._put(self.state.put_process(process))

    def _put(self, state: ClusterState) -> None:
        self.state = state
        save_state(state)

    def _get_log(self, name: str) -> Path:
        return Path(self.state.logs) / f"{name}.log"
