"""Commands run in the process of the test: cheap, as long as there is nothing for a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import webop
from webop.cli import CLIControls, main
from webop.logs import preserve


@dataclass
class Run:
    """What there was in the startup handler, and how it ended."""

    settings: webop.OperatorSettings
    loop: asyncio.AbstractEventLoop
    result: Result


def invoke(
    *args: str,
    controls: CLIControls | None = None,
    env: Mapping[str, str | None] | None = None,
    color: bool = False,
) -> Result:
    """Run ``webop`` with arguments and environment variables; with colours as for a terminal."""
    before = webop.get_default_registry()
    webop.set_default_registry(webop.OperatorRegistry())
    try:
        with preserve():
            runner = CliRunner()
            return runner.invoke(main, args, env=env, prog_name="webop", obj=controls, color=color)
    finally:
        webop.set_default_registry(before)


def run_once(
    *args: str, controls: CLIControls | None = None, env: Mapping[str, str] | None = None
) -> Run:
    """Run ``webop run`` with an operator that stops itself as soon as it has started."""
    stop_flag = threading.Event()
    registry = webop.OperatorRegistry()
    seen: list[Any] = []

    @webop.on.startup(registry=registry)
    async def look(settings: webop.OperatorSettings, **_: Any) -> None:
        seen.extend((settings, asyncio.get_running_loop()))
        stop_flag.set()

    controls = replace(controls or CLIControls(), stop_flag=stop_flag, registry=registry)
    result = invoke("run", *args, controls=controls, env=env)
    assert result.exit_code == 0, result.output
    return Run(seen[0], seen[1], result)


def fail(
    *args: str | Path, folder: Path, env: Mapping[str, str] | None = None, code: int | None = None
) -> str:
    """Run ``webop run`` with a mistake of the user, far from any cluster; return what it says."""
    nowhere = {"HOME": str(folder), "KUBECONFIG": None, "KUBERNETES_SERVICE_HOST": None}
    kopf = sys.modules.pop("kopf", None)  # of another test: messages would mention it
    result = invoke("run", *map(str, args), env={**nowhere, **(env or {})})
    if kopf is not None:
        sys.modules["kopf"] = kopf
    assert isinstance(result.exception, SystemExit), result.output
    assert result.exit_code > 0 if code is None else result.exit_code == code
    assert "Traceback" not in result.output
    assert "Error: " in result.output
    return result.output


@contextlib.contextmanager
def forgetting_modules(folder: Path) -> Iterator[None]:
    """Let the modules of a folder be imported by others later, from elsewhere."""
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(folder) in str(getattr(module, "__file__", "")):
                del sys.modules[name]
