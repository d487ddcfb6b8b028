"""What the API server has been asked for, by its own count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.kit.operators import open_http

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_METRIC = re.compile(
    r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>[0-9.e+]+)$", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


async def read_requests(cluster: LocalCluster) -> Iterator[tuple[dict[str, str], int]]:
    """Return what requests there were (their labels: verb, resource, scope …), and how many."""
    async with open_http(cluster) as http:
        text = (await http.get("/metrics")).text
    return (
        (dict(_LABEL.findall(match["labels"])), int(float(match["count"])))
        for match in _METRIC.finditer(text)
    )
