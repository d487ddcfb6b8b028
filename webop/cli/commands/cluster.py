"""``webop cluster``: start and stop a real Kubernetes API server on this machine.

:mod:`webop.controlplane` does the work; it is imported when a command runs.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence

import click

from webop.cli.tables import print_table
from webop.controlplane.binaries import APISERVER, CONTROLLER_MANAGER, find_asked
from webop.controlplane.cluster import LocalCluster
from webop.controlplane.reaper import end_cluster
from webop.controlplane.state import ClusterState, load_all_states, load_state
from webop.controlplane.versions import is_met_by, parse_wanted
from webop.errors import ClusterError

_DEFAULT_NAME = "default"


_name_option = click.option(
    "-n",
    "--name",
    default=_DEFAULT_NAME,
    show_default=True,
    help="The name of the cluster. Several clusters can run at the same time.",
)


@click.group()
def cluster() -> None:
    """Run a real Kubernetes API server on this machine, without Docker.

    etcd and kube-apiserver run as processes of your user, on the loopback interface.
    There are no nodes: the API server stores pods, but they do not run.

    \b
        webop cluster start
        eval "$(webop cluster env)"
        kubectl get namespaces
        webop cluster stop

    The first of these that works provides the binaries: the folder in KUBEBUILDER_ASSETS; the
    cache (WEBOP_CACHE, else the platform's cache folder); a download (Kubernetes' archive for
    tests, "envtest"); a build from Go modules, which takes some minutes once.
    """  # noqa: D301  \b keeps click from wrapping the lines


@cluster.command(short_help="Start a cluster and wait until it is ready.")
@_name_option
@click.option(
    "--version",
    metavar="VERSION",
    help="The Kubernetes version: a release line (1.36) or an exact version (1.36.3).",
)
@click.option(
    "--controller-manager",
    is_flag=True,
    help="Also run kube-controller-manager, for garbage collection and deletion of namespaces.",
)
@click.option(
    "--apiserver-flag",
    "apiserver_flags",
    metavar="FLAG",
    multiple=True,
    help="A flag for kube-apiserver, such as --apiserver-flag=--v=4; repeatable.",
)
def start(
    name: str, version: str | None, controller_manager: bool, apiserver_flags: tuple[str, ...]
) -> None:
    """Start a cluster and wait until it is ready.

    It runs until "webop cluster stop". If a cluster of that name already runs, only the controller
    manager is added. It is an error if its version or its flags are not those that you ask for.
    """
    begun = time.monotonic()
    running = _find_running(name)
    if running is None:
        running = LocalCluster(name, version=version, apiserver_flags=apiserver_flags)
        running.start(detached=True)
        verb = f"is ready after {time.monotonic() - begun:.1f} s"
    else:
        verb = "is already running"
        _check_running(name, find_asked(version), apiserver_flags)
    what = f"Kubernetes {running.version}"
    if controller_manager:
        running.start_controller_manager()
        what += f" with {CONTROLLER_MANAGER}"
    click.echo(f"Cluster {name} {verb}: {what} at {running.server}")
    click.echo(f"Binaries: {running.source}", err=True)
    click.echo(
        f'To use it in this shell: eval "$(webop cluster env{_format_name(name)})"', err=True
    )


@cluster.command(short_help="Stop a cluster and remove its data.")
@_name_option
@click.option(
    "--all", "everything", is_flag=True, help="Stop all clusters that 'webop cluster' started."
)
def stop(name: str, everything: bool) -> None:
    """Stop a cluster and remove its data. Its logs stay until it is started again."""
    if everything:
        chosen = [state for state in load_all_states() if state.owner is None]
    else:
        state = load_state(name)
        chosen = [] if state is None else [state]
    for state in chosen:
        end_cluster(state.folder)
        click.echo(f"Cluster {state.name} is stopped. Its logs are in {state.logs}")
    if not chosen:
        click.echo("No clusters are running." if everything else f"There is no cluster {name}.")


@cluster.command(short_help="Show whether a cluster is ready, its address and files.")
@_name_option
@click.pass_context
def status(ctx: click.Context, name: str) -> None:
    """Show whether a cluster is ready, its address and files. Exit with 0 if it is ready."""
    state = load_state(name)
    if state is None:
        command = f"webop cluster start{_format_name(name)}"
        click.echo(f"There is no cluster {name}. To start it: {command}")
        ctx.exit(1)
    condition = _detect_condition(state)
    rows = [
        ("Cluster", state.name),
        ("State", condition),
        ("Server", state.server),
        ("Kubernetes", state.version),
        ("Binaries", state.source),
        ("Kubeconfig", state.folder / "kubeconfig.yaml"),
        ("Logs", state.logs),
        *((title, f"pid {process.pid}") for title, process in state.processes.items()),
    ]
    for title, text in rows:
        click.echo(f"{title + ':':<25}{text}")
    ctx.exit(0 if condition == "ready" else 1)


@cluster.command(short_help="Print the shell command that selects a cluster.")
@_name_option
def env(name: str) -> None:
    """Print the command that makes a shell use a cluster: eval "$(webop cluster env)"."""
    running = LocalCluster.attach(name)
    click.echo(f"export KUBECONFIG={shlex.quote(str(running.kubeconfig))}")
    if sys.stdout.isatty():
        click.echo(f'# To apply it: eval "$(webop cluster env{_format_name(name)})"')


@cluster.command(short_help="Print a kubeconfig, also of a service account.")
@_name_option
@click.option(
    "--service-account",
    "account",
    metavar="NAME",
    help="The service account; by default, the administrator.",
)
@click.option(
    "--namespace", default="default", show_default=True, help="The namespace of the account."
)
def kubeconfig(name: str, account: str | None, namespace: str) -> None:
    """Print a kubeconfig for kubectl, webop and other clients of a cluster.

    With a service account, they have only its rights, as in a pod:

    \b
        webop manifests handlers.py | kubectl apply -f -
        webop cluster kubeconfig --service-account my-operator > operator.yaml
        KUBECONFIG=operator.yaml webop run --all-namespaces handlers.py
    """  # noqa: D301  \b keeps click from wrapping the lines
    running = LocalCluster.attach(name)
    path = running.kubeconfig
    if account is not None:
        if running.get("v1", "ServiceAccount", account, namespace) is None:
            raise ClusterError(
                f"There is no service account {account!r} in the namespace {namespace!r}."
            )
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        user = f"system:serviceaccount:{namespace}:{account}"
        path = running.kubeconfig_for(user, groups, namespace=namespace)
    click.echo(path.read_text(), nl=False)


@cluster.command(name="list", short_help="List all clusters of this user.")
def list_() -> None:
    """List all clusters of this user, including those of test runs."""
    rows = [("NAME", "STATE", "KUBERNETES", "SERVER", "STARTED BY")]
    for state in load_all_states():
        owner = "webop cluster start" if state.owner is None else f"process {state.owner.pid}"
        rows.append((state.name, _detect_condition(state), state.version, state.server, owner))
    print_table(rows)


def _find_running(name: str) -> LocalCluster | None:
    """Return the cluster with that name if all its processes are running."""
    try:
        return LocalCluster.attach(name)
    except ClusterError:
        return None


def _check_running(name: str, version: str | None, flags: Sequence[str]) -> None:
    """Refuse what a running cluster does not have."""
    state = load_state(name)
    server = state.processes.get(APISERVER) if state is not None else None
    if state is None or server is None:  # it was stopped meanwhile
        return
    differences = [f"runs without {flag}" for flag in flags if flag not in server.argv]
    if version and not is_met_by(parse_wanted(version), state.version.removeprefix("v")):
        differences.insert(0, f"has Kubernetes {state.version}, not {version}")
    if differences:
        raise click.ClickException(
            f"Cluster {name} is already running, but {' and '.join(differences)}. Stop it first: "
            f"webop cluster stop{_format_name(name)}"
        )


def _detect_condition(state: ClusterState) -> str:
    """Return the state of a cluster in one or two words."""
    running = _find_running(state.name)
    if running is None:
        return "dead"
    return "ready" if running.is_ready() else "not ready"


def _format_name(name: str) -> str:
    """Return the option that selects a cluster; empty for the default cluster."""
    return "" if name == _DEFAULT_NAME else f" --name {name}"
