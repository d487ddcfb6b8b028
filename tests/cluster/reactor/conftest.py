"""What the tests of several files here have at hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.kit.operators import Kind, Objects
from tests.kit.timeline import Timeline
from webop.client.api import Client


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


@pytest.fixture
def with_status(client: Client, gadgets: Kind, webop_namespace: str) -> Objects:
    """Objects whose status has an endpoint of its own."""
    return Objects(client, gadgets, webop_namespace)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Lets threads and daemons go that hang; at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()
