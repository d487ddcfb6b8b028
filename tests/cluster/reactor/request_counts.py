"""What the API server has been asked for, by its own count."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_METRIC = re.compile(
    r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>[0-9.e+]+)$", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


async def read_requests(cluster: LocalCluster) -> Iterator[tuple[dict[str, str], int]]:
    """Return what requests there were (their labels: verb, resource, scope …), and how many."""
    context = ssl.create_default_context(cadata=base64.b64decode(cluster.ca_data).decode())
    headers = {"Authorization": f"Bearer {cluster.token}"}
    async with httpx.AsyncClient(verify=context, headers=headers, trust_env=False) as http:
        text = (await http.get(f"{cluster.server}/metrics", timeout=30)).text
    return (
        (dict(_LABEL.findall(match["labels"])), int(float(match["count"])))
        for match in _METRIC.finditer(text)
    )
