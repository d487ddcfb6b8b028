"""The class LocalCluster: start and stop a local cluster, read its addresses, inject faults."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import yaml

from webop.errors import ClusterError, ConfigurationError

from . import cache, reaper
from .binaries import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    Binaries,
    provide_binaries,
    provide_controller_manager,
)
from .cluster_client import AdminClient, Json, Manifest, find_free_port
from .command_lines import (
    build_apiserver_command,
    build_controller_manager_command,
    build_etcd_command,
)
from .credentials import (
    CredentialFiles,
    build_user_fields,
    create_credentials,
    write_private,
)
from .progress_bar import Progress
from .state import (
    POLL_INTERVAL,
    ClusterState,
    Process,
    check_name,
    end_abandoned_clusters,
    end_process,
    identify,
    is_abandoned,
    is_running,
    load_state,
    make_private_folder,
    save_state,
    start_guard,
    start_process,
)

# Seconds. A start takes 3 on an idle machine; in CI, several clusters start on two busy cores.
_START_TIMEOUT = 120.0
_PORT_ATTEMPTS = 4
_PORT_TAKEN = "address already in use"
_SERVICE_ACCOUNT_PATH = "/api/v1/namespaces/default/serviceaccounts/default"


class LocalCluster:
    """A real Kubernetes API server with its etcd, as local processes of this user.

    Use it as a context manager, or with :meth:`start` and :meth:`stop`. Each start uses free
    ports of the loopback interface, new certificates, a new token and an empty store. There
    are no nodes: pods are stored but do not run.

    ::

        with LocalCluster() as cluster:
            cluster.kubectl("get", "namespaces")

    Guarantees: the cluster ends when the process that started it ends, also by a crash, unless it
    was started as ``detached``. The logs stay in :attr:`logs`.

    Args:
        name: a name under which other processes can find the cluster; by default generated.
        version: a release line of Kubernetes ("1.36") or a complete version; None for the version
            that webop is tested with. For its sources, see "Local cluster" in the documentation.
        controller_manager: also start kube-controller-manager (see
            :meth:`start_controller_manager`).
        apiserver_flags: more arguments of kube-apiserver, e.g. ``--audit-log-path=...``.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        version: str | None = None,
        controller_manager: bool = False,
        apiserver_flags: Sequence[str] = (),
    ) -> None:
        self.name = f"run-{secrets.token_hex(4)}" if name is None else check_name(name)
        self._is_named = name is not None
        self._wanted_version = version
        self._wants_controller_manager = controller_manager
        self._apiserver_flags = tuple(apiserver_flags)
        self._progress = Progress(sys.stderr)
        self._state: ClusterState | None = None
        self._client: AdminClient | None = None
        self._guard: Process | None = None
        self._logs = cache.get_root() / "logs" / self.name

    @classmethod
    def attach(cls, name: str) -> Self:
        """Return the running cluster of that name, which another process has started.

        Raises:
            ClusterError: there is none, or its processes have ended.
        """
        cluster = cls(name)
        state = load_state(name)
        if state is None:
            raise ClusterError(
                f"There is no cluster {name!r}. Start it: webop cluster start --name {name}"
            )
        dead = state.get_dead_processes()
        if dead:
            raise ClusterError(
                f"Cluster {name!r} is incomplete: {' and '.join(dead)} not running (logs in "
                f"{state.logs}). Restart it: webop cluster start --name {name}"
            )
        cluster._state = state
        cluster._logs = state.logs
        return cluster

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def server(self) -> str:
        """The URL of the API server, e.g. "https://127.0.0.1:23456"."""
        return self._get_state().server

    @property
    def version(self) -> str:
        """The version that the API server reports, e.g. "v1.36.3"."""
        return self._get_state().version

    @property
    def source(self) -> str:
        """Where the binaries come from."""
        return self._get_state().source

    @property
    def folder(self) -> Path:
        """The folder with keys and data; removed by :meth:`stop`."""
        return self._get_state().folder

    @property
    def logs(self) -> Path:
        """The folder with the logs of the processes; kept after :meth:`stop`."""
        return self._logs

    @property
    def kubeconfig(self) -> Path:
        """The path of the administrator's kubeconfig."""
        return self.folder / "kubeconfig.yaml"

    @property
    def token(self) -> str:
        """The bearer token of the administrator."""
        return self._files.tokens.read_text(encoding="ascii").partition(",")[0]

    @property
    def ca_data(self) -> str:
        """The CA certificate as in a kubeconfig: base64 of PEM."""
        return base64.b64encode(self._files.ca_cert.read_bytes()).decode()

    @property
    def pids(self) -> dict[str, int]:
        """The process ids by name, e.g. to stop one with SIGSTOP."""
        return {name: process.pid for name, process in self._get_state().processes.items()}

    @property
    def is_started(self) -> bool:
        """Whether the cluster is started and not stopped."""
        return self._state is not None

    def is_ready(self) -> bool:
        """Return whether the API server reports that it is ready."""
        client = self._get_client()
        return client.has("/readyz") and client.has("/api/v1/namespaces/default")

    def start(self, *, detached: bool = False, owner: int | None = None) -> Self:
        """Start the cluster and wait until it is ready; do nothing if it is started.

        Args:
            detached: let the cluster outlive this process, until it is stopped by its name.
            owner: the id of the process with which the cluster ends; by default, this process.

        Raises:
            ConfigurationError: a cluster of that name exists, or KUBEBUILDER_ASSETS names
                unusable binaries.
            ClusterError: there are no binaries, or a process does not start; the message
                names its log.
        """
        if self._state is not None:
            return self
        binaries = provide_binaries(self._progress, self._wanted_version)
        end_abandoned_clusters()
        cache.prune_logs()
        try:
            # One process at a time starts the cluster of a name.
            lock = cache.hold_lock("clusters", f".{self.name}.lock")
            with lock if self._is_named else nullcontext():
                self._create(binaries, None if detached else identify(owner or os.getpid()))
                create_credentials(self.folder)
                self._launch(ETCD, build_etcd_command(binaries.folder / ETCD))
                self._start_apiserver(binaries.folder / APISERVER)
                if self._wants_controller_manager:
                    self.start_controller_manager()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the processes and remove everything but the logs; do nothing if it is stopped."""
        state, self._state = self._state, None
        if state is not None:
            for process in state.processes.values():  # the folder may be gone
                end_process(process)
            reaper.end_cluster(state.folder)
        if self._guard is not None:
            end_process(self._guard)

    def kill_apiserver(self) -> None:
        """Kill the API server with SIGKILL, like a crash; the data stays."""
        self._kill(APISERVER)

    def restart_apiserver(self) -> None:
        """Restart the API server with the same port and data; kill it first if it is running.

        Raises:
            ClusterError: it does not start, e.g. because another process has taken its port.
        """
        self._restart(APISERVER)

    def kill_etcd(self) -> None:
        """Kill etcd with SIGKILL; the API server keeps running, but cannot read or write."""
        self._kill(ETCD)

    def restart_etcd(self) -> None:
        """Restart etcd with the same data, and wait for the API server; kill etcd first if needed.

        Raises:
            ClusterError: it does not start, or the API server is not running.
        """
        self._restart(ETCD)

    def start_controller_manager(self) -> None:
        """Start kube-controller-manager, if it is not running, and wait until it works.

        Its controllers collect owned objects, empty and remove deleted namespaces, create the
        default service account of namespaces, and fill the roles "view", "edit" and "admin".

        Raises:
            ClusterError: there is no binary, or it does not start.
        """
        state = self._get_state()
        process = state.processes.get(CONTROLLER_MANAGER)
        if process is not None and is_running(process):
            return
        binaries = Binaries(state.binaries, state.version.removeprefix("v"), state.source)
        executable = provide_controller_manager(binaries, self._progress)
        argv = build_controller_manager_command(executable, self._files, self.kubeconfig)
        self._launch(CONTROLLER_MANAGER, argv)
        has_account = partial(self._get_client().has, _SERVICE_ACCOUNT_PATH)
        self._wait(has_account, "the controllers to work")

    def create_namespace(self, prefix: str = "test-") -> str:
        """Create a namespace with a generated name, and return the name.

        Raises:
            ClusterError: the API server refuses it, or does not respond.
        """
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": prefix}}
        (stored,) = self.apply(body)
        name: str = stored["metadata"]["name"]
        return name

    def delete_namespace(self, name: str) -> None:
        """Request the deletion of a namespace; only the controller manager completes it.

        Raises:
            ClusterError: the API server refuses it, or does not respond.
        """
        self.delete("v1", "Namespace", name)

    def apply(
        self, *manifests: Manifest, namespace: str | None = None, dry_run: bool = False
    ) -> list[Json]:
        """Create or change objects as ``kubectl apply --server-side`` does, without kubectl.

        CRDs and namespaces come first. The kinds of CRDs are served when this returns.

        Args:
            manifests: paths of files and folders with YAML or JSON, and objects as mappings.
            namespace: the namespace of objects that do not name one; by default, "default".
            dry_run: let the API server check the objects, also by webhooks, but not store them.

        Returns:
            The objects as stored, in the order in which they were applied.

        Raises:
            ConfigurationError: a file does not exist or contains something else than objects,
                or an object names another namespace.
            ClusterError: the API server refuses an object, or does not respond; the previous ones
                stay applied.
        """
        return self._get_client().apply(manifests, namespace, dry_run=dry_run)

    def get(
        self, api_version: str, kind: str, name: str, namespace: str | None = None
    ) -> Json | None:
        """Return an object, such as ``get("v1", "ConfigMap", "one", "default")``; None if absent.

        Raises:
            ClusterError: there is no such kind, or the API server does not respond.
        """
        return self._get_client().send("GET", api_version, kind, name, namespace)

    def delete(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> None:
        """Request the deletion of an object; finalizers can delay it.

        Raises:
            ClusterError: the API server refuses it or does not respond, or there is no such kind.
        """
        self._get_client().send("DELETE", api_version, kind, name, namespace)

    def kubeconfig_for(
        self, user: str, groups: Iterable[str] = (), *, namespace: str = "default"
    ) -> Path:
        """Write a kubeconfig of another user, who has only the rights that RBAC grants.

        Args:
            user: the user name in RBAC, e.g. "alice" or "system:serviceaccount:ns:name".
            groups: the groups, in addition to "system:authenticated".
            namespace: the namespace of requests that name none.
        """
        path = self.folder / f"kubeconfig-{secrets.token_hex(4)}.yaml"
        fields = build_user_fields(self._files.read_ca(), user, groups)
        self._write_kubeconfig(path, user, fields, namespace)
        return path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return its output.

        Args:
            arguments: e.g. ``"apply", "-f", "-"``.
            stdin: the standard input of kubectl.

        Raises:
            ConfigurationError: there is no kubectl, neither beside the API server nor on PATH.
            ClusterError: kubectl failed; the message has its error.
        """
        beside = self._get_state().binaries
        executable = shutil.which("kubectl", path=beside) or shutil.which("kubectl")
        if executable is None:
            raise ConfigurationError("There is no kubectl on PATH. Install it, or use a client.")
        done = subprocess.run(  # noqa: S603 - the user's own arguments, no shell
            [executable, f"--cache-dir={self.folder / 'kubectl-cache'}", *arguments],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=stdin or "",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
            raise ClusterError(f"kubectl {' '.join(arguments)}: {reason}")
        return done.stdout

    def _create(self, binaries: Binaries, owner: Process | None) -> None:
        """Create the folder, the state and, if there is an owner, the guard of a new cluster."""
        remains = load_state(self.name)
        if remains is not None:
            has_owner = remains.owner is not None and not is_abandoned(remains)
            if has_owner or not remains.get_dead_processes():
                raise ConfigurationError(
                    f"Cluster {self.name!r} exists already. Use it with "
                    f"LocalCluster.attach({self.name!r}), or stop it: "
                    f"webop cluster stop --name {self.name}"
                )
        folder = cache.get_root() / "clusters" / self.name
        reaper.end_cluster(folder)  # also of another version of webop, whose state is unreadable
        make_private_folder(folder)
        shutil.rmtree(self._logs, ignore_errors=True)
        self._logs = cache.make_folder("logs", self.name)
        state = self._state = ClusterState(
            name=self.name,
            folder=folder,
            logs=self._logs,
            created=time.time(),
            owner=owner,
            source=binaries.source,
            binaries=binaries.folder,
        )
        save_state(state)
        if owner is not None:
            self._guard = start_guard(folder, owner)

    def _start_apiserver(self, executable: Path) -> None:
        flags = self._apiserver_flags
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = find_free_port()
            self._put(replace(self._get_state(), server=f"https://127.0.0.1:{port}"))
            self._write_kubeconfig(self.kubeconfig, "admin", {"token": self.token})
            self._launch(APISERVER, build_apiserver_command(executable, self._files, port, flags))
            try:
                self._wait(self.is_ready, "the API server to be ready")
            except ClusterError:
                # Another process may have taken the port since it was found free.
                lines = cache.read_last_lines(self._get_log(APISERVER), count=5)
                if attempt == _PORT_ATTEMPTS or _PORT_TAKEN not in "".join(lines):
                    raise
            else:
                version = self._get_client().request("GET", "/version")["gitVersion"]
                self._put(replace(self._get_state(), version=version))
                return

    def _restart(self, name: str) -> None:
        """Restart a process with the same command; wait until the API server is ready."""
        self._kill(name)
        self._launch(name, self._get_state().processes[name].argv)
        self._wait(self.is_ready, "the API server to be ready")

    def _kill(self, name: str) -> None:
        """Kill one of the processes, if it is running; its record stays."""
        end_process(self._get_state().processes[name])

    def _wait(self, is_met: Callable[[], bool], what: str) -> None:
        """Wait for a condition while all processes run."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not is_met():
            for name, process in self._get_state().processes.items():
                if not is_running(process):
                    raise ClusterError(
                        f"{name} exited while waiting for {what}. "
                        + cache.describe_log(self._get_log(name))
                    )
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"Gave up waiting for {what} after {_START_TIMEOUT:.0f} s. "
                    + cache.describe_log(self._get_log(APISERVER))
                )
            time.sleep(POLL_INTERVAL)

    def _launch(self, name: str, argv: Sequence[str]) -> None:
        state = self._get_state()
        process = start_process(argv, folder=self.folder, log=self._get_log(name))
        self._put(replace(state, processes={**state.processes, name: process}))

    def _put(self, state: ClusterState) -> None:
        self._state = state
        save_state(state)

    def _get_log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _write_kubeconfig(
        self, path: Path, user: str, fields: dict[str, str], namespace: str = "default"
    ) -> None:
        """Write a kubeconfig of a user of this cluster, readable for this user only."""
        name = f"webop-{self.name}"
        cluster = {"server": self.server, "certificate-authority-data": self.ca_data}
        context = {"cluster": name, "user": user, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": user, "user": fields}],
            "contexts": [{"name": name, "context": context}],
            "current-context": name,
        }
        write_private(path, yaml.safe_dump(config, sort_keys=False).encode())

    def _get_client(self) -> AdminClient:
        if self._client is None or self._client.server != self.server:
            self._client = AdminClient(self.server, self.ca_data, self.token)
        return self._client

    @property
    def _files(self) -> CredentialFiles:
        return CredentialFiles(self.folder)

    def _get_state(self) -> ClusterState:
        if self._state is None:
            raise ConfigurationError(
                f"Cluster {self.name!r} is not started. Use it in a with statement or call "
                "start(); for a cluster of `webop cluster start`, use attach()."
            )
        return self._state
