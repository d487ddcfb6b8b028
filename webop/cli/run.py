"""``webop run``: an operator from files and modules, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from webop.cli.layout import SectionCommand, build_option
from webop.cli.options import (
    DEV_PRIORITY,
    CLIControls,
    choose_priority,
    choose_scope,
    logging_options,
    source_options,
)
from webop.cli.reloading import accept_reload, supervise, wait_for_turn
from webop.kopf_alias import advise_about_kopf
from webop.loading import load_handlers

logger = logging.getLogger(__name__)


_EPILOG = """\b
Examples:
    webop run --all-namespaces handlers.py
    webop run -n 'team-*,!team-x' -L http://0.0.0.0:8080/healthz handlers.py
    webop run -A --dev --verbose -m package.handlers
    webop run -A --lease my-operator handlers.py
    webop run -A --dev --reload handlers.py

\b
Environment:
    WEBOP_RUN_<OPTION>        an option, as WEBOP_RUN_PEERING=name; several
                              values with spaces; the command line wins
    WEBOP_<GROUP>__<SETTING>  a setting, as WEBOP_POSTING__LEVEL=30
    KUBECONFIG                the files with the credentials

\b
Exit codes:
    0         it was stopped (Ctrl-C, SIGTERM), and has ended gracefully
    1         it could not start or go on; the message says why
    2         the command line is wrong
    130, 143  it was stopped twice (Ctrl-C, SIGTERM), and has ended at once
    137       it took longer to end than settings.process allows: killed
"""


_handlers, _scope, _others, _probes = map(
    build_option, ("Handlers", "Scope", "Other operators", "Probes")
)


@click.command(cls=SectionCommand, short_help="Run an operator.", epilog=_EPILOG)
@source_options(_handlers, envvar=["WEBOP_RUN_MODULES", "WEBOP_RUN_MODULE"])
@_handlers(
    "--reload",
    is_flag=True,
    help="Load the handlers again when a Python file changes in their folders; for development.",
)
@_scope(
    "-A",
    "--all-namespaces",
    "clusterwide",
    is_flag=True,
    envvar="WEBOP_RUN_ALL_NAMESPACES",
    help="Serve the whole cluster at once.",
)
@_scope(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="PATTERN",
    envvar=["WEBOP_RUN_NAMESPACES", "WEBOP_RUN_NAMESPACE"],
    help="Serve the namespaces of a name or a glob pattern; repeatable. '!' negates, ',' lists.",
)
@_others("--standalone", is_flag=True, default=None, help="Do not look for other operators.")
@_others(
    "-P",
    "--peering",
    "peering_name",
    metavar="NAME",
    envvar="WEBOP_RUN_PEERING",
    help="The peering to belong to, which must exist; by default 'default', if there is one.",
)
@_others(
    "-p",
    "--priority",
    type=int,
    metavar="NUMBER",
    help="The priority among the operators of a peering: the highest one acts. By default 0.",
)
@_others(
    "--dev",
    is_flag=True,
    help=f"The same as --priority={DEV_PRIORITY}: take over from the deployed operators.",
)
@_others(
    "--lease",
    "lease_name",
    metavar="NAME",
    envvar="WEBOP_RUN_LEASE",
    help="Act only while holding the Lease NAME: one of several replicas does.",
)
@_probes(
    "-L",
    "--liveness",
    "liveness_endpoint",
    metavar="URL",
    envvar="WEBOP_RUN_LIVENESS",
    help="Serve the health probes at a URL such as http://0.0.0.0:8080/healthz.",
)
@_probes(
    "--metrics",
    "metrics_endpoint",
    metavar="URL",
    envvar="WEBOP_RUN_METRICS",
    help="Serve metrics at a URL such as http://0.0.0.0:8080/metrics; the port may be the same.",
)
@_probes(
    "--status",
    "status_endpoint",
    metavar="URL",
    envvar="WEBOP_RUN_STATUS",
    help="Serve the status page at a URL such as http://localhost:8080/ui. Without this option, it "
    "is at /ui of the ports of the probes and the metrics if only this machine reaches them.",
)
@logging_options
@click.make_pass_decorator(CLIControls, ensure=True)
@click.pass_context
def run(
    ctx: click.Context,
    controls: CLIControls,
    /,
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    reload: bool,
    lease_name: str | None,
    **options: Any,
) -> None:
    """Run an operator with the handlers of the files in PATHS and of the modules.

    It runs until Ctrl-C or SIGTERM. The credentials come from the kubeconfig or from the service
    account of the pod, unless there are login handlers.
    """
    scope = choose_scope(ctx, options["clusterwide"], options["namespaces"])
    options["clusterwide"], options["namespaces"] = scope
    priority = choose_priority(ctx, options.pop("dev"), options["priority"])
    options["priority"] = ctx.params["priority"] = priority  # handlers can read it
    link = accept_reload()
    if reload and link is None:
        if not paths and not modules:
            raise click.UsageError("--reload: name the files with the handlers, or modules by -m.")
        ctx.exit(supervise([Path(path).parent for path in paths] + [Path.cwd()] * bool(modules)))
    with _importing():
        registry = load_handlers(paths, modules, controls.registry)
        from webop import embedding  # noqa: PLC0415  only now: --help is to be quick
        from webop.handling.checks import check_registry  # noqa: PLC0415
        from webop.settings import OperatorSettings  # noqa: PLC0415
    for variable in sorted(name for name in os.environ if name.startswith("KOPF_RUN_")):
        renamed = f"WEBOP_{variable.removeprefix('KOPF_')}"
        logger.warning("The environment variable %s is not read; use %s.", variable, renamed)
    if not any(scope):
        options["clusterwide"] = True
        logger.warning(
            "No namespaces are named: serving all of them. Add --all-namespaces (-A) if you "
            "want that, else --namespace (-n)."
        )
    if not len(registry):
        advice = advise_about_kopf() or " Name files or modules: webop run handlers.py"
        logger.warning("There are no handlers.%s", advice)
    settings, stop_flag = controls.settings, controls.stop_flag
    if lease_name is not None:
        settings = settings or OperatorSettings.from_environment()
        settings.leadership.lease_name = lease_name
    if link is not None:
        check_registry(registry)  # before the former handlers have stopped
        stop_flag = wait_for_turn(link)
    with contextlib.ExitStack() as stack:
        loop = controls.loop
        if loop is None:
            runner = asyncio.Runner(loop_factory=_detect_loop_factory())
            loop = stack.enter_context(runner).get_loop()
        embedding.run(
            loop=loop,
            registry=controls.registry,
            settings=settings,
            stop_flag=stop_flag,
            ready_flag=controls.ready_flag,
            vault=controls.vault,
            **options,
        )


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Keep the garbage collector out: what is imported stays for ever.

    It need not be looked at now, which saves a tenth of the start, and never again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _detect_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loops if uvloop is installed (the extra ``webop[uvloop]``; CLI-17)."""
    try:
        import uvloop  # noqa: PLC0415  an optional dependency
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
