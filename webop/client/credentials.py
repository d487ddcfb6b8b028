"""What it takes to talk to an API server, and where valid credentials are kept.

Place in the flow: login handlers (run by a higher layer) return :class:`ConnectionInfo` values;
the layer feeds them into a :class:`Vault`; :class:`webop.client.api.Client` takes one for each
request and reports it back when the API server refuses it (chapter "Authentication").

This module is a part of the public interface and imports no HTTP library.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import dataclasses
import datetime as dt
import os
import random
import time
from typing import TYPE_CHECKING

from webop.errors import LoginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_ADVICE = (
    "Check that a login handler returns credentials which the API server accepts: a kubeconfig "
    "file, a service account, an installed client library (pykube-ng or kubernetes), "
    "or your own @webop.on.login() handler."
)

# How many refused credentials are remembered. It has to exceed the number of distinct ones that
# login handlers can alternate between, and to stay small, since each token is one more entry.
_REFUSED_LIMIT = 100


@dataclasses.dataclass(frozen=True)
class ConnectionInfo:
    """One API server with one set of credentials, ready for use (manual: ``ConnectionInfo``).

    It carries the values, not the ways of getting them. Paths may start with ``~``. Data may be
    PEM or base64 of PEM (as in kubeconfig files), text or bytes. Secrets are left out of the repr.

    Raises:
        ValueError: a path and data are both given for the same thing.
    """

    server: str
    ca_path: AnyPath | None = None
    ca_data: str | bytes | None = None
    insecure: bool | None = None
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    scheme: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    certificate_path: AnyPath | None = None
    certificate_data: str | bytes | None = dataclasses.field(default=None, repr=False)
    private_key_path: AnyPath | None = None
    private_key_data: str | bytes | None = dataclasses.field(default=None, repr=False)
    default_namespace: str | None = None
    priority: int = 0
    expiration: dt.datetime | None = None
    proxy_url: str | None = None
    trust_env: bool = False

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "private_key"):
            if getattr(self, f"{name}_path") and getattr(self, f"{name}_data"):
                message = f"Both {name}_path and {name}_data are set. Give only one of them."
                raise ValueError(message)

    @property
    def authorization(self) -> str | None:
        """The value of the ``Authorization`` header (RFC 9110, 11.6.2), or None if there is none.

        A user name with a password is sent as Basic, a token under its scheme or as Bearer.
        """
        if self.username and self.password:
            pair = f"{self.username}:{self.password}".encode()
            return "Basic " + base64.b64encode(pair).decode("ascii")
        if self.token:
            return f"{self.scheme or 'Bearer'} {self.token}"
        return self.scheme or None

    @property
    def expires_at(self) -> float:
        """The expiration as a Unix timestamp; infinity if there is none. Naive times are UTC."""
        if self.expiration is None:
            return float("inf")
        if self.expiration.tzinfo is None:
            return self.expiration.replace(tzinfo=dt.UTC).timestamp()
        return self.expiration.timestamp()


class Vault:
    """The credentials that are valid now, and the meeting point with re-authentication.

    Flow:
        1. API calls take credentials with :meth:`get`, and report a 401 with :meth:`invalidate`.
        2. When nothing is left, API calls wait, and :meth:`wait_for_emptiness` returns in the task
           that runs the login handlers.
        3. That task calls :meth:`populate`: with new credentials, the calls go on; with nothing
           new, they fail with LoginError, and so does the operator.

    Guarantees:
        - Credentials are drawn at random among those of the highest priority.
        - Expired ones are never returned. They are not held against a later login.
        - Refused ones are never returned again, even if a login handler brings them again:
          otherwise, authentication and refusal would go on in circles.

    Args:
        source: credentials by arbitrary keys (usually the ids of login handlers). With some
            usable ones, the first authentication is not needed.
    """

    def __init__(self, source: Mapping[str, ConnectionInfo] | None = None) -> None:
        self._current: dict[str, ConnectionInfo] = {}
        self._candidates: list[ConnectionInfo] = []
        self._refused: collections.deque[ConnectionInfo] = collections.deque(maxlen=_REFUSED_LIMIT)
        self._expires_at = float("inf")
        self._reason = ""
        self._settled = asyncio.Event()
        self._needed = asyncio.Event()
        self._accept(source or {})
        self._settle() if self._current else self._demand()

    def __repr__(self) -> str:
        return f"<Vault: {len(self._current)} valid, {len(self._refused)} refused>"

    def __contains__(self, info: ConnectionInfo) -> bool:
        """Tell whether these very credentials (by identity) may still be used."""
        for current in self._current.values():  # noqa: SIM110 - on the hot path
            if current is info:
                return True
        return False

    def is_empty(self) -> bool:
        """Tell whether there is nothing usable now, expired credentials not counted."""
        now = time.time()
        return all(info.expires_at <= now for info in self._current.values())

    @property
    def default_namespace(self) -> str | None:
        """The namespace that goes with the credentials; None if they have none, or none yet."""
        namespaces = (info.default_namespace for info in self._candidates)
        return next((namespace for namespace in namespaces if namespace), None)

    async def get(self) -> ConnectionInfo:
        """Return valid credentials; wait for re-authentication if there are none.

        Raises:
            LoginError: the last authentication has brought nothing new.
        """
        while True:
            if time.time() >= self._expires_at:
                self._expire()
            if self._candidates:
                # The usual case of the hot path, with nothing to choose from.
                return (
                    self._candidates[0]
                    if len(self._candidates) == 1
                    else random.choice(self._candidates)  # noqa: S311 - not for cryptography
                )
            if self._settled.is_set():
                message = f"There are no valid credentials for the API server. {self._reason}"
                raise LoginError(message + _ADVICE)
            await self._settled.wait()

    async def invalidate(
        self, info: ConnectionInfo, *, error: BaseException | None = None
    ) -> ConnectionInfo:
        """Exclude refused credentials (HTTP 401) for good, and return others to go on with.

        Many requests can report the same credentials at once: only the first one counts.

        Raises:
            LoginError: nothing is left, and re-authentication has brought nothing new;
                its cause is the error of the request.
        """
        if _strip(info) not in self._refused:
            self._refused.append(_strip(info))
        if error is not None:
            self._reason = f"The last ones were not good: {error}. ".replace("..", ".")
        if info in self:
            self._drop(lambda current: current is info)
        try:
            return await self.get()
        except LoginError as exc:
            raise exc from error

    async def populate(self, source: Mapping[str, ConnectionInfo]) -> None:
        """Take the results of login handlers, and let the waiting API calls go on or fail.

        Known refused credentials are ignored. The credentials under the same key are replaced.

        Raises:
            TypeError: a login handler has returned something that is not a ConnectionInfo.
        """
        self._accept(source)
        self._settle()

    async def wait_for_emptiness(self) -> None:
        """Wait until authentication is needed: for the task that runs the login handlers."""
        await self._needed.wait()

    async def wait_for_readiness(self) -> None:
        """Wait until the authentication under way, if any, is over (whatever its result)."""
        await self._settled.wait()

    def _accept(self, source: Mapping[str, object]) -> None:
        for key, info in source.items():
            if not isinstance(info, ConnectionInfo):
                message = f"Login handlers must return ConnectionInfo or None, not {info!r}."
                raise TypeError(message)
            # The same object is kept for the same credentials, so that connections are kept too.
            if _strip(info) not in self._refused and self._current.get(key) != info:
                self._current[key] = info
        self._refresh()

    def _expire(self) -> None:
        now = time.time()
        self._drop(lambda current: current.expires_at <= now)

    def _drop(self, is_dropped: Callable[[ConnectionInfo], bool]) -> None:
        self._current = {k: info for k, info in self._current.items() if not is_dropped(info)}
        self._refresh()
        if not self._current:
            self._demand()

    def _refresh(self) -> None:
        infos = self._current.values()
        top = max((info.priority for info in infos), default=0)
        self._candidates = [info for info in infos if info.priority == top]
        self._expires_at = min((info.expires_at for info in infos), default=float("inf"))

    def _settle(self) -> None:
        self._settled.set()
        self._needed.clear()

    def _demand(self) -> None:
        self._settled.clear()
        self._needed.set()


def _strip(info: ConnectionInfo) -> ConnectionInfo:
    """Reduce to what the API server judges: a later expiration makes no refused token better."""
    return dataclasses.replace(info, priority=0, expiration=None, default_namespace=None)
