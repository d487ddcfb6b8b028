"""What a run has collected before a part of it was selected: also the journeys."""

from __future__ import annotations

import pytest

COLLECTED = pytest.StashKey[list[pytest.Item]]()
