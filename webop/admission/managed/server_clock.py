"""The clock of the API server, and the operator's user name there.

Replicas use it to judge by their records (:mod:`webop.admission.managed.replica_records`) who is
alive. The clocks of nodes can differ by more than the lifetime of a record.
"""

from __future__ import annotations

import datetime as dt
import logging
import time

from webop.client.api import Client
from webop.errors import APIServerError, APIStatusError, APITooManyRequestsError

logger = logging.getLogger(__name__)

_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
_SMALL = dt.timedelta(seconds=2)  # the API server reports its time in whole seconds


class ServerClock:
    """The clock of the API server, read by a SelfSubjectReview, which everybody may create.

    Without that (Kubernetes before 1.28, or forbidden), it is the clock of this host.

    Attributes:
        username: the operator's user name, as in the ``userInfo`` of reviews; None if unknown.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._skew = dt.timedelta()
        self._read_at: float | None = None
        self._contact: float | None = None
        self._lenience = dt.timedelta()
        self._lenient_until = 0.0
        self.username: str | None = None

    async def adjust(self, interval: float) -> None:
        """Synchronize with the API server, at most once per ``interval`` (in seconds).

        Raises:
            APIError: the API server is not available.
        """
        if self._read_at is not None and time.monotonic() - self._read_at < interval:
            return
        try:
            response = await self._client.request("POST", _PATH, body=_REVIEW)
        except (APIServerError, APITooManyRequestsError):
            raise
        except APIStatusError as exc:
            logger.debug("Using the clock of this host: %s", exc)
        else:
            self.username = ((response.get("status") or {}).get("userInfo") or {}).get("username")
            if created := (response.get("metadata") or {}).get("creationTimestamp"):
                skew = dt.datetime.fromisoformat(created) - dt.datetime.now(dt.UTC)
                self._skew = skew if abs(skew) > _SMALL else dt.timedelta()
        self._read_at = time.monotonic()

    def now(self) -> dt.datetime:
        """Return the time in UTC, in whole milliseconds."""
        now = dt.datetime.now(dt.UTC) + self._skew
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def note_contact(self, lifetime: float) -> None:
        """Record that the API server has just been read and written."""
        self._measure_outage(lifetime)
        self._contact = time.monotonic()

    def now_for_records(self, lifetime: float) -> dt.datetime:
        """Return the time for judging whether records with such a lifetime are fresh."""
        self._measure_outage(lifetime)
        is_lenient = time.monotonic() < self._lenient_until
        return self.now() - (self._lenience if is_lenient else dt.timedelta())

    def _measure_outage(self, lifetime: float) -> None:
        """Be lenient after an outage of the API server: no record could be renewed meanwhile.

        The time of the outage does not count until all replicas have had time to renew.
        """
        now = time.monotonic()
        outage = 0.0 if self._contact is None else now - self._contact
        if outage > lifetime / 2:
            self._lenience = dt.timedelta(seconds=outage)
            self._lenient_until = now + lifetime
