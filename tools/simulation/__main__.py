"""Runs histories: ``python -m tools.simulation --help`` (``make simulate``)."""

import os
import sys

from tools.simulation.commands import main

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order in sets of text is a part of a seed
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tools.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
