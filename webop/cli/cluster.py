"""``webop cluster``: a real local Kubernetes API server, started and stopped by hand.

Everything happens in :mod:`webop.controlplane`, which is imported when a command runs.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster
    from webop.controlplane.state import ClusterState

_DEFAULT_NAME = "default"
_name_option = click.option(
    "-n",
    "--name",
    default=_DEFAULT_NAME,
    show_default=True,
    help="Which cluster; several can run side by side.",
)


@click.group(short_help="Run a real Kubernetes API server on this machine.")
def cluster() -> None:
    """Run a real Kubernetes API server on this machine, with no Docker.

    etcd and kube-apiserver run as processes of yours, on the loopback interface.
    There are no nodes: pods are stored, but do not run.

    \b
        webop cluster start
        eval "$(webop cluster env)"
        kubectl get namespaces
        webop cluster stop

    The binaries are taken from the folder in KUBEBUILDER_ASSETS; or from the cache (WEBOP_CACHE,
    else the platform's folder for caches); else they are downloaded (Kubernetes' archive for
    tests, "envtest"); else they are built from Go modules, which takes some minutes once.
    """  # noqa: D301  \b is for click: what follows is not to be wrapped


@cluster.command(short_help="Start a cluster and wait until it is ready.")
@_name_option
@click.option(
    "--version",
    metavar="VERSION",
    help="Kubernetes to run: a release line (1.36) or a version (1.36.3).",
)
@click.option(
    "--controller-manager",
    is_flag=True,
    help="Also run kube-controller-manager: garbage collection, deletion of namespaces.",
)
@click.option(
    "--apiserver-flag",
    "apiserver_flags",
    metavar="FLAG",
    multiple=True,
    help="One more flag of kube-apiserver, e.g. --apiserver-flag=--v=4. Repeatable.",
)
def start(
    name: str, version: str | None, controller_manager: bool, apiserver_flags: tuple[str, ...]
) -> None:
    """Start a cluster and wait until it is ready.

    It runs until "webop cluster stop". If one of that name runs already, it is left as it is.
    """
    from webop.controlplane.cluster import LocalCluster  # noqa: PLC0415 - not for --help

    begun = time.monotonic()
    running = _find_running(name)
    if running is None:
        running = LocalCluster(name, version=version, apiserver_flags=apiserver_flags)
        running.start(detached=True)
        verb = f"is ready after {time.monotonic() - begun:.1f} s"
    else:
        verb = "is running already"
    if controller_manager:
        running.start_controller_manager()
    click.echo(f"Cluster {name} {verb}: Kubernetes {running.version} at {running.server}")
    click.echo(f"Binaries: {running.source}", err=True)
    click.echo(f'Use it in this shell: eval "$(webop cluster env{_format_name(name)})"', err=True)


@cluster.command(short_help="Stop a cluster; its data goes, its logs stay.")
@_name_option
@click.option("--all", "everything", is_flag=True, help="All clusters started by this command.")
def stop(name: str, everything: bool) -> None:
    """Stop a cluster and remove its data. Its logs stay, until the next start of that name."""
    from webop.controlplane.state import end_cluster, load_all_states, load_state  # noqa: PLC0415

    if everything:
        chosen = [state for state in load_all_states() if state.owner is None]
    else:
        state = load_state(name)
        chosen = [] if state is None else [state]
    for state in chosen:
        end_cluster(state)
        click.echo(f"Cluster {state.name} is stopped. Its logs are in {state.logs}")
    if not chosen:
        click.echo("There is nothing to stop." if everything else f"There is no cluster {name}.")


@cluster.command(short_help="Tell whether a cluster is ready, and where things are.")
@_name_option
@click.pass_context
def status(ctx: click.Context, name: str) -> None:
    """Tell whether a cluster is ready, and where things are. The exit code is 0 if it is."""
    from webop.controlplane.state import load_state  # noqa: PLC0415 - not for --help

    state = load_state(name)
    if state is None:
        click.echo(f"There is no cluster {name}. Start it: webop cluster start{_format_name(name)}")
        ctx.exit(1)
    condition = _detect_condition(state)
    rows = [
        ("Cluster", state.name),
        ("State", condition),
        ("Server", state.server),
        ("Kubernetes", state.version),
        ("Binaries", state.source),
        ("Kubeconfig", str(Path(state.folder) / "kubeconfig.yaml")),
        ("Logs", state.logs),
        *((process.name, f"pid {process.pid}") for process in state.processes),
    ]
    for title, text in rows:
        click.echo(f"{title + ':':<25}{text}")
    ctx.exit(0 if condition == "ready" else 1)


@cluster.command(short_help="Print what lets a shell use a cluster.")
@_name_option
def env(name: str) -> None:
    """Print what lets a shell use a cluster: eval "$(webop cluster env)"."""
    from webop.controlplane.cluster import LocalCluster  # noqa: PLC0415 - not for --help

    running = LocalCluster.attach(name)
    click.echo(f"export KUBECONFIG={shlex.quote(str(running.kubeconfig))}")
    if sys.stdout.isatty():
        click.echo(f'# Run this: eval "$(webop cluster env{_format_name(name)})"')


@cluster.command(name="list", short_help="List all clusters of this user.")
def list_() -> None:
    """List all clusters of this user, those of test runs included."""
    from webop.controlplane.state import load_all_states  # noqa: PLC0415 - not for --help

    rows = [("NAME", "STATE", "KUBERNETES", "SERVER", "STARTED BY")]
    for state in load_all_states():
        owner = "webop cluster start" if state.owner is None else f"process {state.owner.pid}"
        rows.append((state.name, _detect_condition(state), state.version, state.server, owner))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def _find_running(name: str) -> LocalCluster | None:
    """Return the cluster of that name if all its processes are alive."""
    from webop.controlplane.cluster import LocalCluster  # noqa: PLC0415 - not for --help
    from webop.errors import ClusterError  # noqa: PLC0415

    try:
        return LocalCluster.attach(name)
    except ClusterError:
        return None


def _detect_condition(state: ClusterState) -> str:
    """Tell the state of a cluster in a word or two."""
    running = _find_running(state.name)
    if running is None:
        return "dead"
    return "ready" if running.is_ready() else "not ready"


def _format_name(name: str) -> str:
    """Write the option that chooses a cluster, if it is needed."""
    return "" if name == _DEFAULT_NAME else f" --name {name}"
