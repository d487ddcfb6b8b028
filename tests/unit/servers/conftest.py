"""What the tests of this folder send reviews to."""

from __future__ import annotations

import pytest

from tests.kit.webhook_servers import Recorder


@pytest.fixture
def fn() -> Recorder:
    """A function for reviews that notes its calls."""
    return Recorder()
