"""Requests to the database server. For PostgreSQL, replace the four functions of Databases."""

from __future__ import annotations

import httpx


class DatabaseError(Exception):
    """The server did not respond, or refused a request."""


class NoDatabaseError(DatabaseError):
    """The database does not exist."""


class Databases:
    """Manages the databases of a server."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=10)

    async def create(self, name: str, password: str) -> None:
        """Create a database; if it exists, change its password."""
        await self._request("PUT", name, {"password": password})

    async def check(self, name: str) -> None:
        """Raise a :class:`DatabaseError` if a database does not work."""
        await self._request("GET", name)

    async def archive(self, name: str) -> None:
        """Move a database to the archive."""
        await self._request("POST", f"{name}/archive")

    async def drop(self, name: str) -> None:
        """Delete a database with its data."""
        await self._request("DELETE", name)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _request(self, method: str, path: str, body: dict[str, str] | None = None) -> None:
        try:
            response = await self._http.request(method, f"/databases/{path}", json=body)
        except httpx.HTTPError as exc:
            raise DatabaseError(f"The database server did not respond: {exc!r}") from exc
        if response.status_code == 404:
            raise NoDatabaseError("The database does not exist.")
        if response.is_error:
            raise DatabaseError(f"The database server refused the request: {response.text}")
