"""Proofs at length: a story on an API server of its own, told as it goes on."""

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
    """Run a story with a folder for its files; return what it returns, an exit code; 130 at Ctrl-C.

    Args:
        name: for the folder.
        times: its pace, to be told at the beginning.
        run: the story; what it says is shown with the seconds since the beginning.
    """
    started = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {text}\n")
        sys.stdout.flush()

    folder = tempfile.TemporaryDirectory(prefix=f"webop-{name}-")
    try:
        say(f"starting a local API server; {times}")
        with folder as path, LocalCluster() as cluster:
            return asyncio.run(run(cluster, Path(path), say))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
