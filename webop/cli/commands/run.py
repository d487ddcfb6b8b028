"""``webop run``: run an operator from files and modules until it is stopped."""

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

from webop.cli.help_layout import SectionCommand, build_option
from webop.cli.options import (
    DEV_PRIORITY,
    CLIControls,
    check_handlers,
    choose_scope,
    logging_options,
    scope_options,
    set_lease,
    source_options,
)
from webop.cli.reloading import accept_reload, supervise
from webop.handlers.registry import get_default_registry
from webop.runtime.loading import guess_name, load_handlers

logger = logging.getLogger(__name__)

# New objects between two runs of the garbage collector. With Python's 700, it takes 4 % of the CPU
# time of an operator, and finds little: webop makes few reference cycles.
_GC_THRESHOLD = 10_000

_EPILOG = """\b
Environment:
    WEBOP_RUN_<OPTION>        an option, as WEBOP_RUN_PEERING=name; separate
                              several values by spaces; the command line wins
    WEBOP_<GROUP>__<SETTING>  a setting, as WEBOP_POSTING__LEVEL=30
    KUBECONFIG                the files with credentials for the cluster

\b
Exit codes:
    0         Stopped by Ctrl-C or SIGTERM, and shut down gracefully.
    1         The operator could not start or continue. The message says why.
    2         The command line is wrong.
    130, 143  Stopped twice (Ctrl-C, SIGTERM), and exited immediately.
    137       The shutdown took longer than settings.process allows: killed.
"""


_handlers, _scope, _others, _probes = map(
    build_option, ("Handlers", "Scope", "Other operators", "Probes")
)


@click.command(
    cls=SectionCommand, epilog=_EPILOG, context_settings={"auto_envvar_prefix": "WEBOP_RUN"}
)
@source_options(_handlers)
@_handlers(
    "--reload",
    is_flag=True,
    help="For development: restart the operator when a Python file in the folders of the handlers "
    "changes.",
)
@scope_options(
    _scope,
    "Handle objects in the whole cluster.",
    "Handle objects in the namespaces that match a name or a glob pattern; repeatable. '!' "
    "negates, ',' separates patterns.",
    takes_patterns=True,
)
@_others("--standalone", is_flag=True, default=None, help="Ignore other operators.")
@_others(
    "-P",
    "--peering",
    metavar="NAME",
    help="The peering object to use, which must exist; without this option, 'default' if it "
    "exists.",
)
@_others(
    "-p",
    "--priority",
    type=int,
    metavar="NUMBER",
    help="The priority among peers: the operator with the highest one handles objects; by "
    "default 0.",
)
@_others(
    "--dev",
    is_flag=True,
    help=f"The same as --priority={DEV_PRIORITY}: pause the deployed operators while this one "
    "runs.",
)
@_others(
    "--lease",
    metavar="NAME",
    help="Elect a leader among replicas with the Lease NAME; only the leader handles objects.",
)
@_others(
    "--shards",
    metavar="NAME",
    help="Let all replicas work: they divide the objects among them, with Leases whose names begin "
    "with NAME.",
)
@_others(
    "--take-over",
    is_flag=True,
    help="Take the managed webhooks over from replicas at another address.",
)
@_probes(
    "-L",
    "--liveness",
    "liveness_endpoint",
    metavar="URL",
    help="Serve the health probes at a URL such as http://0.0.0.0:8080/healthz.",
)
@_probes(
    "--metrics",
    metavar="URL",
    help="Serve metrics at a URL such as http://0.0.0.0:8080/metrics; the port can be that of the "
    "probes.",
)
@_probes(
    "--status",
    metavar="URL",
    help="Serve the status page at a URL such as http://localhost:8080/ui; by default, at /ui of "
    "the ports of probes and metrics if these ports are open to this machine only.",
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
    peering: str | None,
    lease: str | None,
    shards: str | None,
    take_over: bool,
    metrics: str | None,
    status: str | None,
    **options: Any,
) -> None:
    """Run an operator with the handlers of the files in PATHS and of the modules.

    \b
        webop run --all-namespaces handlers.py
        webop run -n 'team-*,!team-x' -L http://0.0.0.0:8080/healthz handlers.py
        webop run -A --verbose -m package.handlers
        webop run -A --lease my-operator handlers.py
        webop run -A --shards my-operator handlers.py
        webop run -A --dev --reload handlers.py

    It runs until Ctrl-C or SIGTERM. Without login handlers, it uses the credentials of the
    kubeconfig or of the pod's service account.
    """  # noqa: D301  \b keeps click from wrapping the lines
    scope = choose_scope(ctx, options["clusterwide"], options["namespaces"])
    options["clusterwide"], options["namespaces"] = scope
    if options.pop("dev"):
        options["priority"] = ctx.params["priority"] = DEV_PRIORITY  # handlers can read it
    if not (paths or modules or controls.registry is not None or len(get_default_registry())):
        raise click.UsageError("No files are given. Write: webop run -A handlers.py")
    # With --reload, this process is the parent that watches the files, or its child, the operator.
    parent_stops = accept_reload()
    if reload and parent_stops is None:
        folders = [Path(path).parent for path in paths] + [Path.cwd()] * bool(modules)
        ctx.exit(supervise(folders))
    # Code that runs the command, such as a test, passes controls.
    with _importing() if ctx.find_root().obj is None else contextlib.nullcontext():
        # The handlers get into the registry of the controls, or else into the default one, which
        # embedding.run() takes in the same way.
        registry = load_handlers(paths, modules, controls.registry)
        from webop import embedding  # noqa: PLC0415 - keeps --help fast
        from webop.settings.groups import OperatorSettings  # noqa: PLC0415
    check_handlers(registry, (*paths, *modules))
    for variable in sorted(name for name in os.environ if name.startswith("KOPF_RUN_")):
        text = "Ignoring the environment variable %s: those of webop begin with WEBOP_RUN_."
        logger.warning(text, variable)
    if not any(scope):
        options["clusterwide"] = True
        logger.warning(
            "No namespace is given: handling objects in all namespaces. Add -A to confirm that, or "
            "-n NAME."
        )
    settings = controls.settings or OperatorSettings.from_environment()
    settings.operator.set_default(guess_name([*paths, *modules]))
    set_lease(settings, lease, shards)
    settings.admission.take_over |= take_over
    with contextlib.ExitStack() as stack:
        loop = controls.loop
        if loop is None:
            runner = asyncio.Runner(loop_factory=_detect_loop_factory())
            loop = stack.enter_context(runner).get_loop()
        embedding.run(
            loop=loop,
            registry=controls.registry,
            settings=settings,
            stop_flag=parent_stops or controls.stop_flag,
            ready_flag=controls.ready_flag,
            vault=controls.vault,
            peering_name=peering,
            metrics_endpoint=metrics,
            status_endpoint=status,
            **options,
        )


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Tune this process, which is webop's own, for the operator that is imported.

    The garbage collector pauses during the imports, and ignores the imported objects later: they
    live as long as the process. This saves a tenth of the start, and time in later runs, which are
    rarer than by default.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.set_threshold(_GC_THRESHOLD)  # before the imports, which can set another one
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _detect_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop if it is installed (``webop[uvloop]``)."""
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415  an optional dependency

        return uvloop.new_event_loop
    return None
