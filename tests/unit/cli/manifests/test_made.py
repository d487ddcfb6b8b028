"""What is checked in is what the commands make of the examples now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.manifests import MADE, make


@pytest.mark.parametrize("file", MADE, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_files_are_as_their_commands_make_them(file: Path) -> None:
    assert file.read_text() == make(file), "Run 'make manifests'."
