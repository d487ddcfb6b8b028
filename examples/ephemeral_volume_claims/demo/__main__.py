"""The demo: start a control plane and the operator, and follow one claim from creation to deletion.

``make demo`` runs all steps and then keeps serving until Ctrl-C, so that you can try more yourself.
``make demo ARGS=--once`` stops after the last step. The exit code is 0 if all checks passed, 1 if
one failed, and 130 after Ctrl-C during the steps.

The modules: ``run_demo.py`` (the demo from start to end), ``environment.py`` (the API server and
the process of the operator), ``steps.py`` (the steps and their checks), ``output.py`` (the output).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

_HANDLERS = Path(__file__).resolve().parents[1] / "handlers.py"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        with _interruptible():
            options = _parse()
            from run_demo import run_demo  # noqa: PLC0415 - slow, so handle Ctrl-C first

            return run_demo(options.handlers, once=options.once)
    except KeyboardInterrupt:
        sys.stdout.write("\nInterrupted. The operator and the control plane have stopped.\n")
        return 130
    except BrokenPipeError:  # the reader has ended, as in "make demo | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo",
        description="Run the example operator on a local control plane, and check what it does.",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="stop after the last step; exit with 1 if a check failed",
    )
    parser.add_argument(
        "--handlers",
        type=Path,
        default=_HANDLERS,
        metavar="FILE",
        help="a file with handlers, instead of those of the example",
    )
    return parser.parse_args()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal, and ignore further ones during the shutdown."""

    def interrupt(*_: object) -> NoReturn:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, interrupt)
    yield


if __name__ == "__main__":
    sys.exit(main())
