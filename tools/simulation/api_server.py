"""The API server in memory with admission webhooks.

The driver of the cluster makes the calls of webhooks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime

from tests.kit.memory_cluster import MemoryCluster
from webop.testing.apiserver.conversions import Converter
from webop.testing.apiserver.webhooks import Webhooks


class APIServer(MemoryCluster):
    """The cluster of a scenario.

    Attributes:
        webhooks: those of the webhook configurations.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        rng: random.Random,
        *,
        converter: Converter | None = None,
    ) -> None:
        self.webhooks = Webhooks(rng)
        super().__init__(now, rng, admission=self.webhooks, converter=converter)
