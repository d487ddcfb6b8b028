"""A connection to the API server: plain httpx with the credentials that webop finds.

No Kubernetes library is needed for the few requests that a handler makes.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

import webop


class RefusedError(Exception):
    """The API server has answered with an error; the message is its own."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Connection:
    """Requests to the API server: JSON there, JSON back."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""
        return _read(await self._client.get(path))

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create an object in a collection."""
        return _read(await self._client.post(path, json=body))

    async def patch(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Change some fields of an object (RFC 7386, JSON merge patch)."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return _read(await self._client.patch(path, json=patch, headers=headers))


@asynccontextmanager
async def connect() -> AsyncIterator[Connection]:
    """Connect as the service account of the pod, or as the kubeconfig says outside of pods.

    The credentials are read each time, since those of pods change every hour.

    Raises:
        webop.TemporaryError: there are no credentials at the moment.
    """
    info = webop.login_with_service_account() or webop.login_with_kubeconfig()
    if info is None:
        raise webop.TemporaryError("There are no credentials for the API server.", delay=30)
    headers = {"Authorization": info.authorization} if info.authorization else {}
    async with httpx.AsyncClient(
        base_url=info.server, headers=headers, verify=_build_tls(info), trust_env=False, timeout=30
    ) as client:
        yield Connection(client)


def _read(response: httpx.Response) -> dict[str, Any]:
    if response.is_success:
        content: dict[str, Any] = response.json()
        return content
    try:
        message = response.json()["message"]
    except (ValueError, LookupError, TypeError):
        message = response.text  # it comes from a proxy, for example
    raise RefusedError(message, status=response.status_code)


def _build_tls(info: webop.ConnectionInfo) -> ssl.SSLContext:
    """Trust the cluster's authority, and show the client certificate if there is one."""
    ca = _read_pem(info.ca_path, info.ca_data)
    context = ssl.create_default_context(cadata=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # authorities of clusters are often terse
    if info.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate = _read_pem(info.certificate_path, info.certificate_data)
    if certificate is not None:
        key = _read_pem(info.private_key_path, info.private_key_data) or ""
        with tempfile.NamedTemporaryFile("w") as file:  # Python reads keys from files only
            file.write(f"{certificate}\n{key}")
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _read_pem(path: Any, data: str | bytes | None) -> str | None:
    """Return PEM from a file, or from data that are PEM or base64 of PEM, as in kubeconfigs."""
    if path:
        return Path(path).expanduser().read_text()
    text = data.decode() if isinstance(data, bytes) else data
    return text if text is None or "-----BEGIN" in text else base64.b64decode(text).decode()
