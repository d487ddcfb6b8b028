"""The expiration of tokens and certificates, and when to fetch the next ones.

So rotated credentials are replaced before a request is refused. Nothing is verified here: the API
server decides what is valid, and what cannot be parsed has no known expiration.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import time
from typing import Any, NamedTuple, TypeGuard

from webop.errors import LoginError

# Credentials are rotated long before they expire (the kubelet replaces the token of a service
# account at 80 % of its lifetime), so that what is read this late is already the next one.
_MARGIN_SHARE = 0.1
_MARGIN_LIMIT = 60.0  # seconds

_LATEST = 253_402_300_800.0  # the year 10000, in Unix time

_PEM_MARK = b"-----BEGIN CERTIFICATE-----"


class Lifetime(NamedTuple):
    """The time in which credentials are valid, in Unix time.

    ``renewal`` is the time until which their issuer wants them to be replaced, if it sets one.
    """

    begin: float
    end: float
    renewal: float | None = None

    def choose_expiration(self, now: float) -> dt.datetime | None:
        """Return when to fetch the next credentials: some time before these expire.

        Credentials that were not replaced in time are used until they expire. After that there is
        no expiration (None), because the clock of the API server decides.
        """
        margin = min(_MARGIN_LIMIT, max(0.0, self.end - self.begin) * _MARGIN_SHARE)
        ends = [self.end] if self.renewal is None else [self.renewal, self.end]
        moments = [moment for end in sorted(ends) for moment in (end - margin, end)]
        useful = (moment for moment in moments if moment > now and moment <= self.end)
        moment = next(useful, None)
        return None if moment is None else dt.datetime.fromtimestamp(moment, dt.UTC)


def parse_token_lifetime(token: str | None) -> Lifetime | None:
    """Read the lifetime of a JSON Web Token (RFC 7519, 4.1); None for tokens of other kinds.

    Tokens of service accounts can be valid for a year, for old clients, and contain the time when
    they should be replaced (``warnafter``; Kubernetes: "Managing Service Accounts").
    """
    parts = (token or "").split(".")
    if len(parts) != 3:
        return None
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=="))
    except ValueError:
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    if not _is_moment(end):
        return None
    begin = claims.get("iat")
    kubernetes = claims.get("kubernetes.io")
    renewal = kubernetes.get("warnafter") if isinstance(kubernetes, dict) else None
    return Lifetime(
        begin=begin if _is_moment(begin) else end,
        end=end,
        renewal=renewal if _is_moment(renewal) else None,
    )


def _is_moment(value: object) -> TypeGuard[float]:
    """Return whether it is a Unix time in the range of Python's calendar."""
    return isinstance(value, int | float) and 0 <= value < _LATEST


def parse_certificate_lifetime(pem: bytes) -> Lifetime | None:
    """Read the validity of the first certificate in PEM (RFC 5280, 4.1.2.5); None if it fails."""
    if _PEM_MARK not in pem:
        return None
    from cryptography import x509  # noqa: PLC0415 - slow to load, and not for tokens

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except ValueError:
        return None
    return Lifetime(begin.timestamp(), end.timestamp())


def parse_moment(text: object) -> dt.datetime:
    """Parse a time as Kubernetes writes it (RFC 3339); raise ValueError for anything else."""
    if not isinstance(text, str) or "T" not in text:
        raise ValueError(f"{text!r} is not a time such as 2030-12-31T23:59:59Z")
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def detect_expiration(token: str | None, pem: bytes = b"", owner: str = "") -> dt.datetime | None:
    """Return when to fetch the next credentials; None if these have no known expiration.

    Raises:
        LoginError: the client certificate has expired.
    """
    now = time.time()
    certificate = parse_certificate_lifetime(pem)
    if certificate is not None and certificate.end <= now:
        end = dt.datetime.fromtimestamp(certificate.end, dt.UTC)
        raise LoginError(
            f"The client certificate of {owner} expired at {end:%Y-%m-%d %H:%M:%S} UTC. "
            f"Renew it, or check the clock of this machine.",
            kind="The client certificate has expired.",
        )
    lifetimes = (parse_token_lifetime(token), certificate)
    moments = (each.choose_expiration(now) for each in lifetimes if each is not None)
    return min(filter(None, moments), default=None)
