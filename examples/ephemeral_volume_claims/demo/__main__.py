"""The demo: a control plane, the operator, and the life of a claim, with nothing to prepare.

``make demo`` plays the story and keeps serving until Ctrl-C, for you to try things yourself;
``make demo ARGS=--once`` ends after the story: with exit code 0 if everything has come out as it
should, else with 1 and what differed. Ctrl-C amid the story ends with 130.

The parts: ``playing.py`` (from the start to the end), ``stage.py`` (what it is played on),
``story.py`` (the steps), ``telling.py`` (what is printed).
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
            from playing import play  # noqa: PLC0415 - takes time, so Ctrl-C must be provided for

            return play(options.handlers, once=options.once)
    except KeyboardInterrupt:
        sys.stdout.write("\nInterrupted; everything is stopped.\n")
        return 130
    except BrokenPipeError:  # nobody reads on, as in "make demo | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo",
        description="Play the life of an EphemeralVolumeClaim on a control plane of its own.",
    )
    parser.add_argument(
        "--once", action="store_true", help="end after the story, with 1 if anything differs"
    )
    parser.add_argument(
        "--handlers",
        type=Path,
        default=_HANDLERS,
        metavar="FILE",
        help="play it with other handlers than those of the example",
    )
    return parser.parse_args()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Stop by the first signal to do so; let no further one cut the stopping short."""

    def interrupt(*_: object) -> NoReturn:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, interrupt)
    yield


if __name__ == "__main__":
    sys.exit(main())
