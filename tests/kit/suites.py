"""Test suites of users: pytest in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def run_suite(folder: Path, files: dict[str, str], *options: str, **variables: str) -> str:
    """Write the files, run pytest as a user does, with no kubeconfig; return its output."""
    for name, text in {"pytest.ini": "[pytest]\nfilterwarnings = error\n", **files}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr
