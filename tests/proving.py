"""Long runs of the tests: each on its own API server, with progress on the standard output."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from webop.testing import LocalCluster

Say = Callable[[str], object]


def prove(
    name: str, times: object, run: Callable[[LocalCluster, Path, Say], Coroutine[Any, Any, int]]
) -> int:
    """Run a coroutine on a new cluster; return its exit code, or 130 after Ctrl-C.

    Args:
        name: a part of the name of the folder.
        times: the options, printed at the start.
        run: gets the cluster, a folder for files, and a function that prints a line with the
            seconds since the start.
    """
    started = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {text}\n")
        sys.stdout.flush()

    folder = tempfile.TemporaryDirectory(prefix=f"webop-{name}-")
    try:
        say(f"Starting a local API server. {times}")
        with folder as path, LocalCluster() as cluster:
            return asyncio.run(run(cluster, Path(path), say))
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
