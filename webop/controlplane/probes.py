"""The few requests that a cluster needs for itself: is it ready, which version is it.

The standard library does for these; the client of the operator is not loaded for them.
"""

from __future__ import annotations

import http.client
import random
import socket
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from webop.errors import ClusterError

_TIMEOUT = 10.0
_PORTS = range(20000, 32000)


@dataclass(frozen=True)
class Answer:
    """An answer of the API server."""

    status: int
    body: bytes

    def read_json(self) -> dict[str, Any]:
        """Decode the body, which must be a JSON object."""
        data: dict[str, Any] = orjson.loads(self.body)
        return data


class Prober:
    """Sends single requests to one API server, as its administrator.

    Args:
        server: its URL.
        ca_cert: the certificate of the authority, in PEM.
        token: the token of the administrator.
    """

    def __init__(self, server: str, ca_cert: str, token: str) -> None:
        self.server = server
        parts = urlsplit(server)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or 443
        self._context = ssl.create_default_context(cadata=ca_cert)
        self._token = token

    def request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """Send a request and return the answer, whatever its status.

        Args:
            method: such as "GET".
            path: the path of the URL, with its query.
            body: what is sent as JSON.
            content_type: what the API server is to make of it, as there are kinds of patches.

        Raises:
            OSError: there is no answer (also for garbled ones).
        """
        connection = http.client.HTTPSConnection(
            self._host, self._port, context=self._context, timeout=_TIMEOUT
        )
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        try:
            connection.request(
                method, path, body=None if body is None else orjson.dumps(body), headers=headers
            )
            answer = connection.getresponse()
            return Answer(answer.status, answer.read())
        except http.client.HTTPException as error:
            raise OSError(f"garbled answer: {error!r}") from error
        finally:
            connection.close()

    def has(self, path: str) -> bool:
        """Tell whether a path is answered with success; False also if there is no answer."""
        try:
            return self.request("GET", path).status == 200
        except OSError:
            return False


def find_free_port() -> int:
    """Find a port of the loopback interface that nobody listens on at this moment.

    It is below the ports that systems give to outgoing connections: while an API server is down
    for a test of faults, its port must neither be given away, nor connect a client to itself.

    Raises:
        ClusterError: all are taken.
    """
    for port in random.sample(_PORTS, k=100):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ClusterError(
        f"Of 100 ports tried between {_PORTS[0]} and {_PORTS[-1]} on 127.0.0.1, none is free. "
        "Look at what listens there (ss -ltn)."
    )
