"""Servers that are not ours, for the endpoint and the protocol to work in."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from tests.kit.waiting import eventually
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.limits import Hosting


@contextlib.asynccontextmanager
async def run_uvicorn(
    endpoint: ReviewEndpoint, hosting: Hosting | None = None, **options: Any
) -> AsyncIterator[int]:
    """Run uvicorn with an endpoint; yield its port. The options are those of its config."""
    config = uvicorn.Config(
        endpoint, lifespan="off", log_config=None, timeout_graceful_shutdown=2, **options
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        # In a thread, as it takes the signals otherwise.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            await eventually(lambda: server.started)
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            await asyncio.to_thread(thread.join)
