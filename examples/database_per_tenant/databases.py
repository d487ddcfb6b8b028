"""What the operator asks of a database server. For PostgreSQL, replace these four functions."""

from __future__ import annotations

import httpx


class DatabaseError(Exception):
    """The server is away, or refuses something."""


class NoDatabaseError(DatabaseError):
    """There is no such database."""


class Databases:
    """The databases of a server."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=10)

    async def create(self, name: str, password: str) -> None:
        """Create a database; if it is there already, change its password."""
        await self._request("PUT", name, {"password": password})

    async def check(self, name: str) -> None:
        """Raise an error if a database does not work."""
        await self._request("GET", name)

    async def archive(self, name: str) -> None:
        """Put a database where nobody uses it any more."""
        await self._request("POST", f"{name}/archive")

    async def drop(self, name: str) -> None:
        """Delete a database with all that is in it."""
        await self._request("DELETE", name)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _request(self, method: str, path: str, body: dict[str, str] | None = None) -> None:
        try:
            answer = await self._http.request(method, f"/databases/{path}", json=body)
        except httpx.HTTPError as exc:
            raise DatabaseError(f"The database server does not answer: {exc!r}") from exc
        if answer.status_code == 404:
            raise NoDatabaseError("There is no such database.")
        if answer.is_error:
            raise DatabaseError(f"The database server refuses it: {answer.text}")
