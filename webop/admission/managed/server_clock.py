"""The time that replicas agree on, and who they are, both by the word of the API server.

Replicas see from their records (:mod:`webop.admission.managed.replica_records`) whether the others
are alive. The clocks of nodes differ, sometimes by more than the lifetime of a record; the API
server has only one.
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
_SMALL = dt.timedelta(seconds=2)  # the API server tells its time in whole seconds


class ServerClock:
    """The clock of the API server, read by a SelfSubjectReview, which everybody may create.

    Without it (Kubernetes before 1.28, or not permitted), it is the clock of this host.

    Attributes:
        username: the operator's own account, as reviews have it in their ``userInfo``.
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
        """Set it by the API server, unless that was done less than so many seconds ago.

        Raises:
            APIError: the API server is not available.
        """
        if self._read_at is not None and time.monotonic() - self._read_at < interval:
            return
        try:
            answer = await self._client.request("POST", _PATH, body=_REVIEW)
        except (APIServerError, APITooManyRequestsError):
            raise
        except APIStatusError as exc:
            logger.debug("The clock of this host is used: %s", exc)
        else:
            self.username = ((answer.get("status") or {}).get("userInfo") or {}).get("username")
            if told := (answer.get("metadata") or {}).get("creationTimestamp"):
                skew = dt.datetime.fromisoformat(told) - dt.datetime.now(dt.UTC)
                self._skew = skew if abs(skew) > _SMALL else dt.timedelta()
        self._read_at = time.monotonic()

    def tell(self) -> dt.datetime:
        """Return the time in UTC, in whole milliseconds."""
        now = dt.datetime.now(dt.UTC) + self._skew
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def note_contact(self, lifetime: float) -> None:
        """Take note that all could be read and written right now."""
        self._measure_outage(lifetime)
        self._contact = time.monotonic()

    def judge(self, lifetime: float) -> dt.datetime:
        """Return the time to judge the marks of others by, which have such a lifetime."""
        self._measure_outage(lifetime)
        is_lenient = time.monotonic() < self._lenient_until
        return self.tell() - (self._lenience if is_lenient else dt.timedelta())

    def _measure_outage(self, lifetime: float) -> None:
        """Be lenient after an outage of the API server: no mark could be renewed meanwhile.

        Its time does not count until all replicas had a chance to come back.
        """
        now = time.monotonic()
        outage = 0.0 if self._contact is None else now - self._contact
        if outage > lifetime / 2:
            self._lenience = dt.timedelta(seconds=outage)
            self._lenient_until = now + lifetime
