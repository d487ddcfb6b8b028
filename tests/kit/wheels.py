"""Wheels for pip, with nothing or little in them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str | bytes] | None = None
) -> None:
    distribution = name.replace("-", "_")
    info = f"{distribution}-{version}.dist-info"
    written = {
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{distribution}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in written.items():
            wheel.writestr(file, text)
