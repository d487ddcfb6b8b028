"""Credentials for an API server, and the vault that keeps the valid ones.

Login handlers return :class:`ConnectionInfo` values, which come into a :class:`Vault`.
:class:`webop.client.api.Client` takes one for each request, and reports those that the API server
refuses (chapter "Authentication").
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import collections
import contextlib
import dataclasses
import datetime as dt
import hashlib
import os
import random
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from webop.client.auth.urls import AnyPath, build_basic, quote_path, quote_url
from webop.errors import LoginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ADVICE = (
    "Check that a login handler returns credentials which the API server accepts: a kubeconfig "
    "file, a service account, an installed client library (pykube-ng or kubernetes), "
    "or your own @webop.on.login() handler."
)

# How many refused credentials are remembered: more than login handlers can alternate between, but
# not many, because each refused token is an entry.
_REFUSED_LIMIT = 100

_PEM_MARK = b"-----BEGIN"

# Wrong types would fail late, far from the login handler: as a refused token, or worse.
_TEXT = (str, "a string")
_TYPES: dict[str, tuple[type, str]] = {
    "expiration": (dt.datetime, "a datetime"),
    "headers": (tuple, "a tuple of pairs"),
    "insecure": (bool, "True or False"),  # the text "false" would switch verification off
    "password": _TEXT,
    "priority": (int, "a number"),
    "scheme": _TEXT,
    "tls_server_name": _TEXT,
    "token": _TEXT,
    "username": _TEXT,
}


Headers = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class ConnectionInfo:
    """One API server with one set of credentials: what login handlers return.

    ::

        webop.ConnectionInfo(
            server="https://10.0.0.1:6443",
            ca_path="/etc/kubernetes/ca.crt",
            token=token,
        )

    Paths can start with ``~``. Data can be PEM, or base64 of PEM (as in kubeconfig files), as text
    or bytes. After ``expiration``, webop logs in again. Of several credentials, those with the
    highest ``priority`` are used. The repr has no secrets. See docs/howto/authentication.md.

    Raises:
        ValueError: both a path and data are given for the same thing.
        TypeError: a field such as the token or the expiration has a wrong type.
    """

    server: str
    ca_path: AnyPath | None = None
    ca_data: str | bytes | None = dataclasses.field(default=None, repr=False)
    insecure: bool | None = None
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    scheme: str | None = dataclasses.field(default=None, repr=False)  # alone: the whole header
    token: str | None = dataclasses.field(default=None, repr=False)
    certificate_path: AnyPath | None = None
    certificate_data: str | bytes | None = dataclasses.field(default=None, repr=False)
    private_key_path: AnyPath | None = dataclasses.field(default=None, repr=False)
    private_key_data: str | bytes | None = dataclasses.field(default=None, repr=False)
    default_namespace: str | None = None
    priority: int = 0
    expiration: dt.datetime | None = None
    proxy_url: str | None = dataclasses.field(default=None, repr=False)  # can have a password
    trust_env: bool = False
    # Of kubeconfigs; Kopf has neither the name in the certificate nor additional headers.
    tls_server_name: str | None = dataclasses.field(default=None, kw_only=True)
    headers: Headers = dataclasses.field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "private_key"):
            if getattr(self, f"{name}_path") and getattr(self, f"{name}_data"):
                message = f"Both {name}_path and {name}_data are set. Give only one of them."
                raise ValueError(message)
        for name, (type_, words) in _TYPES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, type_):
                # Not the value: it may be a secret.
                message = f"ConnectionInfo.{name} must be {words}, got {type(value).__name__}."
                raise TypeError(message)

    def __repr__(self) -> str:
        shown = {f.name: repr(getattr(self, f.name)) for f in dataclasses.fields(self) if f.repr}
        shown["server"] = quote_url(self.server)  # it may have a password, too
        fields = ", ".join(f"{name}={text}" for name, text in shown.items())
        return f"{type(self).__name__}({fields})"

    @property
    def authorization(self) -> str | None:
        """The value of the ``Authorization`` header (RFC 9110, 11.6.2), or None if there is none.

        A user name with a password is sent as Basic; a token with its scheme, or as Bearer.
        """
        if self.username and self.password:
            return build_basic(self.username, self.password)
        if self.token:
            return f"{self.scheme or 'Bearer'} {self.token}"
        return self.scheme or None

    def as_http_headers(self) -> dict[str, str]:
        """Return the headers for your own client; of several with one name, the last one."""
        value = self.authorization
        return dict(self.headers) | ({"Authorization": value} if value else {})

    def as_aiohttp_basic_auth(self) -> None:
        """Return None: the password is in :meth:`as_http_headers`, as in newer versions of Kopf."""

    def as_ssl_context(self) -> ssl.SSLContext:
        """Build the TLS context, for webop's connections and for your own client.

        Without a CA, the system's CAs are trusted. With ``insecure``, nothing is verified.

        Raises:
            LoginError: a file cannot be read, or a certificate or a key is not usable.
        """
        try:
            ca = _read_pem(self.ca_path, self.ca_data, "the CA certificate")
            # Comments in bundles can have any encoding; the certificates are ASCII.
            text = None if ca is None else ca.decode("ascii", "ignore")
            context = ssl.create_default_context(cadata=text)
            # The CAs of many clusters lack extensions that Python >= 3.13 requires by default.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            _load_client_certificate(context, self)
        except (OSError, ValueError) as exc:  # SSLError is an OSError
            why: object = exc
            if isinstance(exc, OSError) and exc.filename:
                why = f"{quote_path(exc.filename)}: {exc.strerror}"
            message = f"The TLS credentials for {quote_url(self.server)} cannot be used: {why}"
            raise LoginError(message, kind="The TLS credentials cannot be used.") from None
        return context

    @property
    def expires_at(self) -> float:
        """The expiration as a Unix timestamp; infinity if there is none. Naive times are UTC."""
        if self.expiration is None:
            return float("inf")
        if self.expiration.tzinfo is None:
            return self.expiration.replace(tzinfo=dt.UTC).timestamp()
        return self.expiration.timestamp()


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AiohttpSession(ConnectionInfo):
    """One API server with a session of aiohttp, used instead of webop's own connections.

    The session has the credentials and the TLS context. webop closes it when the API server refuses
    the credentials, when they expire, and when the operator ends.
    """

    aiohttp_session: Any  # aiohttp.ClientSession


# Identifies credentials: the API server, or TLS, accepts or refuses all with the same fingerprint.
# The expiration is not a part of it; the contents of files are.
_Fingerprint = tuple[str, object]


class _Entry(NamedTuple):
    info: ConnectionInfo
    fingerprint: _Fingerprint


class Vault:
    """The valid credentials. Requests take them here, and wait here for the next login.

    Flow:
        1. Requests take credentials with :meth:`get`. They count in ``confirmations`` that the API
           server accepts them, and report with :meth:`invalidate` that it refuses them.
        2. When none are left, requests wait, and :meth:`wait_for_emptiness` returns in the task
           that runs the login handlers.
        3. That task calls :meth:`populate`. With new credentials, the requests continue. Without
           new ones, they fail with LoginError, and so does the operator.

    Guarantees:
        - Credentials are chosen at random among those of the highest priority.
        - Expired credentials are never returned. A later login may return the same ones.
        - Refused credentials are not returned again, even if a login handler returns them again,
          unless :meth:`populate` pardons them. If the content of a file changes, its path stands
          for new credentials.
        - No request is sent only to test credentials.

    Args:
        source: credentials by arbitrary keys (usually the ids of login handlers). If some are
            usable, the first login is skipped.

    Attributes:
        refusals: how often credentials were refused.
        confirmations: how often the API server accepted credentials that were new or in doubt.
    """

    def __init__(self, source: Mapping[str, ConnectionInfo] | None = None) -> None:
        self._current: dict[str, _Entry] = {}
        self._candidates: list[ConnectionInfo] = []
        self._refused: collections.deque[_Fingerprint] = collections.deque(maxlen=_REFUSED_LIMIT)
        self._expires_at = float("inf")
        self.refusals = 0
        self.confirmations = 0
        self._refusal = ""  # why the last credentials do not work
        self._lack = ""  # why there are no new credentials
        self._kind = ""  # of either, for probes
        self._advice = _ADVICE
        self._settled = asyncio.Event()
        self._needed = asyncio.Event()
        self._accept(source or {})
        self._settle() if self._current else self._demand()

    def __repr__(self) -> str:
        return f"<Vault: {len(self._current)} valid, {len(self._refused)} refused>"

    def __contains__(self, info: ConnectionInfo) -> bool:
        """Return whether these credentials (by identity) are still valid."""
        for entry in self._current.values():  # noqa: SIM110 - on the hot path
            if entry.info is info:
                return True
        return False

    def is_empty(self) -> bool:
        """Return whether there are no credentials that have not expired."""
        now = time.time()
        return all(entry.info.expires_at <= now for entry in self._current.values())

    def is_usable(self, info: ConnectionInfo) -> bool:
        """Return whether credentials have neither expired nor been refused."""
        return info.expires_at > time.time() and _compute_fingerprint(info) not in self._refused

    @property
    def server(self) -> str | None:
        """The address of the API server, without a password; None before the first login."""
        return quote_url(self._candidates[0].server).strip("'") if self._candidates else None

    @property
    def default_namespace(self) -> str | None:
        """The namespace of the credentials; None if they have none, or before the login."""
        namespaces = (info.default_namespace for info in self._candidates)
        return next((namespace for namespace in namespaces if namespace), None)

    def build_error(self) -> LoginError:
        """Return the error for requests that get no credentials: why, and what to do."""
        parts = ("There are no credentials for the API server.", self._refusal, self._lack)
        text = " ".join(filter(None, (*parts, self._advice)))
        return LoginError(text, kind=self._kind or "There are none.")

    def choose(self) -> ConnectionInfo | None:
        """Return valid credentials; None if there are none now."""
        if time.time() >= self._expires_at:
            self._lack = self._kind = "The last credentials have expired."
            self._drop(lambda entry: entry.info.expires_at <= time.time())
        if len(self._candidates) > 1:
            return random.choice(self._candidates)  # noqa: S311 - not for cryptography
        return self._candidates[0] if self._candidates else None

    async def get(self) -> ConnectionInfo:
        """Return valid credentials; wait for re-authentication if there are none.

        Raises:
            LoginError: the last login returned no new credentials.
        """
        while (info := self.choose()) is None:
            if self._settled.is_set():
                raise self.build_error()
            await self._settled.wait()
        return info

    async def invalidate(
        self, info: ConnectionInfo, *, error: BaseException | None = None
    ) -> ConnectionInfo:
        """Exclude refused credentials (HTTP 401), and return others.

        Many requests can report the same credentials at once: only the first report counts.

        Raises:
            LoginError: none are left, and the login returned no new ones. Its cause is the error of
                the request.
        """
        if error is not None:
            self._explain(error, "The API server refuses them.")
        # A late report about replaced credentials says nothing: their files can have new contents.
        entry = next((entry for entry in self._current.values() if entry.info is info), None)
        if entry is not None:
            if entry.fingerprint not in self._refused:
                self._refused.append(entry.fingerprint)
                self.refusals += 1
            self._drop(lambda each: each.fingerprint == entry.fingerprint)
        try:
            return await self.get()
        except LoginError as exc:
            raise exc from error

    def ask_for_login(self, info: ConnectionInfo, *, error: Exception) -> None:
        """Drop credentials whose CA does not fit the server; the next login reads its file again.

        That login can return the same ones: the reason can be the server.
        """
        self._explain(error, "The certificate of the API server is not trusted.")
        self._drop(lambda entry: entry.info is info)

    async def populate(
        self,
        source: Mapping[str, ConnectionInfo],
        *,
        reason: str = "",
        kind: str = "",
        retries_refused: bool = False,
    ) -> None:
        """Accept the results of login handlers, and let the waiting requests continue or fail.

        Refused and expired credentials are ignored. New credentials replace those with the same
        key.

        Args:
            source: the credentials by keys.
            reason: for error messages: why the login handlers returned no more credentials, and
                what to do.
            kind: the same in a sentence that quotes nothing, for probes.
            retries_refused: whether to accept refused credentials again if there are no others.

        Raises:
            TypeError: a login handler returned something other than a ConnectionInfo.
        """
        self._lack = " ".join(
            filter(None, (reason, self._accept(source, retries_refused=retries_refused)))
        )
        self._advice = "" if reason else _ADVICE
        self._kind = kind or self._kind
        if self._current:
            self._refusal = self._lack = self._kind = ""
        self._settle()

    async def wait_for_emptiness(self) -> None:
        """Wait until a login is necessary; for the task that runs the login handlers."""
        await self._needed.wait()

    def _accept(self, source: Mapping[str, object], *, retries_refused: bool = False) -> str:
        """Accept new credentials; return what is wrong with the others."""
        problems: dict[str, None] = {}
        infos: dict[str, ConnectionInfo] = {}
        for key, info in source.items():
            if not isinstance(info, ConnectionInfo):
                kind = type(info).__name__
                raise TypeError(f"Login handlers must return ConnectionInfo or None, not a {kind}.")
            infos[key] = info
        if retries_refused and not self._current and not any(map(self.is_usable, infos.values())):
            self._refused.clear()
            # Copies, so that late reports from before the pardon do not concern them.
            infos = {key: dataclasses.replace(info) for key, info in infos.items()}
        for key, info in infos.items():
            entry = _Entry(info, _compute_fingerprint(info))
            if info.expires_at <= time.time():
                problems[f"The login returned credentials that expired at {info.expiration}."] = (
                    None
                )
            elif entry.fingerprint in self._refused:
                problems["The login returned only credentials that were refused before."] = None
            # Keep the same object for the same credentials, so that their connections stay open.
            elif self._current.get(key) != entry:
                if info.ca_path or info.certificate_path or info.private_key_path:
                    # A copy: requests can still use this object with the former content.
                    entry = entry._replace(info=dataclasses.replace(info))
                self._current[key] = entry
        self._refresh()
        return " ".join(problems)

    def _explain(self, error: BaseException, kind: str) -> None:
        """Note why the last credentials do not work."""
        self._refusal = f"The last credentials did not work: {str(error).rstrip('.')}."
        self._kind = error.kind if isinstance(error, LoginError) else kind

    def _drop(self, is_dropped: Callable[[_Entry], bool]) -> None:
        kept = {key: entry for key, entry in self._current.items() if not is_dropped(entry)}
        if len(kept) < len(self._current):
            self._current = kept
            self._refresh()
            if not kept:
                self._demand()

    def _refresh(self) -> None:
        infos = [entry.info for entry in self._current.values()]
        top = max((info.priority for info in infos), default=0)
        self._candidates = [info for info in infos if info.priority == top]
        self._expires_at = min((info.expires_at for info in infos), default=float("inf"))

    def _settle(self) -> None:
        self._settled.set()
        self._needed.clear()

    def _demand(self) -> None:
        self._settled.clear()
        self._needed.set()


def _compute_fingerprint(info: ConnectionInfo) -> _Fingerprint:
    parts = (
        (info.server, info.proxy_url, bool(info.insecure), info.authorization),
        (info.tls_server_name, info.headers),
        _get_content(info.ca_path, info.ca_data),
        _get_content(info.certificate_path, info.certificate_data),
        _get_content(info.private_key_path, info.private_key_data),
    )
    session = info.aiohttp_session if isinstance(info, AiohttpSession) else None
    return hashlib.sha256(repr(parts).encode()).hexdigest(), session


def _get_content(path: AnyPath | None, data: str | bytes | None) -> bytes | None:
    try:
        return _read(path, data)
    except OSError:
        return None  # the error is raised when the file is used


def _read(path: AnyPath | None, data: str | bytes | None) -> bytes | None:
    if path:
        return Path(os.fsdecode(path)).expanduser().read_bytes()
    return data.encode() if isinstance(data, str) else data


def _load_client_certificate(context: ssl.SSLContext, info: ConnectionInfo) -> None:
    cert = _read_pem(info.certificate_path, info.certificate_data, "the client certificate")
    key = _read_pem(info.private_key_path, info.private_key_data, "the client's private key")
    if cert is not None:
        if key is None and b"PRIVATE KEY-----" not in cert:
            raise ValueError("there is a client certificate, but no private key")
        from webop.keymaterial import load_key_material  # noqa: PLC0415 - for some, and slow to load

        load_key_material(context, cert, key)
    elif key is not None:
        raise ValueError("there is a private key, but no client certificate")


def _read_pem(path: AnyPath | None, data: str | bytes | None, what: str) -> bytes | None:
    """Return PEM from a path, or from data that can be base64 of it; None if neither is set."""
    content = _read(path, data or None)
    if content is not None and _PEM_MARK not in content:
        with contextlib.suppress(binascii.Error):
            content = base64.b64decode(content, validate=False)
        if _PEM_MARK not in content:
            raise ValueError(f"{what} is neither PEM nor base64 of PEM")
    return content
