"""What all tests of peering need: the kinds, an object, a handler, the log."""

from __future__ import annotations

import logging

import pytest

import webop
from tests.kit.operators import Calls
from tests.kit.peering_objects import PeeringObject, Seen, provide_peerings
from webop.client.api import Client
from webop.testing import LocalCluster


@pytest.fixture(scope="module", autouse=True)
def _kinds(webop_cluster: LocalCluster) -> None:
    provide_peerings(webop_cluster)


@pytest.fixture
def shared(client: Client, webop_namespace: str) -> PeeringObject:
    """The peering object of the namespace of the test, which is yet to be created."""
    return PeeringObject(client, webop_namespace)


@pytest.fixture
def seen(calls: Calls, caplog: pytest.LogCaptureFixture) -> Seen:
    """What the operators of the test do and say."""
    caplog.set_level(logging.DEBUG, "webop.coordination")
    return Seen(calls, caplog)


@pytest.fixture(autouse=True)
def _handler(calls: Calls) -> None:
    webop.on.create("widgets", id="created", labels={"x": webop.PRESENT})(calls.noting("created"))
