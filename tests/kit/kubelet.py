"""A kubelet that only has logs: a node of the real API server, with nothing on it but a script."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.kit.certificates import issue, issue_by
from tests.kit.scripted_server import Script, ScriptedServer, playing
from webop.client.objects import AsyncClient


def build_pod(name: str, node: str = "", *containers: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [{"name": one, "image": "none"} for one in containers or ("main",)]
    }
    spec |= {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def running_node(
    client: AsyncClient, name: str, script: Script, folder: Path
) -> AsyncIterator[ScriptedServer]:
    """Give a node whose kubelet answers the API server by a script."""
    pair = issue_by(issue("ca"), name)
    files = folder / "cert.pem", folder / "key.pem"
    for file, text in zip(files, pair, strict=True):
        file.write_text(text)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    async with playing(script, context) as server:
        await client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": server.port}},
        }
        await client.patch("nodes", name, {"status": status}, subresource="status")
        try:
            yield server
        finally:
            await client.delete("nodes", name)
