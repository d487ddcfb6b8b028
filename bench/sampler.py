"""Run a Python module under a sampling profiler: ``python sampler.py OUTPUT MODULE [ARGUMENT…]``.

It samples by the CPU time of the process, at the ticks of the kernel, from SIGUSR1 until SIGUSR2.
Then it writes JSON to the output: each stack with the number of its samples; a stack is the list of
"module:function" of its frames, innermost first. It imports only the standard library.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

_INTERVAL = 0.001  # seconds of CPU time; the kernel's tick may be longer
_stacks: Counter[tuple[str, ...]] = Counter()


def sample(_signal: int, frame: FrameType | None) -> None:
    stack = []
    while frame is not None:
        stack.append(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}")
        frame = frame.f_back
    _stacks[tuple(stack)] += 1


def begin(_signal: int, _frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL, _INTERVAL)


def conclude(_signal: int, _frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    output.with_suffix(".part").write_text(json.dumps([*_stacks.items()]))
    output.with_suffix(".part").replace(output)


if __name__ == "__main__":
    output = Path(sys.argv[1])
    for number, react in {
        signal.SIGPROF: sample,
        signal.SIGUSR1: begin,
        signal.SIGUSR2: conclude,
    }.items():
        signal.signal(number, react)
    sys.argv[:] = sys.argv[2:]
    del sys.path[0]  # the folder of this file
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
