"""A client whose block is entered twice."""

from __future__ import annotations

import datetime as dt

import webop
from webop.testing import FakeClient


def test_after_two_blocks_of_a_client_the_time_is_that_of_the_machine() -> None:
    client = FakeClient(now=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    with client, client:
        pass
    assert abs(dt.datetime.now(dt.UTC) - webop.now()) < dt.timedelta(minutes=1)
