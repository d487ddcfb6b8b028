"""``webop run``: an operator from files and modules, until it is stopped."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import click

from webop.cli.controls import CLIControls
from webop.cli.logging import logging_options
from webop.errors import WebopError
from webop.handling.registry import set_default_registry
from webop.loading import load_file, load_module


@click.command(short_help="Run an operator.")
@logging_options
@click.option(
    "-A", "--all-namespaces", "clusterwide", is_flag=True, help="Serve the whole cluster at once."
)
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="PATTERN",
    help="Serve the namespaces of a name or a glob pattern; repeatable. '!' negates, ',' lists.",
)
@click.option(
    "-m",
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="Import a module with handlers, as in 'python -m'; repeatable.",
)
@click.option("--standalone", is_flag=True, default=None, help="Do not look for other operators.")
@click.option(
    "--dev",
    "priority",
    type=int,
    is_flag=True,
    flag_value=666,
    help="The same as --priority=666: take over from the deployed operators.",
)
@click.option("-p", "--priority", type=int, help="The priority among the operators of a cluster.")
@click.option("-P", "--peering", "peering_name", metavar="NAME", help="The peering to belong to.")
@click.option(
    "-L",
    "--liveness",
    "liveness_endpoint",
    metavar="URL",
    help="Serve the health probes at a URL such as http://0.0.0.0:8080/healthz.",
)
@click.argument("paths", nargs=-1, type=click.Path())
@click.make_pass_decorator(CLIControls, ensure=True)
def run(
    controls: CLIControls,
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    clusterwide: bool,
    namespaces: tuple[str, ...],
    standalone: bool | None,
    priority: int | None,
    peering_name: str | None,
    liveness_endpoint: str | None,
) -> None:
    """Run an operator with the handlers of the files in PATHS and of the modules.

    It runs until Ctrl-C or SIGTERM, and then ends with exit code 0. The credentials come from the
    kubeconfig or from the service account of the pod, unless there are login handlers.
    """
    if clusterwide and namespaces:
        raise click.UsageError("-n/--namespace and -A/--all-namespaces exclude each other.")
    if controls.registry is not None:
        set_default_registry(controls.registry)  # the files' handlers go there
    try:
        for path in paths:
            load_file(Path(path))
        for module in modules:
            load_module(module)
        from webop import embedding  # noqa: PLC0415  only now: --help is to be quick

        gc.freeze()  # what is imported stays for ever: the collector need not look at it again
        with asyncio.Runner(loop_factory=_detect_loop_factory()) as runner:
            embedding.run(
                loop=controls.loop or runner.get_loop(),
                standalone=standalone,
                clusterwide=clusterwide,
                namespaces=namespaces,
                priority=priority,
                peering_name=peering_name,
                liveness_endpoint=liveness_endpoint,
                registry=controls.registry,
                settings=controls.settings,
                stop_flag=controls.stop_flag,
                ready_flag=controls.ready_flag,
                vault=controls.vault,
            )
    except WebopError as exc:
        raise click.ClickException(str(exc)) from exc


def _detect_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loops if uvloop is installed (the extra ``webop[uvloop]``; CLI-17)."""
    try:
        import uvloop  # noqa: PLC0415  an optional dependency
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
