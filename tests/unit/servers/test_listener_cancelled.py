"""Listeners of operators that are cancelled while they stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from webop.servers.http.listener import Listener


async def test_a_listener_that_is_cancelled_while_it_stops_frees_its_port() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None: ...

    listener = Listener(app, "127.0.0.1", 0)
    await listener.__aenter__()
    stopping = asyncio.create_task(listener.__aexit__(None, None, None))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
