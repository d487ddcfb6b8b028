"""Who am I: the user name and the time, as the API server sees them (SelfSubjectReview)."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import dataclass

from webop.client.api import Client
from webop.errors import APIServerError, APIStatusError, APITooManyRequestsError

logger = logging.getLogger(__name__)

_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


@dataclass(frozen=True, slots=True)
class SelfReview:
    """The user name, None if it is unknown, and the time of the API server, in whole seconds."""

    username: str | None
    now: dt.datetime


async def review_self(client: Client) -> SelfReview:
    """Ask the API server, which allows that to everybody, since Kubernetes 1.28."""
    try:
        response = await client.request("POST", _PATH, body=_REVIEW)
    except (APIServerError, APITooManyRequestsError):
        raise
    except APIStatusError as exc:
        logger.debug("The API server does not return the name of this account: %s", exc)
        response = {}
    username = ((response.get("status") or {}).get("userInfo") or {}).get("username")
    created = (response.get("metadata") or {}).get("creationTimestamp")
    now = dt.datetime.fromisoformat(created) if created else dt.datetime.now(dt.UTC)
    return SelfReview(username, now.astimezone(dt.UTC))
