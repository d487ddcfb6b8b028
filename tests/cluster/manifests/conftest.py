from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.manifests.test_command import Maker


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    return Maker(tmp_path)
