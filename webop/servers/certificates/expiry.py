"""The expiry of the certificate that a webhook server uses."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from typing import TYPE_CHECKING

from webop.aio.backoff import Once
from webop.keymaterial import find_certificates

if TYPE_CHECKING:
    from webop.servers.limits import Hosting

logger = logging.getLogger(__name__)

_NEARLY_EXPIRED = 0.1  # of the lifetime


class ExpiryWatch:
    """Reports to the operator when the certificate expires, and warns before that."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._start: dt.datetime | None = None
        self._once = Once()
        #: Of the certificate in use, for the log.
        self.description = ""

    @property
    def has_expired(self) -> bool:
        """Whether the certificate in use has expired; False if that is unknown."""
        end = self._hosting.expiry
        return end is not None and end <= dt.datetime.now(dt.UTC)

    def note(self, cert: bytes) -> None:
        """Record a certificate (in PEM) that is in use from now on."""
        self._start, self._hosting.expiry = None, None
        self._once.forget("state")
        self.description = "its serial number is not known"
        # Unknown without the library, or if only OpenSSL can read the certificate.
        with contextlib.suppress(ImportError, ValueError):
            from webop.servers.certificates.certs import read_certificate  # noqa: PLC0415 - slow

            found = read_certificate(b"\n".join(find_certificates(cert)))
            self._start, self._hosting.expiry = found.start, found.end
            self.description = f"serial number {found.serial}, valid until {found.end}"
        self.check()

    def check(self) -> None:
        """Warn if the certificate expires soon or has expired, once for each of the two."""
        end = self._hosting.expiry
        if end is None or self._start is None:
            return
        left = (end - dt.datetime.now(dt.UTC)) / (end - self._start)
        if left >= _NEARLY_EXPIRED:
            return
        state = "has expired" if left <= 0 else "expires soon"
        if self._once.is_new("state", state):
            logger.warning("The certificate of the webhook server %s: at %s.", state, end)
